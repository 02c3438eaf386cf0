package replicas

import (
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// TestOnlyTheDeletedGroupOfANameLeaves checks that only the replica with the UUID of the deleted group leaves. The name
// of a deleted group may be used again, and a view may be older than the new group. The test costs 10 ms.
func TestOnlyTheDeletedGroupOfANameLeaves(t *testing.T) {
	s := lone()
	before, after := uuid.New(), uuid.New()
	ended := s.Add(before, State{Replica: member.Replica{Name: "g", RaftID: 1}})
	next := s.Add(after, State{Replica: member.Replica{Name: "g", RaftID: 3}})
	view := placement.View{Groups: map[string]placement.Group{}, Deleted: map[string]uuid.UUID{"g": before}}
	s.See(view)
	s.Retire(view)
	s.Decide(s.View())
	left, stays := ended.State().Standing, next.State().Standing
	if left.Reason != member.HasLeft || stays.Reason != member.Unknown {
		t.Errorf("the deleted group is %q, and the next one of the name %q", left, stays)
	}
}
