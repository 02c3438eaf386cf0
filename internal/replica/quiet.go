package replica

import (
	"bytes"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// A group where every member has everything rests: its leader says so once, in a heartbeat with a mark, and from then on
// no clock of it runs and no message is sent. Any other message, write, read or change wakes a member. While it rests, the
// liveness of the members' shards counts, which the transport tells by PeerDown and PeerUp: members whose leader's shard
// falls silent wake up and elect another.
//
// Nothing that is safe depends on it: a member that rests answers every message as one that is awake, and a leader that
// rests asks the majority before it answers a read. What could be lost is time.

// restTicks is how long a group has nothing to do before it rests.
const restTicks = 5

// quietMark is the context of a heartbeat that lays the group to rest, and of the answer of a member that cannot. Raft
// takes contexts of heartbeats for counts of reads: these never reach it.
var quietMark = []byte("sheaf: rest")

func isQuietMark(m *raftpb.Message) bool {
	return (m.GetType() == raftpb.MsgHeartbeat || m.GetType() == raftpb.MsgHeartbeatResp) && bytes.Equal(m.GetContext(), quietMark)
}

// wake ends the rest. Called with mu held.
func (r *Replica) wake() {
	r.restedTicks = 0
	if r.quiet.Load() {
		r.quiet.Store(false)
		r.committer.watch(r)
	}
}

// PeerDown tells that the shard of a member is silent for longer than an election timeout, or has begun anew: what was
// agreed with it about a rest no longer counts. The word may come late, when that member is heard again.
func (r *Replica) PeerDown(raftID uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down == nil {
		r.down = make(map[uint64]bool)
	}
	r.down[raftID] = true
	r.endFetches(errMemberQuiet, func(from uint64) bool { return from != raftID })
	switch {
	case !r.leader && (r.leaderID == raftID || r.leaderID == raft.None) && r.err == nil:
		r.wake()
		r.mourned = true
		r.tickMourning()
	case r.leader && r.quiet.Load():
		r.wake()
	}
}

// PeerUp tells that the shard of a member is heard again.
func (r *Replica) PeerUp(raftID uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.down, raftID)
	if r.leader {
		r.wake() // it may have missed the mark, or everything
	}
}

// silenceMin is how long a leader must not have been heard before it is forgotten, whatever is told of its shard: the election timeout.
const silenceMin = electionTicks * raftTicks * clockInterval

// noteHeard notes a message from another member that Raft has taken. Called with mu held.
func (r *Replica) noteHeard(m *raftpb.Message) {
	if m.GetFrom() == r.leaderID && m.GetTerm() == r.term {
		r.heardAt, r.mourned = time.Now(), false
	}
}

// tickMourning forgets a leader whose shard is silent when this replica has heard nothing of the leader for silenceMin either. Until
// then the leader may read by a lease that this replica has answered. Called with mu held.
func (r *Replica) tickMourning() {
	switch {
	case !r.mourned:
	case r.leader:
		r.mourned = false
	case time.Since(r.heardAt) >= silenceMin || r.unsafe(UnsafeSilence):
		r.mourned = false
		r.mourn()
	}
}

// mourn lets this member vote for others at once, and campaign soon: its leader is gone. This member has heard nothing of the leader for
// twice the time of a lease, so that there is none any more. Called with mu held.
func (r *Replica) mourn() {
	if err := r.node.ForgetLeader(); err != nil {
		r.logger.Error("forget the leader", "error", err)
	}
	before, left := 0, 0
	for _, id := range r.conf.GetVoters() {
		switch {
		case r.down[id]:
		case id < r.opts.RaftID:
			before++
			fallthrough
		default:
			left++
		}
	}
	r.hurry = hurry{tries: hurryTries, ticks: 1 + hurryTicks*before, again: hurryTicks * left}
	r.observe()
}

// hurry is the campaign of a member whose leader is gone. Raft's own waits for 1 to 2 election timeouts, so that one of several members
// is first; here those that are left campaign in turn, by their ids.
type hurry struct {
	tries int // left
	ticks int // until the next
	again int // ticks from one to the next
}

const (
	hurryTries = 3
	hurryTicks = 3 // for an election
)

// tickHurry campaigns when it is this member's turn. Called by the clock of one that may lead, with mu held.
func (r *Replica) tickHurry() {
	if r.hurry.tries == 0 {
		return
	}
	if r.leaderID != raft.None || !isVoter(r.conf, r.opts.RaftID) {
		r.hurry = hurry{}
		return
	}
	if r.hurry.ticks--; r.hurry.ticks > 0 {
		return
	}
	r.hurry.tries--
	r.hurry.ticks = r.hurry.again
	if err := r.node.Campaign(); err != nil {
		r.logger.Error("campaign", "error", err)
	}
	r.observe()
}

// rest is called by the clock of a leader, with mu held. Where the group has nothing to do any more, it gives the messages
// that lay it to rest.
func (r *Replica) rest() []*raftpb.Message {
	if !r.opts.Quiet || !r.leader || r.hasWork() {
		r.restedTicks = 0
		return nil
	}
	if r.restedTicks++; r.restedTicks < restTicks || r.inRound() {
		return nil
	}
	last, err := r.log.LastIndex()
	if err != nil || r.applied != last || !r.allHave(last) {
		return nil
	}
	lastTerm, err := r.log.Term(last)
	if err != nil {
		return nil
	}
	r.quiet.Store(true)
	var marks []*raftpb.Message
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, _ tracker.Progress) {
		if id == r.opts.RaftID || r.down[id] {
			return
		}
		marks = append(marks, &raftpb.Message{
			Type: raftpb.MsgHeartbeat.Enum(), From: proto.Uint64(r.opts.RaftID), To: proto.Uint64(id), Term: proto.Uint64(r.term),
			Index: proto.Uint64(last), LogTerm: proto.Uint64(lastTerm), Commit: proto.Uint64(last), Context: quietMark,
		})
	})
	return marks
}

// callLeader wakes a leader that rests and does not know that this member has begun anew: where it cannot campaign, nothing
// else would. Called by the clock, with mu held.
func (r *Replica) callLeader(barred bool) (calls []*raftpb.Message) {
	if !r.opts.Quiet || r.leaderID != raft.None || !r.member || !barred && isVoter(r.conf, r.opts.RaftID) {
		r.callTicks = 0
		return nil
	}
	if r.callTicks++; r.callTicks < electionTicks {
		return nil
	}
	r.callTicks = 0
	for _, id := range r.conf.GetVoters() {
		if id != r.opts.RaftID {
			calls = append(calls, &raftpb.Message{
				Type: raftpb.MsgHeartbeatResp.Enum(), From: proto.Uint64(r.opts.RaftID), To: proto.Uint64(id),
				Term: proto.Uint64(r.term), Context: quietMark,
			})
		}
	}
	return calls
}

// hasWork tells whether something is on its way in this replica. Called with mu held.
func (r *Replica) hasWork() bool {
	return len(r.queued) > 0 || r.logged.len() > 0 || len(r.readers) > 0 || len(r.readRound.readers) > 0 ||
		r.changeUnderWay() || r.transferee != raft.None || r.noRoom != nil || r.err != nil
}

// inRound tells whether Raft has something to say. Called with mu held.
func (r *Replica) inRound() bool { return r.scheduled.Load() != 0 || r.node.HasReady() }

// allHave tells whether every member whose shard is heard has everything, and these are a majority. Called with mu held.
func (r *Replica) allHave(last uint64) bool {
	voters, all := 0, true
	r.node.WithProgress(func(id uint64, kind raft.ProgressType, pr tracker.Progress) {
		switch {
		case id == r.opts.RaftID:
		case r.down[id]:
			return
		case pr.State != tracker.StateReplicate || pr.Match != last || !pr.RecentActive:
			all = false
		}
		if kind == raft.ProgressTypePeer {
			voters++
		}
	})
	return all && 2*voters > len(r.conf.GetVoters())
}

// takeMark takes a heartbeat with the mark. Where this member cannot rest, it gives what to answer, so that the leader
// wakes up. Called with mu held.
func (r *Replica) takeMark(m *raftpb.Message) (answer *raftpb.Message, err error) {
	if r.mayRest(m) {
		r.quiet.Store(true)
		return nil, nil
	}
	r.wake()
	plain := &raftpb.Message{Type: m.Type, From: m.From, To: m.To, Term: m.Term, Commit: m.Commit}
	if err := r.node.Step(plain); err != nil {
		return nil, err
	}
	r.observe()
	if m.GetTerm() != r.term {
		return nil, nil // Raft answers that
	}
	return &raftpb.Message{
		Type: raftpb.MsgHeartbeatResp.Enum(), From: m.To, To: m.From, Term: m.Term, Context: quietMark,
	}, nil
}

func (r *Replica) mayRest(m *raftpb.Message) bool {
	if !r.opts.Quiet || r.leader || r.term != m.GetTerm() || r.leaderID != m.GetFrom() || r.down[m.GetFrom()] || r.hasWork() || r.inRound() {
		return false
	}
	last, err := r.log.LastIndex()
	if err != nil || last != m.GetIndex() || r.applied != last {
		return false
	}
	lastTerm, err := r.log.Term(last)
	return err == nil && lastTerm == m.GetLogTerm()
}
