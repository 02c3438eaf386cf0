package sim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// watchShards tells the replicas which shards are silent, as the transport does.
func (w *world) watchShards() {
	silent := map[[2]int]time.Duration{}
	const interval = 300 * time.Millisecond
	for w.sleep(interval) {
		for _, p := range w.processes() {
			for _, other := range w.machines {
				w.mu.Lock()
				heard := other.process != nil && !w.partitioned[[2]int{other.number, p.machine.number}]
				ids := slices.Sorted(maps.Keys(w.at))
				ids = slices.DeleteFunc(ids, func(id uint64) bool { return w.at[id] != other })
				w.mu.Unlock()
				link := [2]int{other.number, p.machine.number}
				before := silent[link]
				silent[link] += interval
				if heard {
					silent[link] = 0
				}
				for _, id := range ids {
					switch {
					case silent[link] > time.Second && before <= time.Second:
						w.inform(p, id, false)
					case heard && before > time.Second:
						w.inform(p, id, true)
					}
				}
			}
		}
	}
}

// inform informs a replica that a member's shard is silent, or responds again. A shard informs its groups one after the
// other, in any order. Therefore the notice may reach this replica long after other members received their notices.
// Notices do not overtake each other.
func (w *world) inform(p *process, raftID uint64, heard bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	late := time.Duration(0)
	if w.random.IntN(4) == 0 {
		late = between(w.random, time.Millisecond, time.Second)
		w.fired["word of a silence late"]++
	}
	at := time.Now().Add(late)
	if next := p.informedAt.Add(time.Microsecond); at.Before(next) {
		at = next
	}
	p.informedAt = at
	time.AfterFunc(time.Until(at), func() {
		switch {
		case w.ctx.Err() != nil:
		case heard:
			p.replica.PeerUp(raftID)
		default:
			p.replica.PeerDown(raftID)
		}
	})
}

// silence disconnects a machine for about as long as the transport's and Raft's timeouts. Such a silence occurs if a
// process is stopped for a moment, or if a network switches over.
func (w *world) silence(_ *operator, r *rand.Rand) bool {
	m, length := w.one(r), between(r, 500*time.Millisecond, 2*time.Second)
	if leader := w.leader(); leader != nil && r.IntN(2) == 0 {
		m = leader.machine
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.partitioned) > 0 {
		return false
	}
	w.dropOutbound(m)
	w.wait.Go(func() {
		if w.sleep(length) {
			w.reconnect(m, nil)
		}
	})
	return true
}

// reconnect reconnects a machine in both directions with the machine in the argument only, or with all others if that
// argument is nil.
func (w *world) reconnect(m, only *machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.machines {
		if only == nil || other == only {
			delete(w.partitioned, [2]int{m.number, other.number})
			delete(w.partitioned, [2]int{other.number, m.number})
		}
	}
}

// informLate makes the leader silent for a second. One member is informed in time, and receives nothing from the leader
// for longer. Another member is informed only after it has responded to the leader again, and then the leader becomes
// silent once more. informLate returns true if the leader had a lease when the second member was informed.
func (w *world) informLate(_ *operator, r *rand.Rand) bool {
	w.connect()
	leader := w.leader()
	if leader == nil || w.cfg.copies != 3 || !w.readThrough(leader) {
		return false
	}
	told, late := w.otherVoter(leader, r), (*process)(nil)
	for range 10 {
		if late = w.otherVoter(leader, r); late != told {
			break
		}
	}
	if told == nil || late == nil || late == told {
		return false
	}
	if told.raftID < late.raftID {
		told, late = late, told // the member with the lower id campaigns first
	}
	w.beCalm(true) // a member that lacks an entry would get no vote
	defer w.beCalm(false)
	defer w.connect()
	if !w.sleep(between(r, 200*time.Millisecond, 400*time.Millisecond)) {
		return false
	}
	w.mu.Lock()
	w.dropOutbound(leader.machine)
	w.mu.Unlock()
	if !w.sleep(time.Second) {
		return false
	}
	for _, member := range []*process{told, late} {
		defer w.inform(member, leader.raftID, true) // as the transport does when the silence ends
	}
	told.replica.PeerDown(leader.raftID)
	w.reconnect(leader.machine, late.machine)
	if !w.readThrough(leader) {
		return false
	}
	w.mu.Lock()
	w.dropOutbound(leader.machine)
	w.mu.Unlock()
	late.replica.PeerDown(leader.raftID)
	w.beCalm(false)
	w.contrast(late, leader, r)
	return true
}
