package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// half is a store of four groups that is being restored: the volume of shard a has the groups 0 and 1.
type half struct {
	t       *testing.T
	ctx     context.Context
	server  *memetcdtest.Server
	client  *clientv3.Client
	store   *registry.Store
	meta    placement.Meta
	groups  []placement.Group
	backups map[string]memetcdtest.Backup // by the step after which the backup was taken
}

func halfRestored(t *testing.T) *half {
	h := &half{t: t, ctx: testContext(t), server: memetcdtest.New(t), meta: restoreMeta(4),
		backups: map[string]memetcdtest.Backup{}}
	h.client, h.groups = h.server.Client(t), listed(h.meta)
	h.store = newStore(t, h.client)
	mustInit(t, h.ctx, h.store, h.meta)
	h.backups["created"] = h.server.Backup()
	must.OK(t, h.store.AddRestoring(h.ctx, h.meta.StoreUUID, restoredAt, h.groups))
	h.backups["listed"] = h.server.Backup()
	for _, name := range []string{"0", "1"} {
		g, err := h.store.Group(h.ctx, name)
		must.OK(t, err)
		g.Members, g.Leader, g.ConfIndex = []placement.Member{member("a")}, "a", 1
		mustPut(t, h.ctx, h.store, g)
		h.backups["installed "+name] = h.server.Backup()
	}
	return h
}

// rebuilt returns what the volume of shard a shows.
func (h *half) rebuilt() rescue.Rebuilt {
	h.t.Helper()
	v := rescue.FoundVolume{Shard: "a", UUID: volumeOf("a"), Store: h.meta.StoreUUID,
		Facts: &rescue.FoundFacts{Routing: h.meta.Routing, Copies: 1, Epoch: 100}}
	for _, g := range h.groups[:2] {
		v.Replicas = append(v.Replicas, rescue.FoundReplica{Name: g.Name, UUID: g.UUID, Store: h.meta.StoreUUID,
			RaftID: uint64('a'), Voters: []uint64{'a'}, ConfIndex: 1, Leader: true})
	}
	r, err := rescue.Rebuild(h.meta.StoreUUID, []rescue.FoundVolume{v}, nil)
	must.OK(h.t, err)
	return r
}

// check fails the test unless the groups 0 and 1 are on shard a, and the groups 2 and 3 wait.
func (h *half) check(what string) {
	h.t.Helper()
	view, err := sameStore(h.t, h.client, h.store).View(h.ctx)
	must.OK(h.t, err)
	for n, g := range h.groups {
		there := view.Groups[g.Name]
		if there.UUID != g.UUID || there.Restoring != (n > 1) || (len(there.Members) == 0) != (n > 1) {
			h.t.Errorf("%s: group %s: %+v", what, g.Name, there)
		}
	}
	if r := view.Meta.Restore; r == nil || r.Listing || r.Source != "source:7640" || view.Held() != "" {
		h.t.Errorf("%s: %+v, held %q", what, r, view.Held())
	}
	did, err := h.store.PlanOnce(h.ctx, h.meta.StoreUUID, h.meta.Policy())
	if err != nil || did.GroupsCreated > 0 {
		h.t.Errorf("%s: the plan creates %d groups, %v", what, did.GroupsCreated, err)
	}
}

// etcd is set back while a store is restored. The store remains frozen until a person says that all shards were asked,
// because a group that waits in the older etcd may be installed by now. Installed groups are never installed again, and
// waiting ones are never created empty.
func TestAnEtcdThatIsSetBackDuringARestore(t *testing.T) {
	for _, to := range []string{"created", "listed", "installed 0", "installed 1"} {
		t.Run(to, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := halfRestored(t)
				h.server.Restore(h.backups[to])
				must.OK(t, h.store.Freeze(h.ctx, "a test", "it was set back"))
				if err := h.store.AddRestoring(h.ctx, h.meta.StoreUUID, restoredAt, h.groups); to == "created" &&
					!errors.Is(err, placement.ErrFrozen) {
					t.Errorf("the groups are listed in a frozen store: %v", err)
				}
				done, err := h.store.Reconcile(h.ctx, h.rebuilt(), nil)
				must.OK(t, err)
				if len(done.Waits) == 0 || !strings.Contains(strings.Join(done.Waits, " "), "sheaf recover placement --force") {
					t.Fatalf("the freeze has ended: %+v", done)
				}
				// A person gives all shards to sheaf recover placement --force.
				r := h.rebuilt()
				meta, waiting, err := h.store.Waiting(h.ctx)
				must.OK(t, err)
				r.Meta.Restore = meta.Restore
				r.KeepWaiting(waiting)
				if to != "created" && len(r.Missing) > 0 {
					t.Errorf("these groups would begin empty: %q", r.Missing)
				}
				must.OK(t, h.store.Restore(h.ctx, r, true))
				must.OK(t, h.store.AddRestoring(h.ctx, h.meta.StoreUUID, restoredAt, h.groups)) // as the gateways do
				h.check(to)
			})
		})
	}
}

// etcd is lost while a store is restored. The volumes show that it was restored, and the source lists the groups again.
func TestAnEtcdThatIsLostDuringARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := halfRestored(t)
		h.server.Wipe()
		r := h.rebuilt()
		if !r.Restored() || len(r.Missing) != 2 {
			t.Errorf("the volumes do not show it: %+v", r)
		}
		r.AddWaiting(placement.Restore{Source: "source:7640"}, h.groups)
		if len(r.Missing) > 0 || len(r.Groups) != 4 {
			t.Errorf("missing %q, %d groups", r.Missing, len(r.Groups))
		}
		must.OK(t, h.store.Restore(h.ctx, r, false))
		h.check("lost")
	})
}

// A group that no volume holds begins empty only if a person wants it, and etcd's own knowledge of a group counts more.
func TestGroupsOfARestoredStoreThatBeginEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := halfRestored(t)
		for _, name := range []string{"1", "3"} {
			_, err := h.client.Delete(h.ctx, registry.PrefixDefault+"/"+h.store.Name()+"/groups/"+name)
			must.OK(t, err)
		}
		r := h.rebuilt()
		meta, waiting, err := h.store.Waiting(h.ctx)
		must.OK(t, err)
		r.Meta.Restore = meta.Restore
		r.KeepWaiting(waiting)
		if strings.Join(r.Missing, "") != "3" {
			t.Fatalf("missing: %q", r.Missing)
		}
		r.BeginEmpty()
		r.Missing = []string{"2"}
		r.BeginEmpty() // group 2 waits in etcd
		must.OK(t, h.store.Restore(h.ctx, r, true))
		view, err := h.store.View(h.ctx)
		must.OK(t, err)
		if g := view.Groups["3"]; g.UUID == h.groups[3].UUID || g.Restoring || g.KeyLast != h.groups[3].KeyLast {
			t.Errorf("group 3 does not begin empty: %+v", g)
		}
		if g := view.Groups["2"]; g.UUID != h.groups[2].UUID || !g.Restoring {
			t.Errorf("group 2 does not wait: %+v", g)
		}
		if g := view.Groups["1"]; g.UUID != h.groups[1].UUID || len(g.Members) != 1 {
			t.Errorf("group 1 is not where its volume is: %+v", g)
		}
	})
}

// The restore of one group is given up. A shard that installs the group meanwhile cannot report it any more.
func TestTheRestoreOfAGroupIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := halfRestored(t)
		_, waiting, err := h.store.Waiting(h.ctx)
		must.OK(t, err)
		if len(waiting) != 2 || waiting[0].Name != "2" || waiting[1].Name != "3" {
			t.Fatalf("%+v", waiting)
		}
		late := waiting[0]
		must.OK(t, h.store.GiveUpRestore(h.ctx, waiting[0]))
		if err := h.store.GiveUpRestore(h.ctx, waiting[0]); !errors.Is(err, placement.ErrChanged) {
			t.Errorf("given up twice: %v", err)
		}
		late.Members, late.Leader = []placement.Member{member("b")}, "b"
		if _, err := h.store.PutGroup(h.ctx, late); !errors.Is(err, placement.ErrChanged) {
			t.Errorf("a late shard reports it: %v", err)
		}
		g, err := h.store.Group(h.ctx, "2")
		must.OK(t, err)
		if g.Restoring || g.UUID == waiting[0].UUID || g.UUID == uuid.Nil || g.KeyFirst != waiting[0].KeyFirst ||
			g.KeyLast != waiting[0].KeyLast || len(g.Members) > 0 {
			t.Errorf("%+v", g)
		}
		installed, err := h.store.Group(h.ctx, "0")
		must.OK(t, err)
		if err := h.store.GiveUpRestore(h.ctx, installed); !errors.Is(err, placement.ErrChanged) {
			t.Errorf("an installed group is given up: %v", err)
		}
		must.OK(t, h.store.Freeze(h.ctx, "a test", "it was set back"))
		if err := h.store.GiveUpRestore(h.ctx, waiting[1]); !errors.Is(err, placement.ErrFrozen) {
			t.Errorf("in a frozen store: %v", err)
		}
	})
}

// While groups are listed, no restore is given up: the list would never be complete, as it has the former UUID.
func TestNoRestoreIsGivenUpWhileGroupsAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := halfRestored(t)
		_, waiting, err := h.store.Waiting(h.ctx)
		must.OK(t, err)
		listing := h.meta
		listing.Restore = &placement.Restore{Source: "source:7640", Listing: true}
		value, err := json.Marshal(listing)
		must.OK(t, err)
		hook(h.server, func(n int, _ *etcdserverpb.TxnRequest) error {
			if n == 2 { // the group was read by the first one
				put(t, h.ctx, h.client, h.store, "meta", string(value))
			}
			return nil
		})
		if err := h.store.GiveUpRestore(h.ctx, waiting[0]); !errors.Is(err, placement.ErrChanged) {
			t.Errorf("the list begins again meanwhile: %v", err)
		}
		h.server.Intercept(nil)
		if err := h.store.GiveUpRestore(h.ctx, waiting[0]); err == nil || !strings.Contains(err.Error(), "list is complete") {
			t.Errorf("while groups are listed: %v", err)
		}
		must.OK(t, h.store.AddRestoring(h.ctx, h.meta.StoreUUID, restoredAt, h.groups))
		_, waiting, err = h.store.Waiting(h.ctx)
		must.OK(t, err)
		must.OK(t, h.store.GiveUpRestore(h.ctx, waiting[0]))
	})
}
