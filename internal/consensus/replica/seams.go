package replica

import (
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Probe lets simulations observe a replica.
type Probe struct {
	BeforeSync func()              // called between a round's write and its sync; no lock is held
	Applied    func(*format.Entry) // called for each entry that becomes visible, in order; the entry must not be kept
	Shared     bool                // whether syncs are shared through the journal even if only a single group is written
}

// seams contains the steps of a round at which a test may observe the round or switch off a rule. Without a Probe,
// each step does what its comment says. The zero value is for production.
type seams struct {
	Probe
	Off rules.Off
}

// hardState returns the hard state to write. If a test has switched off rules.Vote, the hard state lacks the vote.
func (s *seams) hardState(state *raftpb.HardState) *raftpb.HardState {
	if state == nil || s.Off.Keeps(rules.Vote) {
		return state
	}
	return &raftpb.HardState{Term: state.Term, Vote: proto.Uint64(0), Commit: state.Commit}
}

// sync makes a round's appended data durable, unless a test has switched off rules.Sync.
func (s *seams) sync(c *Committer, log store) error {
	if s.BeforeSync != nil {
		s.BeforeSync()
	}
	if !s.Off.Keeps(rules.Sync) {
		return nil
	}
	return c.Sync(log, s.Shared)
}

// mayGoEarly reports whether a message may be sent before the sync of its Ready (rules.Promise). A message may be sent
// early if it implies nothing about this node's own disk. A candidate's vote request must wait, because it names the
// candidate's last entry, and a vote based on that entry must not reach the candidate after a crash that lost the
// entry.
func (s *seams) mayGoEarly(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap, raftpb.MsgReadIndex:
		return true
	default:
		return !s.Off.Keeps(rules.Promise)
	}
}

// applyUncommitted does nothing unless rules.Apply is switched off. If so, it makes entries visible that may not be
// committed.
func (s *seams) applyUncommitted(log store, entries []*raftpb.Entry) error {
	if s.Off.Keeps(rules.Apply) || len(entries) == 0 {
		return nil
	}
	return log.Apply(entries[len(entries)-1].GetIndex(), s.Applied)
}

// applied must be called for each entry that has become visible.
func (s *seams) applied(e *format.Entry) {
	if s.Applied != nil {
		s.Applied(e)
	}
}
