package replica

import "go.etcd.io/raft/v3/raftpb"

// confirmation is the empty entry that a leader proposes after a membership change which it has applied. When it is
// committed, a majority of the new members knows that the change is committed, because the entry carries that
// knowledge. Only then is the change complete.
//
// Raft counts votes by the membership that a member has applied, not by the newest one in its log. Suppose that only
// the leader knows that the old membership was left, and that the leader is lost in that moment. The others then still
// ask a majority of the old membership, of which a member may be gone for good. Nobody would ever be elected again,
// although only one of the new members is lost.
//
// A leader that the change removes, because it came to lead in the middle of the change, can propose nothing any more.
// It hands the lead over (transfer.yield), and its successor leaves the joint membership again or finds that it was
// left.
type confirmation struct {
	due   bool   // the entry must be proposed
	asked bool   // Raft has the entry
	index uint64 // index of the entry; 0: not known yet
}

// pending reports whether a majority may not know of the change yet.
func (c confirmation) pending() bool { return c.due || c.asked }

// stored receives the entries of a Ready. The confirmation was the last proposal before it.
func (c *confirmation) stored(entries []*raftpb.Entry) {
	if c.asked && c.index == 0 {
		c.index = entries[len(entries)-1].GetIndex()
	}
}

// confirm is called after a change was applied that is not joint.
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
	// If Raft rejects the proposal, for example during a transfer of the lead, the clock retries.
	if m.confirmation.due && m.node.propose(&raftpb.Entry{}) == nil {
		m.confirmation = confirmation{asked: true}
	}
}

// committed is called with the index up to which entries are applied; true: this confirms the last change.
func (m *members) committed(index uint64) bool {
	if m.confirmation.index == 0 || index < m.confirmation.index {
		return false
	}
	m.confirmed()
	return true
}

// confirmed ends the change in progress, if it is the one that was applied last.
func (m *members) confirmed() {
	m.confirmation = confirmation{}
	if c := m.change; c != nil && c.index != 0 && c.index <= m.index {
		m.end(nil)
	}
}
