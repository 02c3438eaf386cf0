package ratelimit

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// These limits apply to the calls that anybody may make (health checks), on a connection whose caller is not
// identified. They exist because every open call holds its headers and a goroutine.
const (
	anonymousCallsMax = 4
	anonymousBytesMax = 4 << 10 // bytes of the names and values in the headers
)

// Calls holds what a server has decided about the calls of one connection. Safe for concurrent use.
type Calls struct {
	admitted  atomic.Bool
	undecided atomic.Bool
	refused   atomic.Int64
	anonymous atomic.Int64
	headers   atomic.Int64 // bytes of the largest headers of a call; 0: not known
}

// Counted is implemented by the credentials.AuthInfo of connections that have a Calls.
type Counted interface{ Calls() *Calls }

// CallsOf returns the Calls of the connection of a call. If the connection has none, the result is a new one, which
// limits nothing.
func CallsOf(ctx context.Context) *Calls {
	if p, ok := peer.FromContext(ctx); ok {
		if counted, ok := p.AuthInfo.(Counted); ok {
			return counted.Calls()
		}
	}
	return unlimited()
}

// unlimited returns the Calls of a connection about whose calls nothing is decided.
func unlimited() *Calls {
	c := new(Calls)
	c.Admit()
	return c
}

// Admit records that a caller of the store was identified on the connection.
func (c *Calls) Admit() {
	if !c.admitted.Load() {
		c.admitted.Store(true)
	}
}

// Headers records the size of a call's headers, which the server holds until it has written the end of the call. It is
// called by one goroutine at a time.
func (c *Calls) Headers(headers metadata.MD) {
	if bytes := bytesOf(headers); bytes > c.headers.Load() {
		c.headers.Store(bytes)
	}
}

// bytesOf returns the bytes of the names and values of headers.
func bytesOf(headers metadata.MD) (bytes int64) {
	for name, values := range headers {
		for _, value := range values {
			bytes += int64(len(name) + len(value))
		}
	}
	return bytes
}

// Undecided records that a call continues although its caller cannot be identified yet. The server then reads what
// follows the headers, however many calls wait for it.
func (c *Calls) Undecided() { c.undecided.Store(true) }

// Refuse records that a call was refused when only its headers had arrived.
func (c *Calls) Refuse() { c.refused.Add(1) }

// Anonymous begins a call that anybody may make. The call ends when ctx ends. If no caller was identified on the
// connection, Anonymous returns RESOURCE_EXHAUSTED if too many such calls are open or if the headers have too many
// bytes.
func (c *Calls) Anonymous(ctx context.Context, headers metadata.MD) error {
	if c.admitted.Load() {
		return nil
	}
	if bytes := bytesOf(headers); bytes > anonymousBytesMax {
		c.refused.Add(1)
		return status.Errorf(codes.ResourceExhausted,
			"the call has %d bytes of headers, and a caller whom the store does not know may send %d", bytes,
			anonymousBytesMax)
	}
	if c.anonymous.Add(1) > anonymousCallsMax {
		c.anonymous.Add(-1)
		c.refused.Add(1)
		return status.Errorf(codes.ResourceExhausted,
			"the connection has %d calls open, which is the most for a caller whom the store does not know", anonymousCallsMax)
	}
	context.AfterFunc(ctx, func() { c.anonymous.Add(-1) })
	return nil
}
