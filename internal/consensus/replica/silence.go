package replica

import (
	"log/slog"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/base/rules"
)

// silence records which members are on silent shards, as the transport reports with PeerDown and PeerUp. If the
// leader's shard is silent, this replica campaigns soon. It is part of a core, whose mutex guards it.
type silence struct {
	node    *node
	members *members
	logger  *slog.Logger
	rules   rules.Off

	down       map[uint64]bool // members whose shard is silent
	receivedAt time.Time       // time of the current leader's last message; zero if none has arrived since the start
	// leaderDown means that the leader's shard is silent. The leader is then forgotten once nothing has been received
	// from it for silenceMin.
	leaderDown bool
	early      earlyCampaign
}

// silenceMin is the minimum time without a message from a leader before the leader is forgotten, regardless of
// reports about its shard.
const silenceMin = electionTimeout

// received records a message from another member that Raft has accepted.
func (s *silence) received(m *raftpb.Message) {
	if s.node.isFromLeader(m) {
		s.receivedAt, s.leaderDown = time.Now(), false
	}
}

// forgetLeader forgets a leader whose shard is silent, once this replica has itself received nothing from the leader
// for silenceMin. Until then the leader may serve reads under a lease that this replica's response has granted
// (rules.Silence). Afterwards this member votes for others immediately, and campaigns soon. It returns true if it
// forgot the leader.
func (s *silence) forgetLeader() bool {
	switch {
	case !s.leaderDown:
		return false
	case s.node.leader:
		s.leaderDown = false
		return false
	case time.Since(s.receivedAt) < silenceMin && s.rules.Keeps(rules.Silence):
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

// PeerDown reports that a member's shard was silent for longer than an election timeout, or has restarted. This
// replica then no longer assumes that the member rests. The report may come late, after the member has begun to send
// again.
func (r *Replica) PeerDown(raftID uint64) {
	c := r.state.lock()
	defer c.unlock()
	if c.silence.down == nil {
		c.silence.down = map[uint64]bool{}
	}
	c.silence.down[raftID] = true
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

// PeerUp reports that the shard of a member sends again after PeerDown.
func (r *Replica) PeerUp(raftID uint64) {
	c := r.state.lock()
	defer c.unlock()
	delete(c.silence.down, raftID)
	if c.node.leader {
		c.quiet.wake() // the member may have missed the heartbeat that announced a rest, or any other message
	}
}

// earlyCampaign makes a member whose leader is gone campaign early. Raft's own campaign waits for 1 to 2 election
// timeouts, chosen at random, so that one of several members is first. In an earlyCampaign, the remaining members
// campaign in turn, in the order of their ids.
type earlyCampaign struct {
	tries int // attempts left
	ticks int // ticks until the next attempt
	again int // number of ticks from one attempt to the next
}

const (
	earlyTries = 3
	earlyTicks = 3 // number of ticks for which each member may try to get elected before the next one campaigns
)

// tick campaigns when it is this member's turn. The clock calls it on a member that may lead.
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
