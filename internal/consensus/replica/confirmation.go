package replica

import "go.etcd.io/raft/v3/raftpb"

// confirmation is the empty entry that a leader puts behind a membership change which it has applied. When it is
// committed, a majority of the new members knows that the change is, and only then the change is over: whoever has the
// entry has heard with it that the change is committed.
//
// Raft counts votes by the membership that a member has applied, not by the newest one in its log. Where only the
// leader knows that the old membership is left, and is lost in that moment, the others still ask a majority of the old
// one, of which a member may be gone for good: then nobody is elected ever again, though only one of the new members is
// lost.
//
// A leader that the change removes, because it came to lead in the midst of it, can propose nothing any more: it hands
// the lead over (transfer.yield), and its successor leaves the joint membership again or finds that it is left.
type confirmation struct {
	due   bool   // the entry is to be proposed
	asked bool   // Raft has it
	index uint64 // of the entry; 0: not known yet
}

// pending tells that a majority may not know yet.
func (c confirmation) pending() bool { return c.due || c.asked }

// stored is told of the entries of a Ready. The confirmation was the last that was proposed before it.
func (c *confirmation) stored(entries []*raftpb.Entry) {
	if c.asked && c.index == 0 {
		c.index = entries[len(entries)-1].GetIndex()
	}
}

// confirm is called when a change was applied that is not joint.
func (m *members) confirm() {
	switch {
	case !m.node.leader:
		// One that has just lost the lead cannot know who knows: the change ends with an unknown outcome.
	case len(m.conf.GetVoters()) > 1 || !m.isVoter():
		m.confirmation = confirmation{due: true}
		m.seat.Schedule()
	default:
		m.confirmed()
	}
}

func (m *members) proposeConfirmation() {
	// Where Raft does not take it, as while the lead is being handed over, the clock tries again.
	if m.confirmation.due && m.node.propose(&raftpb.Entry{}) == nil {
		m.confirmation = confirmation{asked: true}
	}
}

// committed is told how far entries are applied; true: the last change is confirmed by that.
func (m *members) committed(index uint64) bool {
	if m.confirmation.index == 0 || index < m.confirmation.index {
		return false
	}
	m.confirmed()
	return true
}

// confirmed ends the change that is under way, where it is the one that was applied last.
func (m *members) confirmed() {
	m.confirmation = confirmation{}
	if c := m.change; c != nil && c.index != 0 && c.index <= m.index {
		m.end(nil)
	}
}
