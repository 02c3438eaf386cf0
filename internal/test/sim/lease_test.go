package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// The faults in this file create situations in which a leader with a lease would return an outdated state if one
// safety rule were missing. By chance, such situations are rare: within half a second after the majority has last
// responded to the leader, another member must be elected, and the leader must not receive any message about this
// election.

// transferBehindPartition transfers the leadership. The old leader receives no messages from the moment at which
// TimeoutNow is sent, so it continues to believe that it leads.
func (w *world) transferBehindPartition(_ *operator, r *rand.Rand) bool { return w.forceTransfer(r, 0) }

// timeoutNowArrivesLate is like transferBehindPartition. However, the TimeoutNow message arrives so late that the old
// leader has already given up the transfer and leads again.
func (w *world) timeoutNowArrivesLate(_ *operator, r *rand.Rand) bool {
	return w.forceTransfer(r, between(r, 1200*time.Millisecond, 2*time.Second))
}

// forceTransfer transfers the leadership with a TimeoutNow message, which it delays by the argument late. It returns
// true if the target then leads and the old leader has not noticed it.
func (w *world) forceTransfer(r *rand.Rand, late time.Duration) bool {
	w.connect()
	leader := w.leader()
	if leader == nil || !w.readThrough(leader) {
		return false
	}
	to := w.otherVoter(leader, r)
	if to == nil {
		return false
	}
	called := make(chan *raftpb.Message, 1)
	w.layTrap(func(from *process, m *raftpb.Message) bool {
		if from != leader || m.GetType() != raftpb.MsgTimeoutNow {
			return false
		}
		w.trap = nil
		called <- proto.Clone(m).(*raftpb.Message)
		if late == 0 {
			w.dropInbound(leader.machine)
		}
		return late != 0
	})
	w.wait.Go(func() { _ = leader.replica.TransferLeader(w.ctx, to.raftID) })
	call := w.await(called, time.Second, nil)
	if call == nil {
		return false
	}
	if late != 0 {
		// A read renews the old leader's lease, unless the safety rule under test prevents this.
		if !w.sleep(late) || !w.readThrough(leader) {
			return false
		}
		w.mu.Lock()
		w.dropInbound(leader.machine)
		w.mu.Unlock()
		w.deliver(call)
	}
	return w.writeNewReadOld(to, leader, r)
}

// askRestartedVoter disconnects a member from the leader until this member asks for votes. A voter that receives the
// request then loses its power and restarts, so that it no longer remembers that it has just responded to the leader.
// askRestartedVoter returns true if the voter was asked for its vote after the restart.
func (w *world) askRestartedVoter(_ *operator, r *rand.Rand) bool {
	w.connect()
	leader := w.leader()
	if leader == nil || w.cfg.copies != 3 {
		return false
	}
	lonely := w.otherVoter(leader, r)
	if lonely == nil {
		return false
	}
	w.pauseWrites(true) // while clients do not write, no member falls behind, so any of them may be elected
	defer w.pauseWrites(false)
	if !w.sleep(between(r, 200*time.Millisecond, 400*time.Millisecond)) {
		return false
	}
	asked := make(chan *raftpb.Message, 1)
	var one *machine
	w.layTrap(func(from *process, m *raftpb.Message) bool {
		to := w.at[m.GetTo()]
		if from != lonely || to == leader.machine || m.GetType() != raftpb.MsgPreVote {
			return false
		}
		w.trap = nil
		one = to
		asked <- proto.Clone(m).(*raftpb.Message)
		w.dropOutbound(leader.machine)
		return true
	})
	w.mu.Lock()
	w.partitioned[[2]int{leader.machine.number, lonely.machine.number}] = true
	w.mu.Unlock()
	call := w.await(asked, 4*time.Second, func() { w.readThrough(leader) })
	if call == nil {
		w.connect()
		return false
	}
	one.cutPower(survival(r))
	one.start()
	w.deliver(call)
	w.pauseWrites(false)
	w.writeNewReadOld(lonely, leader, r)
	return true
}

// await waits until the trap catches a message, and returns the message. In the meantime it repeatedly calls
// meanwhile(). If the trap has caught nothing when the time in the argument most has passed, await returns nil.
func (w *world) await(taken <-chan *raftpb.Message, most time.Duration, meanwhile func()) *raftpb.Message {
	defer w.layTrap(nil)
	for end := time.Now().Add(most); time.Now().Before(end); {
		select {
		case m := <-taken:
			return m
		case <-w.ctx.Done():
			return nil
		case <-time.After(10 * time.Millisecond):
		}
		if meanwhile != nil {
			meanwhile()
		}
	}
	return nil
}

// writeNewReadOld waits for a situation with two leaders: a process that has been elected (the argument leads), and a
// process that still believes that it leads (the argument led). Clients then write through the new leader and read
// through the old one. If the situation does not arise soon, writeNewReadOld returns false. In either case, it
// reconnects all machines before it returns.
func (w *world) writeNewReadOld(leads, led *process, r *rand.Rand) bool {
	defer w.connect()
	is := false
	for end := time.Now().Add(200 * time.Millisecond); !is && time.Now().Before(end) && w.sleep(2*time.Millisecond); {
		is = leads.replica.Status().Leader
	}
	if !is || !led.replica.Status().Leader {
		return false
	}
	w.contrasts++
	n, random, other := w.contrasts<<8, rand.New(rand.NewPCG(w.seed, 1000+w.contrasts)),
		rand.New(rand.NewPCG(w.seed, 2000+w.contrasts))
	w.calling.Add(1)
	w.wait.Go(func() {
		defer w.calling.Add(-1)
		for i := range 4 {
			put := operation{client: w.cfg.clients + 1, call: call{what: "put", id: random.Int64N(w.cfg.keys)},
				begin: callSequence.Add(1)}
			if n++; !w.perform(&put, random, leads, n) {
				return
			}
			w.remember(put)
			if i == 0 {
				w.askWithCondition(led, put, other, n)
			}
			get := operation{client: put.client, call: call{what: "get", id: put.call.id}, begin: callSequence.Add(1)}
			ctx, cancel := context.WithTimeout(w.ctx, 20*time.Millisecond)
			if w.read(ctx, led, &get) {
				w.remember(get)
			}
			cancel()
		}
	})
	w.sleep(between(r, 150*time.Millisecond, 300*time.Millisecond))
	return true
}

// askWithCondition makes another client write through a former leader. The write is conditional: it requires that the
// record still has the version that an earlier write (the argument put) gave it. The former leader knows only an
// older version of the record, but must not refuse the write because of that.
func (w *world) askWithCondition(led *process, put operation, random *rand.Rand, n uint64) {
	w.calling.Add(1)
	w.wait.Go(func() {
		defer w.calling.Add(-1)
		op := operation{client: put.client + 1, call: call{what: "put", id: put.call.id}, begin: callSequence.Add(1)}
		op.call.cond.IfVersion = put.reply.index
		if w.perform(&op, random, led, n) {
			w.remember(op)
		}
	})
}

// remember records what a client saw.
func (w *world) remember(op operation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, op)
}

// readThrough asks a leader for a read barrier. If readThrough returns true, the leader also has a lease, provided
// that leases are allowed.
func (w *world) readThrough(p *process) bool {
	ctx, cancel := context.WithTimeout(w.ctx, 50*time.Millisecond)
	defer cancel()
	return p.replica.ReadBarrier(ctx) == nil
}

// otherVoter returns another voter that runs.
func (w *world) otherVoter(p *process, r *rand.Rand) *process {
	voters := p.replica.Members().Conf.GetVoters()
	for _, i := range r.Perm(len(voters)) {
		for _, other := range w.processes() {
			if other != p && other.raftID == voters[i] {
				return other
			}
		}
	}
	return nil
}

func (w *world) layTrap(t trap) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trap = t
}

// pauseWrites stops or resumes the writes of clients.
func (w *world) pauseWrites(calm bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm = calm
}

// dropOutbound disconnects a machine from all others. Connections among the others do not change. The caller holds mu.
func (w *world) dropOutbound(m *machine) {
	w.dropInbound(m)
	for _, other := range w.machines {
		w.partitioned[[2]int{m.number, other.number}] = true
	}
}

// dropInbound drops everything that is sent to a machine. The caller holds mu.
func (w *world) dropInbound(m *machine) {
	for _, other := range w.machines {
		w.partitioned[[2]int{other.number, m.number}] = true
	}
}
