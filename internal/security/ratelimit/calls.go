package ratelimit

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// These limits apply to calls that anybody may make, such as health checks, on a connection whose caller is not
// identified. They are needed because each open call takes memory for its headers and for a goroutine.
const (
	anonymousCallsMax = 4
	anonymousBytesMax = 4 << 10 // maximum number of bytes in the names and values of such a call's headers
)

// Calls records what the server has decided about the calls on one connection. It is safe for concurrent use.
type Calls struct {
	admitted  atomic.Bool
	undecided atomic.Bool
	refused   atomic.Int64
	anonymous atomic.Int64
	headers   atomic.Int64 // size in bytes of the largest headers of a call so far; 0 if unknown
}

// Counted is implemented by a credentials.AuthInfo whose connection has a Calls.
type Counted interface{ Calls() *Calls }

// CallsOf returns the Calls of the connection on which a call arrived. If the connection has none, CallsOf returns a
// new one that limits nothing.
func CallsOf(ctx context.Context) *Calls {
	if p, ok := peer.FromContext(ctx); ok {
		if counted, ok := p.AuthInfo.(Counted); ok {
			return counted.Calls()
		}
	}
	return unlimited()
}

// unlimited returns a Calls that limits nothing. It is for connections on which decisions are not recorded.
func unlimited() *Calls {
	c := new(Calls)
	c.Admit()
	return c
}

// Admit records that a caller of the store was identified on this connection.
func (c *Calls) Admit() {
	if !c.admitted.Load() {
		c.admitted.Store(true)
	}
}

// Headers records the size of a call's headers. The server keeps the headers until it has written the last frame of
// the call. Headers must not be called by several goroutines at the same time.
func (c *Calls) Headers(headers metadata.MD) {
	if bytes := bytesOf(headers); bytes > c.headers.Load() {
		c.headers.Store(bytes)
	}
}

// bytesOf returns the total length of the names and values of the headers.
func bytesOf(headers metadata.MD) (bytes int64) {
	for name, values := range headers {
		for _, value := range values {
			bytes += int64(len(name) + len(value))
		}
	}
	return bytes
}

// Undecided records that a call has to wait because its caller cannot be identified yet. From then on, the server
// keeps reading from the connection, no matter how many calls are waiting. If it stopped reading, the messages of the
// waiting calls might never arrive.
func (c *Calls) Undecided() { c.undecided.Store(true) }

// Refuse records that the server has refused a call as soon as its headers had arrived.
func (c *Calls) Refuse() { c.refused.Add(1) }

// Anonymous admits a call that anybody may make. The call counts as open until ctx is done. If no caller was
// identified on the connection, Anonymous returns RESOURCE_EXHAUSTED when too many such calls are open or when the
// headers are too large.
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
