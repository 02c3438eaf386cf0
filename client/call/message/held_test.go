package message

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

var errFull = errors.New("full")

// limitedAllowance is an allowance with a limit in bytes.
type limitedAllowance struct {
	limit int64
	used  atomic.Int64
}

func (l *limitedAllowance) Take(n, have int64) error {
	if used := l.used.Add(n); used > l.limit && used != have+n {
		l.used.Add(-n)
		return errFull
	}
	return nil
}

func (l *limitedAllowance) Add(n int64) { l.used.Add(n) }

func (l *limitedAllowance) is(t *testing.T, n int64) {
	t.Helper()
	if used := l.used.Load(); used != n {
		t.Fatalf("%d bytes are taken, want %d", used, n)
	}
}

// encode returns a message of about n bytes, encoded in the buffers that gRPC holds until it has written them.
func encode(t *testing.T, h *Held, n int) mem.BufferSlice {
	t.Helper()
	bufs, err := (&counted{message: &wrapperspb.BytesValue{Value: make([]byte, n)}, codec: Codec{}, held: h}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return bufs
}

func TestHeldCountsLargerOfRequestedAndEncodedSize(t *testing.T) {
	l := &limitedAllowance{limit: 10 << 20}
	h := &Held{from: l}
	if err := h.Ask(3 << 20); err != nil {
		t.Fatal(err)
	}
	l.is(t, 3<<20)
	first, second := encode(t, h, 1<<20-100), encode(t, h, 1<<20-100)
	l.is(t, 3<<20)
	third := encode(t, h, 1<<20+1)
	l.is(t, 4<<20)
	if err := h.More(20 << 20); err != nil {
		t.Fatalf("the only one is refused: %v", err)
	}
	other := &Held{from: l}
	if err := other.Ask(1); !errors.Is(err, errFull) {
		t.Fatalf("beyond the limit: %v", err)
	}
	if err := h.More(-20 << 20); err != nil {
		t.Fatal(err)
	}
	first.Free()
	h.end(false)
	l.is(t, 3<<20)
	second.Free()
	third.Free()
	l.is(t, 0)
	small := encode(t, h, 1000)
	l.is(t, 0)
	small.Free()
}

func TestDroppedStreamIsReleasedOnce(t *testing.T) {
	l := &limitedAllowance{limit: 10 << 20}
	h := &Held{from: l}
	if err := h.Ask(1 << 20); err != nil {
		t.Fatal(err)
	}
	bufs := encode(t, h, 3<<20)
	h.end(true)
	l.is(t, 0)
	bufs.Free()
	l.is(t, 0)
}

// If gRPC drops a message without releasing it, as it does when a connection breaks, the message's bytes return to
// the allowance after a garbage collection.
func TestForgottenMessageIsReleased(t *testing.T) {
	l := &limitedAllowance{limit: 10 << 20}
	h := &Held{from: l}
	_ = encode(t, h, 1<<20-100)
	h.end(false)
	for end := time.Now().Add(time.Minute); l.used.Load() != 0; {
		runtime.GC()
		if time.Now().After(end) {
			t.Fatalf("%d bytes are still taken", l.used.Load())
		}
		time.Sleep(time.Millisecond)
	}
}

// The buffer that detects the release does not change a message's encoding. A receiver that works like gRPC's frees
// this buffer together with the message.
func TestCountedMessageHasSameEncoding(t *testing.T) {
	l := &limitedAllowance{limit: 10 << 20}
	h := &Held{from: l}
	bufs := encode(t, h, 100_000)
	l.is(t, 128<<10)
	n := bufs.Len()
	reader := bufs.Reader()
	bufs.Free()
	for reader.Remaining() > 0 {
		parts, err := reader.Peek(min(reader.Remaining(), 16<<10), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			n -= len(p)
			if _, err := reader.Discard(len(p)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	l.is(t, 0)
}
