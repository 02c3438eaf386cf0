package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// What follows are the moments in which a lease would be wrong, but for one rule each. By chance they hardly come:
// another one has to be elected within half a second of the majority's last answer to the leader, and this one must not
// hear of it.

// handOverBehindCut hands the lead over, and from the moment of the call on the one that led hears nothing: it takes
// itself for the leader on.
func (w *world) handOverBehindCut(_ *operator, r *rand.Rand) bool { return w.summon(r, 0) }

// callComesLate is the same, but the call is on its way until the transfer was given up, and who has called leads on.
func (w *world) callComesLate(_ *operator, r *rand.Rand) bool {
	return w.summon(r, between(r, 1200*time.Millisecond, 2*time.Second))
}

// summon hands the lead over by a call that takes so long. True where another one leads behind the back of the one that
// led.
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
			w.deafen(leader.machine)
		}
		return late != 0
	})
	w.wait.Go(func() { _ = leader.replica.TransferLeader(w.ctx, to.raftID) })
	call := w.await(called, time.Second, nil)
	if call == nil {
		return false
	}
	if late != 0 {
		// Reads go on, so that it has a lease, unless it knows that it must have none.
		if !w.sleep(late) || !w.readThrough(leader) {
			return false
		}
		w.mu.Lock()
		w.deafen(leader.machine)
		w.mu.Unlock()
		w.deliver(call)
	}
	return w.contrast(to, leader, r)
}

// askJustStarted lets one member hear nothing of the leader until it asks for votes. Whom it asks loses power in that
// moment, and does not know when it is back that it answered the leader just before. True where it was asked for its
// vote so.
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
	w.beCalm(true) // who lacks an entry that the other one has gets no vote
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
		w.cutOff(leader.machine)
		return true
	})
	w.mu.Lock()
	w.cut[[2]int{leader.machine.number, lonely.machine.number}] = true
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

// await waits for a message that a trap takes, and does something meanwhile; nil: it did not come.
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

// contrast waits until one leads while another one takes itself for the leader still, has clients write there and then
// ask the other one, and connects everybody again. False: it does not come to lead so.
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

// askWithCondition has another client write through one that led where the record is as the put left it. That one knows
// an older version, and must find out that it may not refuse.
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

// readThrough asks one that leads whether it may answer a read. Where it does, it has a lease from then on, if it may
// have one.
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

// beCalm keeps the clients from writing.
func (w *world) beCalm(calm bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm = calm
}

// cutOff disconnects a machine from all others, and does not change the connections among those. Called with mu held.
func (w *world) cutOff(m *machine) {
	w.deafen(m)
	for _, other := range w.machines {
		w.cut[[2]int{m.number, other.number}] = true
	}
}

// deafen drops everything that is sent to a machine. Called with mu held.
func (w *world) deafen(m *machine) {
	for _, other := range w.machines {
		w.cut[[2]int{other.number, m.number}] = true
	}
}
