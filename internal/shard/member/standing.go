package member

// Reason explains why etcd does not list a replica at this shard even though the replica is on the volume.
type Reason int

// These are the reasons.
const (
	Ours        Reason = iota // etcd lists the replica at this shard, so it is not a stray
	Unconfirmed               // this shard created the replica for a new group, and etcd does not list it yet
	SetBack                   // etcd was rolled back, and does not list the replica at this shard yet
	Unread                    // etcd's key of the group cannot be used; Detail has the reason
	HasLeft                   // the replica was a member, and no longer is one
	Unknown                   // etcd does not have the group
	Elsewhere                 // etcd places the group on other shards
	OtherVolume               // etcd places the replica on this shard, but on another volume
	Replaceable               // the loss of the replica was reported to etcd; the leader has not replaced it yet
	OtherName                 // etcd has the group under the name in Detail
	OtherGroup                // the files are those of another group; Detail explains which
	Foreign                   // the files were created on another volume or for another group; Detail explains which
)

// Standing tells whether etcd lists a replica on the volume at this shard and, if not, why. The zero value means that
// etcd lists the replica.
type Standing struct {
	Reason Reason
	Detail string // for OtherName, the name; for Unread, OtherGroup and Foreign, an explanation for users
}

// Stray reports whether the replica has no route, because etcd does not list it at this shard.
func (s Standing) Stray() bool { return s.Reason != Ours }

// Apart reports whether the replica is shown separately as a stray rather than as one of the shard's groups. A
// replica that was just created is shown as a group, although etcd does not list it yet.
func (s Standing) Apart() bool { return s.Reason != Ours && s.Reason != Unconfirmed }

// String returns a description of the reason for users, or an empty string if there is no reason.
func (s Standing) String() string {
	switch s.Reason {
	case OtherName:
		return "etcd knows it by the name " + s.Detail
	case Unread, OtherGroup, Foreign:
		return s.Detail
	}
	return map[Reason]string{
		Unconfirmed: "etcd does not say yet that it is here",
		SetBack:     "etcd was set back to an older state, and does not say yet that it is here",
		HasLeft:     "it has left its group",
		Unknown:     "etcd does not know it",
		Elsewhere:   "etcd says it is elsewhere",
		OtherVolume: "etcd says it is on another volume",
		Replaceable: "it was given up, because it is damaged: it waits for its leader to replace it, " +
			"which needs a majority of the other copies",
	}[s.Reason]
}
