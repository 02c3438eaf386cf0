package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
	"sheaf.dev/sheaf/internal/consensus/replica/writes"
)

// reads asks a majority whether this replica still leads, for linearizable reads and for declined writes. It is part of
// a core, whose mutex guards it.
type reads struct {
	node    *node
	members *members
	quiet   *quiet
	writes  *writes.Queue
	lease   *lease
	seat    *rounds.Seat
	rules   rules.Off

	nonce      uint64    // random number chosen at each start
	waiting    []*reader // readers that wait for the next question
	question   question  // question in progress
	handedOver uint64    // the last term in which this leader tried to transfer the leadership
}

// reader waits until the log holds everything that was acknowledged before the reader arrived.
type reader struct {
	done chan error // receives the result of a barrier

	declined *Pending // a write that was declined because of the version at index current; if it is set, done is nil
	current  uint64
}

// question asks a majority of the voters once on behalf of all waiting readers.
type question struct {
	number  uint64 // identifies the question; 0 if none was asked yet
	readers []*reader
	index   uint64 // the index that must be applied, according to the answer; 0 until the answer arrives
	ticks   int    // ticks since the question was asked

	askedAt    int64  // monotonic time just before the question was asked
	leaderTerm uint64 // term in which this replica asks as the leader; 0 if this replica does not lead
}

// ReadBarrier returns once reads from the log are certain to see every write that was acknowledged before the call
// (linearizable). While there is no leader, ReadBarrier waits. It returns ErrStopping, ErrFailed with the reason,
// ErrNoLeader if the replica lost the leadership and its disk hangs, or the error of ctx.
func (r *Replica) ReadBarrier(ctx context.Context) error {
	if r.Readable() || !r.seams.Off.Keeps(rules.Read) && ctx.Err() == nil {
		return nil
	}
	w := &reader{done: make(chan error, 1)}
	hangs, err := r.addReader(w)
	if err != nil {
		return err
	}
	r.seat.Schedule()
	select {
	case err := <-w.done:
		return err
	case <-hangs:
		return fmt.Errorf("%w: %w", ErrNoLeader, writes.ErrDiskHangs)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNoLeader, context.Cause(ctx))
	}
}

func (r *Replica) addReader(w *reader) (hangs <-chan struct{}, err error) {
	c := r.state.lock()
	defer c.unlock()
	if c.stopping {
		return nil, ErrStopping
	}
	if err := c.isOpen(); err != nil {
		return nil, err
	}
	c.reads.add(w)
	return c.hangs, nil
}

func (r *reads) add(w *reader) {
	r.quiet.wake()
	r.waiting = append(r.waiting, w)
}

// isBusy reports whether a reader waits.
func (r *reads) isBusy() bool { return len(r.waiting) > 0 || len(r.question.readers) > 0 }

// ask asks a majority on behalf of all waiting readers, unless a question is in progress already.
func (r *reads) ask() {
	if r.members.sole {
		r.release()
		return
	}
	renew := r.lease.renew.Swap(false) && r.node.leader
	if len(r.waiting) == 0 && !renew || len(r.question.readers) > 0 || r.node.leaderID == raft.None {
		return
	}
	r.quiet.wake() // a group that is read does not rest, even if no reader has to wait
	r.question = question{number: r.question.number + 1, readers: r.waiting, askedAt: monotonic()}
	if r.node.leader {
		r.question.leaderTerm = r.node.term
	}
	r.waiting = nil
	r.node.raft.ReadIndex(r.name())
}

// name returns the current question's name. The answer to a question from before a restart, or from another member,
// must not be mistaken for the answer to this question (rules.Question).
func (r *reads) name() []byte {
	if !r.rules.Keeps(rules.Question) {
		return make([]byte, 8)
	}
	b := make([]byte, 0, 3*8)
	b = binary.LittleEndian.AppendUint64(b, r.node.id)
	b = binary.LittleEndian.AppendUint64(b, r.nonce)
	return binary.LittleEndian.AppendUint64(b, r.question.number)
}

// askAgain sends the question to the current leader.
func (r *reads) askAgain() {
	if q := &r.question; len(q.readers) > 0 && q.index == 0 {
		r.waiting = append(q.readers, r.waiting...)
		q.readers = nil
	}
}

// answered processes the majority's answer.
func (r *reads) answered(state raft.ReadState) {
	if !bytes.Equal(state.RequestCtx, r.name()) {
		return
	}
	r.question.index = state.Index
	if r.node.leader && r.node.serving && r.question.leaderTerm == r.node.term && !r.hasHandedOver() {
		r.lease.start(r.question.askedAt)
	}
}

// transferBegun records that this leader has told another member to campaign. The campaign may begin late, even after
// the transfer was given up.
func (r *reads) transferBegun() {
	r.handedOver = r.node.term
	if r.hasHandedOver() {
		r.lease.end()
	}
}

func (r *reads) hasHandedOver() bool {
	return r.handedOver == r.node.term && r.rules.Keeps(rules.LeaseTransfer)
}

// release lets the question's readers continue once everything up to the index of the answer is applied. The caller
// wakes the declined writes.
func (r *reads) release() {
	if r.members.sole {
		// No other member can lead, so while this node serves, it has applied everything that was acknowledged.
		if r.node.serving {
			r.letGo(r.waiting)
			r.letGo(r.question.readers)
			r.waiting, r.question.readers = nil, nil
		}
		return
	}
	if r.question.index != 0 && r.question.index <= r.node.applied {
		r.letGo(r.question.readers)
		r.question.readers, r.question.index = nil, 0
		if len(r.waiting) > 0 {
			r.seat.Schedule()
		}
	}
}

func (r *reads) letGo(readers []*reader) {
	for _, w := range readers {
		if w.declined == nil {
			w.done <- nil
			continue
		}
		r.writes.Answer(w.declined, w.current)
	}
}

// refuseDeclined refuses the declined writes that still wait for a majority's answer. It is called after the leadership
// was lost, and before release. A new leader may have given the answer, and may hold newer versions than the ones
// because of which this replica declined the writes.
func (r *reads) refuseDeclined(why error) {
	for _, readers := range []*[]*reader{&r.waiting, &r.question.readers} {
		*readers = slices.DeleteFunc(*readers, func(w *reader) bool {
			if w.declined != nil {
				r.writes.Refuse(w.declined, why)
			}
			return w.declined != nil
		})
	}
}

// tick sends the question again if the answer may have been lost.
func (r *reads) tick() {
	q := &r.question
	if len(q.readers) == 0 || q.index != 0 {
		return
	}
	if q.ticks++; q.ticks >= electionTicks {
		r.askAgain()
	}
}

// fail ends all waits with an error.
func (r *reads) fail(why error) {
	failed := why
	if !errors.Is(why, ErrStopping) {
		failed = fmt.Errorf("%w: %w", ErrFailed, why)
	}
	for _, w := range append(r.question.readers, r.waiting...) {
		if w.declined == nil {
			w.done <- failed
			continue
		}
		r.writes.Refuse(w.declined, notServing(ErrNoLeader, why.Error()))
	}
	r.waiting, r.question.readers = nil, nil
}
