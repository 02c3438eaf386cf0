package placement

import "slices"

// SharedDomains are the failure domains in which two copies of a group are while it moves from shards to others, in the order of
// their names. Leaders take their steps in an order that avoids it (package move); what is left is where there is none:
//
//   - two of the shards that it is on, or that it is to be on, are in one domain;
//   - it is on fewer shards than it is to be on: a copy that is missing is made good at once, though one that is to leave be in
//     the same domain. Then it may be so.
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
