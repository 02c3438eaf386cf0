package placement

import (
	"maps"
	"slices"
)

// withDomains adds to a view the failure domains of shards that were registered before: one whose process is starting
// anew, or whose node is away, is where it was, and no second copy goes there. A process that has just begun does not
// know them, and takes such a shard for a domain of its own.
func (m *memory) withDomains(view View) View {
	m.mu.Lock()
	defer m.mu.Unlock()
	var next map[string]string // views have the one before
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

// Domain is the failure domain of a shard; empty where none is known.
func (v View) Domain(shard string) string {
	if registered, ok := v.Shards[shard]; ok {
		return registered.Domain
	}
	return v.Domains[shard]
}

// SharedDomains are the failure domains in which two copies of a group are while it moves from shards to others, in the
// order of their names. Leaders take their steps in an order that avoids it (package move); what is left is where there
// is none:
//
//   - two of the shards that it is on, or that it is to be on, are in one domain;
//   - it is on fewer shards than it is to be on: a copy that is missing is made good at once, though one that is to
//     leave be in the same domain. Then it may be so.
//
// Shards of which no domain is known are in none.
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
