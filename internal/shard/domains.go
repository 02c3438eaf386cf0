package shard

import (
	"maps"
	"slices"

	"sheaf.dev/sheaf/internal/move"
	"sheaf.dev/sheaf/internal/placement"
)

// noteDomains keeps the failure domains of registered shards: a shard whose lease has run out is where it was. The map is
// replaced, never changed. Called with mu held.
func (s *Shard) noteDomains(shards map[string]placement.Shard) {
	var next map[string]string
	for name, shard := range shards {
		if domain, known := s.domains[name]; known && domain == shard.Domain {
			continue
		}
		if next == nil {
			next = maps.Clone(s.domains)
		}
		next[name] = shard.Domain
	}
	if next != nil {
		s.domains = next
	}
}

// shardsOf is what package move is to know of the shards of a group, known members included.
func shardsOf(state groupView, known []placement.Member) map[string]move.Shard {
	out := make(map[string]move.Shard, len(state.Members)+len(state.Target))
	note := func(name string) {
		shard, registered := state.Shards[name]
		if !registered {
			out[name] = move.Shard{Domain: state.Domains[name]}
			return
		}
		out[name] = move.Shard{Domain: shard.Domain, Volume: shard.VolumeUUID, Alive: true}
	}
	for _, m := range slices.Concat(state.Members, known) {
		note(m.Shard)
	}
	for _, name := range state.Target {
		note(name)
	}
	return out
}
