package placement_test

import (
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/etcd/etcdtest"
	"sheaf.dev/sheaf/internal/placement"
)

// A volume that was set back does not register any more, also long after the later generation has gone.
func TestRegisterShardRefusesAVolumeThatWasRolledBack(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, connect(t, etcdtest.Shared(t)))
	me := shard("a")
	me.Generation = 7
	try := func(generation uint64, address string, want error) {
		t.Helper()
		s := me
		s.Generation, s.Address = generation, address
		if err := store.MayRegister(ctx, s); !errors.Is(err, want) {
			t.Fatalf("generation %d at %s: before: error %v, want %v", generation, address, err, want)
		}
		stop, err := store.RegisterShard(ctx, s)
		if !errors.Is(err, want) {
			t.Fatalf("generation %d at %s: error %v, want %v", generation, address, err, want)
		}
		if err == nil {
			stop()
		}
	}
	try(7, "127.0.0.1:1", nil)
	try(7, "127.0.0.1:1", nil) // the same process
	try(7, "127.0.0.1:2", placement.ErrRolledBack)
	try(6, "127.0.0.1:1", placement.ErrRolledBack)
	try(9, "127.0.0.1:2", nil)
	try(8, "127.0.0.1:2", placement.ErrRolledBack)
	try(10, "127.0.0.1:1", nil)
}

// Whoever starts on a copy of a live shard's volume has a later generation than that shard, as a restart has.
func TestRegisterShardRefusesACopyOfALiveVolume(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	store := newStore(t, connect(t, etcdtest.Shared(t)))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	first := shard("a")
	first.Address = listener.Addr().String()
	stop, err := store.RegisterShard(ctx, first)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	clone := first
	clone.Generation, clone.Address = 2, "127.0.0.1:2"
	if _, err := store.RegisterShard(ctx, clone); !errors.Is(err, placement.ErrNameTaken) || !strings.Contains(err.Error(), "copy") {
		t.Fatalf("a copy of a live volume: error %v", err)
	}
	stop()
	stopClone, err := store.RegisterShard(ctx, clone) // the listener is somebody else's now
	if err != nil {
		t.Fatalf("the shard has stopped: %v", err)
	}
	stopClone()
}

// A shard whose lease ran out, and in whose place another has registered meanwhile, is told so; one that etcd merely forgot is not.
func TestAShardInWhosePlaceAnotherRegisteredIsTold(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	client := connect(t, etcdtest.Shared(t))
	store := newStore(t, client)
	first := shard("a")
	told := make(chan error, 1)
	stop, err := store.RegisterShard(ctx, first, func(err error) { told <- err })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	key := placement.PrefixDefault + "/" + store.Name() + "/shards/a"
	registered := func() *mvccpb.KeyValue {
		for ctx.Err() == nil {
			answer, err := client.Get(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			if len(answer.Kvs) > 0 {
				return answer.Kvs[0]
			}
		}
		t.Fatal("it does not register")
		return nil
	}
	// The lease runs out: it registers again.
	before := registered()
	revoke := func(lease int64) {
		if _, err := client.Revoke(ctx, clientv3.LeaseID(lease)); err != nil {
			t.Fatal(err)
		}
	}
	revoke(before.Lease)
	again := registered()
	if again.Lease == before.Lease {
		t.Fatal("nothing happened")
	}
	select {
	case err := <-told:
		t.Fatalf("it was told %v", err)
	default:
	}
	// A twin takes the key, as it may when that is gone, and the lease runs out.
	twin := first
	twin.Generation, twin.Address = 2, "127.0.0.1:2"
	value, err := json.Marshal(twin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, key, string(value)); err != nil {
		t.Fatal(err)
	}
	revoke(again.Lease)
	select {
	case err := <-told:
		if !errors.Is(err, placement.ErrNameTaken) || !strings.Contains(err.Error(), "generation 2") {
			t.Errorf("it was told %v", err)
		}
	case <-ctx.Done():
		t.Fatal("it was not told")
	}
}

// A volume has one name at a time.
func TestRegisterShardRefusesAVolumeThatIsLiveUnderAnotherName(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, connect(t, etcdtest.Shared(t)))
	a := shard("a")
	stop, err := store.RegisterShard(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	b := shard("b")
	b.VolumeUUID, b.Generation = a.VolumeUUID, 2
	if _, err := store.RegisterShard(ctx, b); !errors.Is(err, placement.ErrNameTaken) {
		t.Fatalf("the volume of a live shard under another name: error %v", err)
	}
	stop()
	stopNew, err := store.RegisterShard(ctx, shard("a")) // a has another disk now
	if err != nil {
		t.Fatal(err)
	}
	defer stopNew()
	stopB, err := store.RegisterShard(ctx, b)
	if err != nil {
		t.Fatalf("the volume of a shard that has another one now: %v", err)
	}
	defer stopB()
	a.Generation = 3 // the first shard would take its disk back, but that is live
	stopNew()
	if _, err := store.RegisterShard(ctx, a); !errors.Is(err, placement.ErrNameTaken) {
		t.Fatalf("the volume is live as b: error %v", err)
	}
}

func TestAnOlderLeaderDoesNotWriteAGroup(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, connect(t, etcdtest.Shared(t)))
	g := placement.NewGroup(placement.Routing{Mode: placement.Named}, "g", 0)
	if _, err := store.PutGroupAsLeader(ctx, g); !errors.Is(err, placement.ErrNoGroup) {
		t.Fatalf("a group that is not there: error %v", err)
	}
	g, err := store.PutGroup(ctx, g)
	if err != nil {
		t.Fatal(err)
	}
	put := func(term, conf uint64, want error) {
		t.Helper()
		next := g
		next.Term, next.ConfIndex = term, conf
		next.Members = []placement.Member{{Shard: "a", VolumeUUID: uuid.New(), RaftID: 5, Role: placement.Learner}}
		written, err := store.PutGroupAsLeader(ctx, next)
		if !errors.Is(err, want) {
			t.Fatalf("term %d, membership %d: error %v, want %v", term, conf, err, want)
		}
		if err == nil {
			g = written
		}
	}
	put(3, 10, nil)
	put(3, 10, nil)
	put(3, 9, placement.ErrStaleLeader)
	put(2, 12, placement.ErrStaleLeader)
	put(4, 9, placement.ErrStaleLeader) // it leads, and has not applied everything yet
	put(4, 11, nil)
	late := g
	if g, err = store.PutGroup(ctx, g); err != nil { // a report comes between
		t.Fatal(err)
	}
	late.Term = 9
	if _, err := store.PutGroupAsLeader(ctx, late); !errors.Is(err, placement.ErrChanged) {
		t.Fatalf("a group that was changed since: error %v", err)
	}
	other := g
	other.UUID = uuid.New()
	if _, err := store.PutGroupAsLeader(ctx, other); err == nil {
		t.Fatal("another group of the same name was written")
	}
	read, err := store.Group(ctx, "g")
	if err != nil || read.Term != 4 || read.ConfIndex != 11 || read.Members[0].Role != placement.Learner {
		t.Fatalf("%+v, %v", read, err)
	}
}
