package replicas

import (
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// lone creates an empty set for shard a, in which the first load has begun.
func lone() *Set {
	volume := uuid.New()
	s := New(Options{Shard: "a", Volume: func() uuid.UUID { return volume }, Logger: slog.New(slog.DiscardHandler),
		Meta: func() placement.Meta { return placement.Meta{} }})
	s.BeginLoad()
	return s
}

// A shard keeps connections only to the shards that share a group with it.
func TestWhoIsConnected(t *testing.T) {
	s := lone()
	here, elsewhere := uuid.New(), uuid.New()
	s.Add(here, State{Replica: member.Replica{Name: "0"}})
	s.Add(elsewhere, State{Replica: member.Replica{Name: "1"}})
	on := func(shards ...string) (members []placement.Member) {
		for _, name := range shards {
			members = append(members, placement.Member{Shard: name})
		}
		return members
	}
	view := placement.View{Groups: map[string]placement.Group{
		"0": {Name: "0", UUID: here, Members: on("a", "b", "")}, "1": {Name: "1", UUID: elsewhere, Members: on("c", "d")},
		"2": {Name: "2", UUID: uuid.New(), Members: on("a", "e")},
	}}
	s.See(view)
	if got := s.Decide(view).Peers; len(got) != 1 || got[0] != "b" {
		t.Errorf("connected to %v", got)
	}
}
