package rescue_test

import (
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
)

// A message names the first ten groups that would be restored again, in the order of their names.
func TestGroupsThatWouldBeRestoredAgainAreNamed(t *testing.T) {
	r := rescue.Rebuilt{Groups: []placement.Group{{Name: "c"}}}
	var listed []placement.Group
	for _, name := range []string{"l", "k", "j", "i", "h", "g", "f", "e", "d", "c", "b", "a"} {
		listed = append(listed, placement.Group{Name: name, Restoring: true})
		if len(listed) == 3 {
			few := r
			few.AddWaiting(placement.Restore{}, listed)
			if got := few.AgainWords(); got != "j, k, l" {
				t.Errorf("three groups: %q", got)
			}
		}
	}
	r.AddWaiting(placement.Restore{}, listed)
	if got := r.AgainWords(); got != "a, b, d, e, f, g, h, i, j, k and 1 more" {
		t.Errorf("%q", got)
	}
}

// A replica that was found says that its store was restored, also if it is no member of a group that is rebuilt.
func TestEveryReplicaOfARestoreCounts(t *testing.T) {
	store, other := uuid.New(), uuid.New()
	id := uuid.NewSHA1(store, []byte("g"))
	voters := []uint64{7}
	for name, c := range map[string]struct {
		replica rescue.FoundReplica
		want    bool
	}{
		"a member":  {rescue.FoundReplica{Name: "g", UUID: id, Store: store, RaftID: 7, Voters: voters}, true},
		"a founder": {rescue.FoundReplica{UUID: id, Store: store, RaftID: 7, Joining: true}, true},
		"an ended group": {rescue.FoundReplica{Name: "g", UUID: id, Store: store, RaftID: 7, Voters: voters,
			Ended: true}, true},
		"a copied folder":  {rescue.FoundReplica{UUID: id, Store: store, RaftID: 7, Foreign: true, Message: "copy"}, true},
		"unreadable":       {rescue.FoundReplica{UUID: id, Message: "damaged"}, true},
		"of another store": {rescue.FoundReplica{UUID: id, Store: other, RaftID: 7, Foreign: true}, false},
		"created by a write": {rescue.FoundReplica{Name: "g", UUID: uuid.New(), Store: store, RaftID: 7,
			Voters: voters}, false},
	} {
		r, err := rescue.Rebuild(store, []rescue.FoundVolume{{Shard: "a", UUID: uuid.UUID{5}, Store: store,
			Facts:    &rescue.FoundFacts{Routing: placement.Routing{Mode: placement.Named}, Copies: 1},
			Replicas: []rescue.FoundReplica{c.replica}}}, nil)
		if err != nil || r.Restored() != c.want {
			t.Errorf("%s: restored %t, %v", name, r.Restored(), err)
		}
	}
}

// If etcd is lost during a restore, a restored group with too few voters accepts no writes after the rebuilding. Other
// groups do, and so do groups with enough voters.
func TestRebuiltGroupsOfARestoreWaitForCopies(t *testing.T) {
	group := func(id uuid.UUID, voters int) placement.Group {
		return placement.Group{Name: id.String(), UUID: id, Members: make([]placement.Member, voters)}
	}
	restored := uuid.NewSHA1(uuid.Nil, []byte("g"))
	r := rescue.Rebuilt{Meta: placement.Meta{Copies: 3}, Groups: []placement.Group{group(restored, 1),
		group(uuid.NewSHA1(uuid.Nil, []byte("h")), 2), group(uuid.New(), 1)}}
	r.AddWaiting(placement.Restore{}, []placement.Group{{Name: "waits", Restoring: true}})
	for _, g := range r.Groups {
		want := 0
		if g.UUID == restored || g.Restoring {
			want = 2
		}
		if g.WritesFrom != want {
			t.Errorf("%+v: want %d", g, want)
		}
	}
}
