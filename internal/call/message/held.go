package message

import (
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Allowance bounds the bytes that all calls of a process hold for their answers. Safe for concurrent use.
type Allowance interface {
	// Take takes n bytes more for a call that has taken have; n may be negative. It refuses by the error that the
	// caller hears, and never a call that would be the only one.
	Take(n, have int64) error
	// Add takes n bytes without asking, for what is there already; negative: gives back.
	Add(n int64)
}

// Held counts what one call holds for its answers: what it asked for to work in, which is to cover its messages until
// gRPC has written them, or what gRPC really holds of them where that is more. What gRPC holds when the call has ended
// stays counted until it is written or the stream is dropped. Safe for concurrent use.
type Held struct {
	from Allowance

	mu      sync.Mutex
	asked   int64
	encoded int64 // of messages that gRPC has not let go
	taken   int64 // of the allowance: the greater one of both
	dropped bool  // gRPC has dropped the stream, or is about to
}

// newHeld counts for one call. end must follow.
func newHeld(from Allowance) *Held { return &Held{from: from} }

// Ask asks for n bytes in all, in the place of what was asked for before. Where they are refused, what was granted
// before stays. Less is never refused.
func (h *Held) Ask(n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ask(n)
}

// More asks for n bytes on top of what was asked for before; negative: less.
func (h *Held) More(n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ask(h.asked + n)
}

func (h *Held) ask(n int64) error {
	if more := max(n, h.encoded) - h.taken; more > 0 {
		if err := h.from.Take(more, h.taken); err != nil {
			return err
		}
		h.taken += more
	}
	h.asked = n
	h.settle()
	return nil
}

// settle takes and gives back what differs. Called with mu held.
func (h *Held) settle() {
	if n := max(h.asked, h.encoded); n != h.taken {
		h.from.Add(n - h.taken)
		h.taken = n
	}
}

// encode counts a message that gRPC is given, until release. It is there: nobody can refuse it.
func (h *Held) encode(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.dropped {
		h.encoded += n
		h.settle()
	}
}

func (h *Held) release(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.dropped {
		h.encoded -= n
		h.settle()
	}
}

// end gives back what was asked for; dropped: gRPC drops the stream with all that waits in it.
func (h *Held) end(dropped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = 0
	if dropped {
		h.encoded, h.dropped = 0, true
	}
	h.settle()
}

// heldBytesMin is the length from which messages are counted one by one. A stream holds 64 KiB of shorter ones at most.
const heldBytesMin = 16 << 10

// counted is a message that is counted from when it is encoded until gRPC lets go of it.
type counted struct {
	message any
	codec   encoding.CodecV2
	held    *Held
}

// Encode implements Encoder.
func (c *counted) Encode() (mem.BufferSlice, error) {
	bufs, err := c.codec.Marshal(c.message)
	if err != nil || bufs.Len() < heldBytesMin {
		return bufs, err
	}
	n := int64(0)
	for _, b := range bufs {
		n += RoundUp(int64(b.Len()))
	}
	c.held.encode(n)
	held := c.held // c is used again
	return append(bufs[:len(bufs):len(bufs)], whenFreed(func() { held.release(n) })), nil
}

// RoundUp is what a message of so many bytes takes in a buffer of Pool.
func RoundUp(n int64) int64 {
	size := int64(1) << sizeBitsMin
	for size < n && size < 1<<sizeBitsMax {
		size <<= 1
	}
	return max(size, n)
}

// freedBytes is enough for gRPC to give the buffer back to its pool when it is freed.
const freedBytes = 2 << 10

var freedSpace [freedBytes]byte

// freed is a pool that only learns when its one buffer comes back.
type freed struct {
	done atomic.Bool
	tell func()
}

// Get implements mem.BufferPool. Nobody asks for a buffer.
func (f *freed) Get(length int) *[]byte { return Pool.Get(length) }

// Put implements mem.BufferPool.
func (f *freed) Put(*[]byte) {
	if !f.done.Swap(true) {
		f.tell()
	}
}

// whenFreed is an empty buffer to stand behind those of a message: tell is called once, when they are let go. gRPC
// frees what it has written, and what waits in a stream that is reset. What waits in a connection that ends it leaves
// to the garbage collector, and so tell comes with a collection.
func whenFreed(tell func()) mem.Buffer {
	empty := freedSpace[:0:freedBytes]
	f := &freed{tell: tell}
	runtime.AddCleanup(&empty, func(f *freed) { f.Put(nil) }, f)
	return mem.NewBuffer(&empty, f)
}
