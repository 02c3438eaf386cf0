package writes

import (
	"maps"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// window remembers the last writes with a request id and their results, in the order in which this replica applied or
// declined them. It holds no pointers, so the garbage collector does not have to scan it. Ages are in ns since
// windowClock, measured with this process's monotonic clock, because the machine's clock may be changed. It is not safe
// for concurrent use.
type window struct {
	format.RequestWindow // how long writes are remembered

	at    map[[16]byte]uint32 // low bits of each write's sequence number, by request id
	slots []windowSlot        // a ring; its length is a power of two
	first uint64              // sequence number of the oldest remembered write
	next  uint64              // sequence number of the next write; the window holds next-first writes
}

// windowClock is the time from which the ages in windows are measured.
var windowClock = time.Now()

func windowNow() int64 { return int64(time.Since(windowClock)) }

// windowSlot is a remembered write. It takes only 56 bytes, because a busy shard remembers millions of writes.
type windowSlot struct {
	requestID [16]byte
	id        int64
	index     uint64
	time      int64 // commit time in Unix ns; for a refused write, IfVersion of its condition instead
	at        int64 // time when this replica applied or declined the write, or read the window from the log
	crc       uint32
	delete    bool
	// role is one of the constants written, refused and nothing. If it is refused or nothing, the write created no
	// entry, and the field index holds the newest version at the time of the decision, or 0 if there was none. No log
	// holds such a write, so it is forgotten when this process exits.
	role     role
	ifAbsent bool // IfAbsent of a refused write's condition
}

// appliedSlot returns the slot for a write that is in the log.
func appliedSlot(r *format.Request, at int64) windowSlot {
	return windowSlot{
		requestID: r.RequestID, id: r.ID, index: r.Index, time: r.CommitTime, at: at, crc: r.CRC32C, delete: r.Delete,
	}
}

// declinedSlot returns the slot for a write that created no entry because of the record's newest version.
func declinedSlot(p *Pending, current uint64, at int64) windowSlot {
	r := &p.request
	return windowSlot{
		requestID: r.RequestID, id: r.ID, index: current, time: int64(p.condition.IfVersion), at: at, crc: r.CRC32C,
		delete: r.Delete, role: p.role, ifAbsent: p.condition.IfAbsent,
	}
}

// request returns the fields that distinguish this write from others with the same request id.
func (s *windowSlot) request() format.Request {
	return format.Request{RequestID: s.requestID, ID: s.id, Index: s.index, Delete: s.delete, CRC32C: s.crc}
}

func (w *window) slot(sequence uint64) *windowSlot {
	return &w.slots[sequence&uint64(len(w.slots)-1)]
}

// find returns the remembered write with a request id, or nil if there is none. The result must not be kept.
func (w *window) find(requestID [16]byte, now int64) *windowSlot {
	low, ok := w.at[requestID]
	if !ok {
		return nil
	}
	s := w.slot(uint64(low)) // the ring is shorter than 2^32, so the low bits identify the slot
	if w.expired(s, now) {
		return nil
	}
	return s
}

func (w *window) expired(s *windowSlot, now int64) bool { return now-s.at > int64(w.Age) }

// add remembers a write. If the window already has a write with the same request id, that earlier write is kept, unless
// it created no entry.
func (w *window) add(s windowSlot) {
	w.forget(s.at, 1)
	if low, ok := w.at[s.requestID]; ok && w.slot(uint64(low)).role == written {
		return
	}
	if w.at == nil {
		w.at = make(map[[16]byte]uint32)
	}
	if w.held() == len(w.slots) {
		w.resize(max(16, 2*len(w.slots)))
	}
	*w.slot(w.next) = s
	w.at[s.requestID] = uint32(w.next)
	w.next++
}

func (w *window) held() int { return int(w.next - w.first) }

func (w *window) drop() {
	id := w.slot(w.first).requestID
	if w.at[id] == uint32(w.first) { // otherwise the request id belongs to a later write
		delete(w.at, id)
	}
	w.first++
}

func (w *window) resize(slots int) {
	old := *w
	w.slots = make([]windowSlot, slots)
	for i := old.first; i < old.next; i++ {
		*w.slot(i) = *old.slot(i)
	}
}

// forgottenMax is how many writes are dropped at a time, so that no caller has to wait long.
const forgottenMax = 8192

// forget drops writes that need not be remembered any longer. The argument coming is the number of writes that are
// about to be added. If forget returns true, there may be more writes to drop.
func (w *window) forget(now int64, coming int) (more bool) {
	for range forgottenMax {
		if w.held() == 0 {
			return false
		}
		oldest, held := w.slot(w.first), w.held()+coming
		if !w.expired(oldest, now) && held <= w.WritesMax && (held <= w.Writes || now-oldest.at <= int64(w.AgeMin)) {
			return false
		}
		w.drop()
	}
	return true
}

// trim drops writes that are too old, or that exceed the maximum number, and releases memory if few are left. It
// returns true if there may be more to drop.
func (w *window) trim(now int64) (more bool) {
	if w.forget(now, 0) {
		return true
	}
	switch held := w.held(); {
	case held == 0:
		w.at, w.slots = nil, nil
	case len(w.slots) > 1024 && held < len(w.slots)/8:
		w.resize(len(w.slots) / 4)
		at := make(map[[16]byte]uint32, held)
		maps.Copy(at, w.at)
		w.at = at
	}
	return false
}

// putBefore adds older writes, oldest first, in front of all writes that the window holds.
func (w *window) putBefore(older []windowSlot) {
	all := window{RequestWindow: w.RequestWindow}
	for _, s := range older {
		all.add(s)
	}
	for i := w.first; i < w.next; i++ {
		all.add(*w.slot(i))
	}
	*w = all
}

// answer returns the answer to a write with the slot's request id. It returns nil if the slot's write created no
// entry and w differs from that write. Nothing was written under the request id then, so w counts as a new write.
func (s *windowSlot) answer(w *Write, request *format.Request, reuse bool) *Pending {
	first := s.request()
	same := first.IsSame(request)
	switch {
	case s.role == written && !same && !reuse:
		return Failed(reused(&first))
	case s.role == written:
		return succeeded(Result{Index: s.index, CommitTime: s.time, Repeated: true, Existed: s.delete})
	case !same || w.Condition != Condition{IfAbsent: s.ifAbsent, IfVersion: uint64(s.time)}:
		return nil
	case s.role == nothing:
		return succeeded(Result{Repeated: true})
	}
	why := ErrMismatch
	if s.ifAbsent && s.index != 0 {
		why = ErrExists
	}
	return Failed(&ConditionError{Err: why, Current: s.index})
}
