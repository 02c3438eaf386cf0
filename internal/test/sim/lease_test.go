package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// The faults in this file create situations in which a lease would cause a wrong read if one safety rule were missing.
// These situations rarely occur by chance, because another member must be elected within half a second of the
// majority's last response to the leader, and the leader must not receive any message about the election.

// transferBehindPartition transfers leadership. From the TimeoutNow message on, the old leader receives nothing, so it
// continues to believe that it leads.
func (w *world) transferBehindPartition(_ *operator, r *rand.Rand) bool { return w.summon(r, 0) }

// timeoutNowArrivesLate is like transferBehindPartition, but the TimeoutNow message arrives only after the old leader
// has given up the transfer and has continued to lead.
func (w *world) timeoutNowArrivesLate(_ *operator, r *rand.Rand) bool {
	return w.summon(r, between(r, 1200*time.Millisecond, 2*time.Second))
}

// summon transfers leadership with a TimeoutNow message. The argument late is the delay of that message. summon returns
// true if the target leads while the old leader has not noticed this.
func (w *world) summon(r *rand.Rand, late time.Duration) bool {
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
	return w.contrast(to, leader, r)
}

// askJustStarted disconnects one member from the leader until that member asks for votes. At that moment the voter that
// receives the request loses power, so after its restart it does not remember that it has just responded to the leader.
// askJustStarted returns true if the restarted voter was asked for its vote.
func (w *world) askJustStarted(_ *operator, r *rand.Rand) bool {
	w.connect()
	leader := w.leader()
	if leader == nil || w.cfg.copies != 3 {
		return false
	}
	lonely := w.otherVoter(leader, r)
	if lonely == nil {
		return false
	}
	w.beCalm(true) // a member that lacks an entry would get no vote
	defer w.beCalm(false)
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
	w.beCalm(false)
	w.contrast(lonely, leader, r)
	return true
}

// await waits until the trap catches a message. While it waits, it repeatedly calls the function in the argument
// meanwhile. It returns nil if the trap catches no message within the time most.
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

// contrast waits until the new leader (the argument leads) is the leader while the old leader (the argument led) still
// believes that it leads. Clients then write to the new leader and read from the old one. Finally, contrast reconnects
// all machines. It returns false if this situation does not arise.
func (w *world) contrast(leads, led *process, r *rand.Rand) bool {
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
				begin: moments.Add(1)}
			if n++; !w.perform(&put, random, leads, n) {
				return
			}
			w.remember(put)
			if i == 0 {
				w.askWithCondition(led, put, other, n)
			}
			get := operation{client: put.client, call: call{what: "get", id: put.call.id}, begin: moments.Add(1)}
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

// askWithCondition makes another client write through a former leader, on the condition that the record has the version
// of the argument put. The former leader has only an older version, and must not refuse the write for that reason.
func (w *world) askWithCondition(led *process, put operation, random *rand.Rand, n uint64) {
	w.calling.Add(1)
	w.wait.Go(func() {
		defer w.calling.Add(-1)
		op := operation{client: put.client + 1, call: call{what: "put", id: put.call.id}, begin: moments.Add(1)}
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

// readThrough asks a leader for a read barrier. If readThrough returns true, the leader also has a lease, if it is
// allowed to have one.
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

// beCalm stops or resumes the writes of clients.
func (w *world) beCalm(calm bool) {
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
