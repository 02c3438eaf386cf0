package message

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

var errFull = errors.New("full")

func newBudget(limit int64) *Budget { return NewBudget(limit, func(int64) error { return errFull }) }

func wantUsed(t *testing.T, b *Budget, n int64) {
	t.Helper()
	if used := b.Used(); used != n {
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
	l := newBudget(10 << 20)
	h := &Held{from: l}
	if err := h.Ask(3 << 20); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, l, 3<<20)
	first, second := encode(t, h, 1<<20-100), encode(t, h, 1<<20-100)
	wantUsed(t, l, 3<<20)
	third := encode(t, h, 1<<20+1)
	wantUsed(t, l, 4<<20)
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
	wantUsed(t, l, 3<<20)
	second.Free()
	third.Free()
	wantUsed(t, l, 0)
	small := encode(t, h, 1000)
	wantUsed(t, l, 0)
	small.Free()
}

func TestDroppedStreamIsReleasedOnce(t *testing.T) {
	l := newBudget(10 << 20)
	h := &Held{from: l}
	if err := h.Ask(1 << 20); err != nil {
		t.Fatal(err)
	}
	bufs := encode(t, h, 3<<20)
	h.end(true)
	wantUsed(t, l, 0)
	bufs.Free()
	wantUsed(t, l, 0)
}

// If gRPC drops a message without releasing it, as it does when a connection breaks, the message's bytes return to
// the allowance after a garbage collection.
func TestForgottenMessageIsReleased(t *testing.T) {
	l := newBudget(10 << 20)
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
	l := newBudget(10 << 20)
	h := &Held{from: l}
	bufs := encode(t, h, 100_000)
	wantUsed(t, l, 128<<10)
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
	wantUsed(t, l, 0)
}
