package replicas

import (
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// TestAGroupThatIsReadLateBeginsNoReplicaTwice starts while the group's key in etcd is unusable. The group's replica
// then stays as it is. When the key is repaired, it lists a learner. An earlier process may have started this learner,
// so it must not be started again (rule 7). The test takes 10 ms.
func TestAGroupThatIsReadLateBeginsNoReplicaTwice(t *testing.T) {
	s := lone()
	here, id := s.Volume(), uuid.New()
	kept := s.Add(id, State{Replica: member.Replica{Name: "0", RaftID: 1}})
	unread := placement.View{
		Groups:   map[string]placement.Group{},
		Unusable: map[string]placement.Unusable{"groups/0": {Key: "/sheaf/s/groups/0", Why: "?"}},
	}
	s.See(unread)
	s.Retire(unread)
	todo, standing := s.Decide(s.View()), kept.State().Standing
	if todo.Acts() || len(todo.Load)+len(todo.Close) > 0 || standing.Reason != member.Unread {
		t.Errorf("while the key cannot be used: to do %+v, the replica is %q", todo, standing)
	}
	s.Remove(kept)
	s.See(placement.View{Groups: map[string]placement.Group{"0": {
		Name: "0", UUID: id, ConfIndex: 9,
		Members: []placement.Member{{Shard: "b", RaftID: 2}, {Shard: "c", RaftID: 3},
			{Shard: "a", VolumeUUID: here, RaftID: 1, Role: placement.Learner}},
	}}})
	if todo := s.Decide(s.View()); len(todo.MakeFolder) > 0 || len(todo.Missing) != 1 {
		t.Errorf("a replica that may have been begun before: %+v", todo)
	}
}
