package member

// Reason says why etcd does not list a replica here although it is on the volume.
type Reason int

// These are the reasons.
const (
	Ours        Reason = iota // etcd lists the replica here: it is not a stray
	Unconfirmed               // the replica was created here for a new group, and etcd does not list it here yet
	SetBack                   // etcd was set back, and does not list the replica here yet
	Unread                    // etcd's key of the group cannot be used, as Detail says
	HasLeft                   // the replica was a member, and no longer is
	Unknown                   // etcd does not know the group
	Elsewhere                 // etcd names other shards
	OtherVolume               // etcd names this shard with another volume
	Replaceable               // etcd knows that the replica was given up; the leader has not replaced it yet
	OtherName                 // etcd knows the group by the name in Detail
	OtherGroup                // the files are those of another group, as Detail says
	Foreign                   // the files were made on another volume or for another group, as Detail says
)

// Standing is what etcd says about a replica on the volume. The zero value means that etcd lists the replica at this
// shard.
type Standing struct {
	Reason Reason
	Detail string // for OtherName: that name; for Unread, OtherGroup and Foreign: an explanation for users
}

// Stray reports whether the replica has no route, because etcd does not list it here.
func (s Standing) Stray() bool { return s.Reason != Ours }

// Apart reports whether the replica is shown as a stray, and not as one of the shard's groups. A replica that was just
// created is shown as a group.
func (s Standing) Apart() bool { return s.Reason != Ours && s.Reason != Unconfirmed }

// String returns the reason in words for people. It returns an empty string if there is no reason.
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
