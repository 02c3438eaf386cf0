package placement

import (
	"cmp"
	"slices"

	"sheaf.dev/sheaf/client/call/routing"
)

// Most types in this file are aliases of types in package routing, under the names that the store and the planner
// use.
type (
	// Mode determines how a record's id is mapped to the record's group.
	Mode = routing.Mode
	// Routing describes how records are mapped to groups in a store. It cannot be changed once the store exists.
	Routing = routing.Routing
)

// These are the routing modes and their limits.
const (
	Hash             = routing.Hash
	Named            = routing.Named
	GroupsMaxDefault = routing.GroupsMaxDefault
)

// GroupName returns the name of a numbered group, which is its decimal number.
func GroupName(group int) string { return routing.GroupName(group) }

// ValidateGroupName checks a group's name: 1 to 253 bytes of [a-zA-Z0-9._-], not starting with a dot.
func ValidateGroupName(name string) error { return routing.ValidateGroupName(name) }

// ValidateShardName checks the name of a shard or a store: 1 to 253 bytes of [a-z0-9.-], beginning with a letter or
// digit.
func ValidateShardName(name string) error { return routing.ValidateShardName(name) }

// CompareGroups orders group names. Numbers come first, ordered by value, and all other names follow, ordered as
// strings.
func CompareGroups(a, b string) int {
	switch x, y := isNumber(a), isNumber(b); {
	case x && y:
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	case x:
		return -1
	case y:
		return 1
	}
	return cmp.Compare(a, b)
}

func isNumber(name string) bool {
	return !slices.ContainsFunc([]byte(name), func(c byte) bool { return c < '0' || c > '9' })
}
