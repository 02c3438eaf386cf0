// Package move decides what a group's leader does next to bring the group's copies to the target's shards. Decide is a
// pure function: it looks at one state and returns one step. The leader takes the step and calls Decide again. A step
// is one write to etcd, one membership change or one leadership transfer. A crash between two steps leaves a state like
// any other, from which the next leader continues. If the target changes meanwhile, the next state contains the new
// target.
package move

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/placement"
)

// CaughtUpEntries is the number of entries that a member may lack and still count as caught up.
const CaughtUpEntries = 1000

// State is the input of Decide, which consists of the facts that a group's leader has when it decides.
type State struct {
	Self     uint64            // the leader's Raft id
	Conf     *raftpb.ConfState // the membership as it was last applied
	Pending  bool              // whether a membership change has been proposed but not applied yet
	Last     uint64            // index of the last entry in the leader's log
	Progress map[uint64]Progress
	// Members are the members in etcd. Known are other members that the leader knows from earlier states of etcd.
	Members []placement.Member
	Known   []placement.Member
	// Target lists the wanted shards, one for each copy, preferred leader first. If it is empty, there is no target.
	Target []string
	Shards map[string]Shard
	// FreshID is a random odd number. If this step records a new learner, FreshID becomes the Raft id of that learner.
	FreshID uint64
	// LearnersMax is the number of learners that this group may have now. 0 holds back new learners, while existing
	// ones continue. A negative number means no limit.
	LearnersMax int
}

// Progress is the progress of a member, as the leader's node reports it. The leader's own progress is ignored.
type Progress struct {
	Match       uint64
	Replicating bool // whether entries are streamed, because the member is neither being probed nor waiting for an install
	Active      bool // whether the member responded within the last election timeout, and its shard may lead
}

// Shard describes a shard. If the shard is not registered, these are the last facts that the leader received about
// it.
type Shard struct {
	Domain string    // failure domain; if empty, the shard counts as a domain of its own
	Volume uuid.UUID // volume under which the shard is registered; zero if the shard is not registered
	Alive  bool      // whether the shard is registered, or its peers receive messages from it
}

// Kind is the kind of an Action.
type Kind int

// These are the kinds of actions. Each kind except Nothing is one step, after which Decide must be called again.
const (
	Nothing        Kind = iota
	RecordMembers       // write Action.Members to etcd, see registry.Store.PutGroupAsLeader
	AddLearner          // propose Action.Change: Action.ID becomes a learner
	Promote             // propose Action.Change, with which learners become voters
	Replace             // propose Action.Change, a joint change in which a learner takes the place of a voter
	RemoveMember        // propose Action.Change, with which Action.ID leaves
	TransferLeader      // transfer the leadership to Action.ID
)

func (k Kind) String() string {
	return [...]string{"Nothing", "RecordMembers", "AddLearner", "Promote", "Replace", "RemoveMember", "TransferLeader"}[k]
}

// Action is the step that the leader takes next, or the reason why there is none.
type Action struct {
	Kind    Kind
	ID      uint64   // the member to add, to remove or to make leader; with Replace, the voter that leaves
	IDs     []uint64 // the learners that become voters
	Members []placement.Member
	// Done is used only with the kind Nothing. If it is true, the group is at its target. If it is false, the group
	// waits, and Decide must be called again soon.
	Done   bool
	Reason string // the reason, as a message for users
}

// Change returns the membership change to propose, or nil if the kind of action is not a membership change.
func (a Action) Change() *raftpb.ConfChangeV2 {
	cc := &raftpb.ConfChangeV2{}
	add := func(kind raftpb.ConfChangeType, id uint64) {
		cc.Changes = append(cc.Changes, &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(id)})
	}
	switch a.Kind {
	case AddLearner:
		add(raftpb.ConfChangeAddLearnerNode, a.ID)
	case RemoveMember:
		add(raftpb.ConfChangeRemoveNode, a.ID)
	case Promote, Replace:
		for _, id := range a.IDs {
			add(raftpb.ConfChangeAddNode, id)
		}
		if a.Kind == Replace {
			add(raftpb.ConfChangeRemoveNode, a.ID)
		}
	default:
		return nil
	}
	return cc
}

func (a Action) String() string { return fmt.Sprintf("%v: %s", a.Kind, a.Reason) }

// wait returns an Action for a state in which nothing can be done now.
func wait(format string, args ...any) *Action { return &Action{Reason: fmt.Sprintf(format, args...)} }

// Decide returns the next step.
//
//   - A new copy is first a learner. It is recorded in etcd, added to the group, and promoted once it has caught up.
//   - When a new voter replaces another one, both changes are made jointly. If the leaving voter leads, it first
//     transfers the leadership.
//   - A change is made only if it leaves a majority of caught-up voters. It never reduces their number below a
//     majority of the wanted copies.
//   - Unwanted members leave first: learners that no target names, then voters that will not come back.
//   - Voters that are merely silent remain until the target names another shard in their place. So do voters whose
//     location is unknown.
//   - Two voters never get into one failure domain if some order of the steps avoids it (domains.go). A group that
//     lacks copies gets them first, and is spread over domains afterwards.
func Decide(s State) Action {
	if s.Pending {
		return *wait("a membership change is on its way")
	}
	d, a := newDecider(s)
	if a != nil {
		return *a
	}
	for _, step := range []func() *Action{
		d.leaveJoint, d.record, d.dropLearner, d.dropGone, d.recordLearners, d.addLearner,
		d.shrink, d.replace, d.grow, d.lead,
	} {
		if a := step(); a != nil {
			return *a
		}
	}
	return *d.atTarget()
}

// decider holds a state and the facts derived from it.
type decider struct {
	State
	voters, learners []uint64 // the members of the configuration
	where            map[uint64]placement.Member
	holder           map[string]uint64 // maps each wanted shard to the voter on it
	waiting          string            // the latest reason for waiting
}

func newDecider(s State) (*decider, *Action) {
	d := &decider{State: s, where: map[uint64]placement.Member{}, holder: map[string]uint64{}}
	for _, list := range [][]placement.Member{s.Known, s.Members} { // s.Members is last, so that etcd takes precedence
		for _, m := range list {
			if _, known := d.where[m.RaftID]; !known || m.Shard != "" {
				d.where[m.RaftID] = m
			}
		}
	}
	d.voters = slices.Clone(s.Conf.GetVoters())
	d.learners = append(slices.Clone(s.Conf.GetLearners()), s.Conf.GetLearnersNext()...)
	for _, id := range slices.Concat(d.voters, s.Conf.GetVotersOutgoing(), d.learners) {
		if _, ok := d.where[id]; !ok {
			return nil, wait("etcd does not say on which shard member %d is: nothing is changed until it does", id)
		}
	}
	if !slices.Contains(d.voters, s.Self) && !slices.Contains(s.Conf.GetVotersOutgoing(), s.Self) {
		return nil, wait("this replica is no voter")
	}
	for _, id := range d.voters {
		shard := d.where[id].Shard
		if _, taken := d.holder[shard]; !taken && slices.Contains(s.Target, shard) && !d.gone(id) {
			d.holder[shard] = id
		}
	}
	return d, nil
}

// gone reports whether the replica must be treated as lost. Either its shard has another volume now, or the location of
// the replica is unknown because etcd was rebuilt without it. In the second case the replica may still return.
func (d *decider) gone(id uint64) bool {
	m := d.where[id]
	now := d.Shards[m.Shard].Volume
	return id != d.Self && (m.Shard == "" || now != uuid.Nil && now != m.VolumeUUID)
}

// well reports whether the member is alive and has caught up.
func (d *decider) well(id uint64) bool {
	if id == d.Self {
		return true
	}
	p := d.Progress[id]
	return p.Active && p.Replicating && !d.gone(id) && p.Match+CaughtUpEntries >= d.Last
}

// countWell counts the members of a list that are well.
func (d *decider) countWell(ids []uint64) (n int) {
	for _, id := range ids {
		if d.well(id) {
			n++
		}
	}
	return n
}

func quorum(n int) int { return n/2 + 1 }

// canCommit reports whether the current voters can commit a change now, and whether the voters in next can commit
// entries after the change.
func (d *decider) canCommit(next []uint64) bool {
	have, then := d.countWell(d.voters), d.countWell(next)
	return have >= quorum(len(d.voters)) && then >= quorum(len(next)) && (then >= have || then >= quorum(len(d.Target)))
}

func (d *decider) name(id uint64) string {
	if d.where[id].Shard == "" {
		return fmt.Sprintf("a shard that nobody knows (member %x)", id)
	}
	return "shard " + d.where[id].Shard
}

func without(ids []uint64, id uint64) []uint64 {
	return slices.DeleteFunc(slices.Clone(ids), func(other uint64) bool { return other == id })
}
