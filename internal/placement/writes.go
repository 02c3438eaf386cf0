package placement

import "fmt"

// A group that is restored from an archive first has a single copy. By default, it serves reads with that copy, but
// accepts no writes until a majority of its copies has joined: an acknowledged write is then on as many volumes as in
// any other group. Group.WritesFrom is the only record of this. It is set when the group is listed for its restore, and
// it can only become 0 afterwards.

// RestoredWrites says from when on the groups of a restore accept writes.
type RestoredWrites string

// These are the values of RestoredWrites.
const (
	// WritesRedundant means that a group accepts writes once a majority of its copies are voters.
	WritesRedundant RestoredWrites = "Redundant"
	// WritesAtOnce means that a group accepts writes as soon as its first copy serves.
	WritesAtOnce RestoredWrites = "AtOnce"
)

// Validate returns an error that says which values are allowed, or nil. An empty string is allowed.
func (w RestoredWrites) Validate() error {
	switch w {
	case "", WritesRedundant, WritesAtOnce:
		return nil
	}
	return fmt.Errorf("writes of the restore, %.40q: give %s or %s", string(w), WritesRedundant, WritesAtOnce)
}

// WritesFrom returns the value of Group.WritesFrom with which a group of this store begins to wait for its restore. It
// is 0 if the store is no restore, or if its groups accept writes at once.
func (m Meta) WritesFrom() int {
	if m.Restore == nil || m.Restore.Writes == WritesAtOnce || m.Copies <= 1 {
		return 0
	}
	return m.Copies/2 + 1
}

// WritesAfter returns the value of WritesFrom that a group has after a write. The argument there is the group that etcd
// holds, and next is the group that is to replace it. Whoever writes a group that exists has to set this value.
func WritesAfter(there, next Group) int {
	if there.UUID != next.UUID || len(next.Voters()) >= there.WritesFrom {
		return 0
	}
	return there.WritesFrom
}
