package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"sheaf.dev/sheaf/internal/consensus/replica"
)

// repeatLate sometimes sends an answered write again, long after its client has gone on to other calls. A gateway
// that was suspended for a while could do the same. The duplicate must have no effect, which the ledger checks.
//
// If the write made no entry, for example because its condition was not met, only the process that answered it
// remembers it. The duplicate of such a write is therefore sent only to this process.
func (w *world) repeatLate(random *rand.Rand, answered *process, ask replica.Write, data []byte, r reply) {
	wrote := r.index != 0 && r.refused == nil
	if !wrote {
		w.ledger.recordDeclined(ask.RequestID)
	}
	if random.IntN(4) != 0 {
		return
	}
	after, chosen := between(random, 200*time.Millisecond, 10*time.Second), rand.New(rand.NewPCG(random.Uint64(), 0))
	w.wait.Go(func() {
		if !w.sleep(after) {
			return
		}
		w.mu.Lock()
		p, over := answered, w.stopping
		gone := p.dead
		w.mu.Unlock()
		if wrote {
			p = w.choose(chosen, false)
		}
		if over || p == nil || !wrote && gone {
			return
		}
		if ask.Blob != nil { // the duplicate stores its blob again, as a retry by a gateway would
			ref, err := p.storeBlob(data)
			if err != nil {
				return
			}
			w.ledger.keepBlob(ref, data)
			asked := askedFor(ask)
			ask.Blob, asked.data = &ref, hash(ref.Encode())
			w.ledger.ask(ask.RequestID, asked)
		}
		w.fire("late duplicate of a write")
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		result, err := p.replica.Propose(ask).Wait(ctx)
		w.mu.Lock()
		gone = p.dead
		w.mu.Unlock()
		if err == nil && !gone && result.Index != r.index {
			w.violate(oracleOnce, "%v: request %x, repeated late, made index %d, the first time %d", p.machine,
				ask.RequestID[:9], result.Index, r.index)
		}
	})
}

// setClock sets the clock of one machine forward or back by minutes.
func (w *world) setClock(_ *operator, r *rand.Rand) bool {
	m := w.one(r)
	if leader := w.leader(); leader != nil && r.IntN(2) == 0 {
		m = leader.machine
	}
	m.clock.Store(int64(between(r, -20*time.Minute, 20*time.Minute)))
	return true
}
