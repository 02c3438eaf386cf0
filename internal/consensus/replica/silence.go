package replica

import (
	"log/slog"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica/rules"
)

// silence knows which members' shards are silent, as the transport tells by PeerDown and PeerUp, and has this replica
// campaign soon when its leader's shard is one of them. It belongs to a core.
type silence struct {
	node    *node
	members *members
	logger  *slog.Logger
	rules   rules.Off

	down       map[uint64]bool // members whose shard is silent
	heardAt    time.Time       // when the present leader was heard last; zero: none was, since the start
	leaderDown bool            // the leader's shard is silent: forget the leader when it was not heard for silenceMin
	early      earlyCampaign
}

// silenceMin is how long a leader must not have been heard before it is forgotten, whatever is told of its shard.
const silenceMin = electionTimeout

func (s *silence) isDown(id uint64) bool { return s.down[id] }

func (s *silence) set(id uint64, down bool) {
	switch {
	case !down:
		delete(s.down, id)
	case s.down == nil:
		s.down = map[uint64]bool{id: true}
	default:
		s.down[id] = true
	}
}

// heard notes a message from another member that Raft has taken.
func (s *silence) heard(m *raftpb.Message) {
	if s.node.isFromLeader(m) {
		s.heardAt, s.leaderDown = time.Now(), false
	}
}

// forgetLeader forgets a leader whose shard is silent when this replica has heard nothing of the leader for silenceMin
// either: until then the leader may read by a lease that this replica has answered (rules.Silence). This member votes
// for others at once then, and campaigns soon. True: it did.
func (s *silence) forgetLeader() bool {
	switch {
	case !s.leaderDown:
		return false
	case s.node.leader:
		s.leaderDown = false
		return false
	case time.Since(s.heardAt) < silenceMin && s.rules.Keeps(rules.Silence):
		return false
	}
	s.leaderDown = false
	if err := s.node.raft.ForgetLeader(); err != nil {
		s.logger.Error("forget the leader", "error", err)
	}
	before, left := 0, 0
	for _, id := range s.members.conf.GetVoters() {
		if s.down[id] {
			continue
		}
		left++
		if id < s.node.id {
			before++
		}
	}
	s.early = earlyCampaign{tries: earlyTries, ticks: 1 + earlyTicks*before, again: earlyTicks * left}
	return true
}

// PeerDown tells that the shard of a member is silent for longer than an election timeout, or has begun anew: what was
// agreed with it about a rest no longer counts. The word may come late, when that member is heard again.
func (r *Replica) PeerDown(raftID uint64) {
	c := r.state.lock()
	defer c.unlock()
	c.silence.set(raftID, true)
	c.blobs.end(errMemberQuiet, func(from uint64) bool { return from != raftID })
	switch {
	case !c.node.leader && (c.node.leaderID == raftID || c.node.leaderID == raft.None) && c.err == nil:
		c.quiet.wake()
		c.silence.leaderDown = true
		c.forgetSilentLeader()
	case c.node.leader && c.idle.resting.Load():
		c.quiet.wake()
	}
}

// PeerUp tells that the shard of a member is heard again.
func (r *Replica) PeerUp(raftID uint64) {
	c := r.state.lock()
	defer c.unlock()
	c.silence.set(raftID, false)
	if c.node.leader {
		c.quiet.wake() // it may have missed the mark, or everything
	}
}

// earlyCampaign is the campaign of a member whose leader is gone. Raft's own waits for 1 to 2 election timeouts, so
// that one of several members is first; here those that are left campaign in turn, by their ids.
type earlyCampaign struct {
	tries int // left
	ticks int // until the next
	again int // ticks from one to the next
}

const (
	earlyTries = 3
	earlyTicks = 3 // for an election
)

// tick campaigns when it is this member's turn. Called by the clock of one that may lead.
func (s *silence) tick() {
	if s.early.tries == 0 {
		return
	}
	if s.node.leaderID != raft.None || !s.members.isVoter() {
		s.early = earlyCampaign{}
		return
	}
	if s.early.ticks--; s.early.ticks > 0 {
		return
	}
	s.early.tries--
	s.early.ticks = s.early.again
	if err := s.node.raft.Campaign(); err != nil {
		s.logger.Error("campaign", "error", err)
	}
}
