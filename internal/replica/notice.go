package replica

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// Raft tells followers at once what has been committed: an append without entries to each of them, and an answer from each, for every
// round of a leader. Nobody waits for that: the next append tells it as well, and so does the next heartbeat. So these appends are held
// back until the clock's next tick, and are dropped where an append with entries follows, or the follower turns out to have everything.
// One that says no more than Raft's own retransmission would is sent then: by its refusal a leader learns that appends were lost.

//
// What waits for nothing is the word that a membership change is committed: until a member hears it, it counts votes by the membership before. Of
// a group whose members were two for a while, nobody could be elected where the leader died meanwhile.

// holdNotices takes out of a Ready's messages what can wait. Called with mu held.
func (r *Replica) holdNotices(messages []*raftpb.Message) []*raftpb.Message {
	if !r.leader || r.changing() {
		return messages
	}
	left := messages[:0:0]
	for _, m := range messages {
		if m.GetType() == raftpb.MsgApp {
			delete(r.notices, m.GetTo())
			if len(m.GetEntries()) == 0 && r.replicates(m.GetTo()) {
				if r.notices == nil {
					r.notices = make(map[uint64]*raftpb.Message)
				}
				r.notices[m.GetTo()] = m
				continue
			}
		}
		left = append(left, m)
	}
	return left
}

// changing tells that a membership change is on its way, or committed by the Ready at hand. Called with mu held.
func (r *Replica) changing() bool {
	return r.change != nil || len(r.conf.GetVotersOutgoing()) > 0 ||
		slices.ContainsFunc(r.round.ready.CommittedEntries, func(e *raftpb.Entry) bool { return e.GetType() != raftpb.EntryNormal })
}

// replicates tells that appends to a member flow, so that it is not being found out what the member has. Called with mu held.
func (r *Replica) replicates(member uint64) (yes bool) {
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		yes = yes || id == member && pr.State == tracker.StateReplicate
	})
	return yes
}

// dueNotices gives what was held back and must be sent after all. Called by the clock, with mu held.
func (r *Replica) dueNotices() (due []*raftpb.Message) {
	if len(r.notices) == 0 {
		return nil
	}
	if r.leader {
		r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
			if m := r.notices[id]; m != nil && m.GetTerm() == r.term && pr.Match < m.GetIndex() {
				due = append(due, m)
			}
		})
	}
	clear(r.notices)
	return due
}
