package replica

import "go.etcd.io/raft/v3/raftpb"

// confirmation is the empty entry that a leader proposes after it has applied a membership change. Every member that
// receives the entry learns with it that the change is committed. When the entry itself is committed, a majority of
// the new members therefore knows of the change. Only then is the change complete.
//
// This is necessary because Raft counts votes by the membership that a member has applied, not by the newest one in
// its log. Suppose that only the leader knows that the old membership was left, and that the leader is lost at that
// moment. The other members then still need votes from a majority of the old membership, in which one member may be
// gone for good. No leader could ever be elected again, although only one of the new members is lost.
//
// A leader that the change removes can no longer propose anything. This happens if a member becomes the leader in the
// middle of the change. Such a leader transfers the leadership (transfer.yield). Its successor leaves the joint
// membership, or finds that it was left already.
type confirmation struct {
	due   bool   // whether the entry must still be proposed
	asked bool   // whether the entry was passed to Raft
	index uint64 // index of the entry, or 0 if not known yet
}

// pending reports whether the confirmation has not been committed yet, so that a majority might not know of the
// change.
func (c confirmation) pending() bool { return c.due || c.asked }

// stored looks for the confirmation in a Ready's entries, and records its index. The confirmation was proposed last,
// so it is the last entry.
func (c *confirmation) stored(entries []*raftpb.Entry) {
	if c.asked && c.index == 0 {
		c.index = entries[len(entries)-1].GetIndex()
	}
}

// confirm begins a confirmation. It must be called after a non-joint change was applied.
func (m *members) confirm() {
	switch {
	case !m.node.leader:
		// A member that has just lost the leadership cannot find out which members know of the change, so the change ends
		// with an unknown outcome.
	case len(m.conf.GetVoters()) > 1 || !m.isVoter():
		m.confirmation = confirmation{due: true}
		m.seat.Schedule()
	default:
		m.confirmed()
	}
}

func (m *members) submitConfirmation() {
	// If Raft rejects the proposal, for example during a transfer of the leadership, the clock tries again.
	if m.confirmation.due && m.node.propose(&raftpb.Entry{}) == nil {
		m.confirmation = confirmation{asked: true}
	}
}

// committed must be called when the entries up to index are applied. If this confirms the last membership change,
// committed ends the change and returns true.
func (m *members) committed(index uint64) bool {
	if m.confirmation.index == 0 || index < m.confirmation.index {
		return false
	}
	m.confirmed()
	return true
}

// confirmed ends the change in progress if it is the change that was applied last.
func (m *members) confirmed() {
	m.confirmation = confirmation{}
	if c := m.change; c != nil && c.index != 0 && c.index <= m.index {
		m.end(nil)
	}
}
