package placement

import (
	"maps"
	"slices"
)

// withDomains adds to a view the failure domains of shards that were registered earlier. Therefore a shard whose
// process restarts, or whose node is down, remains in its domain, and no second copy is placed in that domain. A
// process that has just started does not know these domains, and treats such a shard as a domain of its own.
func (m *memory) withDomains(view View) View {
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

// Domain returns the failure domain of a shard. The result is empty if none is known.
func (v View) Domain(shard string) string {
	if registered, ok := v.Shards[shard]; ok {
		return registered.Domain
	}
	return v.Domains[shard]
}

// SharedDomains returns the failure domains, sorted by name, that hold two copies of a group while the group moves
// between shards. Leaders order their steps so that this does not happen (package move). In these cases no such order
// exists:
//
//   - two of the group's present shards, or two of its target shards, are in one domain;
//   - it has fewer shards than its target: a missing copy is replaced immediately, even if a copy that will leave is
//     in the same domain. In this case a domain may be shared, but need not be.
//
// A shard without a known domain belongs to no domain.
func SharedDomains(from, to []string, domain func(shard string) string) (shared []string) {
	note := func(a, b string) {
		d := domain(a)
		if a != b && d != "" && d == domain(b) && !slices.Contains(shared, d) {
			shared = append(shared, d)
		}
	}
	for _, list := range [][]string{from, to} {
		for n, a := range list {
			for _, b := range list[:n] {
				note(a, b)
			}
		}
	}
	if len(from) < len(to) {
		for _, a := range from {
			for _, b := range to {
				note(a, b)
			}
		}
	}
	slices.Sort(shared)
	return shared
}
