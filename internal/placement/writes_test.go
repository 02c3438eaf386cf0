package placement_test

import (
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// Groups of a restore wait for a majority of the store's copies, unless the restore says otherwise.
func TestFromWhenOnRestoredGroupsAcceptWrites(t *testing.T) {
	for _, c := range []struct {
		restore *placement.Restore
		copies  int
		want    int
	}{
		{nil, 3, 0},
		{&placement.Restore{}, 1, 0},
		{&placement.Restore{}, 3, 2},
		{&placement.Restore{}, 5, 3},
		{&placement.Restore{Writes: placement.WritesRedundant}, 3, 2},
		{&placement.Restore{Writes: placement.WritesAtOnce}, 5, 0},
	} {
		if got := (placement.Meta{Restore: c.restore, Copies: c.copies}).WritesFrom(); got != c.want {
			t.Errorf("%+v, %d copies: from %d voters on, want %d", c.restore, c.copies, got, c.want)
		}
	}
	meta := placement.Meta{StoreUUID: uuid.New(), Copies: 1, Routing: placement.Routing{Mode: placement.Named},
		Restore: &placement.Restore{Source: "source:1", Writes: "Never"}}
	if err := meta.Validate(); err == nil {
		t.Error("a store is valid whose restored groups accept writes Never")
	}
}

// Only enough voters end the wait, and nothing begins it again.
func TestVotersEndTheWaitForWrites(t *testing.T) {
	id := uuid.New()
	voter, learner := placement.Member{Shard: "a"}, placement.Member{Shard: "b", Role: placement.Learner}
	for what, c := range map[string]struct {
		there, next placement.Group
		want        int
	}{
		"no member": {placement.Group{UUID: id, WritesFrom: 2}, placement.Group{UUID: id}, 2},
		"one voter and a learner": {placement.Group{UUID: id, WritesFrom: 2},
			placement.Group{UUID: id, Members: []placement.Member{voter, learner}}, 2},
		"two voters": {placement.Group{UUID: id, WritesFrom: 2},
			placement.Group{UUID: id, Members: []placement.Member{voter, voter}}, 0},
		"a majority of five": {placement.Group{UUID: id, WritesFrom: 3},
			placement.Group{UUID: id, WritesFrom: 3, Members: []placement.Member{voter, voter}}, 3},
		"it was over": {placement.Group{UUID: id},
			placement.Group{UUID: id, WritesFrom: 2, Members: []placement.Member{voter}}, 0},
		"a new group of the name": {placement.Group{UUID: id, WritesFrom: 2},
			placement.Group{UUID: uuid.New(), Members: []placement.Member{voter}}, 0},
	} {
		if got := placement.WritesAfter(c.there, c.next); got != c.want {
			t.Errorf("%s: from %d voters on, want %d", what, got, c.want)
		}
	}
}
