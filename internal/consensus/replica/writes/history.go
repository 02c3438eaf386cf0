package writes

import (
	"sync"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// History reads from the log those requests of a queue's window that were applied before the process started. The
// start must not wait for this, so the log is read only when the first write with a request id arrives. History is
// safe for concurrent use.
type History struct {
	log     Log
	now     func() time.Time
	window  format.RequestWindow
	rules   rules.Off
	applied uint64 // index at the start: earlier entries are read from the log, later ones are seen by this process
	started int64  // time of the start, measured from windowClock

	whole atomic.Bool
	mu    sync.Mutex
	part  bool // whether the log was read while it had damage, so that writes may be missing; guarded by mu
}

// NewHistory creates a History. It must be called before the first entry is applied.
func NewHistory(opts *Options) *History {
	return &History{
		log: opts.Log, now: opts.Now, window: opts.Window, rules: opts.Off,
		applied: opts.Log.AppliedIndex(), started: windowNow(),
	}
}

// Older are writes that were applied before the start, oldest first.
type Older []windowSlot

// Read reads the writes that were applied before the start, and passes them to put, which passes them to
// Queue.PutBefore. Further calls do nothing unless the log had damage. In that case Read returns false, because some
// writes may be missing: a leader that has others beside it must not take a write, which may be a repetition of one of
// them. After the repair, Read passes all writes again.
func (h *History) Read(put func(Older)) (whole bool) {
	if h.whole.Load() {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.whole.Load() || h.part && h.log.Damaged() {
		return h.whole.Load()
	}
	if older := h.read(); len(older) > 0 {
		put(older)
	}
	h.part = h.log.Damaged() // the damage may have been known before, or found by the read above
	h.whole.Store(!h.part)
	return !h.part
}

func (h *History) read() (older Older) {
	if !h.rules.Keeps(rules.Requests) || windowNow()-h.started > int64(h.window.Age) {
		return nil
	}
	for e := range h.log.RecentRequests(h.window, h.now().UnixNano()) {
		if e.Index <= h.applied {
			older = append(older, appliedSlot(&e, h.started))
		}
	}
	return older
}

// PutBefore adds the writes that History has read.
func (q *Queue) PutBefore(older Older) { q.window.putBefore(older) }

// Trim forgets some request ids that are too old, or that exceed the maximum number. It returns true if it may have
// more to forget.
func (q *Queue) Trim() (more bool) { return q.window.trim(windowNow()) }
