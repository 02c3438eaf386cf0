package writes

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Pending is a write in progress, for which a caller may wait. The fields after err belong to the Queue.
type Pending struct {
	done   chan struct{}   // closed when result and err are set
	hangs  <-chan struct{} // closed if the leadership is lost while a hanging disk blocks the round; may be nil
	result Result
	err    error

	role       role
	delete     bool
	timed      bool
	refusal    error // for a refused write: ErrExists or ErrMismatch
	id         int64
	index      uint64 // the expected index until the real one is known
	term       uint64 // 0 until the real index is known
	commitTime int64
	condition  Condition
	request    format.Request // distinguishes the write from other writes with the same request id
	bytes      int64
	payload    []byte     // needed until the payload is in the log's entry
	after      []*Pending // writes answered together with this write
}

// role determines when and how a Pending is answered.
type role uint8

const (
	written  role = iota // the write created an entry, and is answered when the entry is applied
	refused              // a condition refused the write; answered when the version that caused the refusal is applied
	nothing              // the write deletes a missing record; answered when the write that made it missing is applied
	repeated             // a write with the same request id is in progress, and this write gets its result
)

// atOnce is the done channel shared by all writes that are answered immediately.
var atOnce = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Failed returns a write that is refused immediately, with the error err.
func Failed(err error) *Pending { return &Pending{done: atOnce, err: err} }

func succeeded(result Result) *Pending { return &Pending{done: atOnce, result: result} }

// Refused returns the error of a write that was refused immediately, before anything was done. It returns nil if the
// write was not refused, or if it is not known yet whether the write is refused.
func (p *Pending) Refused() error {
	if p.done == atOnce {
		return p.err
	}
	return nil
}

// IsQueued reports whether Accept has put the write into the queue.
func (p *Pending) IsQueued() bool { return p.role == written && p.done != atOnce }

// Done returns a channel that is closed when the write is answered. Wait then returns immediately.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Payload returns the payload of the entry. It must be called before Index, which releases the payload.
func (p *Pending) Payload() []byte { return p.payload }

// Wait returns when the write is committed, durable and visible, or refused. If ctx is done first, or if the leadership
// is lost while the disk hangs, the error wraps ErrOutcomeUnknown, unless the write was refused.
func (p *Pending) Wait(ctx context.Context) (Result, error) {
	select {
	case <-p.done:
		return p.result, p.err
	default:
	}
	select {
	case <-p.done:
		return p.result, p.err
	case <-p.hangs:
	case <-ctx.Done():
	}
	select {
	case <-p.done:
		return p.result, p.err
	default:
	}
	why := context.Cause(ctx)
	if why == nil {
		why = ErrDiskHangs
	}
	switch {
	case p.role != refused && p.role != nothing:
		return Result{}, fmt.Errorf("%w: %w", ErrOutcomeUnknown, why)
	case errors.Is(why, ErrDiskHangs):
		return Result{}, fmt.Errorf("%w: nothing was written: %w", ErrNoLeader, why)
	}
	return Result{}, fmt.Errorf("nothing was written, and what that depends on is not committed yet: %w", why)
}

// newest returns the index of the record's newest version after a write.
func (p *Pending) newest() uint64 {
	if p.delete {
		return 0
	}
	return p.index
}

// Wake wakes the callers of answered writes. No lock is needed.
func Wake(answered []*Pending) {
	for i, p := range answered {
		close(p.done)
		answered[i] = nil
	}
}

// fifo holds the writes whose position in the log is known, in log order.
type fifo struct {
	items []*Pending
	head  int
}

func (f *fifo) len() int { return len(f.items) - f.head }

func (f *fifo) push(items []*Pending) { f.items = append(f.items, items...) }

func (f *fifo) front() *Pending { return f.items[f.head] }

func (f *fifo) pop() *Pending {
	p := f.items[f.head]
	f.items[f.head] = nil
	f.head++
	switch {
	case f.head == len(f.items):
		f.items, f.head = f.items[:0], 0
	case f.head > 1024 && f.head > len(f.items)/2:
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	return p
}

// last returns the i-th write from the end, where 1 is the last one.
func (f *fifo) last(i int) *Pending { return f.items[len(f.items)-i] }
