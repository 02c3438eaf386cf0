package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

var restoredAt = time.Date(2026, 11, 1, 12, 0, 0, 5, time.UTC)

// restoreMeta returns the meta of a store whose groups are to be listed.
func restoreMeta(groups int) placement.Meta {
	meta := hashMeta(groups)
	meta.Restore = &placement.Restore{Source: "source:7640", Listing: true}
	return meta
}

// listed returns the groups of a restore, as the source of meta's store lists them.
func listed(meta placement.Meta) []placement.Group {
	groups := make([]placement.Group, 0, meta.Routing.Groups)
	for n := range meta.Routing.Groups {
		g := placement.NewGroup(meta.Routing, placement.GroupName(n), n)
		g.UUID, g.Restoring = uuid.NewSHA1(meta.StoreUUID, []byte(g.Name)), true
		groups = append(groups, g)
	}
	return groups
}

// While the groups are listed, no planner creates or places a group. Then each group waits, and has a target.
func TestGroupsOfARestoreAreListedBeforeTheyArePlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, meta := testContext(t), restoreMeta(120)
		_, store := madeStore(t, ctx, meta)
		register(t, store, "a")
		plan := func() placement.Planned {
			t.Helper()
			did, err := store.PlanOnce(ctx, meta.StoreUUID, meta.Policy())
			must.OK(t, err)
			return did
		}
		if did := plan(); did.Writes() != 0 {
			t.Errorf("before the list is written: %+v", did)
		}
		groups := listed(meta)
		must.OK(t, store.AddRestoring(ctx, meta.StoreUUID, restoredAt, groups))
		must.OK(t, store.AddRestoring(ctx, meta.StoreUUID, restoredAt.Local(), nil)) // the listing has ended
		if did := plan(); did.GroupsCreated != 0 || did.TargetsWritten != 120 {
			t.Errorf("after the list was written: %d groups, %d targets", did.GroupsCreated, did.TargetsWritten)
		}
		view, err := store.ViewOf(ctx, meta.StoreUUID)
		must.OK(t, err)
		const at = "2026-11-01T12:00:00.000000005Z"
		if r := view.Meta.Restore; r == nil || r.Listing || r.At != at || len(view.Groups) != 120 {
			t.Errorf("%+v, %d groups", r, len(view.Groups))
		}
		for _, g := range groups {
			there := view.Groups[g.Name]
			if !there.Restoring || there.UUID != g.UUID || there.KeyFirst != g.KeyFirst || there.KeyLast != g.KeyLast ||
				len(there.Members) > 0 {
				t.Errorf("%+v, listed as %+v", there, g)
			}
		}
	})
}

// A group whose key was lost is not created empty in a store that was restored, and the view says so.
func TestALostGroupOfARestoreIsNotCreatedEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, meta := testContext(t), restoreMeta(3)
		server := memetcdtest.New(t)
		client := server.Client(t)
		store := newStore(t, client)
		mustInit(t, ctx, store, meta)
		register(t, store, "a")
		must.OK(t, store.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta)))
		_, err := client.Delete(ctx, registry.PrefixDefault+"/"+store.Name()+"/groups/1")
		must.OK(t, err)
		planning, end := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- registry.RunPlanner(planning, store, meta.Policy(), slog.New(slog.DiscardHandler)) }()
		view := await(t, ctx, store.Watch(ctx), "the other groups are placed", func(v placement.View) bool {
			return len(v.Targets) == 2
		})
		end()
		must.OK(t, <-done)
		if did, err := store.PlanOnce(ctx, meta.StoreUUID, meta.Policy()); err != nil || did.GroupsCreated != 0 {
			t.Errorf("%+v, %v", did, err)
		}
		if lost := view.Problems(); len(lost) != 1 || !strings.Contains(lost[0], "such as 1: ") {
			t.Errorf("%q", lost)
		}
	})
}

// hook runs a function before a certain transaction of etcd.
func hook(server *memetcdtest.Server, before func(n int, request *etcdserverpb.TxnRequest) error) {
	var mu sync.Mutex
	n := 0
	server.Intercept(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
		if txn, ok := request.(*etcdserverpb.TxnRequest); ok {
			mu.Lock()
			n++
			now := n
			mu.Unlock()
			if err := before(now, txn); err != nil {
				return nil, err
			}
		}
		return do(ctx, request)
	})
}

// A gateway is killed before each of its writes in turn, and another one continues. No group is placed before all are
// listed.
func TestAListingThatIsCutContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for at := 1; ; at++ {
			ctx, meta := testContext(t), restoreMeta(130)
			server, store := madeStore(t, ctx, meta)
			dying, kill := context.WithCancelCause(ctx)
			errKilled, seen := errors.New("killed"), 0
			hook(server, func(n int, _ *etcdserverpb.TxnRequest) error {
				if seen = n; n == at {
					kill(errKilled)
					return errKilled
				}
				return nil
			})
			err := store.AddRestoring(dying, meta.StoreUUID, restoredAt, listed(meta))
			server.Intercept(nil)
			if seen < at {
				must.OK(t, err)
				if at < 6 { // meta, three times groups, meta
					t.Errorf("%d transactions were cut", at)
				}
				return
			}
			if view, viewErr := store.View(ctx); err == nil || viewErr != nil || !view.Meta.Listing() {
				t.Fatalf("cut at %d: %v, %v, %+v", at, err, viewErr, view.Meta.Restore)
			}
			must.OK(t, store.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta)))
			if view, err := store.View(ctx); err != nil || view.Meta.Listing() || len(view.Groups) != 130 {
				t.Fatalf("cut at %d, then continued: %v, %+v, %d groups", at, err, view.Meta.Restore, len(view.Groups))
			}
		}
	})
}

// A listing that was cut goes on where it ended: the groups whose keys exist are not written again.
func TestAListingContinuesWhereItWasCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, meta := testContext(t), restoreMeta(130)
		server, store := madeStore(t, ctx, meta)
		var writes int
		cutAt := 4 // after meta and two of the three parts
		hook(server, func(_ int, _ *etcdserverpb.TxnRequest) error {
			if writes++; writes == cutAt {
				return errors.New("cut")
			}
			return nil
		})
		if err := store.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta)); err == nil || writes != cutAt {
			t.Fatalf("after %d writes: %v", writes, err)
		}
		writes, cutAt = 0, 0
		must.OK(t, store.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta)))
		if writes != 2 { // the third part, and meta
			t.Errorf("%d writes", writes)
		}
		if view, err := store.View(ctx); err != nil || view.Meta.Listing() || len(view.Groups) != 130 {
			t.Errorf("%v, %d groups", err, len(view.Groups))
		}
	})
}

// Two gateways list at the same time.
func TestTwoGatewaysListTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, meta := testContext(t), restoreMeta(200)
		server := memetcdtest.New(t)
		client := server.Client(t)
		store := newStore(t, client)
		mustInit(t, ctx, store, meta)
		var all sync.WaitGroup
		for range 3 {
			one := sameStore(t, client, store)
			all.Go(func() {
				for {
					err := one.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta))
					if err == nil {
						return
					}
					if !errors.Is(err, placement.ErrChanged) {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		all.Wait()
		if view, err := store.View(ctx); err != nil || view.Meta.Listing() || len(view.Groups) != 200 {
			t.Errorf("%v, %+v, %d groups", err, view.Meta.Restore, len(view.Groups))
		}
	})
}

// etcd is set back before each transaction in turn, to a state in which at most a part of the groups is listed. The
// listing does not end until all groups are listed in the etcd that is there.
func TestAListingOverASetbackEndsOnlyWhenAllKeysExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for at := 1; ; at++ {
			ctx, meta := testContext(t), restoreMeta(130)
			server := memetcdtest.New(t)
			client := server.Client(t)
			store := newStore(t, client)
			mustInit(t, ctx, store, meta)
			backup, seen, restored := server.Backup(), 0, make(chan struct{})
			hook(server, func(n int, _ *etcdserverpb.TxnRequest) error {
				if n == 2 {
					backup = server.Backup() // the time of the restore is stored
				}
				if seen = n; n != at {
					return nil
				}
				go func() {
					server.Restore(backup)
					close(restored)
				}()
				return status.Error(codes.Unavailable, "there is no connection available") // the client tries again
			})
			err := store.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta))
			server.Intercept(nil)
			if seen < at {
				must.OK(t, err)
				return
			}
			<-restored
			view, viewErr := sameStore(t, client, store).View(ctx)
			must.OK(t, viewErr)
			if !view.Meta.Listing() && len(view.Groups) != 130 {
				t.Fatalf("set back at %d: %v, the listing has ended with %d groups", at, err, len(view.Groups))
			}
		}
	})
}

// A store is refused if it is not the one that the source restores.
func TestOtherRestoresAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, meta := testContext(t), restoreMeta(4)
		other := listed(meta)
		other[2].UUID = uuid.New()
		more := restoreMeta(5)
		more.StoreUUID = meta.StoreUUID
		for name, c := range map[string]struct {
			meta   placement.Meta
			before []placement.Group // listed before, by a gateway that did not finish
			store  uuid.UUID
			at     time.Time
			want   string
		}{
			"another store":          {meta: meta, store: uuid.New(), at: restoredAt, want: "restores into store"},
			"a store from nothing":   {meta: hashMeta(4), at: restoredAt, want: "was not created from an archive"},
			"another time":           {meta: meta, before: listed(meta)[:1], at: restoredAt.Add(1), want: "former time"},
			"another group":          {meta: meta, before: other[:3], at: restoredAt, want: "the source lists it as"},
			"a group that is missed": {meta: meta, before: listed(more), at: restoredAt, want: "does not list it"},
		} {
			server, store := madeStore(t, ctx, c.meta)
			if c.before != nil {
				hook(server, func(n int, _ *etcdserverpb.TxnRequest) error {
					if n == 3 {
						return errors.New("cut")
					}
					return nil
				})
				if err := store.AddRestoring(ctx, c.meta.StoreUUID, restoredAt, c.before); err == nil {
					t.Fatalf("%s: not cut", name)
				}
				server.Intercept(nil)
			}
			if c.store == uuid.Nil {
				c.store = c.meta.StoreUUID
			}
			err := store.AddRestoring(ctx, c.store, c.at, listed(meta))
			if !errors.Is(err, registry.ErrOtherRestore) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
			if view, err := store.View(ctx); err != nil || c.meta.Restore != nil && !view.Meta.Listing() {
				t.Errorf("%s: the listing has ended: %v", name, err)
			}
		}
	})
}

// A store of a known UUID is not created a second time after etcd has lost it.
func TestARestoreIsNotBegunAgainInAnEtcdThatLostIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, meta := testContext(t), restoreMeta(2)
		server := memetcdtest.New(t)
		client := server.Client(t)
		store := newStore(t, client)
		mustInit(t, ctx, store, meta)
		mustInit(t, ctx, store, meta) // a second gateway
		register(t, store, "a")
		_, err := client.Delete(ctx, registry.PrefixDefault+"/"+store.Name()+"/meta")
		must.OK(t, err)
		if _, err := store.InitMeta(ctx, meta); !errors.Is(err, placement.ErrPlacementLost) {
			t.Errorf("%v", err)
		}
		if _, err := store.Meta(ctx); !errors.Is(err, placement.ErrNoMeta) {
			t.Errorf("%v", err)
		}
	})
}

// Only the write that reports the members ends the wait for a restore.
func TestOnlyMembersEndTheWaitForARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, meta := testContext(t), restoreMeta(2)
		server := memetcdtest.New(t)
		client := server.Client(t)
		store := newStore(t, client)
		mustInit(t, ctx, store, meta)
		must.OK(t, store.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta)))
		read := func() placement.Group {
			t.Helper()
			g, err := store.Group(ctx, "1")
			must.OK(t, err)
			return g
		}
		bare, foreign := read(), read()
		bare.Restoring, bare.Bytes = false, 5
		if g := mustPut(t, ctx, store, read()); !g.Restoring {
			t.Error("a write without changes ends the wait")
		}
		bare.Revision = read().Revision
		if g, err := store.PutGroup(ctx, bare); err != nil || !g.Restoring || !read().Restoring {
			t.Errorf("a write without members ends the wait: %+v, %v", g, err)
		}
		bare.Revision = read().Revision
		if g, err := store.PutGroupAsLeader(ctx, bare); err != nil || !g.Restoring || !read().Restoring {
			t.Errorf("a write of a leader without members ends the wait: %+v, %v", g, err)
		}
		foreign.UUID, foreign.Members, foreign.Revision = uuid.New(), []placement.Member{member("a")}, read().Revision
		if _, err := store.PutGroup(ctx, foreign); err == nil || !read().Restoring {
			t.Errorf("another group ends the wait: %v", err)
		}
		if _, created, err := store.CreateGroup(ctx, placement.NewGroup(meta.Routing, "1", 1)); created || !read().Restoring {
			t.Errorf("it is created: %v", err)
		}
		if err := store.DeleteGroup(ctx, read()); err == nil || !read().Restoring {
			t.Errorf("it is deleted: %v", err)
		}
		there := read()
		there.Members, there.Leader = []placement.Member{member("a")}, "a" // Restoring is left as it was read
		must.OK(t, func() error { _, err := store.PutGroup(ctx, there); return err }())
		second := there
		second.Members = []placement.Member{member("b")}
		if _, err := store.PutGroup(ctx, second); !errors.Is(err, placement.ErrChanged) {
			t.Errorf("a second shard reports the group, too: %v", err)
		}
		installed := read()
		if installed.Restoring || len(installed.Members) != 1 || installed.Members[0].Shard != "a" {
			t.Errorf("reported: %+v", installed)
		}
		installed.Members, installed.Restoring = nil, true
		if _, err := store.PutGroup(ctx, installed); err == nil || read().Restoring {
			t.Errorf("an installed group waits again: %v", err)
		}
		for what, value := range map[string]string{
			"members":  `"members":[{"shard":"a","raftID":7}]`,
			"deletion": `"deleted":"2026-11-01T12:00:00Z"`,
		} {
			put(t, ctx, client, store, "groups/0",
				fmt.Sprintf(`{"name":"0","uuid":%q,"restoring":true,%s}`, uuid.New(), value))
			if view, err := store.View(ctx); err != nil || !view.GroupUnknown("0") {
				t.Errorf("a waiting group with %s: %+v, %v", what, view.Groups["0"], err)
			}
		}
	})
}

// A group that is listed for its restore says from how many voters on it accepts writes. The write that reports them
// ends that, whatever its author knows of it, and no later write begins it again.
func TestRestoredGroupsAcceptWritesOnceTheyHaveCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := testContext(t)
		for writes, from := range map[placement.RestoredWrites]int{"": 2, placement.WritesAtOnce: 0} {
			meta := restoreMeta(1)
			meta.Copies, meta.Restore.Writes = 3, writes
			_, store := madeStore(t, ctx, meta)
			must.OK(t, store.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta)))
			put := func(want int, members ...placement.Member) {
				t.Helper()
				g, err := store.Group(ctx, "0")
				must.OK(t, err)
				g.Members, g.WritesFrom = members, 0
				wrote, err := store.PutGroup(ctx, g)
				must.OK(t, err)
				read, err := store.Group(ctx, "0")
				if err != nil || wrote.WritesFrom != want || read.WritesFrom != want {
					t.Errorf("%q, %d members: %d and %d, want %d, %v", writes, len(members), wrote.WritesFrom, read.WritesFrom,
						want, err)
				}
			}
			learner := member("b")
			learner.Role = placement.Learner
			put(from)
			put(from, member("a"))
			put(from, member("a"), learner)
			put(0, member("a"), member("b"))
			put(0, member("a"))
		}
	})
}

func member(shard string) placement.Member {
	return placement.Member{Shard: shard, VolumeUUID: volumeOf(shard), RaftID: uint64(shard[0])}
}

// put writes a raw value.
func put(t *testing.T, ctx context.Context, client *clientv3.Client, store *registry.Store, name, value string) {
	t.Helper()
	_, err := client.Put(ctx, registry.PrefixDefault+"/"+store.Name()+"/"+name, value)
	must.OK(t, err)
}

// What an older program reads of a restored store is refused by its decoder after every write of meta, and so is a need
// that this version does not know.
func TestMetaOfARestoredStoreIsRefusedByEarlierVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, meta := testContext(t), restoreMeta(3)
		server := memetcdtest.New(t)
		client := server.Client(t)
		store := newStore(t, client)
		key := registry.PrefixDefault + "/" + store.Name() + "/meta"
		refused := func(when string) {
			t.Helper()
			answer, err := client.Get(ctx, key)
			must.OK(t, err)
			var earlier struct{ Routing routing.Routing }
			must.OK(t, json.Unmarshal(answer.Kvs[0].Value, &earlier))
			if earlier.Routing.Validate() == nil {
				t.Errorf("%s: an earlier version accepts %s", when, answer.Kvs[0].Value)
			}
		}
		mustInit(t, ctx, store, meta)
		refused("at the creation")
		must.OK(t, store.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta)))
		refused("after the list")
		must.OK(t, store.SetRestoreSource(ctx, meta.StoreUUID, restoredAt, "other:1"))
		refused("with another source")
		there, err := store.Meta(ctx)
		if must.OK(t, err); there.Routing != meta.Routing {
			t.Errorf("%+v", there.Routing)
		}
		value, err := json.Marshal(there)
		must.OK(t, err)
		_, err = client.Put(ctx, key, strings.Replace(string(value), "knows: restore", "knows: tides", 1))
		must.OK(t, err)
		_, errMeta := store.Meta(ctx)
		_, errInit := store.InitMeta(ctx, meta)
		_, errView := store.ViewOf(ctx, meta.StoreUUID)
		for what, err := range map[string]error{"Meta": errMeta, "InitMeta": errInit, "ViewOf": errView,
			"AddRestoring": store.AddRestoring(ctx, meta.StoreUUID, restoredAt, listed(meta)),
			"Restore":      store.Restore(ctx, rescue.Rebuilt{Meta: meta}, true),
		} {
			if err == nil || !strings.Contains(err.Error(), "tides") {
				t.Errorf("%s of a store with an unknown need: %v", what, err)
			}
		}
	})
}
