package writes

import (
	"fmt"
	"iter"
	"time"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Options configures a Queue. Log, Now, Window and Declined are required.
type Options struct {
	Log    Log
	Now    func() time.Time
	Window format.RequestWindow // how long request ids are remembered
	// InFlightBytesMax limits the bytes that are accepted and not yet applied. Above this limit, writes are refused
	// with ErrOverloaded. A single write is always admitted.
	InFlightBytesMax int64
	// Admit is called before each write with the number of bytes that the write will store. If it is nil, every write
	// is admitted. It must not call the Queue.
	Admit func(bytes int64, delete bool) error
	// Declined is called for a write that creates no entry because of its record's newest committed version, whose
	// index is current. Either the write's condition is not met, or the write deletes a record that does not exist. The
	// caller must then find out whether this replica still leads. If it does, that version was the newest one, and the
	// caller must call Answer. Otherwise it must call Refuse.
	Declined func(p *Pending, current uint64)
	Off      rules.Off // rules that a test switches off
}

// Log is the part of a group's log that a Queue needs. It must be safe for concurrent use.
type Log interface {
	AppliedIndex() uint64
	LastCommitTime() int64
	// Head returns the index of a record's newest committed version, or 0 if there is no record. It may read the disk.
	Head(id int64) (index uint64, err error)
	// RecentRequests returns the applied writes that had a request id, oldest first, as far back as the window reaches.
	RecentRequests(window format.RequestWindow, now int64) iter.Seq[format.Request]
	// Damaged reports whether results of the other methods may be incomplete.
	Damaged() bool
}

// Queue holds the unanswered writes of a group. Accept adds a write. Take returns the writes for the log, and the
// caller then reports with Taken or TurnedDown whether the log accepted them. Index assigns each write its index.
// Commit and AbandonAll answer writes.
//
// A Queue is not safe for concurrent use, because its replica's mutex orders all calls.
type Queue struct {
	opts Options

	queued    []*Pending // accepted writes that are not in the log yet, in order
	logged    fifo       // writes in the log that are not answered yet, in order
	unindexed int        // number of writes at the end of logged whose actual index is not known yet
	nextIndex uint64     // expected index of the next accepted write

	newest   map[int64]*Pending    // last unapplied write to each record
	requests map[[16]byte]*Pending // unanswered write with each request id
	window   window                // the answered writes

	lastCommitTime int64
	inFlightBytes  int64
	answered       []*Pending // writes whose answer is set, and whose callers have not been woken yet
}

// New creates an empty queue.
func New(opts Options) *Queue {
	return &Queue{
		opts: opts, newest: make(map[int64]*Pending), requests: make(map[[16]byte]*Pending),
		window: window{RequestWindow: opts.Window},
	}
}

// IsEmpty reports whether no unanswered write is queued or in the log. Declined writes are not counted.
func (q *Queue) IsEmpty() bool { return len(q.queued) == 0 && q.logged.len() == 0 }

// Logged returns the number of unanswered writes that are in the log. Their outcome is not known yet.
func (q *Queue) Logged() int { return q.logged.len() }

// InFlightBytes returns the bytes that Options.InFlightBytesMax bounds.
func (q *Queue) InFlightBytes() int64 { return q.inFlightBytes }

// Serve makes the queue accept writes as a new leader. Commit times never decrease, so the last commit time may be
// ahead of this machine's clock. Serve returns the difference.
func (q *Queue) Serve() (ahead time.Duration) {
	q.lastCommitTime = max(q.lastCommitTime, q.opts.Log.LastCommitTime())
	return time.Duration(q.lastCommitTime - q.opts.Now().UnixNano())
}

// Take empties the queue and returns its writes. The caller must call Taken or TurnedDown with them.
func (q *Queue) Take() []*Pending {
	writes := q.queued
	q.queued = nil
	return writes
}

// Taken records that the log has accepted the writes, in this order.
func (q *Queue) Taken(writes []*Pending) {
	q.logged.push(writes)
	q.unindexed += len(writes)
}

// TurnedDown fails writes that the log has not accepted.
func (q *Queue) TurnedDown(writes []*Pending, err error) {
	for _, p := range writes {
		q.Refuse(p, err)
	}
}

// Awaits reports whether any write's index is not known yet.
func (q *Queue) Awaits() bool { return q.unindexed > 0 }

// Index assigns an index and a term to the first write that has none yet, and returns the write's payload.
func (q *Queue) Index(index, term uint64) (payload []byte) {
	p := q.logged.last(q.unindexed)
	q.unindexed--
	p.index, p.term, payload = index, term, p.payload
	p.payload = nil
	return payload
}

// Extends tells the queue the index of the log's last entry. Writes that are accepted after this call come after that
// entry.
func (q *Queue) Extends(last uint64) {
	q.nextIndex = max(q.nextIndex, last+1+uint64(q.unindexed+len(q.queued)))
}

// Remember adds the request ids of applied entries to the answered ones. It must be called before Commit is called for
// these entries.
func (q *Queue) Remember(applied []format.Request) {
	now := windowNow()
	for i := range applied {
		q.window.add(appliedSlot(&applied[i], now))
	}
}

// Commit answers the write that has become the entry with this index and term, which is applied now. It does nothing if
// the entry is not one of this queue's writes.
func (q *Queue) Commit(index, term uint64, syncs *SyncLog) {
	if q.logged.len() == 0 || q.logged.front().index != index || q.logged.front().term != term {
		return
	}
	p := q.logged.pop()
	p.result = Result{Index: p.index, CommitTime: p.commitTime, Existed: p.delete}
	if p.timed {
		p.result.Sync = syncs.Of(p.index)
	}
	q.markAnswered(p)
}

// AbandonAll answers all writes with an error. A write in the log may still be applied, and gets the error in the
// argument logged. A queued write will certainly not be applied, and gets the error in the argument queued.
func (q *Queue) AbandonAll(logged, queued error) {
	for q.logged.len() > 0 {
		q.Refuse(q.logged.pop(), logged)
	}
	q.unindexed = 0
	q.TurnedDown(q.Take(), queued)
}

// Answer answers a declined write. The argument current is the index of the record's newest version.
func (q *Queue) Answer(p *Pending, current uint64) {
	q.decided(p, current)
	q.markAnswered(p)
}

// Refuse answers a write with an error.
func (q *Queue) Refuse(p *Pending, err error) {
	p.err = err
	q.markAnswered(p)
}

// Answered returns the answered writes. The caller must pass them to Wake, which wakes the callers of these writes.
// From then on, the queue collects answered writes in the slice scratch.
func (q *Queue) Answered(scratch []*Pending) []*Pending {
	answered := q.answered
	q.answered = scratch[:0]
	return answered
}

// markAnswered records that a write has an answer, and answers the writes that wait for it.
func (q *Queue) markAnswered(p *Pending) {
	q.inFlightBytes -= p.bytes
	if q.newest[p.id] == p {
		delete(q.newest, p.id)
	}
	if p.request.RequestID != ([16]byte{}) && q.requests[p.request.RequestID] == p {
		delete(q.requests, p.request.RequestID)
	}
	q.answered = append(q.answered, p)
	for _, next := range p.after {
		switch {
		case next.role == repeated:
			next.result, next.err = p.result, p.err
			next.result.Repeated = p.err == nil && p.role == written
			q.markAnswered(next)
		case p.err != nil:
			q.Refuse(next, fmt.Errorf("%w: nothing was written, and what that depends on has an unknown outcome", ErrNoLeader))
		default:
			q.opts.Declined(next, p.newest()) // p is committed, but a later write may have replaced its version
		}
	}
	p.after = nil
}

// decided sets the answer of a declined write, and remembers the write. A duplicate that arrives after the record has
// changed must not be applied (rules.Forget).
func (q *Queue) decided(p *Pending, current uint64) {
	if p.role == refused {
		p.err = &ConditionError{Err: p.refusal, Current: current}
	}
	if p.request.RequestID == [16]byte{} || !q.opts.Off.Keeps(rules.Forget) {
		return
	}
	q.window.add(declinedSlot(p, current, windowNow()))
}
