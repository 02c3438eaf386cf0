package registry_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// oddRig is a store with Hash routing that has two groups on one shard.
type oddRig struct {
	client *clientv3.Client
	store  *registry.Store
	meta   placement.Meta
	groups [2]placement.Group
}

func newOddRig(t *testing.T, ctx context.Context) *oddRig {
	t.Helper()
	r := &oddRig{client: memetcdtest.New(t).Client(t), meta: hashMeta(2)}
	r.store = newStore(t, r.client)
	mustInit(t, ctx, r.store, r.meta)
	for n := range r.groups {
		g := placement.NewGroup(r.meta.Routing, placement.GroupName(n), n)
		g.Members = []placement.Member{{Shard: "s1", VolumeUUID: uuid.UUID{1}, RaftID: 1}}
		r.groups[n] = mustPut(t, ctx, r.store, g)
		mustTarget(t, ctx, r.store, placement.Target{Group: g.Name, Shards: []string{"s1"}})
	}
	return r
}

func (r *oddRig) key(name string) string { return "/sheaf/" + r.store.Name() + "/" + name }

func (r *oddRig) put(t *testing.T, ctx context.Context, name, value string) {
	t.Helper()
	if _, err := r.client.Put(ctx, r.key(name), value); err != nil {
		t.Fatal(err)
	}
}

var oddValues = []struct{ name, value string }{
	{"states/s1", `{"state":"Draining"}`},
	{"states/s1", `Draining`},
	{"states/s1", `{"shard":"s2","state":"Draining"}`},
	{"states/s1", `{"shard":"s1","state":"Emptied"}`},
	{"states/", `{}`},
	{"shards/s1", `{"name":"s1"}`},
	{"shards/s1", ``},
	{"shards/s1", `{"name":"s1","address":"h:1","volumeUUID":"01000000-0000-0000-0000-000000000000","capacityBytes":-1}`},
	{"groups/0", `{"name":"1"}`},
	{"groups/0", `[]`},
	{"groups/0", `{"name":"0","uuid":"00000000-0000-0000-0000-000000000000"}`},
	{"groups/other", "\x00"},
	{"targets/0", `{"group":"1"}`},
	{"targets/0", `{"group":"0","shards":["../x"]}`},
	{"weights/s1/0000", `{"shard":"s2"}`},
	{"weights/s1/0000", `{"shard":"s1","groups":{"0":{"uuid":"01000000-0000-0000-0000-000000000000","bytes":-5}}}`},
}

// TestOneOddKeyIsLeftOutAndNamed makes the value of one key after another invalid. In each case, a listing must
// contain all other keys, and must name the invalid one together with the reason. The test takes 0.1 s of CPU time.
func TestOneOddKeyIsLeftOutAndNamed(t *testing.T) {
	for _, odd := range oddValues {
		t.Run(odd.name+"="+odd.value, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := testContext(t)
				r := newOddRig(t, ctx)
				r.put(t, ctx, odd.name, odd.value)
				view, err := r.store.View(ctx)
				if err != nil {
					t.Fatalf("the listing: %v", err)
				}
				if g := view.Groups["1"]; g.UUID != r.groups[1].UUID {
					t.Errorf("group 1 is %+v", g)
				}
				problems := view.Problems()
				if len(problems) != 1 || !strings.Contains(problems[0], r.key(odd.name)) {
					t.Errorf("problems: %q", problems)
				}
				own := placement.Own{Shard: "s1", Volume: uuid.UUID{1}}
				watching, cancel := context.WithCancel(ctx)
				defer cancel()
				for _, views := range []<-chan placement.View{
					r.store.Watch(watching), r.store.Follow(watching, placement.Progress{}, own),
				} {
					await(t, ctx, views, "group 1", func(v placement.View) bool { return v.Groups["1"].UUID == r.groups[1].UUID })
				}
			})
		})
	}
}

// TestAGroupThatNobodyCanReadStaysAsItIs checks a group whose key or target has an invalid value. The group must be
// neither created again nor placed, and ForgetShard must fail for its shard. All other groups must still be planned.
func TestAGroupThatNobodyCanReadStaysAsItIs(t *testing.T) {
	for _, name := range []string{"groups/0", "targets/0"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := testContext(t)
				r := newOddRig(t, ctx)
				if _, err := r.client.Delete(ctx, r.key("targets/1")); err != nil {
					t.Fatal(err)
				}
				r.put(t, ctx, name, "?")
				stop, err := r.store.RegisterShard(ctx, placement.Shard{Name: "s1", Address: "h:1", VolumeUUID: uuid.UUID{1},
					Generation: 1})
				must.OK(t, err)
				planned, err := r.store.PlanOnce(ctx, r.meta.StoreUUID, r.meta.Policy())
				if err != nil || planned.GroupsCreated != 0 || planned.TargetsWritten != 1 {
					t.Errorf("planned %d groups and %d targets: %v", planned.GroupsCreated, planned.TargetsWritten, err)
				}
				if why := planned.Unplaced["0"]; !strings.Contains(why, r.key(name)) {
					t.Errorf("group 0 is not placed because %q", why)
				}
				stop()
				if err := r.store.ForgetShard(ctx, r.meta.StoreUUID, "s1"); !errors.Is(err, placement.ErrShardHoldsGroups) ||
					!strings.Contains(err.Error(), r.key(name)) {
					t.Errorf("forgetting the shard: %v", err)
				}
				if there, err := r.client.Get(ctx, r.key(name)); err != nil || string(there.Kvs[0].Value) != "?" {
					t.Errorf("the key was written over: %v, %v", there, err)
				}
			})
		})
	}
}

// TestWhoKnewAKeyGoesOnWithIt checks that if a key becomes invalid, a watcher keeps the last valid value of that key,
// even after listing everything again. The watcher must not mistake the invalid key for a rollback of etcd. When the
// key is corrected, the watcher must stop reporting the problem.
func TestWhoKnewAKeyGoesOnWithIt(t *testing.T) { synctest.Test(t, whoKnewAKeyGoesOnWithIt) }

func whoKnewAKeyGoesOnWithIt(t *testing.T) {
	ctx := testContext(t)
	r := newOddRig(t, ctx)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	views := r.store.Watch(watching)
	first := await(t, ctx, views, "both groups", func(v placement.View) bool { return len(v.Groups) == 2 })
	for _, name := range []string{"groups/0", "targets/1", "meta"} {
		r.put(t, ctx, name, "?")
	}
	odd := await(t, ctx, views, "three odd keys", func(v placement.View) bool { return len(v.Unusable) == 3 })
	time.Sleep(time.Minute) // because meta has changed, the watcher lists everything again
	for len(views) > 0 {
		odd = <-views
	}
	if odd.Groups["0"].UUID != r.groups[0].UUID || !slices.Equal(odd.Targets["1"].Shards, []string{"s1"}) ||
		odd.Meta != first.Meta || odd.Held() != "" {
		t.Errorf("the view has %+v, %+v, %+v, held %q", odd.Groups["0"], odd.Targets["1"], odd.Meta, odd.Held())
	}
	if _, held := r.store.LastAnswer(); held != "" {
		t.Errorf("what etcd holds is withheld: %s", held)
	}
	r.put(t, ctx, "groups/0", `{"name":"0","uuid":"`+r.groups[0].UUID.String()+`","keyFirst":"0","keyLast":"1"}`)
	await(t, ctx, views, "two odd keys", func(v placement.View) bool {
		return len(v.Unusable) == 2 && v.Groups["0"].KeyLast == 1
	})
}

// TestAFreezeThatNobodyCanReadIsAFreeze checks that an unreadable freeze counts as a freeze.
func TestAFreezeThatNobodyCanReadIsAFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := testContext(t)
		r := newOddRig(t, ctx)
		r.put(t, ctx, "frozen", "yes")
		view, err := r.store.View(ctx)
		if err != nil || view.Held() == "" || len(view.Problems()) != 1 {
			t.Errorf("held %q, problems %q: %v", view.Held(), view.Problems(), err)
		}
		if _, err := r.store.PlanOnce(ctx, r.meta.StoreUUID, r.meta.Policy()); !errors.Is(err, placement.ErrFrozen) {
			t.Errorf("planning: %v", err)
		}
	})
}

// TestWithoutMetaTheReasonIsReported checks the error for a store whose meta is invalid. The error must say so. It
// must not say that etcd does not respond, or that the store does not exist.
func TestWithoutMetaTheReasonIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := testContext(t)
		r := newOddRig(t, ctx)
		r.put(t, ctx, "meta", `{"routing":"Hash"}`)
		watching, cancel := context.WithCancel(ctx)
		views := r.store.Watch(watching)
		time.Sleep(time.Minute)
		if _, held := r.store.LastAnswer(); !strings.Contains(held, r.key("meta")) {
			t.Errorf("it is withheld because %q", held)
		}
		_, err := r.store.MetaOf(ctx, r.meta.StoreUUID)
		_, errView := r.store.View(ctx)
		for _, err := range []error{err, errView} {
			if !errors.Is(err, placement.ErrUnusable) || errors.Is(err, placement.ErrPlacementLost) {
				t.Errorf("asked for: %v", err)
			}
		}
		cancel()
		for range views {
			t.Error("a view was given")
		}
	})
}

// TestAnOddStateIsReplaced checks that an invalid value of a shard's state is overwritten when somebody sets the
// state.
func TestAnOddStateIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := testContext(t)
		r := newOddRig(t, ctx)
		r.put(t, ctx, "states/s1", `{"state":"Draining"}`)
		must.OK(t, r.store.SetShardState(ctx, r.meta.StoreUUID, "s1", placement.Draining))
		if view, err := r.store.View(ctx); err != nil || view.States["s1"] != placement.Draining || len(view.Unusable) != 0 {
			t.Errorf("states %v, odd %v: %v", view.States, view.Unusable, err)
		}
	})
}

// TestAnAbsurdRecordOfAVolumeIsNoSetback puts an impossible volume record into etcd. The shard must not be
// registered, and the error must name the key. The error must not say that the volume was rolled back, because the
// volume would then be replaced.
func TestAnAbsurdRecordOfAVolumeIsNoSetback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := testContext(t)
		r := newOddRig(t, ctx)
		volume := uuid.UUID{7}
		key := "volumes/" + volume.String()
		for _, value := range []string{
			"", "5", `{"volume":"` + volume.String() + `","generation":18446744073709551615}`,
			`{"volume":"` + volume.String() + `","generation":1,"step":{"number":9223372036854775808}}`,
			`{"volume":"08000000-0000-0000-0000-000000000000","generation":9}`,
		} {
			r.put(t, ctx, key, value)
			_, err := r.store.MayRegister(ctx, placement.Shard{Name: "s2", Address: "h:1", VolumeUUID: volume, Generation: 2})
			if !errors.Is(err, placement.ErrUnusable) || errors.Is(err, placement.ErrRolledBack) ||
				!strings.Contains(err.Error(), key) {
				t.Errorf("%s: %v", value, err)
			}
		}
	})
}
