package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

func init() { revokePatience = time.Minute }

func ownEtcd(t *testing.T) (*clientv3.Client, context.Context) {
	t.Helper()
	client := memetcdtest.New(t).Client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return client, ctx
}

// TestEveryViewIsOfOneRevision writes targets in pairs, each pair in one transaction. No view may contain only one
// half of a pair.
func TestEveryViewIsOfOneRevision(t *testing.T) { synctest.Test(t, everyViewIsOfOneRevision) }

func everyViewIsOfOneRevision(t *testing.T) {
	client, ctx := ownEtcd(t)
	store, err := NewStore(client, "s", nil)
	must.OK(t, err)
	if _, err := store.InitMeta(ctx, placement.Meta{StoreUUID: uuid.New(),
		Routing: placement.Routing{Mode: placement.Named}, Copies: 1}); err != nil {
		t.Fatal(err)
	}
	const rounds = 300
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	views := store.Watch(watched)
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := range rounds {
			// The pauses have different lengths, so that some views are sent between two changes, and other views combine
			// several changes.
			time.Sleep(time.Duration(n%4) * viewDebounce / 2)
			shards := []string{fmt.Sprint("s", n)}
			if err := store.SetTargets(ctx, []placement.Target{{Group: "a", Shards: shards}, {Group: "b",
				Shards: shards}}); err != nil {
				t.Error(err)
				cancel()
				return
			}
			// Keys of another store must have no effect.
			if _, err := client.Put(ctx, "/sheaf/s2/targets/c", "x"); err != nil {
				t.Error(err)
			}
		}
	})
	seen := 0
	for view := range views {
		if len(view.Targets) == 0 {
			continue
		}
		seen++
		a, b := view.Targets["a"].Shards[0], view.Targets["b"].Shards[0]
		if a != b || len(view.Targets) != 2 {
			t.Fatalf("view %d shows %v", view.Epoch, view.Targets)
		}
		if a == fmt.Sprint("s", rounds-1) {
			cancel()
		}
	}
	writing.Wait()
	if seen < 2 {
		t.Fatalf("%d views were seen", seen)
	}
}

// TestAPlannerThatLostItsTermWritesNothing makes writes depend on an election key that no longer exists. That is the
// situation of a planner that has lost its election, and nothing may be written.
func TestAPlannerThatLostItsTermWritesNothing(t *testing.T) {
	synctest.Test(t, aPlannerThatLostItsTermWritesNothing)
}

func aPlannerThatLostItsTermWritesNothing(t *testing.T) {
	client, ctx := ownEtcd(t)
	store, err := NewStore(client, "s", nil)
	must.OK(t, err)
	elected := clientv3.Compare(clientv3.CreateRevision("/sheaf/s/election/planner/gone"), "=", 5)
	groups := []placement.Group{placement.NewGroup(placement.Routing{Mode: placement.Hash, Groups: 1}, "0", 0)}
	if err := store.createGroups(ctx, placement.View{}, groups, elected); !errors.Is(err, errNotElected) {
		t.Fatalf("create groups: %v", err)
	}
	if _, err := store.setTargets(ctx, []placement.Target{{Group: "0"}}, pairsOf(placement.View{}),
		elected); !errors.Is(err, errNotElected) {
		t.Fatalf("set targets: %v", err)
	}
	if answer, err := client.Get(ctx, "/sheaf/s/", clientv3.WithPrefix()); err != nil || len(answer.Kvs) != 0 {
		t.Fatalf("etcd holds %v, %v", answer.Kvs, err)
	}
	// createGroups must not change groups that exist already, so it is called twice.
	for range 2 {
		must.OK(t, store.createGroups(ctx, placement.View{}, groups))
		groups[0].Leader = "changed"
	}
	if g, err := store.Group(ctx, "0"); err != nil || g.Leader != "" {
		t.Fatalf("%+v, %v", g, err)
	}
}

// TestListingIsOfOneRevisionOverPages lists more keys than fit on one page.
func TestListingIsOfOneRevisionOverPages(t *testing.T) {
	synctest.Test(t, listingIsOfOneRevisionOverPages)
}

func listingIsOfOneRevisionOverPages(t *testing.T) {
	client, ctx := ownEtcd(t)
	store, err := NewStore(client, "s", nil)
	must.OK(t, err)
	const groups = listPageKeys + 10
	routing := placement.Routing{Mode: placement.Named}
	if _, err := store.InitMeta(ctx, placement.Meta{StoreUUID: uuid.New(), Routing: routing, Copies: 1}); err != nil {
		t.Fatal(err)
	}
	all := make([]placement.Group, groups)
	for n := range all {
		all[n] = placement.NewGroup(routing, fmt.Sprintf("g%06d", n), 0)
	}
	must.OK(t, store.createGroups(ctx, placement.View{}, all))
	view, err := store.View(ctx)
	if err != nil || len(view.Groups) != groups {
		t.Fatalf("%d of %d groups, %v", len(view.Groups), groups, err)
	}
}
