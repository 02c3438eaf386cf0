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

// inform tells a replica that the shard of another member is silent, or that it responds again. A shard tells its
// groups one after the other, in any order. So this replica may receive the notice long after other members received
// theirs. Notices to one replica do not overtake each other.
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

// silence disconnects a machine for about as long as the timeouts of the transport and of Raft. This happens in
// practice if a process is stopped for a moment, or if a network switches over.
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

// reconnect restores a machine's connections in both directions. The argument only is the one machine to which they
// are restored. If it is nil, the connections to all other machines are restored.
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

// informLate makes the leader silent for a second. One member (told) learns about the silence in time, and continues
// to receive nothing from the leader. The other member (late) is reconnected and responds to the leader. Only then
// does it learn about the silence, which is over by now. At the same moment, the leader becomes silent again.
// informLate returns true if the leader had a lease at that moment.
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
		told, late = late, told // late is the member with the lower id, because that one campaigns first
	}
	w.pauseWrites(true) // while clients do not write, no member falls behind, so any of them may be elected
	defer w.pauseWrites(false)
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
		// tells the member at the end that the silence is over, as the transport would
		defer w.inform(member, leader.raftID, true)
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
	w.pauseWrites(false)
	w.writeNewReadOld(late, leader, r)
	return true
}
