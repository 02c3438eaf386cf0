package replica

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/group"
)

// Condition makes a write depend on the newest version.
type Condition struct {
	IfAbsent  bool
	IfVersion uint64 // 0: no condition
}

// Write is a put or a delete.
type Write struct {
	Delete     bool
	ID         int64
	Attributes []byte         // encoded by group.EncodeAttributes
	Data       []byte         // at most group.DataBytesMax; not changed by the caller after Propose
	Blob       *group.BlobRef // instead of Data
	Timestamp  int64          // Unix ns; 0 with HasTimestamp false: the commit time
	HasTime    bool
	RequestID  [16]byte // zero: none
	Condition  Condition
	Timed      bool // Result.Sync is wanted
}

// Result of a write that is committed.
type Result struct {
	Index      uint64 // 0 for a delete of nothing
	CommitTime int64  // Unix ns
	Repeated   bool   // the request id was known; nothing was written again
	Existed    bool   // delete: there was a record
	// Sync is when the write became durable here; nil: it was not asked for, or is not known.
	Sync *SyncTimes
}

// Pending is a write on its way.
type Pending struct {
	done   chan struct{} // closed when result and err are set
	held   chan struct{} // closed when the lead was lost and no round ends, see Replica.held; nil: it is answered at once
	result Result
	err    error

	role       role
	delete     bool
	timed      bool
	refusal    error // refused: ErrExists or ErrMismatch
	id         int64
	index      uint64 // expected, then real; guarded by Replica.mu until done
	term       uint64 // 0 until the index is real
	commitTime int64
	condition  Condition
	request    group.Request // what tells it from another write with its request id
	bytes      int64
	payload    []byte     // until Raft has it; guarded by Replica.mu
	after      []*Pending // answered together with this one; guarded by Replica.mu
}

// role says how a Pending is answered.
type role uint8

const (
	written  role = iota // it made an entry: when that is applied
	refused              // by a condition: when what it was refused for is applied
	nothing              // a delete of nothing: when the delete before it is applied
	repeated             // its request id is on its way: with the first one's result
)

// answered is the done of all that were answered at once.
var answered = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func failed(err error) *Pending              { return &Pending{done: answered, err: err} }
func succeeded(result Result) *Pending       { return &Pending{done: answered, result: result} }
func notServing(err error, why string) error { return fmt.Errorf("%w: %s", err, why) }

// Refused is the error of a write that was refused at once, before anything was done; nil: it was not, or that is not
// known yet.
func (p *Pending) Refused() error {
	if p.done == answered {
		return p.err
	}
	return nil
}

// Wait returns when the write is committed, durable and visible, or refused. When ctx ends first, or the lead is lost
// while the disk hangs, the error wraps ErrOutcomeUnknown, unless the write was refused.
func (p *Pending) Wait(ctx context.Context) (Result, error) {
	select {
	case <-p.done:
		return p.result, p.err
	default:
	}
	select {
	case <-p.done:
		return p.result, p.err
	case <-p.held:
	case <-ctx.Done():
	}
	select {
	case <-p.done:
		return p.result, p.err
	default:
	}
	why := context.Cause(ctx)
	if why == nil {
		why = errHeld
	}
	switch {
	case p.role != refused && p.role != nothing:
		return Result{}, fmt.Errorf("%w: %w", ErrOutcomeUnknown, why)
	case errors.Is(why, errHeld):
		return Result{}, fmt.Errorf("%w: nothing was written: %w", ErrNoLeader, why)
	}
	return Result{}, fmt.Errorf("nothing was written, and what that depends on is not committed yet: %w", why)
}

// Propose hands a write to the node. It evaluates the condition against everything proposed before, in order.
func (r *Replica) Propose(w Write) *Pending {
	if err := check(&w); err != nil {
		return failed(err)
	}
	if w.RequestID != ([16]byte{}) {
		r.restored.read(r)
	}
	h := r.lookUp(&w)
	p := r.accept(&w, requestOf(&w), h)
	if p.role == written && p.done != answered {
		r.schedule()
	}
	return p
}

func check(w *Write) error {
	switch {
	case len(w.Data) > group.DataBytesMax:
		return fmt.Errorf("%w: data of %d bytes, at most %d go without a blob", ErrInvalid, len(w.Data), group.DataBytesMax)
	case len(w.Attributes) > group.AttributesBytesMax:
		return fmt.Errorf("%w: attributes of %d bytes, at most %d", ErrInvalid, len(w.Attributes), group.AttributesBytesMax)
	case w.Blob != nil && len(w.Data) > 0:
		return fmt.Errorf("%w: data beside a blob", ErrInvalid)
	case w.Delete && (w.Blob != nil || len(w.Data) > 0 || len(w.Attributes) > 0):
		return fmt.Errorf("%w: a delete with data or attributes", ErrInvalid)
	}
	return nil
}

// requestOf gives what tells a write from another one with its request id; nothing, where it has none.
func requestOf(w *Write) group.Request {
	e := group.Entry{Kind: group.KindPut, ID: w.ID, RequestID: w.RequestID, Data: w.Data}
	switch {
	case w.RequestID == [16]byte{}:
		return group.Request{}
	case w.Delete:
		e.Kind = group.KindDelete
	case w.Blob != nil:
		e.Codec, e.Data = group.CodecBlob, w.Blob.Encode()
	}
	return group.RequestOf(&e)
}

// reused refuses a write whose request id is that of another one.
func reused(first *group.Request) error {
	what := "put"
	if first.Delete {
		what = "delete"
	}
	return fmt.Errorf("%w: a %s of record %d with CRC32C %08x", ErrReused, what, first.ID, first.CRC32C)
}

// head is the newest committed version of a record.
type head struct {
	known   bool
	applied uint64 // as of this applied index
	index   uint64 // 0: no record
	err     error
}

// lookUp asks the log, which may read the disk, before the replica is locked, where the write needs it.
func (r *Replica) lookUp(w *Write) head {
	if !w.Delete && w.Condition == (Condition{}) {
		return head{}
	}
	h := head{known: true, applied: r.log.AppliedIndex()}
	index, deleted, err := r.log.Head(w.ID)
	switch {
	case errors.Is(err, group.ErrNotFound):
	case err != nil:
		h.err = err
	case !deleted:
		h.index = index
	}
	return h
}

// accept decides about a write, in the order of all writes of the group.
func (r *Replica) accept(w *Write, request group.Request, h head) *Pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.mayWrite(); err != nil {
		return failed(err)
	}
	if w.RequestID != ([16]byte{}) {
		if first := r.requests[w.RequestID]; first != nil {
			if !first.request.IsSame(&request) && !r.unsafe(UnsafeReuse) {
				return failed(reused(&first.request))
			}
			p := &Pending{done: make(chan struct{}), held: r.held, role: repeated}
			first.after = append(first.after, p)
			return p
		}
		if first := r.remembered(w.RequestID); first != nil {
			if p := first.answer(w, &request, r.unsafe(UnsafeReuse)); p != nil {
				return p
			}
		}
	}
	p := &Pending{held: r.held, id: w.ID, delete: w.Delete, timed: w.Timed, request: request, condition: w.Condition}
	if h.known {
		before := r.newest[w.ID]
		if before == nil && h.applied != r.log.AppliedIndex() {
			h = r.lookUp(w) // read a moment ago, so it is in memory
		}
		if before == nil && h.err != nil {
			return failed(h.err)
		}
		if p.role, p.refusal = evaluate(w, before, h.index); p.role != written {
			return r.decline(p, before, h.index)
		}
	}
	if err := r.admit(w, p); err != nil {
		return failed(err)
	}
	r.enqueue(w, p)
	return p
}

// mayWrite is called with mu held.
func (r *Replica) mayWrite() error {
	switch {
	case r.err != nil:
		return fmt.Errorf("%w: %w", ErrFailed, r.err)
	case r.stopping:
		return ErrStopping
	case !r.serving:
		return ErrNoLeader
	case !r.formed:
		return r.mayForm()
	}
	return nil
}

// mayForm decides whether a new group takes writes: never again, once it does. Called with mu held.
func (r *Replica) mayForm() error {
	if r.opts.Forming != nil && r.log.LastCommitTime() == 0 && r.opts.Forming(r.conf) {
		return notServing(ErrNoLeader, fmt.Sprintf("the group is being formed, with %d voters so far", len(r.conf.GetVoters())))
	}
	r.formed = true
	return nil
}

// evaluate decides what becomes of a delete or a write with a condition. The newest version is that of before, a write
// on its way, or where that is nil current, committed (0: no record).
func evaluate(w *Write, before *Pending, current uint64) (role, error) {
	exists := current != 0
	if before != nil {
		exists, current = !before.delete, before.index
	}
	switch {
	case w.Condition.IfAbsent && exists:
		return refused, ErrExists
	case w.Condition.IfVersion != 0 && (!exists || current != w.Condition.IfVersion):
		return refused, ErrMismatch
	case w.Delete && !exists:
		return nothing, nil
	}
	return written, nil
}

// decline answers a write that makes no entry: when what it depends on is committed (rule 2), and surely the newest.
func (r *Replica) decline(p *Pending, before *Pending, current uint64) *Pending {
	if before == nil && (r.sole || r.unsafe(UnsafeDecline)) {
		r.answerDeclined(p, current)
		p.done = answered
		return p
	}
	p.done = make(chan struct{})
	if p.request.RequestID != ([16]byte{}) {
		r.requests[p.request.RequestID] = p
	}
	if before != nil {
		before.after = append(before.after, p)
		return p
	}
	r.confirm(p, current)
	return p
}

// confirm answers a declined write when a majority has said that this replica leads still: else another leader may be at work already, and
// current not be the newest version. Called with mu held.
func (r *Replica) confirm(p *Pending, current uint64) {
	r.wake()
	r.readers = append(r.readers, &reader{declined: p, current: current})
	r.schedule()
}

// newest is the version of the record after a write.
func (p *Pending) newest() uint64 {
	if p.delete {
		return 0
	}
	return p.index
}

// answerDeclined sets the answer of a declined write, given the newest version of the record, and remembers it: a duplicate that comes
// when the record is another one must not be done. Called with mu held.
func (r *Replica) answerDeclined(p *Pending, current uint64) {
	if p.role == refused {
		p.err = &ConditionError{Err: p.refusal, Current: current}
	}
	if p.request.RequestID == [16]byte{} || r.unsafe(UnsafeForget) {
		return
	}
	r.window.add(declinedSlot(p, current, windowNow()))
}

func (r *Replica) admit(w *Write, p *Pending) error {
	if r.noRoom != nil {
		return r.noRoom
	}
	dataBytes := len(w.Data)
	if w.Blob != nil {
		dataBytes = blobRefBytes
	}
	p.bytes = group.FrameBytes(len(w.Attributes), dataBytes)
	if r.inFlightBytes > 0 && r.inFlightBytes+p.bytes > r.opts.InFlightBytesMax {
		return fmt.Errorf("%w: %d bytes of at most %d", ErrOverloaded, r.inFlightBytes, r.opts.InFlightBytesMax)
	}
	if r.opts.Admit != nil {
		return r.opts.Admit(p.bytes, w.Delete)
	}
	return nil
}

const blobRefBytes = 40

// enqueue makes the entry of an accepted write.
func (r *Replica) enqueue(w *Write, p *Pending) {
	r.lastCommitTime = max(r.lastCommitTime, r.now().UnixNano())
	p.done = make(chan struct{})
	p.commitTime = r.lastCommitTime
	p.index = r.nextIndex
	r.nextIndex++
	entry := group.Entry{
		Kind: group.KindPut, ID: w.ID, CommitTime: p.commitTime, Timestamp: w.Timestamp, RequestID: w.RequestID,
		Attributes: w.Attributes, Data: w.Data,
	}
	if w.Delete {
		entry.Kind = group.KindDelete
	}
	if w.Blob != nil {
		entry.Codec, entry.Data = group.CodecBlob, w.Blob.Encode()
	}
	if !w.HasTime {
		entry.Timestamp = p.commitTime
	}
	p.payload = group.EncodePayload(&entry)
	r.wake()
	r.queued = append(r.queued, p)
	r.inFlightBytes += p.bytes
	r.newest[w.ID] = p
	if p.request.RequestID != ([16]byte{}) {
		r.requests[p.request.RequestID] = p
	}
}
