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
// identified. They exist because every open call occupies memory for its headers and a goroutine.
const (
	anonymousCallsMax = 4
	anonymousBytesMax = 4 << 10 // bytes of header names and values in such a call
)

// Calls records a server's decisions about the calls on one connection. Safe for concurrent use.
type Calls struct {
	admitted  atomic.Bool
	undecided atomic.Bool
	refused   atomic.Int64
	anonymous atomic.Int64
	headers   atomic.Int64 // bytes of the largest call headers so far; 0 if unknown
}

// Counted is implemented by the credentials.AuthInfo of connections that have a Calls.
type Counted interface{ Calls() *Calls }

// CallsOf returns the Calls of the connection on which a call arrived. If the connection has none, the result is a new
// Calls that limits nothing.
func CallsOf(ctx context.Context) *Calls {
	if p, ok := peer.FromContext(ctx); ok {
		if counted, ok := p.AuthInfo.(Counted); ok {
			return counted.Calls()
		}
	}
	return unlimited()
}

// unlimited returns a Calls that limits nothing, for connections whose decisions are not recorded.
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

// Headers records the size of a call's headers, which the server keeps until it has written the call's last frame.
// Invocations of Headers must not overlap.
func (c *Calls) Headers(headers metadata.MD) {
	if bytes := bytesOf(headers); bytes > c.headers.Load() {
		c.headers.Store(bytes)
	}
}

// bytesOf returns the total number of bytes of the headers' names and values.
func bytesOf(headers metadata.MD) (bytes int64) {
	for name, values := range headers {
		for _, value := range values {
			bytes += int64(len(name) + len(value))
		}
	}
	return bytes
}

// Undecided records that a call waits because its caller cannot be identified yet. From then on, the server reads what
// follows the headers, regardless of how many calls wait.
func (c *Calls) Undecided() { c.undecided.Store(true) }

// Refuse records that the server has refused a call by its headers.
func (c *Calls) Refuse() { c.refused.Add(1) }

// Anonymous admits a call that anybody may make. The call counts as open until ctx is done. Anonymous returns
// RESOURCE_EXHAUSTED if no caller was identified on the connection, and too many such calls are open or the headers
// have too many bytes.
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
