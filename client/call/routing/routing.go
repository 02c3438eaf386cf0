// Package routing decides which group holds a record, and whether a failed call may be retried. The gateway and the Go
// client share it. Its only dependency is gRPC's status. docs/placement.md describes the same rules.
package routing

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
)

// Mode says how the group of a record is chosen.
type Mode string

// In Hash mode, the id determines the group. In Named mode, the caller names it.
const (
	Hash  Mode = "Hash"
	Named Mode = "Named"
)

// These constants limit the number of groups and the length of names.
const (
	// HashGroupsMax is the maximum number of groups in Hash routing.
	HashGroupsMax = 65536
	// NameBytesMax is the maximum length, in bytes, of the name of a group, shard or store.
	NameBytesMax = 253
	// GroupsMaxDefault limits the number of groups that first writes create. It is used if Meta.GroupsMax is 0.
	GroupsMaxDefault = 100_000
)

// Key returns the fixed 64-bit mix of an id (the finalizer of SplitMix64, a bijection). It is the position of the id in
// the key space that Hash groups divide. It never changes, because placement on disk depends on it.
//
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), with Stafford's constants
// ("Mix13"), without the addition of the golden gamma. Hence Key(0) = 0.
func Key(id int64) uint64 {
	z := uint64(id)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Routing is the routing of a store. It is immutable once the store exists.
type Routing struct {
	Mode   Mode `json:"mode"`
	Groups int  `json:"groups"` // number of groups with Hash, 1 to 65,536; 0 with Named
}

// Validate returns an error that describes what is wrong with the routing and what to do. It returns nil if the routing
// is valid.
func (r Routing) Validate() error {
	switch r.Mode {
	case Hash:
		if r.Groups < 1 || r.Groups > HashGroupsMax {
			return fmt.Errorf("routing Hash: the number of groups is %d: give 1 to %d", r.Groups, HashGroupsMax)
		}
	case Named:
		if r.Groups != 0 {
			return fmt.Errorf("routing Named: the number of groups is %d: leave it out, groups are made by name", r.Groups)
		}
	default:
		return fmt.Errorf("routing mode %q: give %s or %s", r.Mode, Hash, Named)
	}
	return nil
}

// GroupOf returns the number of the group that owns the id in Hash routing. It returns -1 if the routing has no
// numbered groups.
func (r Routing) GroupOf(id int64) int {
	if r.Groups <= 0 {
		return -1
	}
	// floor(key * groups / 2^64): group g owns the keys that start at ceil(g * 2^64 / groups).
	high, _ := bits.Mul64(Key(id), uint64(r.Groups))
	return int(high)
}

// KeyRange returns the range of keys, inclusive at both ends, that a group owns in Hash routing. The ranges divide 2^64
// evenly, so their sizes differ by at most one. A group outside [0, Groups) owns the empty range (1, 0).
func (r Routing) KeyRange(group int) (first, last uint64) {
	if group < 0 || group >= r.Groups {
		return 1, 0
	}
	first, last = firstKey(group, r.Groups), math.MaxUint64
	if group+1 < r.Groups {
		last = firstKey(group+1, r.Groups) - 1
	}
	return first, last
}

// firstKey returns ceil(group * 2^64 / groups), for 0 <= group < groups.
func firstKey(group, groups int) uint64 {
	quotient, remainder := bits.Div64(uint64(group), 0, uint64(groups))
	if remainder > 0 {
		quotient++
	}
	return quotient
}

// GroupName returns the name of a numbered group, which is its decimal number.
func GroupName(group int) string { return strconv.Itoa(group) }

// ValidateGroupName checks a group's name: 1 to 253 bytes of [a-zA-Z0-9._-], not starting with a dot.
func ValidateGroupName(name string) error {
	if err := validateLength("group", name); err != nil {
		return err
	}
	if name[0] == '.' {
		return fmt.Errorf("group name %q starts with a dot: begin with a letter, digit, '_' or '-'", name)
	}
	for i := range len(name) {
		c := name[i]
		if !isLowerOrDigit(c) && (c < 'A' || c > 'Z') && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("group name %q: byte %d is %q: use only a-z, A-Z, 0-9, '.', '_' and '-'", name, i, c)
		}
	}
	return nil
}

// ValidateShardName checks the name of a shard or a store: 1 to 253 bytes of [a-z0-9.-], beginning with a letter or
// digit.
func ValidateShardName(name string) error { return ValidateName("shard", name) }

// ValidateName checks a name as ValidateShardName does. Errors use the argument what to name the kind of object.
func ValidateName(what, name string) error {
	if err := validateLength(what, name); err != nil {
		return err
	}
	if !isLowerOrDigit(name[0]) {
		return fmt.Errorf("%s name %q: begin with a-z or 0-9", what, name)
	}
	for i := range len(name) {
		if c := name[i]; !isLowerOrDigit(c) && c != '.' && c != '-' {
			return fmt.Errorf("%s name %q: byte %d is %q: use only a-z, 0-9, '.' and '-'", what, name, i, c)
		}
	}
	return nil
}

func validateLength(what, name string) error {
	if name == "" {
		return fmt.Errorf("%s name is empty: give 1 to %d bytes", what, NameBytesMax)
	}
	if len(name) > NameBytesMax {
		return fmt.Errorf("%s name %.20q... has %d bytes: give 1 to %d", what, name, len(name), NameBytesMax)
	}
	return nil
}

func isLowerOrDigit(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
