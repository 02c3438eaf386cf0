// Package member decides what a shard does about one group, given the group's state in etcd and its replica on the
// volume. Decide is a pure function: it looks at one view and one replica and names one action. The shard gathers the
// view and the replica, and carries out the action. A replica has a Phase, which is its progress, and a Standing,
// which tells whether etcd lists the replica and, if not, why. docs/adr/0033-states-of-a-replica.md has the states
// and transitions as tables.
package member

import (
	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/placement"
)

// View holds everything that Decide must know about a group, except for the replica on the volume.
type View struct {
	Shard  string    // name of this shard
	Volume uuid.UUID // UUID of this shard's volume

	Known bool            // etcd has the group; otherwise Group and Target are empty
	Group placement.Group // etcd's state of the group
	// Unread explains why etcd's key of the group cannot be used. It is empty if the key can be used, or if there is no
	// key. While the key cannot be used, the group's location is unknown, and the group's files on this volume remain as
	// they are.
	Unread string
	// Deleted means that the group was deleted, according to etcd. Known is then false.
	Deleted bool
	// Replaced means that etcd has another group under the replica's name, with another UUID, or that the name is unknown
	// and etcd has no group with the replica's UUID. Known is then false.
	Replaced bool
	// Target lists the shards that should hold the group; the first one creates it, or installs it if it is restored.
	// It is used only while the group has no members.
	Target []string
	// Listing means that the groups of a restore are still being written to etcd. No shard creates or installs a group
	// meanwhile.
	Listing   bool
	EpochBase uint64 // the group's revision plus EpochBase is an epoch

	SetBack   bool // etcd was rolled back, so its state must not make a shard create, move or delete anything (rule 9)
	LoadBegun bool // the first load after the start has begun
	// Retired holds the Raft ids of all replicas that were ever begun on this volume, or may have been. A replica with
	// such an id may have acknowledged entries or voted, so no new replica gets the id (rule 7).
	Retired map[uint64]bool

	Off rules.Off // rules that are switched off for a test
}

// Replica holds the facts about a group's replica on the volume.
type Replica struct {
	Name   string // name of the group according to its manifest, or to etcd if the manifest cannot be read
	RaftID uint64 // 0 means not known

	Phase    Phase
	Standing Standing

	// The following fields describe the folder. Several of them may be set, in any phase.

	Foreign    bool   // the replica was created on another volume or for another group, so it never runs
	Exchanged  string // reason why the folder holds another group's files; empty if it does not
	Unreadable bool   // the folder has no readable manifest
	Empty      bool   // the folder has no replica file, for example after a kill during creation; Unreadable is also set
	// Founder means that the replica is, or is being, installed from the source of a restore, and that this shard does
	// not know yet whether etcd lists it. It serves no calls. If etcd lists other members instead, another shard has
	// reported the group first, and the replica is not a member.
	Founder bool

	// The following fields record what this shard reported to etcd. A later view does not change them.

	NeverReported bool   // created by this process for a new group, but never listed by etcd, so it never served
	Confirmed     uint64 // epoch at which this process last reported to etcd that it has the group; 0 if it never did

	// The following fields describe activities, which are possible in any phase that has files.

	Fetching bool // files are being installed
	Serves   bool // a node serves calls for the replica

	KnownIndex uint64 // index of the newest membership in the replica's log or manifest
	// InConf reports whether that newest membership includes the replica. It is set only if that membership is later
	// than the one in etcd, and the one in etcd does not include the replica.
	InConf bool
}

// Kind is the kind of an Action.
type Kind int

// These are the kinds of actions.
const (
	Nothing       Kind = iota
	Load               // load the folder and serve the group
	Join               // install the replica from another copy, or from the source of a restore, then load it
	Reinstall          // install the replica in place, or give it up
	Create             // create the group on this shard
	Announce           // report to etcd that this shard has the group, which it created or installed from a source
	Settle             // record on the volume that etcd lists the founder at this shard, then serve calls
	MakeFolder         // create the folder for a learner that must join, or for a founder
	ReportPresent      // report to etcd that this shard has a member whose location etcd lacks
	ReportMissing      // report to etcd that a member on this shard is missing or incomplete
	MarkLost           // record that the data of a member on this shard is missing, and that no other copy can replace it
	Keep               // keep the replica's files, and do not serve it
	EndFetch           // end the install in progress, and decide again
	Trash              // take the replica out of service, and move its files to the trash
	kinds              // number of kinds
)

func (k Kind) String() string {
	if k < 0 || k >= kinds {
		return "unknown"
	}
	return [...]string{
		"Nothing", "Load", "Join", "Reinstall", "Create", "Announce", "Settle", "MakeFolder", "Claim", "Confess", "Lose",
		"Keep", "EndFetch",
		"Trash",
	}[k]
}

// Action is a decision about a group.
type Action struct {
	Kind Kind
	// Standing is the new standing of the replica.
	Standing Standing
	// Named means that etcd lists the replica at this shard and was not rolled back.
	Named bool
}

// Decide returns the action for a group. r is nil if the group has no folder on the volume.
//
//   - A replica that etcd lists on this volume continues. A replica that was created elsewhere, or that has files of
//     another group, never runs.
//   - If a replica's own membership is later than the one in etcd and includes the replica, it reports that to etcd.
//   - A replica that etcd does not list leaves only if a leader wrote a membership that is not older than its own.
//   - A member without its data is never served as if it were empty: another copy replaces it, or it is lost.
//   - A replica that etcd places on another shard, or does not know, is kept but not served.
//   - A group that is restored is never created. It is installed from the source of the restore, and reported to etcd
//     before it serves. If another shard reports it first, the replica leaves. If a person gives the restore up, which
//     gives the group's name to a new group, a replica that is still being installed leaves.
//   - A replica of a deleted group leaves, because its leader has proved that the group is empty. Files that may
//     belong to another group are kept.
func Decide(v *View, r *Replica) Action {
	here := v.here()
	switch {
	case v.SetBack:
		return v.whileSetBack(r)
	case v.Unread != "":
		return v.whileUnread(r)
	case v.Deleted && r != nil && r.Phase != Lost && r.isOwn():
		return leave(r)
	case v.Replaced && r != nil && r.isUnfinishedFounder():
		return leave(r)
	case !v.Known && (r == nil || r.Phase == Lost):
		return stay(r)
	case !v.Known:
		return keep(Standing{Reason: Unknown})
	case r != nil && r.Name != v.Group.Name && r.Exchanged != "":
		return keep(Standing{Reason: OtherGroup, Detail: r.Exchanged})
	case r != nil && r.Name != v.Group.Name:
		return keep(Standing{Reason: OtherName, Detail: v.Group.Name})
	case r == nil || r.Phase == Lost || r.isRemnant(here) && v.Off.Keeps(rules.Remnant):
		return v.withoutData(r, here)
	case !r.Foreign && r.isOneOf(here):
		a := v.goOn(r)
		a.Named = true
		return a
	case !r.Foreign && (r.isLookedFor(v.Group) || len(here) == 0 && EtcdIsBehind(v.Group, r)):
		return does(ReportPresent, r)
	case v.Left(r) && (!r.Foreign && !r.Unreadable || len(here) > 0):
		return leave(r)
	}
	return v.notHere(r, here)
}

// whileSetBack decides while etcd was rolled back: replicas that etcd places on this shard are loaded, and everything
// else stays as it is. A replica that is no longer a member does no harm, because Raft ignores it.
//
// A founder that etcd lists here is settled even then. Its report has reached etcd, so the report of any other founder
// was refused. Until the founder is settled, its volume does not count, and the freeze would wait for it.
func (v *View) whileSetBack(r *Replica) Action {
	here := v.here()
	isHere := r != nil && r.Name == v.Group.Name && r.isOneOf(here)
	switch {
	case r == nil || r.Phase == Lost || r.Phase.MissingEntries() || r.Foreign || r.Phase == Joining:
		return stay(r)
	case r.Serves && (!r.Founder || r.Phase != Serving || !isHere):
		return stay(r)
	case isHere:
		return v.goOn(r)
	case !r.Standing.Apart():
		return Action{Standing: Standing{Reason: SetBack}}
	}
	return stay(r)
}

// whileUnread decides while the group's key in etcd cannot be used. A replica that serves continues. A replica that
// does not serve is not loaded, because another shard may have taken its place. Nothing is created, moved or deleted.
func (v *View) whileUnread(r *Replica) Action {
	if r == nil || r.Serves || r.Phase == Lost || r.Standing.Apart() {
		return stay(r)
	}
	return Action{Standing: Standing{Reason: Unread, Detail: v.Unread}}
}

// goOn decides about a replica that etcd places on this shard.
func (v *View) goOn(r *Replica) Action {
	free := v.LoadBegun && !r.Fetching
	switch {
	case r.Phase == Pending && v.LoadBegun:
		return Action{Kind: Load}
	case r.Phase == Joining && free:
		return Action{Kind: Join}
	case (r.Phase == DamagedTail || r.Phase == MissingEntries) && free:
		return Action{Kind: Reinstall}
	case r.Phase == GivenUp:
		return Action{Kind: ReportMissing}
	case r.Phase == Serving && r.Founder:
		return Action{Kind: Settle}
	}
	return Action{}
}

// withoutData decides about a group whose data is missing on the volume. It is given the members that etcd places on
// this volume.
func (v *View) withoutData(r *Replica, here []placement.Member) Action {
	switch {
	case isLearner(here) && v.LoadBegun && !v.Retired[here[0].RaftID]:
		return does(MakeFolder, r)
	case len(here) > 0 && IsShared(v.Group):
		return does(ReportMissing, r)
	case len(here) == 0 && v.isMember() && IsShared(v.Group):
		return stay(r) // the volume with the data is gone, and the group's leader replaces this member
	}
	return v.notHere(r, here)
}

// leave decides about a replica that is no longer a member.
func leave(r *Replica) Action {
	if r.Fetching {
		return does(EndFetch, r)
	}
	a := does(Trash, r)
	if !a.Standing.Stray() {
		a.Standing.Reason = HasLeft
	}
	return a
}

// notHere decides about a group if the volume has none of the members that etcd places on the volume. The volume may
// still have another replica of the group.
func (v *View) notHere(r *Replica, here []placement.Member) Action {
	switch {
	case v.isMember() && len(here) == 0 && IsShared(v.Group):
		return keep(Standing{Reason: r.away(v.Group)})
	case v.isMember() && r != nil && (r.NeverReported || r.Phase == Lost):
		// Another shard has created the same group, and reported it first. The replica that this shard created has never
		// served any calls, and the members in etcd do not include it.
		return stay(r)
	case v.isMember():
		return Action{Kind: MarkLost}
	case r != nil && len(v.Group.Members) == 0 && v.EpochBase+uint64(v.Group.Revision) < r.Confirmed:
		return stay(r) // the view is older than this shard's last write to etcd, so the group continues to serve
	case v.isFirst() && v.Group.Restoring:
		return v.restore(r)
	case v.isFirst():
		if v.Listing && (r == nil || r.Unreadable) {
			return stay(r)
		}
		if r == nil || r.Unreadable {
			// A crash during an earlier creation may have left a folder without a manifest. Create removes such a folder.
			return does(Create, r)
		}
		return Action{Kind: Announce, Standing: Standing{Reason: Unconfirmed}}
	case r != nil:
		return keep(Standing{Reason: Elsewhere})
	}
	return Action{}
}

// restore decides about a group that this shard must install from the source of a restore. Nobody has reported the
// group to etcd yet.
func (v *View) restore(r *Replica) Action {
	switch {
	case r != nil && r.Phase == Lost:
		return stay(r)
	case r != nil && r.Fetching:
		return Action{Standing: Standing{Reason: Unconfirmed}}
	case (r == nil || r.Empty || r.isUselessFounder()) && v.LoadBegun && !v.Listing:
		return does(MakeFolder, r)
	case r == nil || r.Empty || r.isUselessFounder():
		return stay(r)
	case r.Phase == Joining && v.LoadBegun:
		return Action{Kind: Join, Standing: Standing{Reason: Unconfirmed}}
	case r.Phase == Joining:
		return Action{Standing: Standing{Reason: Unconfirmed}}
	}
	return Action{Kind: Announce, Standing: Standing{Reason: Unconfirmed}}
}

// keep creates an Action for a replica that is kept and not served.
func keep(why Standing) Action { return Action{Kind: Keep, Standing: why} }

// stay creates an Action for a replica that is left as it is.
func stay(r *Replica) Action { return does(Nothing, r) }

// does creates an Action of the given kind. If there is a replica, its standing remains unchanged.
func does(kind Kind, r *Replica) Action {
	a := Action{Kind: kind}
	if r != nil {
		a.Standing = r.Standing
	}
	return a
}
