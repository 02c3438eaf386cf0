package registry_test

import (
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
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// newBackedUp starts an etcd that can be rolled back to a backup, and creates a client for it.
func newBackedUp(t *testing.T) (*memetcdtest.Server, *clientv3.Client) {
	server := memetcdtest.New(t)
	return server, server.Client(t)
}

func TestMarks(t *testing.T) {
	seen := placement.Mark{Base: 1, Revision: 10, Content: 8, Cluster: 5}
	for name, c := range map[string]struct {
		now    placement.Mark
		behind bool
	}{
		"the same":                          {seen, false},
		"later":                             {placement.Mark{Base: 1, Revision: 11, Content: 11, Cluster: 5}, false},
		"an older revision":                 {placement.Mark{Base: 1, Revision: 9, Content: 8, Cluster: 5}, true},
		"older keys, and a raised revision": {placement.Mark{Base: 1, Revision: 1000, Content: 7, Cluster: 5}, true},
		"another cluster":                   {placement.Mark{Base: 1, Revision: 11, Content: 11, Cluster: 6}, true},
		"a cluster that is not known":       {placement.Mark{Base: 1, Revision: 11, Content: 11}, false},
		"reconciled since":                  {placement.Mark{Base: 2, Revision: 3, Content: 3, Cluster: 6}, false},
		"before it was reconciled":          {placement.Mark{Base: 0, Revision: 1000, Content: 1000, Cluster: 5}, true},
	} {
		if why := c.now.Behind(seen); (why != "") != c.behind {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// etcd is rolled back while some processes follow it and others begin to follow it. All of them notice the rollback,
// even if etcd's revision is higher again than the one that they last saw.
func TestAnOlderEtcdIsFrozenUntilItIsReconciled(t *testing.T) {
	for name, grown := range map[string]bool{"its revision is lower": false, "its revision has grown": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { setBack(t, grown) })
		})
	}
}

func setBack(t *testing.T, grown bool) {
	ctx := testContext(t)
	own, client := newBackedUp(t)
	store := newStore(t, client)
	meta := namedMeta()
	mustInit(t, ctx, store, meta)
	at := func(group string, term, conf uint64, shards ...string) placement.Group {
		g, err := store.Group(ctx, group)
		if errors.Is(err, placement.ErrNoGroup) {
			g, err = placement.NewGroup(meta.Routing, group, 0), nil
		}
		must.OK(t, err)
		g.Members, g.Leader, g.Term, g.ConfIndex = nil, shards[0], term, conf
		for _, s := range shards {
			g.Members = append(g.Members, placement.Member{Shard: s, VolumeUUID: volumeOf(s), RaftID: uint64(s[0])})
		}
		g = mustPut(t, ctx, store, g)
		mustTarget(t, ctx, store, placement.Target{Group: group, Shards: shards})
		return g
	}
	at("moved", 1, 1, "a")
	stays := at("stays", 1, 1, "a")
	backup := own.Backup()
	moved, later := at("moved", 2, 5, "b"), at("later", 1, 1, "b")
	// The shard's volume stores the mark of this view, which identifies the state that the shard has seen.
	view, err := store.View(ctx)
	must.OK(t, err)
	seen := placement.Progress{Store: meta.StoreUUID, Mark: view.Mark}
	watched := store.Watch(ctx)
	if v := <-watched; len(v.Groups) != 3 {
		t.Fatalf("before: %+v", v)
	}

	own.Restore(backup)
	if grown {
		for {
			put, err := client.Put(ctx, "somebody/else", "x")
			must.OK(t, err)
			if put.Header.Revision > seen.Revision+2 {
				break
			}
		}
	}
	again := sameStore(t, client, store) // starts after the rollback, but has stored the mark from before it
	held := await(t, ctx, again.Follow(ctx, seen, placement.Own{Shard: "a"}), "it is known to be older",
		func(v placement.View) bool {
			return v.Held() != ""
		})
	if held.SetBack == "" || len(held.Groups) != 2 {
		t.Errorf("followed: %+v", held)
	}
	if _, err := again.PlanOnce(ctx, meta.StoreUUID, meta.Policy()); !errors.Is(err, placement.ErrFrozen) {
		t.Errorf("planning on it: %v", err)
	}
	fresh := sameStore(t, client, store) // a process that has never seen the store
	if v, err := fresh.View(ctx); err != nil || v.Freeze == nil || v.SetBack != "" {
		t.Fatalf("nobody else hears of it: %+v, %v", v, err)
	}
	for what, do := range map[string]func() error{
		"plan":   func() error { _, err := fresh.PlanOnce(ctx, meta.StoreUUID, meta.Policy()); return err },
		"look":   func() error { _, err := fresh.ViewOf(ctx, meta.StoreUUID); return err },
		"forget": func() error { return fresh.ForgetShard(ctx, meta.StoreUUID, "b") },
		"create": func() error {
			_, _, err := fresh.CreateGroup(ctx, placement.NewGroup(meta.Routing, "later", 0))
			return err
		},
		"write": func() error { _, err := fresh.PutGroup(ctx, stays); return err },
	} {
		if err := do(); !errors.Is(err, placement.ErrFrozen) {
			t.Errorf("%s: %v", what, err)
		}
	}
	select {
	case v := <-watched:
		t.Fatalf("a gateway follows it: %+v", v)
	default:
	}

	// The volumes hold the true state. At first, the volume that holds the group "later" does not respond.
	found := func(shard string, groups ...placement.Group) rescue.FoundVolume {
		v := rescue.FoundVolume{
			Shard: shard, UUID: volumeOf(shard), Store: meta.StoreUUID,
			Facts: &rescue.FoundFacts{Routing: meta.Routing, Copies: 1, Epoch: seen.Base + uint64(seen.Revision)},
		}
		for _, g := range groups {
			v.Replicas = append(v.Replicas, rescue.FoundReplica{
				Name: g.Name, UUID: g.UUID, Store: meta.StoreUUID, RaftID: uint64(shard[0]), Voters: []uint64{uint64(shard[0])},
				ConfIndex: g.ConfIndex,
				Term:      g.Term, Leader: true,
			})
		}
		return v
	}
	reconcile := func(volumes ...rescue.FoundVolume) rescue.Reconciled {
		t.Helper()
		r, err := rescue.Rebuild(meta.StoreUUID, volumes, nil)
		must.OK(t, err)
		done, err := fresh.Reconcile(ctx, r, nil)
		must.OK(t, err)
		return done
	}
	done := reconcile(found("b", moved, later))
	if len(done.Waits) != 1 || !strings.Contains(done.Waits[0], "group stays") {
		t.Errorf("without shard a: %+v", done)
	}
	v, err := fresh.View(ctx)
	if err != nil || v.Freeze == nil || !slices.Equal(v.Freeze.Waits, done.Waits) ||
		v.Groups["moved"].Members[0].Shard != "b" {
		t.Errorf("frozen still, and known groups are right: %+v, %v", v, err)
	}
	if done := reconcile(found("a", stays), found("b", moved, later)); len(done.Waits) > 0 {
		t.Errorf("with all: %+v", done)
	}
	v = await(t, ctx, watched, "the gateway goes on", func(v placement.View) bool { return true })
	if v.Held() != "" || v.Epoch <= view.Epoch || len(v.Groups) != 3 {
		t.Errorf("after: %+v", v)
	}
	for _, g := range []placement.Group{moved, later, stays} {
		now := v.Groups[g.Name]
		if now.UUID != g.UUID || !slices.Equal(now.Members, g.Members) || now.ConfIndex != g.ConfIndex ||
			v.Targets[g.Name].Shards[0] != g.Members[0].Shard {
			t.Errorf("group %+v, was %+v; target %+v", now, g, v.Targets[g.Name])
		}
	}
	if planned, err := store.PlanOnce(ctx, meta.StoreUUID, meta.Policy()); err != nil || planned.TargetsWritten > 0 {
		t.Errorf("planning again: %+v, %v", planned, err)
	}
	// From now on, the state before the reconciliation counts as the older one, regardless of its revision.
	if v.Mark.Behind(seen.Mark) != "" || seen.Behind(v.Mark) == "" {
		t.Errorf("marks %+v, %+v", v.Mark, seen)
	}
}

// The volumes hold a group, and etcd holds a different group that was created later under the same name. The
// reconciliation does not overwrite the one in etcd, because a person must decide which of the two is right.
func TestAGroupThatWasMadeTwiceIsNotReconciled(t *testing.T) {
	synctest.Test(t, aGroupThatWasMadeTwiceIsNotReconciled)
}

func aGroupThatWasMadeTwiceIsNotReconciled(t *testing.T) {
	ctx := testContext(t)
	_, client := newBackedUp(t)
	store, meta := newStore(t, client), namedMeta()
	mustInit(t, ctx, store, meta)
	g := mustPut(t, ctx, store, placement.NewGroup(meta.Routing, "g", 0))
	found := rescue.FoundVolume{
		Shard: "a", UUID: volumeOf("a"), Store: meta.StoreUUID, Facts: &rescue.FoundFacts{Routing: meta.Routing,
			Copies: 1},
		Replicas: []rescue.FoundReplica{{Name: "g", UUID: uuid.New(), Store: meta.StoreUUID, RaftID: 7,
			Voters: []uint64{7}}},
	}
	r, err := rescue.Rebuild(meta.StoreUUID, []rescue.FoundVolume{found}, nil)
	must.OK(t, err)
	g.Members = []placement.Member{{Shard: "b", VolumeUUID: volumeOf("b"), RaftID: 9}}
	g = mustPut(t, ctx, store, g)
	must.OK(t, store.Freeze(ctx, "a test", "it says so"))
	done, err := store.Reconcile(ctx, r, []string{"shard z does not answer"})
	if err != nil || done.Written > 0 || len(done.Waits) != 2 ||
		!strings.Contains(done.Waits[0], "decide which one is right") {
		t.Errorf("%+v, %v", done, err)
	}
	if v, err := store.View(ctx); err != nil || v.Freeze == nil || v.Groups["g"].UUID != g.UUID {
		t.Errorf("%+v, %v", v, err)
	}
	// The last argument is force. It is set only if a person has made this decision.
	must.OK(t, store.Restore(ctx, r, true))
	if v, err := store.ViewOf(ctx, meta.StoreUUID); err != nil || v.Freeze != nil || v.Groups["g"].UUID == g.UUID ||
		v.Meta.EpochBase == 0 {
		t.Errorf("by force: %+v, %v", v, err)
	}
}

// TestADeletedGroupIsNotReconciled checks two cases. If etcd records that a group was deleted, the group stays
// deleted, even if some replicas have not seen the deletion yet. If etcd has no record of the group at all, the group
// is restored from its replicas.
func TestADeletedGroupIsNotReconciled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := testContext(t)
		_, client := newBackedUp(t)
		store, meta := newStore(t, client), namedMeta()
		mustInit(t, ctx, store, meta)
		found := rescue.FoundVolume{Shard: "a", UUID: volumeOf("a"), Store: meta.StoreUUID,
			Facts: &rescue.FoundFacts{Routing: meta.Routing, Copies: 1}}
		for n, name := range []string{"deleted", "forgotten"} {
			g := placement.NewGroup(meta.Routing, name, 0)
			g.Members = []placement.Member{{Shard: "a", VolumeUUID: found.UUID, RaftID: 7}}
			voters := []uint64{7}
			if n == 0 {
				// This replica is a member that could not be reached during the deletion. The group has two more voters.
				voters = []uint64{7, 9, 11}
			}
			found.Replicas = append(found.Replicas, rescue.FoundReplica{Name: name, UUID: g.UUID,
				Store: meta.StoreUUID, RaftID: 7, Voters: voters})
			if n > 0 {
				continue // for the second group, etcd was rolled back to a time before the group was created
			}
			must.OK(t, store.DeleteGroup(ctx, mustPut(t, ctx, store, g)))
		}
		r, err := rescue.Rebuild(meta.StoreUUID, []rescue.FoundVolume{found}, nil)
		must.OK(t, err)
		must.OK(t, store.Freeze(ctx, "a test", "it says so"))
		done, err := store.Reconcile(ctx, r, nil)
		if err != nil || done.Written != 1 || len(done.Waits) > 0 {
			t.Errorf("%+v, %v", done, err)
		}
		v, err := store.View(ctx)
		if _, deleted := v.Groups["deleted"]; err != nil || deleted || v.Groups["forgotten"].Members == nil {
			t.Errorf("%+v, %v", v.Groups, err)
		}
	})
}

// sameStore returns the store from the perspective of another process.
func sameStore(t *testing.T, client *clientv3.Client, of *registry.Store) *registry.Store {
	t.Helper()
	out, err := registry.NewStore(client, of.Name(), nil)
	must.OK(t, err)
	return out
}

func volumeOf(shard string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(shard)) }

// The status must say when etcd last responded, and why etcd's content is not used.
func TestAStoreReportsWhenEtcdAnsweredLast(t *testing.T) {
	synctest.Test(t, aStoreReportsWhenEtcdAnsweredLast)
}

func aStoreReportsWhenEtcdAnsweredLast(t *testing.T) {
	own, client := newBackedUp(t)
	ctx, store := testContext(t), newStore(t, client)
	until := func(what string, is func(silent time.Duration, held string) bool) {
		t.Helper()
		for {
			last, held := store.LastAnswer()
			if !last.IsZero() && is(time.Since(last), held) {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: %v, %q", what, last, held)
			}
			time.Sleep(time.Millisecond)
		}
	}
	if last, held := store.LastAnswer(); !last.IsZero() || held != "" {
		t.Errorf("before it is watched: %v, %q", last, held)
	}
	views := store.Watch(ctx)
	until("there is no store", func(_ time.Duration, held string) bool { return strings.Contains(held, "no such store") })
	mustInit(t, ctx, store, hashMeta(1))
	await(t, ctx, views, "the store is there", func(placement.View) bool { return true })
	if _, held := store.LastAnswer(); held != "" {
		t.Errorf("it is followed: %q", held)
	}
	first, _ := store.LastAnswer()
	until("a quiet etcd answers", func(time.Duration, string) bool {
		last, _ := store.LastAnswer()
		return last.After(first)
	})
	own.Away()
	const silent = 3 * time.Second // longer than the interval between two checks
	until("etcd is gone", func(d time.Duration, _ string) bool { return d > silent })
	own.Back()
	until("etcd is back", func(d time.Duration, _ string) bool { return d < silent })
}
