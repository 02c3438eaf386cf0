package placement

import (
	"slices"
)

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
