package ratelimit

import (
	"sync"
	"sync/atomic"
)

// unansweredMax bounds the calls that a connection has without an answer if no caller of the store was identified on
// it. It is more than anonymousCallsMax, because refused calls count until their answer is written. Beyond it, the
// server does not read from the connection.
const unansweredMax = 16

// unanswered follows the calls of a connection from their headers until the server has written their end. gRPC keeps a
// call, with its headers, for that time: also a call whose handler has returned, if the client does not read the answer
// or gives it no window. The reader and the writer of the connection use unanswered concurrently. The zero value counts
// nothing.
type unanswered struct {
	on    atomic.Bool
	fewer chan struct{} // receives a value when a call has ended

	mu   sync.Mutex
	last uint32 // the last call that has begun
	open map[uint32]struct{}
}

// start begins the counting. It must be called before the connection is used.
func (u *unanswered) start() {
	u.fewer, u.open = make(chan struct{}, 1), map[uint32]struct{}{}
	u.on.Store(true)
}

// stop ends the counting.
func (u *unanswered) stop() {
	if !u.on.Swap(false) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open = nil
}

// begin counts a call. Headers of a call that has begun already are its trailers.
func (u *unanswered) begin(id uint32) {
	if !u.on.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open != nil && id > u.last {
		u.open[id], u.last = struct{}{}, id
	}
}

func (u *unanswered) end(id uint32) {
	if !u.on.Load() {
		return
	}
	u.mu.Lock()
	delete(u.open, id)
	u.mu.Unlock()
	select {
	case u.fewer <- struct{}{}:
	default:
	}
}

// tooMany reports whether the server must not read.
func (u *unanswered) tooMany() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.open) >= unansweredMax
}
