package operator

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/test/must"
)

// A store with Named routing that was restored is not adopted by itself, because nobody knows whether groups wait.
func TestARestoredStoreIsNotAdoptedWithoutAPerson(t *testing.T) {
	id := uuid.New()
	restored := uuid.NewSHA1(id, []byte("0"))
	for name, c := range map[string]struct {
		group   uuid.UUID
		founder bool
		hash    bool
		own     bool // the store itself was restored, and the restore has ended
		refused string
	}{
		"never restored":                        {group: uuid.New()},
		"restored":                              {group: restored, refused: "--restore none"},
		"a shard installs the group":            {group: restored, founder: true, refused: "--restore none"},
		"hash, all groups are there":            {group: restored, hash: true},
		"hash, a shard installs the only group": {group: restored, founder: true, hash: true, refused: "on none of"},
		"its own restore has ended":             {group: restored, own: true},
	} {
		store := &v1alpha1.RecordStore{}
		store.Spec.Groups.Routing = v1alpha1.RoutingNamed
		if c.hash {
			store.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingHash, Count: new(int32(1))}
		}
		if c.own {
			store.Spec.Restore = &v1alpha1.Restore{}
		}
		replica := rescue.FoundReplica{Name: "0", UUID: c.group, Store: id, RaftID: 7, Voters: []uint64{7}}
		if c.founder {
			replica = rescue.FoundReplica{UUID: c.group, Store: id, RaftID: 7, Joining: true}
		}
		r, err := rescue.Rebuild(id, []rescue.FoundVolume{{Shard: "a", UUID: uuid.UUID{5}, Store: id,
			Facts:    &rescue.FoundFacts{Routing: routingOf(store), Copies: 1},
			Replicas: []rescue.FoundReplica{replica}}}, nil)
		must.OK(t, err)
		switch err := fits(store, r, 1); {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.refused != "" && (!errors.Is(err, fleet.ErrVolumesIncomplete) || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %v", name, err)
		}
	}
}
