package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
)

// reader waits until the log holds everything that was acknowledged before it came.
type reader struct {
	done chan error // of a barrier

	declined *Pending // of a write that was declined by what was committed; instead of done
	current  uint64
}

// readRound is one question to the majority of the voters, asked for many readers at once.
type readRound struct {
	number  uint64 // names the question; 0: none was asked yet
	readers []*reader
	index   uint64 // the answer: what must be applied; 0: none yet
	ticks   int    // since it was asked

	askedAt    int64  // since leaseClock, before it was asked
	leaderTerm uint64 // of this replica as the leader that asks; 0: it is none
}

// ReadBarrier returns when reads from the log see every write acknowledged before the call (linearizable). Errors:
// ErrStopping, ErrFailed with why the replica failed, ErrNoLeader where it lost the lead and its disk hangs, or those
// of ctx; without a leader it waits.
func (r *Replica) ReadBarrier(ctx context.Context) error {
	if r.Readable() || r.probeBarrier(ctx) {
		return nil
	}
	w := &reader{done: make(chan error, 1)}
	r.mu.Lock()
	switch {
	case r.stopping:
		r.mu.Unlock()
		return ErrStopping
	case r.err != nil:
		err := r.err
		r.mu.Unlock()
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	r.wake()
	r.readers = append(r.readers, w)
	held := r.held
	r.mu.Unlock()
	r.schedule()
	select {
	case err := <-w.done:
		return err
	case <-held:
		return fmt.Errorf("%w: %w", ErrNoLeader, errHeld)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNoLeader, context.Cause(ctx))
	}
}

// askReaders asks for all readers that wait, unless a question is on its way already. Called with mu held.
func (r *Replica) askReaders() {
	if r.sole {
		r.releaseReaders()
		return
	}
	renew := r.renew.Swap(false) && r.leader
	if len(r.readers) == 0 && !renew || len(r.readRound.readers) > 0 || r.leaderID == raft.None {
		return
	}
	r.wake() // also where nobody waits: a group that is read does not rest
	r.readRound = readRound{number: r.readRound.number + 1, readers: r.readers, askedAt: int64(time.Since(leaseClock))}
	if r.leader {
		r.readRound.leaderTerm = r.term
	}
	r.readers = nil
	r.node.ReadIndex(r.question())
}

// question names the question under way. The answer to one that was asked before a restart, or by another member, must not
// pass for the answer to this one.
func (r *Replica) question() []byte {
	if r.unsafe(UnsafeQuestion) {
		return make([]byte, 8)
	}
	b := make([]byte, 0, 3*8)
	b = binary.LittleEndian.AppendUint64(b, r.opts.RaftID)
	b = binary.LittleEndian.AppendUint64(b, r.nonce)
	return binary.LittleEndian.AppendUint64(b, r.readRound.number)
}

// askAgain puts the question to whoever leads now. Called with mu held.
func (r *Replica) askAgain() {
	if q := &r.readRound; len(q.readers) > 0 && q.index == 0 {
		r.readers = append(q.readers, r.readers...)
		q.readers = nil
	}
}

// readAnswered takes the answer of the majority. Called with mu held.
func (r *Replica) readAnswered(state raft.ReadState) {
	if bytes.Equal(state.RequestCtx, r.question()) {
		r.readRound.index = state.Index
		r.startLease(&r.readRound)
	}
}

// releaseReaders lets go those whose answer is applied. Called with mu held; declined writes are woken by the caller
// of settle.
func (r *Replica) releaseReaders() {
	if r.sole {
		// Nobody else can lead: what is applied is all, once this node leads.
		if r.serving {
			r.release(r.readers)
			r.release(r.readRound.readers)
			r.readers, r.readRound.readers = nil, nil
		}
		return
	}
	if r.readRound.index != 0 && r.readRound.index <= r.applied {
		r.release(r.readRound.readers)
		r.readRound.readers, r.readRound.index = nil, 0
		if len(r.readers) > 0 {
			r.schedule()
		}
	}
}

func (r *Replica) release(readers []*reader) {
	for _, w := range readers {
		if w.declined == nil {
			w.done <- nil
			continue
		}
		r.answerDeclined(w.declined, w.current)
		r.answer(w.declined)
	}
}

// loseDeclined refuses the writes that were declined by what this replica held as the leader: whoever leads now may hold a newer
// version, and answers the question all the same. Called with mu held, before releaseReaders.
func (r *Replica) loseDeclined(why error) {
	for _, readers := range []*[]*reader{&r.readers, &r.readRound.readers} {
		*readers = slices.DeleteFunc(*readers, func(w *reader) bool {
			if w.declined != nil {
				w.declined.err = why
				r.answer(w.declined)
			}
			return w.declined != nil
		})
	}
}

// tickReaders asks again where an answer was lost. Called with mu held.
func (r *Replica) tickReaders() {
	q := &r.readRound
	if len(q.readers) == 0 || q.index != 0 {
		return
	}
	if q.ticks++; q.ticks >= electionTicks {
		r.askAgain()
	}
}

// failReaders is called with mu held.
func (r *Replica) failReaders(why error) {
	failed := why
	if !errors.Is(why, ErrStopping) {
		failed = fmt.Errorf("%w: %w", ErrFailed, why)
	}
	for _, w := range append(r.readRound.readers, r.readers...) {
		if w.declined == nil {
			w.done <- failed
			continue
		}
		w.declined.err = notServing(ErrNoLeader, why.Error())
		r.answer(w.declined)
	}
	r.readers, r.readRound.readers = nil, nil
}
