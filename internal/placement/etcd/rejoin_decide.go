package etcd

import (
	"fmt"
	"slices"
)

// Only the member itself knows its folder's content, and a quorum of the others knows the membership. Folder and
// membership determine which steps a member takes before it starts. Each step is based on a new check of the folder and
// the membership, so that a crash between two steps does no harm.

// rejoinStep is the next step of a member.
type rejoinStep string

const (
	// stepStart starts etcd on the existing folder.
	stepStart rejoinStep = "Start"
	// stepJoin starts etcd on the empty folder, as the member that stepAdd added.
	stepJoin rejoinStep = "Join"
	// stepRemove makes the cluster remove the member whose data are lost.
	stepRemove rejoinStep = "Remove"
	// stepSetAside renames the data of a member that is no longer in the cluster.
	stepSetAside rejoinStep = "SetAside"
	// stepAdd makes the cluster add this member as a learner.
	stepAdd rejoinStep = "Add"
	// stepWait checks again later, because the missing condition may become true without any step of this member.
	stepWait rejoinStep = "Wait"
	// stepRefuse means that a person must act.
	stepRefuse rejoinStep = "Refuse"
)

// rejoinInput is the observed state from which decideRejoin decides.
type rejoinInput struct {
	PeerURLs []string // URLs under which the cluster may know this member
	Members  int      // size of the configured cluster
	Existing bool     // the cluster was formed earlier
	Folder   folder
	// View is the cluster as seen by a quorum of the others. It is nil if no quorum responds. In that case NoView is
	// the reason.
	View   *View
	NoView string
	// Reported has one entry for each other member that responds. The entry is this member's id according to that
	// response, or 0 if the response does not list this member. A response may be older than View.
	Reported []uint64
}

// rejoin is the result of decideRejoin.
type rejoin struct {
	Step rejoinStep
	ID   uint64 // id of the member to remove
	Why  string
	// alone means that no quorum of the others has responded.
	alone bool
}

// decideRejoin returns the next step. It is a total function without I/O.
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

// alone returns the next step if no quorum of the others responds. Nothing is removed, added or renamed in that case.
func (in *rejoinInput) alone() rejoin {
	switch {
	case in.Folder.Empty && in.Existing:
		return rejoin{Step: stepWait, Why: "no other member lets it join: " + in.NoView}
	case in.Folder.Behind:
		return rejoin{Step: stepWait,
			Why: "the folder lacks entries that the cluster counts on, and no quorum of the other members answers: " + in.NoView}
	}
	return rejoin{Step: stepStart} // this member may be needed for the quorum
}

func (in *rejoinInput) isMe(peerURLs []string) bool {
	return slices.ContainsFunc(peerURLs, func(url string) bool { return slices.Contains(in.PeerURLs, url) })
}

// empty returns the next step for a folder without data if a quorum responds.
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
		// etcd takes this member's id from the first member that it queries. Therefore none of the others may still
		// report an older id.
		return rejoin{Step: stepWait, Why: "not all of the other members know yet that this one was added"}
	}
	return rejoin{Step: stepJoin, Why: fmt.Sprintf("the cluster waits for this member as %x", me.ID)}
}

// remove decides whether to make the cluster remove the member with this id. A member must not be removed if that could
// cost the quorum.
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

// othersNotWell returns why the membership must not be changed now. It returns an empty string if the membership may be
// changed. All others except the member with the id but must be healthy, so that changes happen one after another, and
// each leaves a quorum.
func (in *rejoinInput) othersNotWell(but uint64) string {
	for n := range in.View.Peers {
		p := &in.View.Peers[n]
		if p.ID != but && !p.Healthy() {
			return fmt.Sprintf("it waits until all other members are well: %s %s", p.Label(), p.Trouble)
		}
	}
	return ""
}
