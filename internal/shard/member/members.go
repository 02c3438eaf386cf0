package member

import (
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// Here are the members of a group on a volume of a shard: usually one.
func Here(group placement.Group, shard string, volume uuid.UUID) []placement.Member {
	var here []placement.Member
	for _, m := range group.Members {
		if m.Shard == shard && m.VolumeUUID == volume {
			here = append(here, m)
		}
	}
	return here
}

// IsShared tells whether a group has several copies.
func IsShared(group placement.Group) bool {
	voters := 0
	for _, m := range group.Members {
		if m.Role == placement.Voter {
			voters++
		}
	}
	return voters > 1 || voters == 1 && len(group.Members) > 1
}

// Names tells whether etcd names a replica, wherever it says it is.
func Names(group placement.Group, raftID uint64) bool {
	return slices.ContainsFunc(group.Members, func(m placement.Member) bool { return m.RaftID == raftID })
}

// EtcdIsBehind tells whether etcd does not name the replica, and the membership that the replica knows, with itself in
// it, is later than etcd's.
func EtcdIsBehind(group placement.Group, r *Replica) bool {
	return len(group.Members) > 0 && !Names(group, r.RaftID) && r.KnownIndex > group.ConfIndex && r.InConf
}

// Left tells whether the replica was a member of its group and is none any more: etcd does not name it, on no shard
// and no volume, and the leader wrote a membership that is not older than the one that the replica knows. Where only
// one copy was ever wanted nobody writes that, and nothing is deleted. A replica that this process made, and of which
// etcd was never told, has left where etcd wants a learner in its place: another shard made the group at the same
// time, and was the first to tell.
func (v *View) Left(r *Replica) bool {
	here := v.here()
	switch {
	case r.isOneOf(here), !r.Foreign && Names(v.Group, r.RaftID):
		return false
	case r.Phase == Joining:
		return true // nothing in it counts
	case r.Standing.Reason == Unconfirmed && (!r.Untold || !isLearner(here)):
		return false
	}
	return r.RaftID != 0 && v.Group.ConfIndex > 0 && v.Group.ConfIndex >= r.KnownIndex
}

// here are the members that etcd names on this volume.
func (v *View) here() []placement.Member { return Here(v.Group, v.Shard, v.Volume) }

// isMember tells whether the group has a member on this shard, whatever its volume.
func (v *View) isMember() bool {
	return slices.ContainsFunc(v.Group.Members, func(m placement.Member) bool { return m.Shard == v.Shard })
}

// isLearner tells whether etcd wants just a learner here, of the members that it names on this volume.
func isLearner(here []placement.Member) bool {
	return len(here) == 1 && here[0].Role == placement.Learner
}

// isOneOf tells whether the folder is of one of these members.
func (r *Replica) isOneOf(members []placement.Member) bool {
	return slices.ContainsFunc(members, func(m placement.Member) bool { return r.RaftID == 0 || m.RaftID == r.RaftID })
}

// isRemnant tells whether the folder is what a kill leaves of a replica that was just begun, or being removed, where
// etcd wants a learner here: it holds no manifest, and not which replica it is. Nothing in it counts.
func (r *Replica) isRemnant(here []placement.Member) bool {
	return r.Unreadable && r.RaftID == 0 && isLearner(here)
}

// isLookedFor tells whether etcd names the replica as a member, and does not know where it is.
func (r *Replica) isLookedFor(group placement.Group) bool {
	return slices.ContainsFunc(group.Members, func(m placement.Member) bool {
		return m.RaftID == r.RaftID && m.Shard == ""
	})
}

// away is why a replica is a stray whose group has a member on this shard, and not on this volume.
func (r *Replica) away(group placement.Group) Reason {
	if slices.ContainsFunc(group.Members, func(m placement.Member) bool {
		return m.RaftID == r.RaftID && m.VolumeUUID == uuid.Nil
	}) {
		return Replaceable
	}
	return OtherVolume
}
