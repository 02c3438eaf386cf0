// Package member decides what a shard does about one group, from what etcd says of the group and what is on the volume.
// Decide is a pure function: it looks at one view and one replica and names one action. The shard gathers both, and
// acts. A replica has a Phase, which is its progress, and a Standing, which is what etcd says of it.
// docs/adr/0033-states-of-a-replica.md has the states and transitions as tables.
package member

import (
	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/placement"
)

// View is what a shard knows of a group when it decides, besides what is on its volume.
type View struct {
	Shard  string    // this shard
	Volume uuid.UUID // volume of this shard

	Known bool            // etcd has the group; otherwise Group and Target are empty
	Group placement.Group // the group as etcd has it
	// Unread says why etcd's key of the group cannot be used. It is empty if the key can be used, or if there is no
	// key. If the key cannot be used, nobody knows where the group is, and what is on this volume remains as it is.
	Unread string
	// Deleted means that etcd says that the group was deleted. Then Known is false.
	Deleted bool
	// Target lists the shards that are to hold the group; the first one creates it. It is used only while the group has
	// no members.
	Target    []string
	EpochBase uint64 // the group's revision plus EpochBase is an epoch

	SetBack   bool // etcd was set back: nothing is created, moved or deleted because of what it says (rule 9)
	LoadBegun bool // the first load after the start has begun
	// Retired are the Raft ids that were, or may have been, begun on this volume before. A replica with such an id may
	// have acknowledged entries or voted, so no new replica gets the id (rule 7).
	Retired map[uint64]bool

	Off rules.Off // rules that a test switches off
}

// Replica is what the volume holds of a group.
type Replica struct {
	Name   string // name of the group according to its manifest, or to etcd if the manifest cannot be read
	RaftID uint64 // 0: not known

	Phase    Phase
	Standing Standing

	// Facts of the folder. Several of them may hold, in any phase.

	Foreign    bool   // the replica was made on another volume, or for another group: it never runs
	Exchanged  string // why the folder holds the files of another group; empty: it does not
	Unreadable bool   // the folder has no readable manifest
	Empty      bool   // the folder has no file of a replica, as after a kill while one was made; also Unreadable

	// What this shard reported to etcd. A later view does not change it.

	NeverReported bool   // this process made the replica of a new group, which etcd never listed here: it never served
	Confirmed     uint64 // epoch at which this process reported to etcd that the group is here; 0: it did not

	// Activities that may run in any phase that has files.

	Fetching bool // files are being installed
	Serves   bool // a node serves its calls

	KnownIndex uint64 // index of the newest membership that the replica knows
	// InConf says whether that membership names the replica. It is used only if that membership is later than
	// etcd's, which does not name the replica.
	InConf bool
}

// Kind is the kind of an Action.
type Kind int

// These are the kinds of actions.
const (
	Nothing       Kind = iota
	Load               // load the folder and serve the group
	Join               // install the replica from another copy, then load it
	Reinstall          // install the replica in place, or give it up
	Create             // create the group here
	Announce           // report to etcd that the group, which was created here, is here
	MakeFolder         // make the folder of a learner that is to join
	ReportPresent      // report to etcd that a member is here whose location etcd does not know
	ReportMissing      // report to etcd that a member is missing here, or incomplete
	MarkLost           // record that a member is missing here: no other copy replaces it
	Keep               // do not serve the replica, and delete nothing
	EndFetch           // end the install in progress, and decide again
	Trash              // take the replica out of service, and move its files to the trash
	kinds              // number of kinds
)

func (k Kind) String() string {
	if k < 0 || k >= kinds {
		return "unknown"
	}
	return [...]string{
		"Nothing", "Load", "Join", "Reinstall", "Create", "Announce", "MakeFolder", "Claim", "Confess", "Lose", "Keep",
		"EndFetch",
		"Trash",
	}[k]
}

// Action is what to do about a group.
type Action struct {
	Kind Kind
	// Standing is the standing of the replica from now on.
	Standing Standing
	// Named means that etcd lists the replica here, and that etcd can be trusted.
	Named bool
}

// Decide names what to do about a group. r is nil if the group has no folder on the volume.
//
//   - A replica that etcd names on this volume continues. A replica made elsewhere, or with files of another group,
//     never runs.
//   - A replica that is a member according to its own, later membership reports that to etcd.
//   - A replica that etcd does not name leaves only if a leader wrote a membership that is not older than its own.
//   - A member without its data is never served as if it were empty: another copy replaces it, or it is lost.
//   - A replica that etcd places elsewhere, or does not know, is kept and not served.
//   - A replica of a deleted group leaves: its leader has proved that the group holds nothing. Files that may belong to
//     another group are kept.
func Decide(v *View, r *Replica) Action {
	here := v.here()
	switch {
	case v.SetBack:
		return v.whileSetBack(r)
	case v.Unread != "":
		return v.whileUnread(r)
	case v.Deleted && r != nil && r.Phase != Lost && r.isOwn():
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

// whileSetBack is Decide while etcd was set back: replicas that etcd names here are loaded, and everything else stays
// as it is. A replica that is no longer a member does no harm, because Raft ignores it.
func (v *View) whileSetBack(r *Replica) Action {
	switch here := v.here(); {
	case r == nil || r.Phase == Lost || r.Phase.MissingEntries() || r.Foreign || r.Serves || r.Phase == Joining:
		return stay(r)
	case r.Name == v.Group.Name && r.isOneOf(here):
		return v.goOn(r)
	case !r.Standing.Apart():
		return Action{Standing: Standing{Reason: SetBack}}
	}
	return stay(r)
}

// whileUnread is Decide while the group's key in etcd cannot be used. A replica that serves continues. A replica that
// does not serve is not loaded, because another shard may have taken its place. Nothing is created, moved or deleted.
func (v *View) whileUnread(r *Replica) Action {
	if r == nil || r.Serves || r.Phase == Lost || r.Standing.Apart() {
		return stay(r)
	}
	return Action{Standing: Standing{Reason: Unread, Detail: v.Unread}}
}

// goOn decides about a replica that etcd places here.
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
	}
	return Action{}
}

// withoutData decides about a group of which the volume has no data that counts. The argument here lists the members
// that etcd names on the volume.
func (v *View) withoutData(r *Replica, here []placement.Member) Action {
	switch {
	case isLearner(here) && v.LoadBegun && !v.Retired[here[0].RaftID]:
		return does(MakeFolder, r)
	case len(here) > 0 && IsShared(v.Group):
		return does(ReportMissing, r)
	case len(here) == 0 && v.isMember() && IsShared(v.Group):
		return stay(r) // the volume that had it is gone: the group's leader replaces it
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

// notHere decides about a group if none of the members that etcd names here is on the volume, even if another replica
// of the group is on it.
func (v *View) notHere(r *Replica, here []placement.Member) Action {
	switch {
	case v.isMember() && len(here) == 0 && IsShared(v.Group):
		return keep(Standing{Reason: r.away(v.Group)})
	case v.isMember() && r != nil && (r.NeverReported || r.Phase == Lost):
		// Another shard has created the group too, and reported it first. The replica created here never served, and is
		// not the one that etcd names here.
		return stay(r)
	case v.isMember():
		return Action{Kind: MarkLost}
	case r != nil && len(v.Group.Members) == 0 && v.EpochBase+uint64(v.Group.Revision) < r.Confirmed:
		return stay(r) // the view is older than this shard's last write to etcd: the group continues to serve
	case len(v.Group.Members) == 0 && len(v.Target) > 0 && v.Target[0] == v.Shard:
		if r == nil || r.Unreadable {
			// a crash during creation leaves a folder without a manifest: creating the group again clears it
			return does(Create, r)
		}
		return Action{Kind: Announce, Standing: Standing{Reason: Unconfirmed}}
	case r != nil:
		return keep(Standing{Reason: Elsewhere})
	}
	return Action{}
}

// keep makes an Action for a replica that is kept and not served.
func keep(why Standing) Action { return Action{Kind: Keep, Standing: why} }

// stay makes an Action for a replica that is left as it is.
func stay(r *Replica) Action { return does(Nothing, r) }

// does makes an Action that keeps the standing of a replica, if there is one.
func does(kind Kind, r *Replica) Action {
	a := Action{Kind: kind}
	if r != nil {
		a.Standing = r.Standing
	}
	return a
}
