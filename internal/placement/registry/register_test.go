package registry_test

import (
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/placementtest"
)

// TestRegisterShard runs on an in-memory etcd, like the other tests of this package, and also on a real etcd, to make
// sure that both behave in the same way.
func TestRegisterShard(t *testing.T) {
	placementtest.Register(t, func(t *testing.T) placementtest.Registry { return newStore(t, onEtcd(t)) })
}

func TestRegisterShardInMemory(t *testing.T) {
	placementtest.Register(t, func(t *testing.T) placementtest.Registry {
		return newStore(t, memetcdtest.New(t).Client(t))
	})
}

// If etcd was rolled back, it records an earlier step than the volume. That is not the fault of the volume, so the
// shard may serve it. If the volume was rolled back even further than etcd, this must still be detected.
func TestAVolumeIsNotRefusedByAnEtcdThatWasSetBack(t *testing.T) {
	step := func(n uint64) placement.Step { return placement.Step{Number: n, Nonce: uuid.UUID{byte(n)}} }
	volume := uuid.New()
	for _, c := range []struct {
		// These are the step and the generation that etcd has registered.
		registered, generation uint64
		// here is the volume's current step, and known is the registered step that the volume knows of. The volume's
		// generation is always 9.
		here, known uint64
		want        error
	}{
		{20, 8, 21, 20, nil},
		{15, 7, 21, 20, nil}, // etcd was rolled back
		{1, 1, 21, 20, nil},
		{0, 0, 21, 20, nil}, // etcd was rolled back to a time before steps were introduced
		{15, 7, 14, 13, placement.ErrRolledBack},
		{15, 7, 16, 15, nil},
		{15, 7, 16, 14, placement.ErrRolledBack}, // another process has registered the volume in the meantime
		{15, 9, 21, 20, placement.ErrRolledBack},
	} {
		err := placement.MayFollow(placement.VolumeRecord{Volume: volume, Generation: c.generation, Step: step(c.registered),
			Boot: uuid.New()},
			placement.Shard{Name: "a", VolumeUUID: volume, Generation: 9, Boot: uuid.New(), Step: step(c.here),
				Registered: step(c.known)})
		if !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// When a lease has expired, the shard registers again and reports the current step of its volume. This must also work
// if etcd was rolled back and now records an earlier step, as long as that is not earlier than the one at the shard's
// start.
func TestARepeatedRegistrationReportsTheLastStep(t *testing.T) {
	synctest.Test(t, aRepeatedRegistrationReportsTheLastStep)
}

func aRepeatedRegistrationReportsTheLastStep(t *testing.T) {
	ctx := testContext(t)
	client := memetcdtest.New(t).Client(t)
	store := newStore(t, client)
	disk := placementtest.NewDisk()
	p, err := placementtest.Start(ctx, store, &disk, "a", "127.0.0.1:1")
	must.OK(t, err)
	var steps []placement.Step
	for range 4 {
		must.OK(t, p.Write(ctx))
		steps = append(steps, disk.Step)
	}
	key := registry.PrefixDefault + "/" + store.Name() + "/shards/a"
	volumeKey := registry.PrefixDefault + "/" + store.Name() + "/volumes/" + disk.Volume.String()
	lease := func() int64 {
		answer, err := client.Get(ctx, key)
		must.OK(t, err)
		if len(answer.Kvs) == 0 {
			return 0
		}
		return answer.Kvs[0].Lease
	}
	before := lease()
	old, err := json.Marshal(placement.VolumeRecord{Volume: disk.Volume, Generation: disk.Generation - 1, Step: steps[1],
		Boot: uuid.New(), Shard: "a"})
	must.OK(t, err)
	if _, err := client.Put(ctx, volumeKey, string(old)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Revoke(ctx, clientv3.LeaseID(before)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatal(err)
	}
	for now := lease(); now == 0 || now == before; now = lease() {
		if ctx.Err() != nil {
			t.Fatal("it does not register again")
		}
		time.Sleep(10 * time.Millisecond)
	}
	answer, err := client.Get(ctx, volumeKey)
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("%v, %v", answer, err)
	}
	var seen placement.VolumeRecord
	if err := json.Unmarshal(answer.Kvs[0].Value, &seen); err != nil || seen.Step != disk.Step ||
		seen.Generation != disk.Generation {
		t.Errorf("etcd holds %+v, the volume is in step %+v, %v", seen, disk.Step, err)
	}
}

// When etcd is rebuilt from the volumes, it learns the step of each volume. From then on, a volume that is rolled
// back is detected. If a shard reports a later step to etcd during the rebuild, that step is kept, although the
// shard's earlier response contained an older one.
func TestARebuiltEtcdKnowsTheStepsOfVolumes(t *testing.T) {
	synctest.Test(t, aRebuiltEtcdKnowsTheStepsOfVolumes)
}

func aRebuiltEtcdKnowsTheStepsOfVolumes(t *testing.T) {
	ctx := testContext(t)
	client := memetcdtest.New(t).Client(t)
	store := newStore(t, client)
	mustStart := func(d *placementtest.Disk, name string, want error) *placementtest.Process {
		t.Helper()
		p, err := placementtest.Start(ctx, store, d, name, "127.0.0.1:1")
		if !errors.Is(err, want) {
			t.Fatalf("shard %s on %+v: %v, want %v", name, *d, err, want)
		}
		return p
	}
	write := func(p *placementtest.Process) {
		t.Helper()
		must.OK(t, p.Write(ctx))
	}
	stopped, running := placementtest.NewDisk(), placementtest.NewDisk()
	stopped.Open(placement.Step{})
	image := stopped
	stopped.Open(image.Step)
	p := mustStart(&running, "b", nil)
	for range 3 {
		write(p)
	}
	id := uuid.New()
	meta := rescue.FoundFacts{Routing: placement.Routing{Mode: placement.Named}, Copies: 1}
	var volumes []rescue.FoundVolume
	for name, d := range map[string]placementtest.Disk{"a": stopped, "b": running} {
		volumes = append(volumes, rescue.FoundVolume{
			Shard: name, Address: "127.0.0.1:1", UUID: d.Volume, Store: id, Facts: &meta, Generation: d.Generation, Step: d.Step,
		})
	}
	imageOfRunning := running
	forget := func() {
		t.Helper()
		if _, err := client.Delete(ctx, registry.PrefixDefault+"/"+store.Name()+"/volumes/",
			clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	rebuilt, err := rescue.Rebuild(id, volumes, nil)
	must.OK(t, err)
	must.OK(t, store.Restore(ctx, rebuilt, false))
	// The shard must be able to continue with the step that it reported, and with later ones.
	for range 3 {
		if err := p.Again(ctx); err != nil {
			t.Fatalf("the shard that ran all the time cannot register again: %v", err)
		}
		write(p)
		write(p)
		forget()
		must.OK(t, store.Restore(ctx, rebuilt, true))
	}
	write(p)
	mustStart(&image, "a", placement.ErrRolledBack)
	mustStart(&stopped, "a", nil)
	if _, err := store.MayRegister(ctx, placement.Shard{
		Name: "c", Address: "127.0.0.1:1", VolumeUUID: running.Volume, Generation: imageOfRunning.Generation + 1,
		Step:       imageOfRunning.Step,
		Registered: imageOfRunning.Registered,
	}); !errors.Is(err, placement.ErrRolledBack) {
		t.Errorf("an image from when the shard was asked: %v", err)
	}
}

// A process that runs on a copy of a live shard's volume has a later generation than that shard, just as a restarted
// shard has. RegisterShard must refuse the process nevertheless.
func TestRegisterShardRefusesACopyOfALiveVolume(t *testing.T) {
	synctest.Test(t, registerShardRefusesACopyOfALiveVolume)
}

func registerShardRefusesACopyOfALiveVolume(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, memetcdtest.New(t).Client(t))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer listener.Close()
	first := shard("a")
	first.Address = listener.Addr().String()
	stop, err := store.RegisterShard(ctx, first)
	must.OK(t, err)
	defer stop()
	clone := first
	clone.Generation, clone.Address = 2, "127.0.0.1:2"
	// MayRegister must refuse the copy, too. A shard calls it before it raises the generation of its volume, because its
	// folder may be a copy, or the lock on the folder may have been removed.
	if _, err := store.MayRegister(ctx, clone); !errors.Is(err, placement.ErrNameTaken) {
		t.Fatalf("a copy of a live volume may be registered: error %v", err)
	}
	if _, err := store.RegisterShard(ctx, clone); !errors.Is(err, placement.ErrNameTaken) ||
		!strings.Contains(err.Error(), "copy") {
		t.Fatalf("a copy of a live volume: error %v", err)
	}
	stop()
	stopClone, err := store.RegisterShard(ctx, clone) // the address now belongs to another process
	if err != nil {
		t.Fatalf("the shard has stopped: %v", err)
	}
	stopClone()
}

// If a shard's lease expires and another process registers in its place, the shard gets an error. If nobody has taken
// its place, the shard registers again.
func TestAShardInWhosePlaceAnotherRegisteredIsInformed(t *testing.T) {
	synctest.Test(t, aShardInWhosePlaceAnotherRegisteredIsInformed)
}

func aShardInWhosePlaceAnotherRegisteredIsInformed(t *testing.T) {
	ctx := testContext(t)
	client := memetcdtest.New(t).Client(t)
	store := newStore(t, client)
	first := shard("a")
	told := make(chan error, 1)
	stop, err := store.RegisterShard(ctx, first, func(err error) { told <- err })
	must.OK(t, err)
	defer stop()
	key := registry.PrefixDefault + "/" + store.Name() + "/shards/a"
	registered := func() *mvccpb.KeyValue {
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			answer, err := client.Get(ctx, key)
			must.OK(t, err)
			if len(answer.Kvs) > 0 {
				return answer.Kvs[0]
			}
		}
		t.Fatal("it does not register")
		return nil
	}
	// The lease is revoked, which has the same effect as its expiry. The shard must register again.
	before := registered()
	revoke := func(lease int64) {
		if _, err := client.Revoke(ctx, clientv3.LeaseID(lease)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
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
	// Another process with the same name takes over the key, which is possible once the key is gone. After that, the
	// lease expires.
	twin := first
	twin.Generation, twin.Address = 2, "127.0.0.1:2"
	value, err := json.Marshal(twin)
	must.OK(t, err)
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

// A volume may be registered under only one name at a time.
func TestRegisterShardRefusesAVolumeThatIsLiveUnderAnotherName(t *testing.T) {
	synctest.Test(t, registerShardRefusesAVolumeThatIsLiveUnderAnotherName)
}

func registerShardRefusesAVolumeThatIsLiveUnderAnotherName(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, memetcdtest.New(t).Client(t))
	a := shard("a")
	stop, err := store.RegisterShard(ctx, a)
	must.OK(t, err)
	defer stop()
	b := shard("b")
	b.VolumeUUID, b.Generation = a.VolumeUUID, 2
	if _, err := store.RegisterShard(ctx, b); !errors.Is(err, placement.ErrNameTaken) {
		t.Fatalf("the volume of a live shard under another name: error %v", err)
	}
	stop()
	// Shard a is registered with a new disk, so its old volume is free.
	stopNew, err := store.RegisterShard(ctx, shard("a"))
	must.OK(t, err)
	defer stopNew()
	stopB, err := store.RegisterShard(ctx, b)
	if err != nil {
		t.Fatalf("the volume of a shard that has another one now: %v", err)
	}
	defer stopB()
	// The old shard a tries to use its old volume again, but that volume is now in use by shard b.
	a.Generation = 3
	stopNew()
	if _, err := store.RegisterShard(ctx, a); !errors.Is(err, placement.ErrNameTaken) {
		t.Fatalf("the volume is live as b: error %v", err)
	}
}

func TestAnOlderLeaderDoesNotWriteAGroup(t *testing.T) {
	synctest.Test(t, anOlderLeaderDoesNotWriteAGroup)
}

func anOlderLeaderDoesNotWriteAGroup(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, memetcdtest.New(t).Client(t))
	g := placement.NewGroup(placement.Routing{Mode: placement.Named}, "g", 0)
	if _, err := store.PutGroupAsLeader(ctx, g); !errors.Is(err, placement.ErrNoGroup) {
		t.Fatalf("a group that is not there: error %v", err)
	}
	g, err := store.PutGroup(ctx, g)
	must.OK(t, err)
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
	put(4, 9, placement.ErrStaleLeader) // this leader has not applied all membership changes yet
	put(4, 11, nil)
	late := g
	// Another write to the group, such as a report, comes before that of the leader.
	if g, err = store.PutGroup(ctx, g); err != nil {
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
