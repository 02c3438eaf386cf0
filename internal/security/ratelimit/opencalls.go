package ratelimit

import (
	"maps"
	"sync"
	"sync/atomic"
)

// These are the limits on a connection's open calls.
const (
	// unansweredMax limits the number of unanswered calls on a connection on which no caller of the store was
	// identified. While there are more, the server does not read from the connection. The limit is higher than
	// anonymousCallsMax, because refused calls count until their response is written.
	unansweredMax = 16
	// openFree is the number of open calls per connection whose memory is not counted.
	openFree = 16
	// openBytes is the memory, in addition to its headers, that an open call takes for gRPC's stream and the call's
	// goroutine.
	openBytes = 4 << 10
	// writeBufferBytes is the default size of gRPC's write buffer, which servers use.
	writeBufferBytes = 32 << 10
)

// openCalls tracks a connection's calls from the arrival of their headers until the server has written their last
// frame. During that time gRPC keeps the call with its headers, even if the handler has returned, because the client
// may not read the response or may not open a window for it. The reader and the writer of the connection use openCalls
// concurrently.
type openCalls struct {
	conn    *messages // the calls' memory is added to that of conn
	decided *Calls    // provides the size of the calls' headers
	bounded atomic.Bool
	fewer   chan struct{} // receives a value when a call of a bounded connection ends

	mu      sync.Mutex
	writing bool            // a write to the connection is in progress
	resets  int             // number of calls in open that the client has reset
	last    uint32          // stream number of the newest call
	open    map[uint32]bool // the value is true if the client has reset the call
	headers int64           // bytes of the largest call headers so far
	holds   int64           // bytes counted for the calls
	closed  bool
}

// bound makes the reader wait while too many calls are unanswered. The caller must call it before the connection is
// used.
func (o *openCalls) bound() {
	o.fewer = make(chan struct{}, 1)
	o.bounded.Store(true)
}

// begin adds a call whose headers have the given size in the frame. It returns false if the stream number is illegal
// for a new call. gRPC then closes the connection, but remembers each further attempt until it can write.
func (o *openCalls) begin(id uint32, headers int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if id%2 == 0 || id <= o.last {
		return false
	}
	o.last = id
	if o.closed {
		return true
	}
	if o.open == nil {
		o.open = map[uint32]bool{}
	}
	o.open[id] = false
	o.headers = max(o.headers, headers)
	o.count()
	return true
}

// end removes a call after the server has written the call's last frame.
func (o *openCalls) end(id uint32) {
	o.mu.Lock()
	o.forget(id)
	o.count()
	o.mu.Unlock()
	o.signal()
}

// forget removes a call from the map. The caller holds the mutex.
func (o *openCalls) forget(id uint32) {
	if o.open[id] {
		o.resets--
	}
	delete(o.open, id)
}

// reset marks a call that the client has reset. The call still counts, because gRPC may still keep it (see
// forgetReset).
func (o *openCalls) reset(id uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if reset, is := o.open[id]; is && !reset {
		o.open[id] = true
		o.resets++
	}
}

// forgetReset removes the calls that the client has reset. Until gRPC's writer processes its queue, gRPC keeps each of
// these calls in that queue. Therefore forgetReset must be called only when the writer is not waiting. The caller holds
// the mutex.
func (o *openCalls) forgetReset() {
	if o.resets == 0 {
		return
	}
	maps.DeleteFunc(o.open, func(_ uint32, reset bool) bool { return reset })
	o.resets = 0
	o.count()
}

// writes records that a write of n bytes starts. If n is less than the size of gRPC's write buffer, the writer's queue
// is empty.
func (o *openCalls) writes(n int) {
	o.mu.Lock()
	o.writing = true
	if n < writeBufferBytes {
		o.forgetReset()
	}
	o.mu.Unlock()
	o.signal()
}

// wrote records that a write has returned. On a bounded connection, it removes the calls that the client has reset,
// because otherwise the reader could wait for them although no further write follows.
func (o *openCalls) wrote() {
	o.mu.Lock()
	o.writing = false
	if o.bounded.Load() {
		o.forgetReset()
	}
	o.mu.Unlock()
	o.signal()
}

// reads records that gRPC has processed all frames before the next read. gRPC has then decoded the headers in these
// frames. Unless its writer waits, it has also forgotten the calls that the client has reset.
func (o *openCalls) reads() {
	headers := o.decided.headers.Load()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.writing {
		o.forgetReset()
	}
	if headers > o.headers {
		o.headers = headers
		o.count()
	}
}

func (o *openCalls) signal() {
	if !o.bounded.Load() {
		return
	}
	select {
	case o.fewer <- struct{}{}:
	default:
	}
}

// count updates the memory that the connection holds. Every call beyond openFree counts as if it had the largest
// headers, because frames do not show the size of their headers, in which one byte may stand for a whole header from an
// earlier call. The caller holds the mutex.
func (o *openCalls) count() {
	holds := max(int64(len(o.open))-openFree, 0) * (o.headers + openBytes)
	if o.closed || holds == o.holds {
		return
	}
	o.conn.bytes.Add(holds - o.holds)
	o.conn.all.Add(holds - o.holds)
	o.holds = holds
}

// close stops counting. The caller must subtract the connection's counted bytes from the totals.
func (o *openCalls) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.open = true, nil
}

// others returns the bytes counted for the connection, except those of its calls.
func (o *openCalls) others() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.conn.bytes.Load() - o.holds
}

// tooMany reports whether the server must not read from a bounded connection because of its unanswered calls.
func (o *openCalls) tooMany() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.open) >= unansweredMax
}
