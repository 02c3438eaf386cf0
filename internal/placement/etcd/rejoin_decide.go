package etcd

import (
	"fmt"
	"slices"
)

// Only the member itself knows what its folder contains, and only a quorum of the others knows who is a member. Both
// together determine the steps that a member takes before it starts. Before each step, the folder and the membership
// are examined again, so that a crash between two steps does no harm.

// rejoinStep is a step that a member can take next when it starts.
type rejoinStep string

const (
	// stepStart starts etcd on the existing folder.
	stepStart rejoinStep = "Start"
	// stepJoin starts etcd on the empty folder, as the new member that stepAdd has added.
	stepJoin rejoinStep = "Join"
	// stepRemove has the cluster remove the member whose data is lost.
	stepRemove rejoinStep = "Remove"
	// stepSetAside renames the data of a member that is no longer in the cluster.
	stepSetAside rejoinStep = "SetAside"
	// stepAdd has the cluster add this member as a learner.
	stepAdd rejoinStep = "Add"
	// stepWait waits and examines the situation again later, because the obstacle may disappear without any action by
	// this member.
	stepWait rejoinStep = "Wait"
	// stepRefuse does not start the member, because an administrator has to act first.
	stepRefuse rejoinStep = "Refuse"
)

// rejoinInput holds the observations on which decideRejoin bases its decision.
type rejoinInput struct {
	PeerURLs []string // all URLs under which the cluster may list this member
	Members  int      // number of members in the configured cluster
	Existing bool     // whether the cluster was formed earlier
	Folder   folder
	// View is the state of the cluster according to a quorum of the other members. It is nil if no quorum responds, and
	// NoView then gives the reason.
	View   *View
	NoView string
	// Reported has one entry for each other member that responds. The entry is the id under which that member lists this
	// one, or 0 if it does not list this one. The responses may be older than View.
	Reported []uint64
}

// rejoin is the result of decideRejoin.
type rejoin struct {
	Step rejoinStep
	ID   uint64 // id of the member to remove
	Why  string
	// alone is true if no quorum of the other members has responded.
	alone bool
}

// decideRejoin returns the next step. It does no I/O, and returns a step for every input.
func decideRejoin(in *rejoinInput) rejoin {
	switch {
	case in.View == nil:
		return in.alone()
	case in.Folder.Empty:
		return in.empty()
	case in.Folder.MemberID == 0:
		return rejoin{Step: stepStart, Why: "the data do not say whose they are: etcd is to say what is wrong with them"}
	case in.Folder.ClusterID != in.View.ClusterID:
		return rejoin{Step: stepRefuse, Why: fmt.Sprintf(
			"the folder is of cluster %x, and the other members are cluster %x. The data may be the only "+
				"ones: nothing was changed. Where the others are right, give this member an empty folder", in.Folder.ClusterID,
			in.View.ClusterID)}
	case in.View.Find(func(p *Peer) bool { return p.ID == in.Folder.MemberID }) == nil:
		return rejoin{Step: stepSetAside, Why: fmt.Sprintf(
			"the cluster does not know member %x any more, whose data the folder has", in.Folder.MemberID)}
	case in.Folder.Behind:
		return in.remove(in.Folder.MemberID,
			"the folder lacks entries that the cluster counts on: the disk was replaced, or set back to an older state")
	}
	return rejoin{Step: stepStart}
}

// alone returns the next step for the case that no quorum of the others responds. In that case nothing may be
// removed, added or renamed.
func (in *rejoinInput) alone() rejoin {
	switch {
	case in.Folder.Empty && in.Existing:
		return rejoin{Step: stepWait, Why: "no other member lets it join: " + in.NoView}
	case in.Folder.Behind:
		return rejoin{Step: stepWait,
			Why: "the folder lacks entries that the cluster counts on, and no quorum of the other members answers: " + in.NoView}
	}
	return rejoin{Step: stepStart} // the others may need this member for a quorum
}

func (in *rejoinInput) isMe(peerURLs []string) bool {
	return slices.ContainsFunc(peerURLs, func(url string) bool { return slices.Contains(in.PeerURLs, url) })
}

// empty returns the next step for the case that the folder has no data and a quorum responds.
func (in *rejoinInput) empty() rejoin {
	me := in.View.Find(func(p *Peer) bool { return in.isMe(p.PeerURLs) })
	switch {
	case me == nil && len(in.View.Peers) >= in.Members:
		return rejoin{Step: stepRefuse, Why: fmt.Sprintf(
			"the cluster has %d members without this one, and is to have %d: remove one of them first "+
				"(sheaf etcd members, sheaf etcd remove)", len(in.View.Peers), in.Members)}
	case me == nil:
		if why := in.othersNotWell(0); why != "" {
			return rejoin{Step: stepWait, Why: "this member is to be added: " + why}
		}
		return rejoin{Step: stepAdd, Why: "the folder is empty, and the cluster does not have this member"}
	case me.Name != "":
		return in.remove(me.ID,
			"the folder is empty, and the cluster knows this member as one that had data: its disk was replaced")
	case slices.ContainsFunc(in.Reported, func(id uint64) bool { return id != me.ID }):
		// At the start, etcd takes this member's id from the first member that responds. Therefore etcd must not start
		// while any of the others still reports an older id.
		return rejoin{Step: stepWait, Why: "not all of the other members know yet that this one was added"}
	}
	return rejoin{Step: stepJoin, Why: fmt.Sprintf("the cluster waits for this member as %x", me.ID)}
}

// remove decides whether the cluster may remove the member with the given id. The removal is not allowed if it could
// cost the cluster its quorum.
func (in *rejoinInput) remove(id uint64, why string) rejoin {
	lost := in.View.Find(func(p *Peer) bool { return p.ID == id })
	switch wait := in.othersNotWell(id); {
	case lost.Answers:
		return rejoin{Step: stepWait, Why: fmt.Sprintf("%s; but a member %x answers at its address", why, id)}
	case in.View.Find(func(p *Peer) bool { return p.ID != id && p.LeaderID == id }) != nil:
		return rejoin{Step: stepWait, Why: fmt.Sprintf("%s; but the others follow it as their leader", why)}
	case wait != "":
		return rejoin{Step: stepWait, Why: why + "; " + wait}
	}
	return rejoin{Step: stepRemove, ID: id, Why: why}
}

// othersNotWell returns the reason why the membership must not be changed now, or an empty string if it may be
// changed. Every other member has to be healthy, so that only one change is made at a time and a quorum remains after
// each change. The argument but is the id of a member that need not be healthy.
func (in *rejoinInput) othersNotWell(but uint64) string {
	for n := range in.View.Peers {
		p := &in.View.Peers[n]
		if p.ID != but && !p.Healthy() {
			return fmt.Sprintf("it waits until all other members are well: %s %s", p.Label(), p.Trouble)
		}
	}
	return ""
}
