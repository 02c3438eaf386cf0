package replicas

import (
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// TestOnlyTheDeletedGroupOfANameLeaves checks that only the replica with the UUID of the deleted group leaves. A new
// group may have the name of a deleted one, and a view may be older than the new group. The test costs 10 ms.
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

// TestAReplicaWithoutAManifestLeavesItsDeletedGroup is about a process that was killed before a new replica had a
// manifest. If the group is deleted before the next start, the replica leaves. Only the name of its folder identifies
// the group.
func TestAReplicaWithoutAManifestLeavesItsDeletedGroup(t *testing.T) {
	for what, c := range map[string]struct {
		replica member.Replica
		leaves  bool
	}{
		"joining":   {member.Replica{Phase: member.Joining, RaftID: 1}, true},
		"half made": {member.Replica{Phase: member.Failed, Unreadable: true, Empty: true}, true},
		"hit":       {member.Replica{Phase: member.Failed, Unreadable: true}, false},
	} {
		s := lone()
		r := s.Add(uuid.New(), State{Replica: c.replica})
		deleted := map[string]uuid.UUID{"g": r.UUID, "h": uuid.New()}
		view := placement.View{Groups: map[string]placement.Group{}, Deleted: deleted}
		s.See(view)
		todo := s.Decide(s.View())
		if leaves := len(todo.Trash) == 1; leaves != c.leaves || leaves && (r.Name != "g" || !s.HasLeft(r, view)) {
			t.Errorf("%s: it leaves: %t, as the replica of %q", what, leaves, r.Name)
		}
	}
}
