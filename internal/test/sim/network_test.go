package sim

import (
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// trap is a function that is called with each message that is sent while the trap is set. It returns true if it has
// taken the message. The caller holds world.mu.
type trap func(from *process, m *raftpb.Message) (taken bool)

// Send implements replica.Transport. A message arrives after some time, arrives twice, or does not arrive at all, and
// later messages may overtake it.
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

// noteLead records the leader of a term, found in the leader's messages. The caller holds mu.
func (w *world) noteLead(m *raftpb.Message) {
	if t := m.GetType(); t != raftpb.MsgApp && t != raftpb.MsgHeartbeat {
		return
	}
	if other, known := w.leads[m.GetTerm()]; known && other != m.GetFrom() {
		w.found(oracleOneLead, fmt.Sprintf("replica %x leads in term %d, and so did replica %x", m.GetFrom(), m.GetTerm(),
			other))
	}
	w.leads[m.GetTerm()] = m.GetFrom()
}

// delay returns a message's delay. At random, it is longer than the delays of later messages.
func (w *world) delay() time.Duration {
	switch x := w.random.Float64(); {
	case w.bad && x < w.cfg.lateOdds:
		w.fired["message late"]++
		return between(w.random, w.cfg.lateMax/10, w.cfg.lateMax) // long enough to span elections and restarts
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
	for _, p := range w.processes() { // each member has one process, unless a copy of its volume is running
		if p.raftID == m.GetTo() {
			_ = p.replica.Step(m) // a message that is not accepted is lost
		}
	}
}
