package placement

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// View is the placement in etcd at one revision. Maps are keyed by name and must not be changed.
type View struct {
	Epoch  uint64 // routing epoch, which is etcd's revision plus Meta.EpochBase
	Meta   Meta
	Shards map[string]Shard // all registered (and therefore live) shards; States overrides their State
	Groups map[string]Group
	// Deleted holds the UUIDs of deleted groups by name. A group is removed from this map when a new group takes its
	// name.
	Deleted map[string]uuid.UUID
	Targets map[string]Target
	States  map[string]ShardState // states requested by SetShardState, including those of shards that are not registered
	// Domains holds the failure domains of all shards that this process has seen registered, including those that are
	// no longer registered.
	Domains map[string]string
	Mark    Mark
	// Freeze describes the freeze of the store. It is set when a rollback of etcd is noticed, and is nil once the
	// placement has been reconciled. SetBack is the reason, if this process itself has noticed the rollback. Otherwise
	// it is empty.
	Freeze  *Freeze
	SetBack string
	// Unusable holds the keys, without the store's prefix, that the view leaves out because their values are invalid.
	// See UnusableGroup and Problems.
	Unusable map[string]Unusable
	// Own means that only one shard's part of Groups and Targets is complete. The groups of other shards may be missing
	// or outdated, because the registry reads groups one by one. Therefore two such views may differ even if they have
	// the same Epoch.
	Own bool
}

// Domain returns a shard's failure domain, or an empty string if it is unknown.
func (v View) Domain(shard string) string {
	if registered, ok := v.Shards[shard]; ok {
		return registered.Domain
	}
	return v.Domains[shard]
}

// Held explains why nothing may be moved, created or deleted on the basis of this view. It returns an empty string if
// all of that is allowed.
func (v View) Held() string {
	switch {
	case v.Freeze != nil:
		return v.Freeze.String()
	case v.SetBack != "":
		return "etcd was set back to an older state: " + v.SetBack
	}
	return ""
}

// Own determines which groups a shard follows. These are the groups that name the shard or its volume as a member,
// the groups whose target contains the shard, and the groups that have a folder on the shard's volume.
type Own struct {
	Shard string
	// Volume is the shard's volume. It is zero if the shard has no volume. If etcd lists a group's member on this volume
	// under the name of a different shard, this shard takes that member over.
	Volume uuid.UUID
	// Holds reports whether a group has a folder on the shard's volume. If Holds is nil, no group has a folder. Holds is
	// called from a goroutine other than the caller's.
	Holds func(group uuid.UUID) bool
	// Held returns the names of the groups that have a folder on the volume, as far as their names are known. If Held is
	// nil, no names are known. Held is called from a goroutine other than the caller's.
	Held func() []string
}

// Has reports whether the shard follows the given group.
func (o Own) Has(g Group, t Target) bool {
	return slices.Contains(t.Shards, o.Shard) || slices.ContainsFunc(g.Members, func(m Member) bool {
		return m.Shard == o.Shard || o.Volume != uuid.Nil && m.VolumeUUID == o.Volume
	}) || o.Holds != nil && g.UUID != uuid.Nil && o.Holds(g.UUID)
}

// Of returns the part of the view that a shard follows.
func (v View) Of(own Own) View {
	groups, targets := map[string]Group{}, map[string]Target{}
	for name, g := range v.Groups {
		if own.Has(g, v.Targets[name]) {
			groups[name] = g
		}
	}
	for name, t := range v.Targets {
		if _, ok := groups[name]; ok || own.Has(Group{}, t) {
			targets[name] = t
		}
	}
	v.Groups, v.Targets, v.Own = groups, targets, true
	return v
}

// These are the prefixes of the keys of groups and targets in View.Unusable.
const (
	GroupsKey  = "groups/"
	TargetsKey = "targets/"
)

// Unusable describes a key in etcd whose value is invalid.
type Unusable struct {
	Key      string // full name of the key in etcd, with the store's prefix
	Revision int64  // revision at which the value was written
	Why      string // what is wrong with the value
	Newer    bool   // the value is valid for a newer version of Sheaf
}

// String describes the consequences of the invalid value, and what to do about it.
func (o Unusable) String() string {
	if o.Newer {
		return fmt.Sprintf("key %s in etcd is for a newer version: %s; do not change or delete the key", o.Key, o.Why)
	}
	return fmt.Sprintf("key %s in etcd cannot be used and is left out: %s: write it as docs/placement.md says, or delete "+
		"it", o.Key, o.Why)
}

// UnusableGroup explains why a group cannot be placed because its key, or the key of its target, is invalid. It
// returns an empty string if both keys are valid.
func (v View) UnusableGroup(group string) string {
	for _, name := range []string{GroupsKey + group, TargetsKey + group} {
		if o, unusable := v.Unusable[name]; unusable {
			return o.String()
		}
	}
	return ""
}

// GroupUnknown reports whether a group's key exists but is invalid, so that the group's shards are unknown.
func (v View) GroupUnknown(group string) bool {
	_, unusable := v.Unusable[GroupsKey+group]
	return unusable
}

// Unknown returns the names of the groups for which GroupUnknown is true, sorted.
func (v View) Unknown() []string {
	var names []string
	for name := range v.Unusable {
		if group, is := strings.CutPrefix(name, GroupsKey); is {
			names = append(names, group)
		}
	}
	slices.Sort(names)
	return names
}

// AllKnown returns ErrShardHoldsGroups if the key of a group or target cannot be read, because any shard may hold a
// copy of that group.
func (v View) AllKnown() error {
	for name, o := range v.Unusable {
		if strings.HasPrefix(name, GroupsKey) || strings.HasPrefix(name, TargetsKey) {
			return fmt.Errorf("%w: nobody knows which shards have a group: %s", ErrShardHoldsGroups, o)
		}
	}
	return nil
}

// Problems returns one sentence for each key whose value is invalid, in the order of the keys, and one sentence for the
// groups of Lost.
func (v View) Problems() []string {
	words := make([]string, 0, len(v.Unusable))
	for _, name := range slices.Sorted(maps.Keys(v.Unusable)) {
		words = append(words, v.Unusable[name].String())
	}
	if lost := v.Lost(); len(lost) > 0 {
		words = append(words, fmt.Sprintf("%d groups of this store, such as %s: %s", len(lost), lost[0], LostGroup))
	}
	return words
}

// LostGroup says what happened to a group of Lost, and what to do about it.
const LostGroup = "etcd has no key of the group, although the store was restored from an archive with all of its " +
	"groups: the group is not created again, because shards may hold it: run sheaf recover placement"

// Lost returns the groups of Hash routing that have no key, although the list of the groups of a restore was written
// completely. They are in the order of their numbers. In other stores, planners create such groups, and Lost returns
// nothing.
func (v View) Lost() (groups []string) { return slices.Collect(v.lost()) }

// AnyLost reports whether Lost returns a group. It stops at the first one.
func (v View) AnyLost() bool {
	for range v.lost() {
		return true
	}
	return false
}

func (v View) lost() iter.Seq[string] {
	return func(yield func(string) bool) {
		if v.Meta.Restore == nil || v.Meta.Listing() || v.Own {
			return
		}
		for n := range v.Meta.Routing.Groups {
			name := GroupName(n)
			if _, ok := v.Groups[name]; !ok && !v.GroupUnknown(name) && !yield(name) {
				return
			}
		}
	}
}
