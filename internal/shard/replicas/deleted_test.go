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

// TestAFounderWithoutANameLeavesIfNoGroupHasItsUUID checks folders of replicas that were joining when their process was
// stopped. Such a folder shows no name. Only a founder leaves, and only if it is certain that no key in etcd is that of
// its group.
func TestAFounderWithoutANameLeavesIfNoGroupHasItsUUID(t *testing.T) {
	founder := member.Replica{Phase: member.Joining, RaftID: 1, Founder: true}
	foreign, member1, complete := founder, founder, founder
	foreign.Foreign, member1.Founder, complete.Phase = true, false, member.Pending
	listing := placement.Meta{Restore: &placement.Restore{Listing: true}}
	unusable := map[string]placement.Unusable{"groups/h": {Key: "/sheaf/s/groups/h", Why: "?"}}
	for what, c := range map[string]struct {
		replica member.Replica
		view    placement.View
		leaves  bool
	}{
		"founder":                        {founder, placement.View{}, true},
		"etcd is set back":               {founder, placement.View{SetBack: "yes"}, false},
		"groups are listed":              {founder, placement.View{Meta: listing}, false},
		"a key cannot be used":           {founder, placement.View{Unusable: unusable}, false},
		"a founder of another volume":    {foreign, placement.View{}, false},
		"a learner":                      {member1, placement.View{}, false},
		"a founder whose files are here": {complete, placement.View{}, false},
	} {
		s := lone()
		r := s.Add(uuid.New(), State{Replica: c.replica})
		c.view.Groups = map[string]placement.Group{"g": {Name: "g", UUID: uuid.New()}}
		s.See(c.view)
		todo := s.Decide(s.View())
		if leaves := len(todo.Trash) == 1; leaves != c.leaves || leaves && !s.HasLeft(r, c.view) {
			t.Errorf("%s: it leaves: %t, standing %q", what, leaves, r.State().Standing)
		}
	}
}
