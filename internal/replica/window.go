package replica

import (
	"time"

	"sheaf.dev/sheaf/internal/group"
)

// window remembers the results of the last writes with a request id, in the order of the log. It holds no pointer, so
// that its size costs the garbage collector nothing. Not safe for concurrent use.
type window struct {
	writesMax int           // at most so many, at least 1
	age       time.Duration // none with a commit time older than this

	at    map[[16]byte]uint32 // request id -> low bits of its sequence number
	slots []windowSlot        // a ring; its length is a power of two
	first uint64              // sequence number of the oldest
	next  uint64              // sequence number of the next one; next-first are held
}

type windowSlot struct {
	requestID  [16]byte
	index      uint64
	commitTime int64
	deleted    bool // a delete made an entry, so there was a record
}

func (w *window) slot(sequence uint64) *windowSlot {
	return &w.slots[sequence&uint64(len(w.slots)-1)]
}

// find gives the result of a write that was applied, marked as repeated. now is Unix ns.
func (w *window) find(requestID [16]byte, now int64) (Result, bool) {
	low, ok := w.at[requestID]
	if !ok {
		return Result{}, false
	}
	s := w.slot(uint64(low)) // the ring is shorter than 2^32, so the low bits name the slot
	if w.expired(s, now) {
		return Result{}, false
	}
	return Result{Index: s.index, CommitTime: s.commitTime, Repeated: true, Existed: s.deleted}, true
}

func (w *window) expired(s *windowSlot, now int64) bool { return now-s.commitTime > int64(w.age) }

// add remembers a write. Where its request id is remembered already, the first result stays.
func (w *window) add(s windowSlot) {
	w.trim(s.commitTime)
	if _, ok := w.at[s.requestID]; ok {
		return
	}
	if w.at == nil {
		w.at = make(map[[16]byte]uint32)
	}
	if w.held() >= w.writesMax {
		w.drop()
	}
	if w.held() == len(w.slots) {
		w.grow()
	}
	*w.slot(w.next) = s
	w.at[s.requestID] = uint32(w.next)
	w.next++
}

func (w *window) held() int { return int(w.next - w.first) }

func (w *window) drop() {
	delete(w.at, w.slot(w.first).requestID)
	w.first++
}

func (w *window) grow() {
	old := *w
	w.slots = make([]windowSlot, max(16, 2*len(old.slots)))
	for i := old.first; i < old.next; i++ {
		*w.slot(i) = *old.slot(i)
	}
}

// trim forgets what is too old and gives the memory back where nothing is left. now is Unix ns.
func (w *window) trim(now int64) {
	for w.held() > 0 && w.expired(w.slot(w.first), now) {
		w.drop()
	}
	if w.held() == 0 {
		w.at, w.slots = nil, nil
	}
}

// putBefore remembers older writes, oldest first, before all that it holds.
func (w *window) putBefore(older []windowSlot) {
	all := window{writesMax: w.writesMax, age: w.age}
	for _, s := range older {
		all.add(s)
	}
	for i := w.first; i < w.next; i++ {
		all.add(*w.slot(i))
	}
	*w = all
}

// restoreWindow reads back what was applied before the start. It runs once, in the first write with a request id: a
// start must not wait for it.
func (r *Replica) restoreWindow() {
	if r.unsafe(UnsafeRequests) {
		return
	}
	var older []windowSlot
	since := r.now().Add(-r.opts.WindowAge).UnixNano()
	for e := range r.log.RecentRequests(r.opts.WindowWrites, since) {
		if e.Index <= r.startedApplied {
			older = append(older, slotOf(&e))
		}
	}
	if len(older) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.window.putBefore(older)
}

func slotOf(e *group.Entry) windowSlot {
	return windowSlot{requestID: e.RequestID, index: e.Index, commitTime: e.CommitTime, deleted: e.Kind == group.KindDelete}
}

func (r *Replica) trimWindow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.window.trim(r.now().UnixNano())
}
