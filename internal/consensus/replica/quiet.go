package replica

import (
	"bytes"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
)

// quiet quiesces a group: it lets the group rest when every member has all entries. The leader announces the rest once,
// with a heartbeat that carries a mark (quietMark). From then on, the members stop their clocks and send no messages. A
// member wakes up when it receives any other message, a write, a read or a membership change. While the group rests,
// the liveness of the members' shards replaces heartbeats (silence): if the leader's shard falls silent, the members
// wake up and elect another leader. It is part of a core, whose mutex guards it.
//
// Safety does not depend on the rest: a resting member answers every message in the same way as one that is awake, and
// a resting leader asks the majority before it answers a read. A defect in this type can only cost time.
type quiet struct {
	node    *node
	members *members
	silence *silence
	seat    *rounds.Seat
	idle    *idle
	allowed bool // Options.Quiet

	idleTicks int // number of ticks without work
	callTicks int // ticks since this member last asked for a leader, which it does while it cannot campaign
}

// restTicks is how many ticks a group must be without work before it rests.
const restTicks = 5

// quietMark is the context of a heartbeat that lets the group rest, and of the response from a member that cannot rest.
// Raft interprets contexts in heartbeats as read requests, so these heartbeats are never passed to Raft.
var quietMark = []byte("sheaf: rest")

func isQuietMark(m *raftpb.Message) bool {
	t := m.GetType()
	return (t == raftpb.MsgHeartbeat || t == raftpb.MsgHeartbeatResp) && bytes.Equal(m.GetContext(), quietMark)
}

// wake wakes this member if its group rests.
func (q *quiet) wake() {
	q.idleTicks = 0
	if q.idle.resting.Load() {
		q.idle.resting.Store(false)
		q.seat.Watch()
	}
}

// rest is called by the clock. If this replica leads and the group has no more work, rest returns the messages that let
// the group rest. The function isBusy reports whether this replica has work in progress.
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
		if id == q.node.id || q.silence.down[id] {
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

// callLeader wakes a resting leader that does not know that this member has restarted. If this member cannot campaign,
// nothing else would wake that leader. The clock calls callLeader. The argument barred means that damage prevents this
// replica from leading.
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

// inRound reports whether a round is requested or in progress, or whether Raft has output for a round.
func (q *quiet) inRound() bool { return q.seat.IsScheduled() || q.node.raft.HasReady() }

// allHave reports whether the members whose shards are alive form a majority and all have the entries up to the index
// last.
func (q *quiet) allHave(last uint64) bool {
	voters, all := 0, true
	q.node.raft.WithProgress(func(id uint64, kind raft.ProgressType, pr tracker.Progress) {
		switch {
		case id == q.node.id:
		case q.silence.down[id]:
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

// mayRest reports whether this member may rest when its leader announces the rest in m. The function isBusy reports
// whether this replica has work in progress.
func (q *quiet) mayRest(m *raftpb.Message, isBusy func() bool) bool {
	if !q.allowed || q.node.leader || !q.node.isFromLeader(m) || q.silence.down[m.GetFrom()] || isBusy() || q.inRound() {
		return false
	}
	last, all := q.node.hasAll()
	if !all || last != m.GetIndex() {
		return false
	}
	lastTerm, err := q.node.log.Term(last)
	return err == nil && lastTerm == m.GetLogTerm()
}
