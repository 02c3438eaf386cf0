package replica

import (
	"bytes"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
)

// quiet lays a group to rest where every member has everything: its leader says so once, in a heartbeat with a mark,
// and from then on no clock of the group runs and no message is sent. Any other message, write, read or change wakes a
// member. While the group rests, the liveness of the members' shards counts (silence): members whose leader's shard
// falls silent wake up and elect another. It belongs to a core.
//
// Nothing that is safe depends on it: a member that rests answers every message as one that is awake, and a leader that
// rests asks the majority before it answers a read. What could be lost is time.
type quiet struct {
	node    *node
	members *members
	silence *silence
	seat    *rounds.Seat
	idle    *idle
	allowed bool // Options.Quiet

	idleTicks int // how long there was nothing to do
	callTicks int // since a leader was looked for, by a member that cannot campaign
}

// restTicks is how long a group has nothing to do before it rests.
const restTicks = 5

// quietMark is the context of a heartbeat that lays the group to rest, and of the answer of a member that cannot. Raft
// takes contexts of heartbeats for counts of reads: these never reach it.
var quietMark = []byte("sheaf: rest")

func isQuietMark(m *raftpb.Message) bool {
	t := m.GetType()
	return (t == raftpb.MsgHeartbeat || t == raftpb.MsgHeartbeatResp) && bytes.Equal(m.GetContext(), quietMark)
}

// wake ends the rest.
func (q *quiet) wake() {
	q.idleTicks = 0
	if q.idle.resting.Load() {
		q.idle.resting.Store(false)
		q.seat.Watch()
	}
}

// rest is called by the clock, with whether something is on its way here. Where this replica leads and the group has
// nothing to do any more, it gives the messages that lay the group to rest.
func (q *quiet) rest(isBusy func() bool) []*raftpb.Message {
	if !q.allowed || !q.node.leader || isBusy() {
		q.idleTicks = 0
		return nil
	}
	if q.idleTicks++; q.idleTicks < restTicks || q.inRound() {
		return nil
	}
	last, all := q.node.hasAll()
	if !all || !q.allHave(last) {
		return nil
	}
	lastTerm, err := q.node.log.Term(last)
	if err != nil {
		return nil
	}
	q.idle.resting.Store(true)
	var marks []*raftpb.Message
	q.node.raft.WithProgress(func(id uint64, _ raft.ProgressType, _ tracker.Progress) {
		if id == q.node.id || q.silence.isDown(id) {
			return
		}
		marks = append(marks, &raftpb.Message{
			Type: raftpb.MsgHeartbeat.Enum(), From: new(q.node.id), To: new(id),
			Term: new(q.node.term), Index: new(last), LogTerm: new(lastTerm),
			Commit: new(last), Context: quietMark,
		})
	})
	return marks
}

// callLeader wakes a leader that rests and does not know that this member has begun anew: where this member cannot
// campaign, nothing else would. Called by the clock; barred says that damage keeps this replica from leading.
func (q *quiet) callLeader(barred bool) (calls []*raftpb.Message) {
	if !q.allowed || q.node.leaderID != raft.None || !q.members.isMember || !barred && q.members.isVoter() {
		q.callTicks = 0
		return nil
	}
	if q.callTicks++; q.callTicks < electionTicks {
		return nil
	}
	q.callTicks = 0
	for _, id := range q.members.conf.GetVoters() {
		if id != q.node.id {
			calls = append(calls, &raftpb.Message{
				Type: raftpb.MsgHeartbeatResp.Enum(), From: new(q.node.id), To: new(id),
				Term: new(q.node.term), Context: quietMark,
			})
		}
	}
	return calls
}

// inRound tells whether Raft has something to say.
func (q *quiet) inRound() bool { return q.seat.IsScheduled() || q.node.raft.HasReady() }

// allHave tells whether every member whose shard is heard has everything, and these are a majority.
func (q *quiet) allHave(last uint64) bool {
	voters, all := 0, true
	q.node.raft.WithProgress(func(id uint64, kind raft.ProgressType, pr tracker.Progress) {
		switch {
		case id == q.node.id:
		case q.silence.isDown(id):
			return
		case pr.State != tracker.StateReplicate || pr.Match != last || !pr.RecentActive:
			all = false
		}
		if kind == raft.ProgressTypePeer {
			voters++
		}
	})
	return all && 2*voters > len(q.members.conf.GetVoters())
}

// mayRest tells whether this member rests when its leader says so in m; isBusy says whether something is on its way
// here.
func (q *quiet) mayRest(m *raftpb.Message, isBusy func() bool) bool {
	if !q.allowed || q.node.leader || !q.node.isFromLeader(m) || q.silence.isDown(m.GetFrom()) || isBusy() || q.inRound() {
		return false
	}
	last, all := q.node.hasAll()
	if !all || last != m.GetIndex() {
		return false
	}
	lastTerm, err := q.node.log.Term(last)
	return err == nil && lastTerm == m.GetLogTerm()
}

// withoutMark is the heartbeat that carried the mark.
func withoutMark(m *raftpb.Message) *raftpb.Message {
	return &raftpb.Message{Type: m.Type, From: m.From, To: m.To, Term: m.Term, Commit: m.Commit}
}

// cannotRest answers the mark of a heartbeat, so that the leader wakes up.
func cannotRest(m *raftpb.Message) *raftpb.Message {
	return &raftpb.Message{Type: raftpb.MsgHeartbeatResp.Enum(), From: m.To, To: m.From, Term: m.Term, Context: quietMark}
}
