package replica

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/confchange"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// ErrChanging means that another membership change is in progress, and that nothing was changed.
var ErrChanging = errors.New("another membership change is not finished")

// members is the membership and its current change. It is part of a core, whose mutex guards it.
type members struct {
	node   *node
	seat   *rounds.Seat
	logger *slog.Logger
	idle   *idle

	conf     *raftpb.ConfState // never modified, only replaced
	index    uint64            // index of the change that led to conf
	isMember bool              // whether conf names this replica
	sole     bool              // whether this replica is the only voter

	change       *memberChange // the change in progress, or nil if there is none
	confirmation confirmation  // the confirmation of the last change
	leave        bool          // whether this replica has to leave a joint membership
	jointTicks   int           // number of ticks for which this leader could have left the joint membership
	offerTicks   int           // number of ticks since snapshots were last offered again
}

// memberChange is a membership change in progress.
type memberChange struct {
	data     []byte // as proposed
	term     uint64 // the change may be proposed only in this term; anyTerm allows every term
	proposed bool   // whether the change was passed to Raft
	index    uint64 // index of the change's entry, or 0 if not known yet
	done     chan struct{}
	err      error // set before done is closed
}

// mayBegin reports whether the change may be proposed in a term.
func (c *memberChange) mayBegin(term uint64) bool { return c.term == anyTerm || c.term == term }

// set adopts a membership.
func (m *members) set(conf *raftpb.ConfState, at uint64) {
	m.conf, m.index = conf, at
	id := m.node.id
	voters, learners := conf.GetVoters(), slices.Concat(conf.GetLearners(), conf.GetLearnersNext())
	m.isMember = isVoter(conf, id) || slices.Contains(learners, id)
	m.idle.ended.Store(format.IsEnded(conf))
	m.sole = len(voters) == 1 && voters[0] == id && !m.isJoint()
	m.idle.onlyMember.Store(m.sole && len(learners) == 0)
}

func (m *members) isVoter() bool { return isVoter(m.conf, m.node.id) }

func (m *members) isJoint() bool { return len(m.conf.GetVotersOutgoing()) > 0 }

// isChanging reports whether a membership change is in progress. A change remains in progress until a majority is
// certain to know that it is committed.
func (m *members) isChanging() bool {
	return m.change != nil || m.isJoint() || m.confirmation.pending()
}

// check refuses a change that Raft could not apply. Without this check, each member would notice only when it applies
// the change, which is too late. check also refuses a change that takes the vote away from this replica itself. Once a
// replica has applied such a change, it no longer leads. The other members may not know yet that the change is
// committed, and may still need this replica's vote to elect a leader. But this replica does not vote for a member
// that lacks its last entries.
func (m *members) check(change *raftpb.ConfChangeV2) error {
	c := confchange.Changer{Tracker: tracker.MakeProgressTracker(1, 0)}
	config, progress, err := confchange.Restore(c, m.conf)
	if err == nil {
		c.Tracker.Config, c.Tracker.Progress = config, progress
		if leave, joint := change.EnterJoint(); joint {
			config, _, err = c.EnterJoint(leave, change.GetChanges()...)
		} else {
			config, _, err = c.Simple(change.GetChanges()...)
		}
	}
	if _, stays := config.Voters[0][m.node.id]; err == nil && !stays {
		err = fmt.Errorf("replica %x leads: hand over the lead before its vote is taken", m.node.id)
	}
	if err != nil {
		return fmt.Errorf("%w: membership change %s: %w", ErrInvalid, raft.DescribeConfChange(change), err)
	}
	return nil
}

// submitChange passes the membership change to Raft, unless an earlier call has done so.
func (m *members) submitChange() {
	c := m.change
	if c == nil || c.proposed {
		return
	}
	if !c.mayBegin(m.node.raft.BasicStatus().GetTerm()) { // the leadership was lost and regained since beginChange
		m.end(ErrNoLeader)
		return
	}
	if err := m.node.propose(&raftpb.Entry{Type: raftpb.EntryConfChangeV2.Enum(), Data: c.data}); err != nil {
		m.end(notServing(ErrNoLeader, err.Error()))
		return
	}
	c.proposed = true
}

// submitLeave asks Raft to leave a joint membership. If Raft must not leave it now, Raft logs an empty entry
// instead.
func (m *members) submitLeave() {
	if !m.leave {
		return
	}
	m.leave = false
	if !m.node.leader || !m.conf.GetAutoLeave() {
		return
	}
	if err := m.node.raft.ProposeConfChange(&raftpb.ConfChangeV2{}); err != nil {
		m.logger.Info("a joint membership is not left yet", "error", err)
	}
}

// stored looks for the membership change among the entries that Raft has created from the proposals. If the change is
// not among them, Raft has logged an empty entry in its place.
func (m *members) stored(entries []*raftpb.Entry) {
	if c := m.change; c != nil && c.proposed && c.index == 0 {
		at := slices.IndexFunc(entries, func(e *raftpb.Entry) bool {
			return e.GetType() == raftpb.EntryConfChangeV2 && e.GetTerm() == m.node.term && bytes.Equal(e.Data, c.data)
		})
		if at < 0 {
			m.end(ErrChanging)
		} else {
			c.index = entries[at].GetIndex()
		}
	}
	m.confirmation.stored(entries)
}

// applied adopts the membership that results from an applied change.
func (m *members) applied(conf *raftpb.ConfState, at uint64) {
	m.set(conf, at)
	m.confirmation = confirmation{}
	if !m.isJoint() {
		m.confirm()
	}
}

// abandon ends the change in progress when the leadership is lost. The error of the change wraps the argument why.
func (m *members) abandon(why error) {
	switch c := m.change; {
	case c == nil:
	case c.proposed:
		m.end(fmt.Errorf("%w: membership change: %w", ErrOutcomeUnknown, why))
	default:
		m.end(fmt.Errorf("%w: membership change: %w", ErrNoLeader, why))
	}
}

func (m *members) end(err error) {
	m.change.err = err
	close(m.change.done)
	m.change = nil
}

// tickJoint makes the leader leave a joint membership that Raft has not left. Raft proposes to leave the joint
// membership when it applies an entry, but drops this proposal during a leadership transfer. If the transfer then fails
// and no client writes, no other entry follows. The proposal of a confirmation can be dropped in the same way.
func (m *members) tickJoint() {
	if m.confirmation.due {
		m.seat.Schedule()
	}
	if _, all := m.node.hasAll(); !all || !m.node.leader || m.node.transferee != raft.None || !m.conf.GetAutoLeave() {
		m.jointTicks = 0
		return
	}
	if m.jointTicks++; m.jointTicks >= electionTicks {
		m.jointTicks, m.leave = 0, true
		m.seat.Schedule()
	}
}

// offerTicks is the number of ticks between two offers of a snapshot.
const offerTicks = 5 * electionTicks

// tickOffers makes Raft offer the snapshot again to each member that was offered one. This is necessary because the
// offer, or the reply that it was accepted, may be lost.
func (m *members) tickOffers() {
	if m.offerTicks++; !m.node.leader || m.offerTicks < offerTicks {
		return
	}
	m.offerTicks = 0
	var waiting []uint64
	m.node.raft.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if pr.State == tracker.StateSnapshot {
			waiting = append(waiting, id)
		}
	})
	for _, id := range waiting {
		m.node.raft.ReportSnapshot(id, raft.SnapshotFailure)
	}
}
