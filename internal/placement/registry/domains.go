package registry

import (
	"maps"

	"sheaf.dev/sheaf/internal/placement"
)

// withDomains adds to a view the failure domains of shards that were registered earlier. Therefore a shard whose
// process restarts, or whose node is down, remains in its domain, and no second copy is placed in that domain. A
// process that has just started does not know these domains, and treats such a shard as a domain of its own.
func (m *memory) withDomains(view placement.View) placement.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	var next map[string]string // a new map, because earlier views share the previous one
	for name, shard := range view.Shards {
		if m.domains[name] == shard.Domain {
			continue
		}
		if next == nil {
			next = make(map[string]string, len(view.Shards))
			maps.Copy(next, m.domains)
		}
		next[name] = shard.Domain
	}
	if next != nil {
		m.domains = next
	}
	view.Domains = m.domains
	return view
}
