package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"sheaf.dev/sheaf/internal/consensus/replica"
)

// reuseIDs is the id of the first record that reuse writes.
const reuseIDs = 2000

// reuse takes the request id of an acknowledged write and sends it again with a different write: a write to another
// record, a write with other data, or a delete. Because this write is not applied, no replica may acknowledge it, not
// even one that has become the leader in the meantime.
func (w *world) reuse() {
	random := rand.New(rand.NewPCG(w.seed, 98))
	for n := uint64(0); w.sleep(between(random, 0, 20*w.cfg.pause)); n++ {
		w.mu.Lock()
		still := w.stopping || w.calm
		w.mu.Unlock()
		if still {
			continue
		}
		first := replica.Write{ID: reuseIDs + random.Int64N(4), Data: binary.LittleEndian.AppendUint64(nil, n)}
		binary.LittleEndian.PutUint64(first.RequestID[:], reuseIDs)
		binary.LittleEndian.PutUint64(first.RequestID[8:], n+1)
		w.ledger.ask(first.RequestID, askedFor(first))
		if done, _ := w.propose(first, random); !done || !w.sleep(between(random, 0, 2*time.Second)) {
			continue
		}
		other := first
		switch random.IntN(3) {
		case 0:
			other.ID = reuseIDs + 4
		case 1:
			other.Data = append(other.Data, 'x')
		default:
			other.Delete, other.Data = true, nil
		}
		done, err := w.propose(other, random)
		switch {
		case done:
			w.violate(oracleKept, "request %x: another write than the one it was done for is acknowledged", first.RequestID[:9])
		case errors.Is(err, replica.ErrReused):
			w.fire("request id used for another write refused")
		}
	}
}

// propose proposes a write to a process that claims to lead. It returns true if the write was acknowledged.
func (w *world) propose(write replica.Write, random *rand.Rand) (done bool, err error) {
	p := w.choose(random, false)
	if p == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(w.ctx, 500*time.Millisecond)
	defer cancel()
	_, err = p.replica.Propose(write).Wait(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	return err == nil && !p.dead, err
}
