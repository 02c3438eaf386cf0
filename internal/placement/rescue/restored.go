package rescue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// restoredVersion is the version of the UUIDs of groups that were restored from an archive (docs/archive.md). Groups
// that were created in another way have random UUIDs, which are of version 4.
const restoredVersion = 5

// Restored reports whether a volume holds a replica of a group that was restored from an archive. Then groups of the
// store may still wait for their restore, and only etcd knew which. A replica counts also if it is not in Groups, for
// example because a shard is still installing it.
func (r *Rebuilt) Restored() bool { return r.restored }

// isRestored reports whether a replica is of a group of the given store that was restored from an archive. A replica
// that does not say of which store it is counts as well.
func (f FoundReplica) isRestored(store uuid.UUID) bool {
	return f.UUID.Version() == restoredVersion && (f.Store == store || f.Store == uuid.Nil)
}

// againNamesMax is the maximum number of groups that AgainWords names.
const againNamesMax = 10

// AgainWords names the first groups in Again, and gives the number of the others.
func (r *Rebuilt) AgainWords() string {
	if len(r.Again) <= againNamesMax {
		return strings.Join(r.Again, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(r.Again[:againNamesMax], ", "), len(r.Again)-againNamesMax)
}

// AddWaiting adds the groups of a restore that no volume holds, and lists them in Again. They wait for their restore.
// Restored groups that volumes hold with too few voters accept no writes until others have joined, because nobody knows
// any more whether they ever had them. The argument listed has all groups that the source of the restore lists, each
// with Restoring set.
func (r *Rebuilt) AddWaiting(restore placement.Restore, listed []placement.Group) {
	restore.Listing = false
	r.Meta.Restore = &restore
	there := make(map[string]bool, len(r.Groups))
	for i, g := range r.Groups {
		there[g.Name] = true
		if g.UUID.Version() == restoredVersion {
			r.Groups[i].WritesFrom = placement.WritesAfter(placement.Group{UUID: g.UUID, WritesFrom: r.Meta.WritesFrom()}, g)
		}
	}
	for _, g := range listed {
		if g.WritesFrom = r.Meta.WritesFrom(); !there[g.Name] {
			r.Groups, r.Again = append(r.Groups, g), append(r.Again, g.Name)
		}
	}
	if slices.Sort(r.Again); len(r.Again) > 0 {
		r.note("%d groups are on none of these shards, and wait for their restore from %s. Give all shards of the store: a "+
			"group that one more shard holds would be installed twice. A group that was restored and has been deleted since "+
			"comes back", len(r.Again), restore.Source)
	}
	r.KeepWaiting(listed)
	slices.SortFunc(r.Groups, func(a, b placement.Group) int { return strings.Compare(a.Name, b.Name) })
}

// BeginEmpty lets the groups in Missing begin empty. This is for stores that were restored from an archive, in which no
// planner creates groups.
func (r *Rebuilt) BeginEmpty() {
	for n := range r.Meta.Routing.Groups {
		if name := placement.GroupName(n); slices.Contains(r.Missing, name) {
			r.Groups = append(r.Groups, placement.NewGroup(r.Meta.Routing, name, n))
		}
	}
}

// KeepWaiting removes from Missing the groups that wait for their restore.
func (r *Rebuilt) KeepWaiting(waiting []placement.Group) {
	waits := make(map[string]bool, len(waiting))
	for _, g := range waiting {
		waits[g.Name] = true
	}
	r.Missing = slices.DeleteFunc(r.Missing, func(name string) bool { return waits[name] })
}
