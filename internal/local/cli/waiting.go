package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
)

const (
	noteAfter = time.Second // if a command has no answer after this time, it prints a note
	probeTime = time.Second // time limit of the read that determines the reason for the wait
)

// waits observes the calls of a connection through interceptors, and prints at most one note, which tells the user at
// a terminal why a command is waiting. Safe for concurrent use.
type waits struct {
	conn  *Conn
	after time.Duration
	say   func(note string)

	begun    sync.Once
	answered atomic.Bool // whether an answer other than "try again" has arrived
	mu       sync.Mutex
	last     error // the last answer; guarded by mu
}

// NoteWaits makes the connection call say() if the first answer takes longer than a second. NoteWaits must be called
// before the first call. say() is called at most once, on another goroutine, with one line.
func (c *Conn) NoteWaits(say func(note string)) { c.noteWaits(noteAfter, say) }

func (c *Conn) noteWaits(after time.Duration, say func(string)) {
	c.waits.Store(&waits{conn: c, after: after, say: say})
}

// NoNotes turns off NoteWaits. It is for commands that show their progress.
func (c *Conn) NoNotes() { c.waits.Store(nil) }

// begin records the start of a call.
func (w *waits) begin(ctx context.Context, request any) {
	over := func() bool { return w.answered.Load() || ctx.Err() != nil }
	w.begun.Do(func() {
		time.AfterFunc(w.after, func() {
			if over() {
				return
			}
			if why := w.why(ctx, request); !over() {
				w.say(why)
			}
		})
	})
}

func (w *waits) end(err error) {
	w.mu.Lock()
	w.last = err
	w.mu.Unlock()
	if !Retryable(err) {
		w.answered.Store(true)
	}
}

// why returns a note that explains the wait. It takes the reason from the last answer, or from the answer to a small
// probe of the same group.
func (w *waits) why(ctx context.Context, request any) string {
	w.mu.Lock()
	err := w.last
	w.mu.Unlock()
	if err == nil {
		err = w.probe(ctx, request)
	}
	note := "waiting for an answer of " + w.conn.Server
	if err != nil && Retryable(err) {
		note += ": " + status.Convert(err).Message()
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < forever/2 {
		note += fmt.Sprintf("; for %v more at most", max(time.Until(deadline), 0).Round(time.Second))
	}
	return note + " (Ctrl-C ends it)"
}

// probe reads the metadata of the record that a request names, and returns the error from that read. If the request
// names no record, it returns nil.
func (w *waits) probe(ctx context.Context, request any) error {
	keyed, ok := request.(interface{ GetKey() *recordv1.RecordKey })
	if !ok || keyed.GetKey() == nil {
		return nil
	}
	return w.conn.whyOf(ctx, client.Key{ID: keyed.GetKey().GetId(), Group: keyed.GetKey().GetGroup()})
}

// whyOf reads a record with a short deadline, and returns the error from that read, which explains why calls to the
// record's group are waiting. It returns nil if the record can be read.
func (c *Conn) whyOf(ctx context.Context, key client.Key) error {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, probing{}, true), probeTime)
	defer cancel()
	_, err := c.Get(ctx, key, &client.GetOptions{MetadataOnly: true})
	return err
}

// probing is a context key that marks a probe, to distinguish it from the command's own calls.
type probing struct{}

// waitsOf returns the waits object that observes a call. It returns nil for calls that are not observed, such as health
// checks of a server.
func (c *Conn) waitsOf(ctx context.Context, method string) *waits {
	if ctx.Value(probing{}) != nil || !strings.HasPrefix(method, "/sheaf.") {
		return nil
	}
	return c.waits.Load()
}

func (c *Conn) unaryWaits(ctx context.Context, method string, in, out any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	w := c.waitsOf(ctx, method)
	if w == nil {
		return invoke(ctx, method, in, out, cc, options...)
	}
	w.begin(ctx, in)
	err := invoke(ctx, method, in, out, cc, options...)
	w.end(err)
	return err
}

func (c *Conn) streamWaits(
	ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := open(ctx, d, cc, method, options...)
	w := c.waitsOf(ctx, method)
	if w == nil || err != nil || d.ClientStreams { // a call that sends a stream may be slow because of the caller
		return stream, err
	}
	return &waitingStream{ClientStream: stream, waits: w}, nil
}

// waitingStream wraps a client stream, and reports the messages on it to waits.
type waitingStream struct {
	grpc.ClientStream
	waits *waits
}

func (s *waitingStream) SendMsg(m any) error {
	s.waits.begin(s.Context(), m)
	return s.ClientStream.SendMsg(m)
}

func (s *waitingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.waits.end(err)
	return err
}
