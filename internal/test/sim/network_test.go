package sim

import (
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// trap is a function that is called, while it is set, with each message that is sent. It returns true if the message
// must not be delivered. The caller holds world.mu.
type trap func(from *process, m *raftpb.Message) (taken bool)

// Send implements replica.Transport. A message may be delayed, overtaken by later messages, delivered twice or lost.
func (p *process) Send(messages []*raftpb.Message) {
	w := p.machine.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead {
		return
	}
	for _, m := range messages {
		w.noteLead(m)
		to := w.at[m.GetTo()]
		if to == nil || w.partitioned[[2]int{p.machine.number, to.number}] {
			continue
		}
		if w.trap != nil && w.trap(p, m) {
			continue
		}
		copies := 1
		if w.bad {
			switch x := w.random.Float64(); {
			case x < w.cfg.lossOdds:
				copies = 0
				w.fired["message lost"]++
			case x < w.cfg.lossOdds+0.05:
				copies = 2
				w.fired["message doubled"]++
			}
		}
		for range copies {
			clone := proto.Clone(m).(*raftpb.Message)
			time.AfterFunc(w.delay(), func() { w.deliver(clone) })
		}
	}
}

// noteLead looks at a message that only a leader sends, and records which replica leads the message's term. The
// caller holds mu.
func (w *world) noteLead(m *raftpb.Message) {
	if t := m.GetType(); t != raftpb.MsgApp && t != raftpb.MsgHeartbeat {
		return
	}
	if other, known := w.leads[m.GetTerm()]; known && other != m.GetFrom() {
		w.recordViolation(oracleOneLead, fmt.Sprintf("replica %x leads in term %d, and so did replica %x", m.GetFrom(),
			m.GetTerm(), other))
	}
	w.leads[m.GetTerm()] = m.GetFrom()
}

// delay returns the delay of a message. It is random, so that later messages may overtake this one.
func (w *world) delay() time.Duration {
	switch x := w.random.Float64(); {
	case w.bad && x < w.cfg.lateOdds:
		w.fired["message late"]++
		return between(w.random, w.cfg.lateMax/10, w.cfg.lateMax) // longer than an election or a restart may take
	case w.bad && x < 0.2:
		return between(w.random, 5*time.Millisecond, 300*time.Millisecond)
	default:
		return between(w.random, 500*time.Microsecond, 4*time.Millisecond)
	}
}

func (w *world) deliver(m *raftpb.Message) {
	if w.ctx.Err() != nil {
		return
	}
	for _, p := range w.processes() { // a member may have two processes while a copy of its volume runs
		if p.raftID == m.GetTo() {
			_ = p.replica.Step(m) // a message that Step does not accept is lost
		}
	}
}
