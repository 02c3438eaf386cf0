package ratelimit

import (
	"maps"
	"sync"
	"sync/atomic"
)

// These are the limits for the open calls on a connection.
const (
	// unansweredMax limits the number of unanswered calls on a connection as long as no caller of the store was
	// identified on it. When there are more, the server stops reading from the connection. The limit is higher than
	// anonymousCallsMax, because a refused call also counts until its response is written.
	unansweredMax = 16
	// openFree is the number of open calls on each connection whose memory is not counted.
	openFree = 16
	// openBytes is the memory that an open call takes, besides its headers, for gRPC's stream and the call's goroutine.
	openBytes = 4 << 10
	// WriteBufferBytes is the size of the buffer in which gRPC collects the frames of one write to a connection. Servers
	// must be created with it, because writes depends on it. A scan is 8 % faster than with gRPC's default of 32 KiB.
	// Connections without a write in progress have no buffer, because gRPC shares them.
	WriteBufferBytes = 128 << 10
)

// openCalls tracks the calls on a connection, each from the arrival of its headers until the server has written its
// last frame. During this time gRPC keeps the call and its headers. That includes the time after the handler has
// returned, because the client may not read the response, or may not open a window for it. The goroutine that reads
// the connection and the one that writes to it use openCalls concurrently.
type openCalls struct {
	conn    *messages // the memory of calls is added to the memory that this object counts
	decided *Calls    // knows the size of the calls' headers
	bounded atomic.Bool
	fewer   chan struct{} // receives a value when a call on a bounded connection has ended

	mu      sync.Mutex
	writing bool            // whether a write to the connection is in progress
	resets  int             // number of calls in the map open that the client has reset
	last    uint32          // stream number of the call that was begun last
	open    map[uint32]bool // the value is true for a call that the client has reset
	headers int64           // size in bytes of the largest headers of a call so far
	holds   int64           // number of bytes that are counted for the calls
	closed  bool
}

// bound makes the server stop reading while too many calls are unanswered. It must be called before the connection is
// used.
func (o *openCalls) bound() {
	o.fewer = make(chan struct{}, 1)
	o.bounded.Store(true)
}

// begin adds a call whose headers have the given size in the frame. It returns false if the stream number is not
// valid for a new call. In that case gRPC closes the connection. However, until gRPC is able to write, it remembers
// every further attempt.
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

// end removes a call when the server has written the last frame of that call.
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

// reset marks a call as reset by the client. The call still counts, because gRPC may still keep it (see forgetReset).
func (o *openCalls) reset(id uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if reset, is := o.open[id]; is && !reset {
		o.open[id] = true
		o.resets++
	}
}

// forgetReset removes the calls that the client has reset. gRPC keeps each of these calls in its writer's queue until
// the writer processes the queue. Therefore forgetReset must be called only when the writer is not waiting. The
// caller holds the mutex.
func (o *openCalls) forgetReset() {
	if o.resets == 0 {
		return
	}
	maps.DeleteFunc(o.open, func(_ uint32, reset bool) bool { return reset })
	o.resets = 0
	o.count()
}

// writes records the beginning of a write of n bytes. If n is less than the size of gRPC's write buffer, the writer's
// queue is empty, so the calls that the client has reset are gone from it.
func (o *openCalls) writes(n int) {
	o.mu.Lock()
	o.writing = true
	if n < WriteBufferBytes {
		o.forgetReset()
	}
	o.mu.Unlock()
	o.signal()
}

// wrote records that a write has returned. On a bounded connection, it also removes the calls that the client has
// reset. Otherwise the reader might wait for them even if there is no further write.
func (o *openCalls) wrote() {
	o.mu.Lock()
	o.writing = false
	if o.bounded.Load() {
		o.forgetReset()
	}
	o.mu.Unlock()
	o.signal()
}

// reads is called before each read, when gRPC has processed all frames of earlier reads. By then, gRPC has decoded the
// headers in these frames. Unless its writer is waiting, it has also forgotten the calls that the client has reset.
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

// count updates the memory that the connection holds. Each call beyond openFree counts as if it had the largest
// headers so far. The actual size of its headers is not visible in the frames, in which a single byte may refer to a
// whole header of an earlier call. The caller holds the mutex.
func (o *openCalls) count() {
	holds := max(int64(len(o.open))-openFree, 0) * (o.headers + openBytes)
	if o.closed || holds == o.holds {
		return
	}
	o.conn.bytes.Add(holds - o.holds)
	o.conn.all.Add(holds - o.holds)
	o.holds = holds
}

// close stops counting. The caller has to subtract the bytes that were counted for the connection from the totals.
func (o *openCalls) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.open = true, nil
}

// others returns the number of bytes that are counted for the connection, except those for its calls.
func (o *openCalls) others() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.conn.bytes.Load() - o.holds
}

// tooMany reports whether a bounded connection has so many unanswered calls that the server must not read from it.
func (o *openCalls) tooMany() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.open) >= unansweredMax
}
