package placement

import (
	"errors"
	"fmt"
)

// These errors concern a store and its placement in etcd.
var (
	// ErrNoMeta means that the store has not been created yet.
	ErrNoMeta = errors.New("etcd holds no such store")
	// ErrChanged means that another process has changed the group since the caller read it. The caller must read it
	// again.
	ErrChanged = errors.New("the group was changed since it was read")
	// ErrNameTaken means that a live shard with the same name has another volume, or a later generation of this volume.
	ErrNameTaken = errors.New("the shard's name is taken")
	// ErrRolledBack means that a shard must not serve its volume, because the volume does not follow the state in which
	// it was last registered (see MayFollow). The volume was rolled back to an earlier state or is a clone, so it may
	// lack data that it has acknowledged.
	ErrRolledBack = errors.New("the volume was rolled back or cloned")
	// ErrStaleLeader means that the group was written by a leader with a later term, or by one that has applied a later
	// membership change.
	ErrStaleLeader = errors.New("another leader has written the group since")
	// ErrGroupLimit means that a limit on the number of groups is reached. errors.As finds a *LimitError.
	ErrGroupLimit = errors.New("the limit of groups is reached")
	// ErrNoGroup means that etcd holds no such group.
	ErrNoGroup = errors.New("no such group")
	// ErrAccessChanged means that the grant table has changed since the caller read it.
	ErrAccessChanged = errors.New("the table of grants was changed since it was read")
	// ErrFrozen means that etcd holds an older state of the store than a process has seen before. Nothing was written.
	ErrFrozen = errors.New("etcd was set back to an older state of this store")
	// ErrUnusable means that the value of a key cannot be used.
	ErrUnusable = errors.New("the value cannot be used")
	// ErrStoreExists means that etcd already holds the placement of this store or another one. Nothing was written.
	ErrStoreExists = errors.New("etcd already holds a store here")
)

// These errors concern a store that is known to exist.
var (
	// ErrPlacementLost means that etcd holds nothing about a store that exists. The placement must be rebuilt from the
	// shards, not created again.
	ErrPlacementLost = errors.New("etcd has lost the placement of this store")
	// ErrOtherStore means that etcd holds another store under this name.
	ErrOtherStore = errors.New("etcd holds another store")
	// ErrShardRegistered means that a process is running the shard.
	ErrShardRegistered = errors.New("the shard is registered")
	// ErrShardHoldsGroups means that the shard is a member of groups, or is to receive groups.
	ErrShardHoldsGroups = errors.New("the shard still holds groups")
)

// Bound limits the number of groups whose names begin with a prefix. When a bound is reached, no further group is
// created, but no group is deleted.
type Bound struct {
	Prefix string // empty for all groups of the store
	Most   int64
}

// LimitError means that a bound does not allow one more group. It names that bound, and wraps ErrGroupLimit.
type LimitError struct {
	Bound
	Groups int64 // current number of groups within the bound
}

// Error implements error.
func (e *LimitError) Error() string {
	whose := "of the store"
	if e.Prefix != "" {
		whose = fmt.Sprintf("whose names begin with %q", e.Prefix)
	}
	return fmt.Sprintf("%v: there are %d groups %s, of at most %d", ErrGroupLimit, e.Groups, whose, e.Most)
}

// Unwrap returns ErrGroupLimit.
func (e *LimitError) Unwrap() error { return ErrGroupLimit }
