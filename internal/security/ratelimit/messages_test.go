package ratelimit

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/test/must"
)

// message returns a message of n bytes, with the prefix that contains its length.
func message(n int) []byte {
	out := make([]byte, prefixBytes+n)
	binary.BigEndian.PutUint32(out[1:], uint32(n))
	return out
}

// frameOf returns the bytes of a single frame, without the preface of the connection.
func frameOf(t testing.TB, write func(f *http2.Framer) error) []byte {
	t.Helper()
	return sent(t, write)[clientPrefaceBytes:]
}

func data(t testing.TB, id uint32, end bool, b []byte) []byte {
	t.Helper()
	var out []byte
	for {
		n := min(len(b), 16<<10)
		out = append(out, frameOf(t, func(f *http2.Framer) error { return f.WriteData(id, end && n == len(b), b[:n]) })...)
		if b = b[n:]; len(b) == 0 {
			return out
		}
	}
}

func ended(t testing.TB, id uint32) []byte {
	t.Helper()
	return frameOf(t, func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: true})
	})
}

func windowed(t testing.TB, id, n uint32) []byte {
	t.Helper()
	return frameOf(t, func(f *http2.Framer) error { return f.WriteWindowUpdate(id, n) })
}

func wasReset(t testing.TB, id uint32) []byte {
	t.Helper()
	return frameOf(t, func(f *http2.Framer) error { return f.WriteRSTStream(id, http2.ErrCodeNo) })
}

// countedConn is a connection on which the memory of messages is counted.
type countedConn struct {
	frames
	messages
	all atomic.Int64
}

func newCounted() *countedConn {
	c := &countedConn{frames: newFrames()}
	c.skip, c.frames.messages, c.messages.all, c.late = 0, &c.messages, &c.all, func() {}
	return c
}

// step is data that the client or the server sends, with the number of bytes that may be held afterwards.
type step struct {
	server bool
	sent   []byte
	holds  [2]int64 // minimum and maximum number of bytes held afterwards
}

// TestHeldBytesOfConnection checks how many bytes are held after each step of the client or the server.
func TestHeldBytesOfConnection(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	half := message(mib)[:mib/2]
	nothing := [2]int64{}
	about := func(n int64) [2]int64 { return [2]int64{n, n + n/8} }
	padded := frameOf(t, func(f *http2.Framer) error {
		return f.WriteDataPadded(1, false, message(100)[:50], make([]byte, 200))
	})
	padEnd := frameOf(t, func(f *http2.Framer) error {
		return f.WriteDataPadded(1, true, message(100)[50:], make([]byte, 200))
	})
	one := bytes.Repeat(data(t, 1, false, []byte{0}), 64*kib)
	whole := data(t, 1, false, message(mib))
	for name, steps := range map[string][]step{
		"a whole message in one frame":   {{false, data(t, 1, true, message(10*kib)), nothing}},
		"a whole message in many frames": {{false, data(t, 1, true, message(mib)), nothing}},
		"half of a message":              {{false, data(t, 1, false, half), about(mib / 2)}},
		"half of a message, and the end": {{false, data(t, 1, true, half), about(mib / 2)},
			{true, ended(t, 1), nothing}},
		"half of a message, which is reset": {{false, data(t, 1, false, half), about(mib / 2)},
			{false, wasReset(t, 1), nothing}},
		"half of a message, to which is answered": {{false, data(t, 1, false, half), about(mib / 2)},
			{true, ended(t, 1), nothing}},
		"what comes when the server has reset": {{true, wasReset(t, 1), nothing}, {false, data(t, 1, false, half), nothing},
			{false, data(t, 1, true, half), nothing}},
		"a message without the end of its call": {{false, whole, about(mib)}, {true, windowed(t, 1, mib), about(mib)},
			{false, data(t, 1, true, nil), nothing}},
		"a message that is answered on an open stream": {{false, whole, about(mib)},
			{true, windowed(t, 1, mib+prefixBytes), about(mib)}, {true, data(t, 1, false, message(5)), nothing}},
		"two messages, of which one is read": {{false, whole, about(mib)},
			{true, windowed(t, 1, mib+prefixBytes), about(mib)},
			{false, data(t, 1, false, half), about(mib / 2)}},
		"messages that nobody reads": {{false, slices.Concat(whole, whole, whole),
			[2]int64{3*mib - StreamWindow/4, 3*mib + mib/8}}, {true, ended(t, 1), nothing}},
		"a window that is opened ahead": {{false, data(t, 1, false, message(mib)[:10]), [2]int64{10, 200}},
			{true, windowed(t, 1, mib), [2]int64{10, 200}},
			{false, data(t, 1, false, message(mib)[10:mib/2]), about(mib / 2)},
			{false, data(t, 1, true, message(mib)[mib/2:]), nothing}},
		"frames of one byte": {{false, slices.Concat(data(t, 1, false, message(mib)[:prefixBytes]), one),
			[2]int64{64 * kib * frameBytes, 64 * kib * (frameBytes + 8)}}, {true, ended(t, 1), nothing}},
		"padding": {{false, padded, [2]int64{50, 400}}, {false, padEnd, nothing}},
		"another stream": {{false, data(t, 1, false, half), about(mib / 2)},
			{false, data(t, 3, true, message(10)), about(mib / 2)}, {true, ended(t, 3), about(mib / 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, cut := range []int{1 << 30, 4000, 7} {
				c := newCounted()
				for i, s := range steps {
					for part := range slices.Chunk(s.sent, cut) {
						if s.server {
							c.wrote(part)
						} else {
							c.frames.take(part, 1<<40)
						}
					}
					if got := c.bytes.Load(); got < s.holds[0] || got > s.holds[1] || got != c.all.Load() {
						t.Errorf("in parts of %d bytes, after step %d: %d bytes are held, %d in all, want %d", cut, i, got,
							c.all.Load(), s.holds)
					}
				}
				c.close()
				if got := c.all.Load(); got != 0 {
					t.Errorf("%d bytes are held of a closed connection", got)
				}
			}
		})
	}
}

// TestStreamsThatWereResetAreForgotten checks that a server that refuses many calls does not remember many of their
// streams.
func TestStreamsThatWereResetAreForgotten(t *testing.T) {
	c := newCounted()
	for n := range uint32(10 * endedMax) {
		c.wrote(wasReset(t, 2*n+1))
		if len(c.streams) > endedMax+1 || int64(len(c.streams)) != c.open.Load() {
			t.Fatalf("%d streams are remembered, %d open", len(c.streams), c.open.Load())
		}
	}
}

// FuzzMessages sends arbitrary bytes from the client and the server. They must not cause a panic, and the count of held
// bytes must be 0 at the end.
func FuzzMessages(f *testing.F) {
	f.Add(data(f, 1, false, message(100)), data(f, 1, true, nil), uint8(3))
	f.Add(data(f, 1, true, message(100)[:50]), slices.Concat(wasReset(f, 1), windowed(f, 1, 30), ended(f, 1)), uint8(100))
	f.Fuzz(func(t *testing.T, client, server []byte, cut uint8) {
		c := newCounted()
		for len(client)+len(server) > 0 {
			n, m := min(len(client), int(cut)+1), min(len(server), int(cut)+1)
			c.frames.take(client[:n], 0)
			c.wrote(server[:m])
			client, server = client[n:], server[m:]
			sum := int64(0)
			for _, s := range c.streams {
				if s.counted < 0 || s.memory < 0 {
					t.Errorf("a stream of %+v", s)
				}
				sum += s.counted
			}
			if sum != c.bytes.Load() || sum != c.all.Load() || int64(len(c.streams)) != c.open.Load() {
				t.Errorf("streams hold %d, the connection %d, all %d", sum, c.bytes.Load(), c.all.Load())
			}
		}
		c.close()
		if got := c.all.Load(); got != 0 {
			t.Errorf("%d bytes are held of a closed connection", got)
		}
	})
}

// TestSlowMessageClosesConnection checks that a connection is closed if a message takes longer than messageTime to
// arrive, even if nothing more arrives at all.
func TestSlowMessageClosesConnection(t *testing.T) {
	for name, c := range map[string]struct {
		sent, answer   []byte
		closed, exempt bool
	}{
		"half of a message of a gateway":        {sent: data(t, 1, false, message(1 << 20)[:1000]), exempt: true},
		"half of a message":                     {sent: data(t, 1, false, message(1 << 20)[:1000]), closed: true},
		"a message without the end of its call": {sent: data(t, 1, false, message(firstBytesMin)), closed: true},
		"a small message on an open stream":     {sent: data(t, 1, false, message(1000))},
		"a stream that is answered": {sent: data(t, 1, false, message(firstBytesMin)),
			answer: data(t, 1, false, message(5))},
		"a stream that the server does not read": {sent: data(t, 1, false, message(1 << 20)[:StreamWindow-1])},
		"no message":                             {sent: data(t, 1, true, message(1000))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New(Config{MessagesOnly: true, Exempt: func(credentials.AuthInfo) bool { return c.exempt }})
				server, client := acceptConn(t, g)
				go func() {
					_, _ = client.Write(append([]byte(http2.ClientPreface), c.sent...))
					_, _ = io.Copy(io.Discard, client)
				}()
				read := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, server)
					read <- err
				}()
				synctest.Wait()
				if len(c.answer) > 0 {
					if _, err := server.Write(c.answer); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(2 * messageTime)
				synctest.Wait()
				if closed := len(read) > 0; closed != c.closed || g.limitedBy(reasonLate) > 0 != c.closed {
					t.Errorf("closed: %v, counted: %d", closed, g.limitedBy(reasonLate))
				}
				_ = server.Close()
				if <-read; g.held.Load()+g.exempt.Load() != 0 {
					t.Errorf("%d bytes are held of a closed connection", g.held.Load())
				}
			})
		})
	}
}

// TestConnectionThatHoldsMostIsClosed checks that if all connections together hold too much memory, only the one that
// holds the most is closed.
func TestConnectionThatHoldsMostIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MessagesOnly: true, HeldBytesMax: 10 << 20})
		var read [5]chan error
		for i := range read {
			server, client := acceptConn(t, g)
			read[i] = make(chan error, 1)
			size := 1 << 20
			if i == 2 {
				size = 7 << 20
			}
			content := append([]byte(http2.ClientPreface), data(t, 1, false, message(8 << 20)[:size])...)
			go func() { _, _ = client.Write(content) }()
			go func() {
				_, err := io.Copy(io.Discard, server)
				read[i] <- err
			}()
			synctest.Wait()
		}
		for i := range read {
			if closed := len(read[i]) > 0; closed != (i == 2) {
				t.Errorf("connection %d: closed %v", i, closed)
			}
		}
		if n, held := g.limitedBy(reasonHeld), g.held.Load(); n != 1 || held < 4<<20 || held > 5<<20 {
			t.Errorf("%d are closed, %d bytes are held", n, held)
		}
	})
}

// TestOpenCallsAreHeld checks how much memory open calls count for. The first few calls on a connection count for
// nothing. Every further call counts as if it had the largest headers, until the server has ended it. If too much
// memory is held, the connection that holds the most is closed.
func TestOpenCallsAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, headers = 100, 15 << 10
		g := New(Config{MessagesOnly: true, HeldBytesMax: 2 * calls * (headers + openBytes)})
		type made struct {
			server, client net.Conn
			calls          *Calls
			read           chan error
		}
		open := func() *made {
			t.Helper()
			raw, client := net.Pipe()
			server, info, err := g.Credentials(anonymousCreds{insecure.NewCredentials()}).ServerHandshake(raw)
			must.OK(t, err)
			c := &made{server: server, client: client, calls: info.(Counted).Calls(), read: make(chan error, 1)}
			go func() { _, _ = io.Copy(io.Discard, client) }()
			go func() {
				_, err := io.Copy(io.Discard, server)
				c.read <- err
			}()
			t.Cleanup(func() { _, _ = server.Close(), client.Close() })
			return c
		}
		begin := func(c *made, first, last uint32) {
			requests := []byte{}
			if first == 0 {
				requests = []byte(http2.ClientPreface)
			}
			for n := first; n < last; n++ {
				requests = append(requests, frameOf(t, func(f *http2.Framer) error {
					return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, EndHeaders: true,
						BlockFragment: make([]byte, 20)})
				})...)
			}
			go func() { _, _ = c.client.Write(requests) }()
			synctest.Wait()
		}
		few, many := open(), open()
		for _, c := range []*made{few, many} {
			c.calls.Headers(metadata.MD{"x": {string(make([]byte, headers-1))}})
			c.calls.Headers(metadata.MD{"small": {"y"}})
		}
		begin(few, 0, openFree)
		if held := g.held.Load(); held != 0 {
			t.Errorf("%d bytes are held by a connection with few calls", held)
		}
		begin(few, openFree, calls)
		if held := g.held.Load(); held != (calls-openFree)*(headers+openBytes) {
			t.Errorf("%d bytes are held by %d calls", held, calls)
		}
		begin(many, 0, 2*calls)
		// The limit is exceeded now. The server notices that before its next read.
		begin(many, 2*calls, 2*calls+1)
		if len(few.read) > 0 || len(many.read) == 0 || g.limitedBy(reasonHeld) != 1 {
			t.Errorf("closed are the connection with fewer calls: %v, with more: %v", len(few.read) > 0, len(many.read) > 0)
		}
		for n := range uint32(calls) {
			if _, err := few.server.Write(ended(t, 2*n+1)); err != nil {
				t.Fatal(err)
			}
		}
		if held := g.held.Load(); held != 0 {
			t.Errorf("%d bytes are held after all calls", held)
		}
	})
}

// TestInvalidStreamsStillCount checks that calls are still counted after a frame with the reserved bit
// or with an invalid stream number.
func TestInvalidStreamsStillCount(t *testing.T) {
	headers := func(ids ...uint32) (b []byte) {
		b = []byte(http2.ClientPreface)
		for _, id := range ids {
			f := frameOf(t, func(f *http2.Framer) error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, BlockFragment: make([]byte, 20)})
			})
			binary.BigEndian.PutUint32(f[5:], id)
			b = append(b, f...)
		}
		return b
	}
	for name, c := range map[string]struct {
		sent    []byte
		illegal bool
		open    int
	}{
		"ascending":        {headers(1, 3, 9), false, 3},
		"the reserved bit": {headers(1<<31|1, 3, 1<<31|5), false, 3},
		"again":            {headers(1, 1), true, 1},
		"descending":       {headers(1<<31-1, 1), true, 1},
		"even":             {headers(2), true, 0},
		"zero":             {headers(0), true, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := New(Config{MessagesOnly: true})
			server, client := acceptConn(t, g)
			go func() { _, _ = client.Write(c.sent) }()
			read := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, server)
				read <- err
			}()
			synctest.Wait()
			closed := len(read) > 0
			if closed != c.illegal || !closed && len(server.(*conn).messages.calls.open) != c.open {
				t.Errorf("%s: closed %v, open calls %v", name, closed, server.(*conn).messages.calls.open)
			}
		})
	}
}

// TestResetCallCountsUntilItsWriteIsDequeued checks that after the client has reset a call, the call still counts
// until gRPC's writer has removed it from its queue.
func TestResetCallCountsUntilItsWriteIsDequeued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, call = 2 * openFree, openBytes + 20
		g := New(Config{MessagesOnly: true})
		server, client := acceptConn(t, g)
		go func() { _, _ = io.Copy(io.Discard, server) }()
		next := uint32(1)
		begin := func() (sent, resets []byte) {
			for range calls {
				sent = append(sent, frameOf(t, func(f *http2.Framer) error {
					return f.WriteHeaders(http2.HeadersFrameParam{StreamID: next, EndHeaders: true, BlockFragment: make([]byte, 20)})
				})...)
				resets = append(resets, wasReset(t, next)...)
				next += 2
			}
			return sent, resets
		}
		send := func(b []byte) {
			if _, err := client.Write(b); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		holds := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if held := g.held.Load(); held != want {
				t.Errorf("%s: %d bytes are held, want %d", when, held, want)
			}
		}
		send([]byte(http2.ClientPreface))
		sent, resets := begin()
		send(sent)
		holds("open", (calls-openFree)*call)
		send(resets)
		holds("reset while nothing is written", 0)
		sent, resets = begin()
		send(sent)
		// The zeros form empty DATA frames of stream 0, which do not add to the held bytes.
		write := func(n int) { _, _ = server.Write(make([]byte, n)) }
		go write(WriteBufferBytes)
		synctest.Wait()
		send(resets)
		holds("reset while a write waits", (calls-openFree)*call)
		read := make([]byte, WriteBufferBytes)
		if _, err := io.ReadFull(client, read); err != nil {
			t.Fatal(err)
		}
		holds("the buffer was full, so that there is more to write", (calls-openFree)*call)
		go write(frameHeaderBytes)
		holds("everything was written", 0)
	})
}

// anonymousCreds are the credentials of a server that never identifies callers during the handshake.
type anonymousCreds struct {
	credentials.TransportCredentials
}

// anonymousInfo is the AuthInfo of a connection that was accepted with strangers.
type anonymousInfo struct {
	credentials.AuthInfo
	calls *Calls
}

func (s anonymousInfo) Calls() *Calls { return s.calls }

func (s anonymousCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	return conn, anonymousInfo{info, new(Calls)}, err
}

func nobody(credentials.AuthInfo) bool { return false }

// TestUnknownCallersHoldLittle checks that a connection may hold only a small amount of memory until a call on it is
// admitted, and that the number of such connections is limited.
func TestUnknownCallersHoldLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MessagesOnly: true, Known: nobody})
		creds := g.Credentials(anonymousCreds{insecure.NewCredentials()})
		open := func(sent []byte, admitted bool) <-chan error {
			raw, client := net.Pipe()
			server, info, err := creds.ServerHandshake(raw)
			must.OK(t, err)
			t.Cleanup(func() { _, _ = server.Close(), client.Close() })
			if admitted {
				info.(Counted).Calls().Admit()
			}
			go func() { _, _ = client.Write(append([]byte(http2.ClientPreface), sent...)) }()
			read := make(chan error, 1)
			go func() {
				_, err := io.CopyBuffer(io.Discard, onlyRead{server}, make([]byte, 4096))
				read <- err
			}()
			synctest.Wait()
			return read
		}
		half := data(t, 1, false, message(8 << 20)[:1<<20])
		known, not := open(half, true), open(half, false)
		if len(known) > 0 || g.held.Load() < 1<<20 {
			t.Errorf("a known one: %d bytes are held", g.held.Load())
		}
		if err := <-not; !errors.Is(err, errHeld) || g.limitedBy(reasonHeld) != 1 {
			t.Errorf("one that is not known: %v", err)
		}
		var all []<-chan error
		for range unknownMax + 10 {
			all = append(all, open(nil, false))
		}
		for i, read := range all {
			// The first connection in the list is one on which a call was admitted. It is removed from the list, but is not
			// closed.
			if closed := len(read) > 0; closed != (i < 10) {
				t.Errorf("connection %d: closed %v", i, closed)
			}
		}
		if len(known) > 0 || g.limitedBy(reasonUnknown) != 10 {
			t.Errorf("%d are closed", g.limitedBy(reasonUnknown))
		}
	})
}

// onlyRead hides all methods of a connection except Read.
type onlyRead struct{ io.Reader }

// TestRefusedCallsAreReadSlowly checks that the server reads more slowly after it has refused calls, because each
// refusal costs it a decision.
func TestRefusedCallsAreReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Known: nobody})
		raw, client := net.Pipe()
		server, info, err := g.Credentials(anonymousCreds{insecure.NewCredentials()}).ServerHandshake(raw)
		must.OK(t, err)
		defer func() { _, _ = server.Close(), client.Close() }()
		begun := time.Now()
		go func() {
			_, _ = client.Write(append([]byte(http2.ClientPreface), settingsOf(t, 1)...))
			_ = client.Close()
		}()
		for range creditFirst + excessAtOnce + 2*excessPerSecond {
			info.(Counted).Calls().Refuse()
		}
		if _, err := io.Copy(io.Discard, server); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun).Round(100 * time.Millisecond); took != 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestCallsOfAnybodyAreFew checks the limits on calls and headers for a connection whose caller is unknown.
func TestCallsOfAnybodyAreFew(t *testing.T) {
	calls := new(Calls)
	ctx, cancel := context.WithCancel(t.Context())
	long := metadata.Pairs("x", string(make([]byte, anonymousBytesMax)))
	if err := calls.Anonymous(ctx, long); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("long headers: %v", err)
	}
	for n := range anonymousCallsMax + 1 {
		if err := calls.Anonymous(ctx, nil); (err == nil) != (n < anonymousCallsMax) {
			t.Errorf("call %d: %v", n, err)
		}
	}
	cancel()
	for calls.anonymous.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if err := calls.Anonymous(ctx, nil); err != nil {
		t.Errorf("when those before have ended: %v", err)
	}
	calls.Admit()
	if err := calls.Anonymous(ctx, long); err != nil {
		t.Errorf("of a known caller: %v", err)
	}
}

// echo sends each message back until the caller ends the stream.
func echo(_ any, stream grpc.ServerStream) error {
	for {
		in := &healthv1.HealthCheckRequest{}
		if err := stream.RecvMsg(in); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := stream.SendMsg(in); err != nil {
			return err
		}
	}
}

// TestNothingIsHeldAfterCalls checks that the count of held bytes is 0 after various gRPC calls: large and small ones,
// streams with responses, calls that are cancelled, and calls that are refused as soon as their headers have arrived.
func TestNothingIsHeldAfterCalls(t *testing.T) {
	g := New(Config{MessagesOnly: true})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.OK(t, err)
	server := grpc.NewServer(grpc.Creds(g.Credentials(insecure.NewCredentials())), grpc.InitialWindowSize(StreamWindow),
		grpc.InitialConnWindowSize(4<<20), grpc.UnknownServiceHandler(echo))
	healthv1.RegisterHealthServer(server, slowHealth{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	made, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.OK(t, err)
	defer func() { _ = made.Close() }()
	client := healthv1.NewHealthClient(made)
	large := &healthv1.HealthCheckRequest{Service: string(make([]byte, 3<<20))}
	var most atomic.Int64
	for range 20 {
		if _, err := client.Check(t.Context(), large); err != nil {
			t.Fatal(err)
		}
		most.Store(max(most.Load(), g.held.Load()))
	}
	stream, err := made.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/x/y")
	must.OK(t, err)
	for n := range 200 {
		in := large
		if n%10 > 0 {
			in = &healthv1.HealthCheckRequest{Service: string(make([]byte, 100*n))}
		}
		must.OK(t, stream.SendMsg(in))
		must.OK(t, stream.RecvMsg(&healthv1.HealthCheckRequest{}))
		if held := g.held.Load(); held > StreamWindow {
			t.Fatalf("%d bytes are held of an open stream, all of whose messages are answered", held)
		}
	}
	must.OK(t, stream.CloseSend())
	if err := stream.RecvMsg(&healthv1.HealthCheckRequest{}); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped, err := made.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/x/y")
	must.OK(t, err)
	must.OK(t, stopped.SendMsg(large))
	cancel()
	for g.held.Load() > 0 {
		time.Sleep(time.Millisecond) // waits until the server has noticed that the calls have ended
	}
}

// TestUnknownCallersAreNotReadAhead checks how far the server reads ahead. If the caller is not known, the server
// reads only a few calls more than it has answered, because gRPC keeps each call until its response is written. If
// the caller is known, or cannot be identified yet, the server reads further calls, because the messages of earlier
// ones may still have to arrive.
func TestUnknownCallersAreNotReadAhead(t *testing.T) {
	for name, decided := range map[string]func(*Calls){"admitted": (*Calls).Admit, "undecided": (*Calls).Undecided} {
		t.Run(name, func(t *testing.T) { readAsAnswered(t, decided) })
	}
}

func readAsAnswered(t *testing.T, decided func(*Calls)) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MessagesOnly: true, Known: nobody})
		raw, client := net.Pipe()
		server, info, err := g.Credentials(anonymousCreds{insecure.NewCredentials()}).ServerHandshake(raw)
		must.OK(t, err)
		defer func() { _, _ = server.Close(), client.Close() }()
		const calls, callBytes = 200, 209
		requests := []byte(http2.ClientPreface)
		for n := range uint32(calls) {
			requests = append(requests, frameOf(t, func(f *http2.Framer) error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, EndHeaders: true,
					BlockFragment: make([]byte, 200)})
			})...)
		}
		var read atomic.Int64
		go func() { _, _ = client.Write(requests) }()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		go func() {
			for into := make([]byte, 32<<10); ; {
				n, err := server.Read(into)
				if read.Add(int64(n)); err != nil {
					return
				}
			}
		}()
		unanswered := calls
		reads := func(min, max int) {
			t.Helper()
			synctest.Wait()
			got := int(read.Load()-clientPrefaceBytes)/callBytes - (calls - unanswered)
			if got < min || got > max {
				t.Fatalf("%d calls more than answered are read, want %d to %d", got, min, max)
			}
		}
		answer := func(n int, b []byte) {
			t.Helper()
			if _, err := server.Write(b); err != nil {
				t.Fatal(err)
			}
			unanswered -= n
		}
		const most = unansweredMax + slowBytes/callBytes
		reads(unansweredMax, most)
		answer(0, data(t, 1, false, message(5)))
		reads(unansweredMax, most)
		answer(3, slices.Concat(ended(t, 1), ended(t, 3), wasReset(t, 5)))
		reads(unansweredMax, most)
		// None of these responses belongs to a call that is still open.
		answer(0, slices.Concat(ended(t, 1), ended(t, 3), wasReset(t, 5)))
		reads(unansweredMax, most)
		decided(info.(Counted).Calls())
		answer(1, ended(t, 7))
		reads(unanswered, calls)
	})
}
