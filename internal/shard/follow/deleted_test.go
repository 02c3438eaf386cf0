package follow

import (
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// TestOnlyTheDeletedGroupOfANameLeaves checks that only the replica with the UUID of the deleted group leaves. The name
// of a deleted group may be used again, and a view may be older than the new group. The test costs 10 ms.
func TestOnlyTheDeletedGroupOfANameLeaves(t *testing.T) {
	f := lone(t)
	before, after := uuid.New(), uuid.New()
	ended := &folder{Replica{Name: "g", UUID: before, RaftID: 1}}
	next := &folder{Replica{Name: "g", UUID: after, RaftID: 3}}
	f.Replicas[before], f.Replicas[after] = ended, next
	view := placement.View{Groups: map[string]placement.Group{}, Deleted: map[string]uuid.UUID{"g": before}}
	f.See(view)
	f.Retire(view)
	f.Lock.Lock()
	defer f.Lock.Unlock()
	f.Decide(f.View)
	if ended.Standing.Reason != member.HasLeft || next.Standing.Reason != member.Unknown {
		t.Errorf("the deleted group is %q, and the next one of the name %q", ended.Standing, next.Standing)
	}
}
