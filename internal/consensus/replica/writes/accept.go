package writes

import (
	"fmt"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Draft holds the facts about a write that Accept needs and that can be looked up without a lock. A Draft does not
// refer to the write itself; otherwise the write would escape to the heap.
type Draft struct {
	request format.Request
	head    head
}

// head is the newest committed version of a record.
type head struct {
	known   bool
	applied uint64 // the applied index at the time when the head was read
	index   uint64 // 0 if there is no record
	err     error
}

// Prepare looks up what Accept needs to know about a write. It reads the log, and possibly the disk. The replica need
// not be locked. The write w must have passed Check.
func Prepare(w *Write, log Log) Draft {
	return Draft{request: requestOf(w), head: lookUp(w, log)}
}

func lookUp(w *Write, log Log) head {
	if !w.Delete && w.Condition == (Condition{}) {
		return head{}
	}
	h := head{known: true, applied: log.AppliedIndex()}
	h.index, h.err = log.Head(w.ID)
	return h
}

// Lead describes the leader that accepts a write.
type Lead struct {
	Sole    bool            // no other member can lead, so the newest committed version is the newest of the group
	NoSpace error           // why the log accepts nothing now; nil if the log accepts writes
	Hangs   <-chan struct{} // closed if the leadership is lost while a hanging disk blocks the round
}

// Accept admits, declines or refuses a write. The order of calls to Accept is the order of the group's writes. Accept
// evaluates the condition against all writes that were accepted earlier.
func (q *Queue) Accept(w *Write, d Draft, lead Lead) *Pending {
	request := d.request
	if w.RequestID != ([16]byte{}) {
		if p := q.known(w, &request, lead); p != nil {
			return p
		}
	}
	p := &Pending{hangs: lead.Hangs, id: w.ID, delete: w.Delete, timed: w.Timed, request: request, condition: w.Condition}
	if d.head.known {
		before, h := q.newest[w.ID], d.head
		if before == nil && h.applied != q.opts.Log.AppliedIndex() {
			h = lookUp(w, q.opts.Log) // the head was just read, so reading it again needs no disk access
		}
		if before == nil && h.err != nil {
			return Failed(h.err)
		}
		if p.role, p.refusal = evaluate(w, before, h.index); p.role != written {
			return q.decline(p, before, h.index, lead.Sole)
		}
	}
	if err := q.admit(w, p, lead.NoSpace); err != nil {
		return Failed(err)
	}
	q.enqueue(w, p)
	return p
}

// known answers a write whose request id is in progress or remembered. It returns nil if the write is new.
func (q *Queue) known(w *Write, request *format.Request, lead Lead) *Pending {
	reuse := !q.opts.Off.Keeps(rules.Reuse)
	if first := q.requests[w.RequestID]; first != nil {
		if !first.request.IsSame(request) && !reuse {
			return Failed(reused(&first.request))
		}
		p := &Pending{done: make(chan struct{}), hangs: lead.Hangs, role: repeated}
		first.after = append(first.after, p)
		return p
	}
	if first := q.remembered(w.RequestID); first != nil {
		return first.answer(w, request, reuse)
	}
	return nil
}

// remembered returns the applied or declined write with the given request id, or nil if none is remembered.
func (q *Queue) remembered(requestID [16]byte) *windowSlot {
	s := q.window.find(requestID, windowNow())
	byClock := s != nil && s.role == written && !q.opts.Off.Keeps(rules.Clock)
	if byClock && q.opts.Now().UnixNano()-s.time > int64(q.window.Age) {
		return nil
	}
	return s
}

// evaluate decides the role of a delete or of a write with a condition. If before is not nil, it is a write in
// progress that will create the record's newest version. If before is nil, the newest version is the committed one.
// The argument current is the index of that version, or 0 if there is no record.
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

// decline answers a write that creates no entry. It waits until the state on which the answer depends is committed
// (safety rule 2) and is certainly the newest (rules.Decline).
func (q *Queue) decline(p *Pending, before *Pending, current uint64, sole bool) *Pending {
	if before == nil && sole {
		q.decided(p, current)
		p.done = atOnce
		return p
	}
	p.done = make(chan struct{})
	if p.request.RequestID != ([16]byte{}) {
		q.requests[p.request.RequestID] = p
	}
	if before != nil {
		before.after = append(before.after, p)
		return p
	}
	q.opts.Declined(p, current)
	return p
}

func (q *Queue) admit(w *Write, p *Pending, diskFull error) error {
	if diskFull != nil {
		return diskFull
	}
	p.bytes = frameBytes(w)
	if q.inFlightBytes > 0 && q.inFlightBytes+p.bytes > q.opts.InFlightBytesMax {
		return fmt.Errorf("%w: %d bytes of at most %d", ErrOverloaded, q.inFlightBytes, q.opts.InFlightBytesMax)
	}
	if q.opts.Admit != nil {
		return q.opts.Admit(p.bytes, w.Delete)
	}
	return nil
}

// enqueue creates the entry for an accepted write, and adds the write to the queue.
func (q *Queue) enqueue(w *Write, p *Pending) {
	q.lastCommitTime = max(q.lastCommitTime, q.opts.Now().UnixNano())
	p.done = make(chan struct{})
	p.commitTime = q.lastCommitTime
	p.index = q.nextIndex
	q.nextIndex++
	p.payload = payload(w, p.commitTime)
	q.queued = append(q.queued, p)
	q.inFlightBytes += p.bytes
	q.newest[w.ID] = p
	if p.request.RequestID != ([16]byte{}) {
		q.requests[p.request.RequestID] = p
	}
}
