// Package member decides what a shard does about one group, from what etcd says of the group and what is on the
// volume. Decide is pure: it looks at one view and one replica and names one action. The shard gathers both, and
// acts. A replica has a Phase, which says how far it is, and a Standing, which says what etcd says of it;
// docs/adr/0033-states-of-a-replica.md has the states and transitions as tables.
package member

import (
	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// View is what a shard knows of a group when it decides, beside what is on its volume.
type View struct {
	Shard  string    // this shard
	Volume uuid.UUID // of this shard

	Known     bool            // etcd has the group. Else Group and Target are empty
	Group     placement.Group // as etcd says
	Target    []string        // shards that are to hold it; the first one makes it. Looked at only where it has no members
	EpochBase uint64          // added to the group's revision it is an epoch

	SetBack   bool // etcd was set back: nothing is made, moved or deleted on its word (rule 9)
	LoadBegun bool // the first load after the start has begun
	// Spent are the Raft ids that were begun on this volume before, or may have been. A replica of such an id may have
	// answered and voted, so none is begun again (rule 7).
	Spent map[uint64]bool

	// CountRemnants switches a rule off, for tests alone: what a kill leaves of a learner's folder is taken for a
	// replica.
	CountRemnants bool
}

// Replica is what is on the volume of a group.
type Replica struct {
	Name   string // of the group, as its manifest says; as etcd says where that cannot be read
	RaftID uint64 // 0: not known

	Phase    Phase
	Standing Standing

	// Facts of the folder. They exclude neither each other nor a phase.

	Foreign    bool   // it was made on another volume, or for another group: it never runs
	Exchanged  string // why the folder holds the files of another group; empty: it does not
	Unreadable bool   // it has no manifest that can be read

	// What was said to etcd. A later view does not change it.

	Untold    bool   // this process made it for a new group, and etcd never said that it is here: it has never served
	Confirmed uint64 // epoch at which etcd was told that the group is here; 0: not by this process

	// What runs beside, in any phase that has files.

	Fetching bool // files are being installed
	Serves   bool // a node takes its calls

	KnownIndex uint64 // of the newest membership that it knows
	InConf     bool   // that membership has it. Looked at only where it is later than etcd's, which does not name it
}

// Kind of an Action.
type Kind int

// The kinds.
const (
	Nothing    Kind = iota
	Load            // load its folder and serve it
	Join            // install it from another copy, then load it
	Reinstall       // install it in place, or give it up
	Create          // make the group here
	Announce        // tell etcd that the group, which was made here, is here
	MakeFolder      // make the folder of a learner that is to join
	Claim           // tell etcd that a member is here of which it does not know where it is
	Confess         // tell etcd that a member is not here, or not whole
	Lose            // note that a member is not here: no other copy replaces it
	Keep            // do not serve it, and delete nothing
	EndFetch        // end the install that is under way, and decide again
	Trash           // take it out of service, and put its files into the trash
	kinds           // how many there are
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
	// Standing is that of the replica from now on.
	Standing Standing
	// Named: etcd says that the replica is here, and etcd is to be believed.
	Named bool
}

// Decide names what to do about a group. r is nil where the group has no folder on the volume.
//
//   - A replica that etcd names on this volume goes on. One made elsewhere, or with another group's files, never runs.
//   - A replica that is a member by its own, later membership says so to etcd.
//   - A replica that etcd does not name leaves only where a leader wrote a membership that is not older than its own.
//   - A member without its data is never served as if it were empty: another copy replaces it, or it is lost.
//   - What etcd says is elsewhere, or does not know, is kept and not served.
func Decide(v *View, r *Replica) Action {
	here := v.here()
	switch {
	case v.SetBack:
		return v.whileSetBack(r)
	case !v.Known && (r == nil || r.Phase == Lost):
		return stay(r)
	case !v.Known:
		return keep(Standing{Reason: Unknown})
	case r != nil && r.Name != v.Group.Name && r.Exchanged != "":
		return keep(Standing{Reason: OtherGroup, Detail: r.Exchanged})
	case r != nil && r.Name != v.Group.Name:
		return keep(Standing{Reason: OtherName, Detail: v.Group.Name})
	case r == nil || r.Phase == Lost || r.isRemnant(here) && !v.CountRemnants:
		return v.withoutData(r, here)
	case !r.Foreign && r.isOneOf(here):
		a := v.goOn(r)
		a.Named = true
		return a
	case !r.Foreign && (r.isLookedFor(v.Group) || len(here) == 0 && EtcdIsBehind(v.Group, r)):
		return does(Claim, r)
	case v.Left(r) && (!r.Foreign && !r.Unreadable || len(here) > 0):
		return leave(r)
	}
	return v.notHere(r, here)
}

// whileSetBack is Decide while etcd was set back: what etcd names here is loaded, all else stays as it is. Raft keeps
// a replica that is no member any more from doing harm.
func (v *View) whileSetBack(r *Replica) Action {
	switch here := v.here(); {
	case r == nil || r.Phase == Lost || r.Phase.LacksEntries() || r.Foreign || r.Serves || r.Phase == Joining:
		return stay(r)
	case r.Name == v.Group.Name && r.isOneOf(here):
		return v.goOn(r)
	case !r.Standing.Apart():
		return Action{Standing: Standing{Reason: SetBack}}
	}
	return stay(r)
}

// goOn is what to do about a replica that etcd says is here.
func (v *View) goOn(r *Replica) Action {
	free := v.LoadBegun && !r.Fetching
	switch {
	case r.Phase == Pending && v.LoadBegun:
		return Action{Kind: Load}
	case r.Phase == Joining && free:
		return Action{Kind: Join}
	case (r.Phase == Torn || r.Phase == Forgetful) && free:
		return Action{Kind: Reinstall}
	case r.Phase == GivenUp:
		return Action{Kind: Confess}
	}
	return Action{}
}

// withoutData is what to do about a group of which the volume holds nothing that counts. here are the members that
// etcd names on it.
func (v *View) withoutData(r *Replica, here []placement.Member) Action {
	switch {
	case isLearner(here) && v.LoadBegun && !v.Spent[here[0].RaftID]:
		return does(MakeFolder, r)
	case len(here) > 0 && IsShared(v.Group):
		return does(Confess, r)
	case len(here) == 0 && v.isMember() && IsShared(v.Group):
		return stay(r) // the volume that had it is gone: its leader replaces it
	}
	return v.notHere(r, here)
}

// leave is what to do about a replica that was a member and is none any more.
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

// notHere is what to do where what is on the volume, if anything, is none of the members that etcd names here.
func (v *View) notHere(r *Replica, here []placement.Member) Action {
	switch {
	case v.isMember() && len(here) == 0 && IsShared(v.Group):
		return keep(Standing{Reason: r.away(v.Group)})
	case v.isMember() && r != nil && (r.Untold || r.Phase == Lost):
		// Another shard has made the group too, and was the first to tell: what was made here never served, and is
		// not what etcd names here.
		return stay(r)
	case v.isMember():
		return Action{Kind: Lose}
	case r != nil && len(v.Group.Members) == 0 && v.EpochBase+uint64(v.Group.Revision) < r.Confirmed:
		return stay(r) // the view is older than what this shard wrote: the group goes on serving
	case len(v.Group.Members) == 0 && len(v.Target) > 0 && v.Target[0] == v.Shard:
		if r == nil || r.Unreadable {
			return does(Create, r) // a crash while it was made leaves a folder without a manifest: making it again clears that
		}
		return Action{Kind: Announce, Standing: Standing{Reason: Unconfirmed}}
	case r != nil:
		return keep(Standing{Reason: Elsewhere})
	}
	return Action{}
}

// keep is an Action for a replica that is kept, and not served.
func keep(why Standing) Action { return Action{Kind: Keep, Standing: why} }

// stay is an Action for a replica that is left as it is.
func stay(r *Replica) Action { return does(Nothing, r) }

// does is an Action that leaves the standing of a replica, where there is one, as it is.
func does(kind Kind, r *Replica) Action {
	a := Action{Kind: kind}
	if r != nil {
		a.Standing = r.Standing
	}
	return a
}
