package ratelimit

import (
	"maps"
	"sync"
	"sync/atomic"
)

// These are the limits of the open calls of a connection.
const (
	// unansweredMax bounds the calls that a connection has without an answer if no caller of the store was identified on
	// it. It is more than anonymousCallsMax, because refused calls count until their answer is written. Beyond it, the
	// server does not read from the connection.
	unansweredMax = 16
	// openFree is the number of open calls of a connection that do not count as held memory.
	openFree = 16
	// openBytes is the memory that an open call takes besides its headers: gRPC's stream and the call's goroutine.
	openBytes = 4 << 10
	// writeBufferBytes is the size of gRPC's write buffer, which is its default.
	writeBufferBytes = 32 << 10
)

// openCalls follows the calls of a connection from their headers until the server has written their end. gRPC keeps a
// call, with its headers, for that time, even if the handler has returned: the client may not read the answer, or may
// give it no window. The reader and the writer of the connection use openCalls concurrently.
type openCalls struct {
	conn    *messages // the memory that the calls hold is added to that of conn
	decided *Calls    // knows the size of the calls' headers
	bounded atomic.Bool
	fewer   chan struct{} // receives a value when a call of a bounded connection has ended

	mu      sync.Mutex
	writing bool            // a write to the connection is in progress
	resets  int             // number of calls in open that the client has reset
	last    uint32          // the last call that has begun
	open    map[uint32]bool // true: the client has reset the call
	headers int64           // bytes of the largest headers so far
	holds   int64           // bytes that count as held
	closed  bool
}

// bound makes the reader wait while too many calls are open. It must be called before the connection is used.
func (o *openCalls) bound() {
	o.fewer = make(chan struct{}, 1)
	o.bounded.Store(true)
}

// begin counts a call with headers of the given size in the frame. It returns false if no client may begin such a call.
// gRPC ends the connection for that, but remembers each further attempt until it can write.
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

// end ends a call, because the server has written its end.
func (o *openCalls) end(id uint32) {
	o.mu.Lock()
	o.forget(id)
	o.count()
	o.mu.Unlock()
	o.signal()
}

// forget forgets a call. The caller holds the mutex.
func (o *openCalls) forget(id uint32) {
	if o.open[id] {
		o.resets--
	}
	delete(o.open, id)
}

// reset marks a call that the client has reset. gRPC may not have forgotten it yet: see forgetReset.
func (o *openCalls) reset(id uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if reset, is := o.open[id]; is && !reset {
		o.open[id] = true
		o.resets++
	}
}

// forgetReset ends the calls that the client has reset. The caller knows that gRPC's writer does not wait, and holds
// the mutex. While the writer waits, gRPC keeps each of these calls in the writer's queue.
func (o *openCalls) forgetReset() {
	if o.resets == 0 {
		return
	}
	maps.DeleteFunc(o.open, func(_ uint32, reset bool) bool { return reset })
	o.resets = 0
	o.count()
}

// writes records that a write of n bytes begins. gRPC writes less than its buffer holds only if the writer's queue is
// empty.
func (o *openCalls) writes(n int) {
	o.mu.Lock()
	o.writing = true
	if n < writeBufferBytes {
		o.forgetReset()
	}
	o.mu.Unlock()
	o.signal()
}

// wrote records that the write has returned. On a bounded connection, the few calls that were reset must not keep the
// reader waiting if no further write follows.
func (o *openCalls) wrote() {
	o.mu.Lock()
	o.writing = false
	if o.bounded.Load() {
		o.forgetReset()
	}
	o.mu.Unlock()
	o.signal()
}

// reads records that gRPC has processed all frames before the next read. So it has decoded the headers in them, and
// forgets the calls that were reset, unless its writer waits.
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
// headers, because frames do not show the size of headers: a byte may stand for a header that was sent before. The
// caller holds the mutex.
func (o *openCalls) count() {
	holds := max(int64(len(o.open))-openFree, 0) * (o.headers + openBytes)
	if o.closed || holds == o.holds {
		return
	}
	o.conn.bytes.Add(holds - o.holds)
	o.conn.all.Add(holds - o.holds)
	o.holds = holds
}

// close ends the counting. The caller subtracts what the connection holds.
func (o *openCalls) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.open = true, nil
}

// others returns the bytes that the connection holds besides its calls.
func (o *openCalls) others() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.conn.bytes.Load() - o.holds
}

// tooMany reports whether the server must not read from a bounded connection.
func (o *openCalls) tooMany() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.open) >= unansweredMax
}
