package member

import (
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// Here returns the group's members that are on the given volume of the shard. Usually there is at most one.
func Here(group placement.Group, shard string, volume uuid.UUID) []placement.Member {
	var here []placement.Member
	for _, m := range group.Members {
		if m.Shard == shard && m.VolumeUUID == volume {
			here = append(here, m)
		}
	}
	return here
}

// IsShared reports whether a group has several copies.
func IsShared(group placement.Group) bool {
	voters := 0
	for _, m := range group.Members {
		if m.Role == placement.Voter {
			voters++
		}
	}
	return voters > 1 || voters == 1 && len(group.Members) > 1
}

// Names reports whether etcd names a replica, on any shard.
func Names(group placement.Group, raftID uint64) bool {
	return slices.ContainsFunc(group.Members, func(m placement.Member) bool { return m.RaftID == raftID })
}

// EtcdIsBehind reports whether the membership in etcd wrongly lacks a replica, because a later membership in the
// replica's log includes it. The membership of a founder proves nothing, because each shard that installs a restored
// group has one of its own.
func EtcdIsBehind(group placement.Group, r *Replica) bool {
	return len(group.Members) > 0 && !Names(group, r.RaftID) && r.KnownIndex > group.ConfIndex && r.InConf && !r.Founder
}

// Left reports whether the replica was a member of its group and no longer is one. This is the case if etcd names the
// replica on no shard and no volume, and etcd's membership, which the leader wrote, is not older than the replica's
// own. For a group that never has more than one copy, no leader writes a membership, so nothing is deleted. A replica
// that this process created, and that was never reported to etcd, has left if etcd wants a learner in its place,
// because another shard created the group at the same time and reported it first. If etcd has another group of the same
// name, or no group with the UUID of a replica whose name is unknown, only a founder that is still joining has left.
func (v *View) Left(r *Replica) bool {
	here := v.here()
	switch {
	case v.Replaced:
		return r.isUnfinishedFounder()
	case r.isOneOf(here), !r.Foreign && Names(v.Group, r.RaftID):
		return false
	case v.Group.Restoring && len(v.Group.Members) == 0 && (r.Phase == Joining || r.Founder):
		// Nobody has reported the group yet. A complete replica is kept, because the target may name this shard again. The
		// same is true of an incomplete one while there is no target.
		return r.Phase == Joining && len(v.Target) > 0 && v.Target[0] != v.Shard
	case r.Phase == Joining:
		return true // a replica that is still joining does not have a complete copy yet
	case r.Founder:
		return len(v.Group.Members) > 0 // another shard has reported the group first
	case r.Standing.Reason == Unconfirmed && (!r.NeverReported || !isLearner(here)):
		return false
	}
	return r.RaftID != 0 && v.Group.ConfIndex > 0 && v.Group.ConfIndex >= r.KnownIndex
}

// here returns the members that etcd names on this volume.
func (v *View) here() []placement.Member { return Here(v.Group, v.Shard, v.Volume) }

// isFirst reports whether the group has no members, and this shard is the first of its target.
func (v *View) isFirst() bool {
	return len(v.Group.Members) == 0 && len(v.Target) > 0 && v.Target[0] == v.Shard
}

// isMember reports whether the group has a member on this shard, on any volume.
func (v *View) isMember() bool {
	return slices.ContainsFunc(v.Group.Members, func(m placement.Member) bool { return m.Shard == v.Shard })
}

// isLearner reports whether the only member that etcd names on this volume is a learner.
func isLearner(here []placement.Member) bool {
	return len(here) == 1 && here[0].Role == placement.Learner
}

// isOneOf reports whether the replica's folder belongs to one of the given members.
func (r *Replica) isOneOf(members []placement.Member) bool {
	return slices.ContainsFunc(members, func(m placement.Member) bool { return r.RaftID == 0 || m.RaftID == r.RaftID })
}

// isRemnant reports whether etcd wants a learner on this shard, and the folder is only a remnant, because a kill
// interrupted the creation or the removal of a replica. Such a folder has no manifest, and does not show which
// replica it belongs to. Its content is ignored.
func (r *Replica) isRemnant(here []placement.Member) bool {
	return r.Unreadable && r.RaftID == 0 && isLearner(here)
}

// isUselessFounder reports whether a folder belongs to an installation from the source of a restore that cannot
// continue: the replica was created elsewhere or for a learner, or files of the complete replica are damaged. Nobody
// has reported the replica, so it has acknowledged nothing, and another one is installed in its place.
func (r *Replica) isUselessFounder() bool {
	if r.Phase == Joining {
		return r.Foreign || !r.Founder
	}
	return r.Founder && (r.Foreign || r.Unreadable || r.Phase.MissingEntries())
}

// isUnfinishedFounder reports whether the replica is still being installed from the source of a restore. Nobody has
// reported such a replica, so it has acknowledged nothing.
func (r *Replica) isUnfinishedFounder() bool { return r.Founder && r.Phase == Joining && !r.Foreign }

// isOwn reports whether all files in the folder are certain to belong to this group.
func (r *Replica) isOwn() bool { return !r.Foreign && r.Exchanged == "" && (!r.Unreadable || r.Empty) }

// isLookedFor reports whether etcd lists the replica as a member, but does not know where it is.
func (r *Replica) isLookedFor(group placement.Group) bool {
	return slices.ContainsFunc(group.Members, func(m placement.Member) bool {
		return m.RaftID == r.RaftID && m.Shard == ""
	})
}

// away returns the reason why a replica is a stray although its group has a member on this shard. That member is on a
// different volume.
func (r *Replica) away(group placement.Group) Reason {
	if slices.ContainsFunc(group.Members, func(m placement.Member) bool {
		return m.RaftID == r.RaftID && m.VolumeUUID == uuid.Nil
	}) {
		return Replaceable
	}
	return OtherVolume
}
