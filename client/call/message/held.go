package message

import (
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Allowance limits the bytes that all calls of a process hold for their responses. Allowance is safe for concurrent
// use.
type Allowance interface {
	// Take takes n more bytes for a call. A negative n returns bytes. The argument have is the number of bytes that
	// the call has already taken. If Take returns an error, the bytes are refused, and the gRPC caller receives that
	// error. Take never refuses bytes to the only call.
	Take(n, have int64) error
	// Add takes n bytes without a check, for bytes that are already held. A negative n returns bytes to the allowance.
	Add(n int64)
}

// Held counts the bytes that one call holds for its responses. It counts the greater of two values: the working memory
// that the call requested, which should cover its messages until gRPC has written them, and the bytes of messages that
// gRPC really holds. Bytes that gRPC still holds when the call has ended stay counted until they are written or the
// stream is dropped. Held is safe for concurrent use.
type Held struct {
	from Allowance

	mu      sync.Mutex
	asked   int64
	encoded int64 // bytes of messages that gRPC has not released
	taken   int64 // bytes taken from the allowance, which is the greater of asked and encoded
	dropped bool  // gRPC has dropped the stream, or is about to
}

// Ask requests n bytes in total, which replaces the previous request. If an increase is refused, the previous grant
// remains. A reduction is never refused.
func (h *Held) Ask(n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ask(n)
}

// More requests n bytes in addition to the previous request. A negative n reduces the request.
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
	h.adjust()
	return nil
}

// adjust makes the bytes taken from the allowance equal to the bytes that the call holds. The caller holds mu.
func (h *Held) adjust() {
	if n := max(h.asked, h.encoded); n != h.taken {
		h.from.Add(n - h.taken)
		h.taken = n
	}
}

// encode counts n bytes of messages that gRPC holds from now on. A negative n counts bytes that gRPC has released. The
// bytes cannot be refused, because the message already exists.
func (h *Held) encode(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.dropped {
		h.encoded += n
		h.adjust()
	}
}

// end returns the requested bytes to the allowance. If dropped is true, gRPC drops the stream with all queued messages,
// and end returns their bytes, too.
func (h *Held) end(dropped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = 0
	if dropped {
		h.encoded, h.dropped = 0, true
	}
	h.adjust()
}

// heldBytesMin is the size from which a message is counted. Smaller messages are not counted, because a stream holds
// at most 64 KiB of them.
const heldBytesMin = 16 << 10

// counted wraps a message, and counts its bytes from the time it is encoded until gRPC releases it.
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
	held := c.held // c is reused for the next message
	return append(bufs[:len(bufs):len(bufs)], whenFreed(func() { held.encode(-n) })), nil
}

// RoundUp returns the buffer size in Pool for a message of n bytes.
func RoundUp(n int64) int64 {
	size := int64(1) << sizeBitsMin
	for size < n && size < 1<<sizeBitsMax {
		size <<= 1
	}
	return max(size, n)
}

// freedBytes is the capacity of the empty buffer. It is large enough for gRPC to return the buffer to its pool, which
// it does not do with small buffers.
const freedBytes = 2 << 10

var freedSpace [freedBytes]byte

// releasePool is a pool that only detects the return of its one buffer.
type releasePool struct {
	done atomic.Bool
	tell func()
}

// Get implements mem.BufferPool. Nothing calls it.
func (f *releasePool) Get(length int) *[]byte { return Pool.Get(length) }

// Put implements mem.BufferPool.
func (f *releasePool) Put(*[]byte) {
	if !f.done.Swap(true) {
		f.tell()
	}
}

// whenFreed returns an empty buffer that is appended to a message's buffers. The function tell is called once, when
// gRPC releases the message's buffers. gRPC releases a message when it has written it, or when it drops the message
// because the stream is reset. If a connection breaks, gRPC leaves the messages that are queued in it to the garbage
// collector. In this case tell is called after a garbage collection.
func whenFreed(tell func()) mem.Buffer {
	empty := freedSpace[:0:freedBytes]
	f := &releasePool{tell: tell}
	runtime.AddCleanup(&empty, func(f *releasePool) { f.Put(nil) }, f)
	return mem.NewBuffer(&empty, f)
}
