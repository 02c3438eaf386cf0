package ratelimit

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/net/http2"

	"sheaf.dev/sheaf/internal/test/must"
)

// sent returns the bytes that a client sends: the preface and the frames that the function write produces.
func sent(t testing.TB, write func(f *http2.Framer) error) []byte {
	t.Helper()
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	must.OK(t, write(http2.NewFramer(&out, nil)))
	return out.Bytes()
}

// TestExcessOfFrames checks, for each type of frame, how much excess a single frame causes on a connection without
// credit.
func TestExcessOfFrames(t *testing.T) {
	for _, c := range []struct {
		name    string
		write   func(f *http2.Framer) error
		written int64
		excess  int
	}{
		{"a call", func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true})
		}, 0, 0},
		{"data", func(f *http2.Framer) error { return f.WriteData(1, false, make([]byte, 5)) }, 0, 0},
		{"the end of data", func(f *http2.Framer) error { return f.WriteData(1, true, nil) }, 0, 0},
		{"no data", func(f *http2.Framer) error { return f.WriteData(1, false, nil) }, 0, 1},
		{"a reset", func(f *http2.Framer) error { return f.WriteRSTStream(1, http2.ErrCodeCancel) }, 0, 2},
		{"more headers", func(f *http2.Framer) error { return f.WriteContinuation(1, false, make([]byte, 100)) }, 0, 1},
		{"many more headers", func(f *http2.Framer) error {
			return f.WriteContinuation(1, false, make([]byte, 10_000))
		}, 0, 10},
		{"settings", func(f *http2.Framer) error { return f.WriteSettings() }, 0, 1},
		{"settings taken", func(f *http2.Framer) error { return f.WriteSettingsAck() }, 0, 1},
		{"a priority", func(f *http2.Framer) error {
			return f.WritePriority(1, http2.PriorityParam{StreamDep: 3})
		}, 0, 1},
		{"a ping, which gRPC counts", func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) }, 0, 0},
		{"an end", func(f *http2.Framer) error { return f.WriteGoAway(1, http2.ErrCodeNo, nil) }, 0, 1},
		{"another type", func(f *http2.Framer) error { return f.WriteRawFrame(200, 0, 0, []byte("x")) }, 0, 1},
		{"a window", func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1) }, 0, 1},
		{"a window for what was read", func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1) }, updateBytes, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFrames()
			f.credit, f.updates = 0, updatesFree
			if got := f.take(sent(t, c.write), c.written); got != c.excess {
				t.Errorf("%d points beyond, want %d", got, c.excess)
			}
		})
	}
}

// TestHalfOfTheCallsMayBeReset checks that half of all calls may be reset, at any rate. All calls may be reset only
// as long as the connection has credit left.
func TestHalfOfTheCallsMayBeReset(t *testing.T) {
	calls := func(reset func(n int) bool) []byte {
		return sent(t, func(f *http2.Framer) error {
			for n := range 10_000 {
				id := uint32(2*n + 1)
				if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true}); err != nil {
					return err
				}
				if err := f.WriteData(id, true, []byte("hello")); err != nil {
					return err
				}
				if !reset(n) {
					continue
				}
				if err := f.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
					return err
				}
			}
			return nil
		})
	}
	half, all := newFrames(), newFrames()
	if got := half.take(calls(func(n int) bool { return n%2 == 0 }), 0); got != 0 {
		t.Errorf("half of the calls are reset: %d points beyond", got)
	}
	if got, want := all.take(calls(func(int) bool { return true }), 0), 10_000-creditFirst; got != want {
		t.Errorf("all calls are reset: %d points beyond, want %d", got, want)
	}
}

// FuzzFrames checks that the excess of a sequence of bytes does not depend on how the bytes are split into reads, and
// that no bytes cause a panic.
func FuzzFrames(f *testing.F) {
	f.Add(sent(f, func(f *http2.Framer) error {
		for n := range 300 {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*n + 1), BlockFragment: make([]byte, n),
				EndHeaders: true}); err != nil {
				return err
			}
			if err := f.WriteRSTStream(uint32(2*n+1), http2.ErrCodeCancel); err != nil {
				return err
			}
			if err := f.WriteSettings(); err != nil {
				return err
			}
		}
		return nil
	}), uint8(7))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(1))
	f.Add(append([]byte(http2.ClientPreface), 255, 255, 255, 9, 9), uint8(2))
	f.Fuzz(func(t *testing.T, all []byte, cut uint8) {
		whole, cuts := newFrames(), newFrames()
		want := whole.take(all, 0)
		got := 0
		for rest := all; len(rest) > 0; {
			n := min(int(cut)+1, len(rest))
			got += cuts.take(rest[:n], 0)
			rest = rest[n:]
		}
		if got != want || whole.credit != cuts.credit || whole.skip != cuts.skip || whole.have != cuts.have {
			t.Errorf("in one piece %d %+v, in pieces of %d bytes %d %+v", want, whole, int(cut)+1, got, cuts)
		}
		if whole.credit < 0 || whole.credit > creditMax {
			t.Errorf("a credit of %d", whole.credit)
		}
	})
}

// BenchmarkGet measures the CPU time for counting the frames of a get: a read that contains HEADERS, DATA and one
// WINDOW_UPDATE, and the response.
func BenchmarkGet(b *testing.B) {
	one := sent(b, func(f *http2.Framer) error {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 60),
			EndHeaders: true}); err != nil {
			return err
		}
		if err := f.WriteData(1, true, message(30)); err != nil {
			return err
		}
		return f.WriteWindowUpdate(0, 10_000)
	})[clientPrefaceBytes:]
	answer := sent(b, func(f *http2.Framer) error {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true}); err != nil {
			return err
		}
		if err := f.WriteData(1, false, message(10_000)); err != nil {
			return err
		}
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true})
	})[clientPrefaceBytes:]
	f := newCounted()
	b.ReportAllocs()
	for b.Loop() {
		if f.frames.take(one, 1<<40) != 0 {
			b.Fatal("a get is beyond what a connection may do")
		}
		f.wrote(answer)
	}
}

// BenchmarkPut measures the CPU time for counting the frames of a put of 1 MiB, in reads of 16 KiB.
func BenchmarkPut(b *testing.B) {
	one := data(b, 1, true, message(1<<20))
	f := newCounted()
	b.ReportAllocs()
	for b.Loop() {
		for part := range slices.Chunk(one, 16<<10) {
			f.frames.take(part, 1<<40)
		}
		if f.bytes.Load() != 0 {
			b.Fatal("a whole message is held")
		}
	}
}
