package replicas

import (
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// TestOnlyTheDeletedGroupOfANameLeaves checks that after the deletion of a group, only the replica with that group's
// UUID leaves. A new group may have the same name, and a view may be older than the new group. The test takes 10 ms.
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

// TestAReplicaWithoutAManifestLeavesItsDeletedGroup checks a replica whose process was killed before the replica had
// a manifest. Only the name of its folder shows to which group it belongs. If that group is deleted before the next
// start, the replica must leave.
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
