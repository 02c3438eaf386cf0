package ratelimit

import (
	"sync"
	"sync/atomic"
)

// Limits of the calls that a connection has open.
const (
	// unansweredMax bounds the calls that a connection has without an answer if no caller of the store was identified on
	// it. It is more than anonymousCallsMax, because refused calls count until their answer is written. Beyond it, the
	// server does not read from the connection.
	unansweredMax = 16
	// openFree is the number of open calls of a connection that do not count as held memory.
	openFree = 16
	// openBytes is the memory that an open call takes besides its headers: gRPC's stream and the call's goroutine.
	openBytes = 4 << 10
)

// openCalls follows the calls of a connection from their headers until the server has written their end. gRPC keeps a
// call, with its headers, for that time, even if the handler has returned: the client may not read the answer, or may
// give it no window. The reader and the writer of the connection use openCalls concurrently.
type openCalls struct {
	conn    *messages // what the calls hold counts for it
	decided *Calls    // knows the size of the calls' headers; nil: only the size of the frames is known
	bounded atomic.Bool
	fewer   chan struct{} // receives a value when a call of a bounded connection has ended

	mu      sync.Mutex
	last    uint32 // the last call that has begun
	open    map[uint32]struct{}
	headers int64        // bytes of the largest headers so far
	holds   atomic.Int64 // bytes that count as held
	closed  bool
}

// bound makes the reader wait while too many calls are open. It must be called before the connection is used.
func (o *openCalls) bound() {
	o.fewer = make(chan struct{}, 1)
	o.bounded.Store(true)
}

// begin counts a call with headers of the given size in the frame. Headers of a call that has begun already are its
// trailers.
func (o *openCalls) begin(id uint32, headers int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if id <= o.last || o.closed {
		return
	}
	if o.open == nil {
		o.open = map[uint32]struct{}{}
	}
	o.open[id], o.last = struct{}{}, id
	o.headers = max(o.headers, headers, o.decided.largestHeaders())
	o.count()
}

func (o *openCalls) end(id uint32) {
	o.mu.Lock()
	delete(o.open, id)
	o.count()
	o.mu.Unlock()
	if o.bounded.Load() {
		select {
		case o.fewer <- struct{}{}:
		default:
		}
	}
}

// count updates the memory that the connection holds. Every call beyond openFree counts as if it had the largest
// headers, because frames do not show the size of headers: a byte may stand for a header that was sent before. The
// caller holds the mutex.
func (o *openCalls) count() {
	holds := max(int64(len(o.open))-openFree, 0) * (o.headers + openBytes)
	if o.closed || holds == o.holds.Load() {
		return
	}
	more := holds - o.holds.Swap(holds)
	o.conn.bytes.Add(more)
	o.conn.all.bytes.Add(more)
}

// close ends the counting. The caller subtracts what the connection holds.
func (o *openCalls) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.open = true, nil
}

// tooMany reports whether the server must not read from a bounded connection.
func (o *openCalls) tooMany() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.open) >= unansweredMax
}
