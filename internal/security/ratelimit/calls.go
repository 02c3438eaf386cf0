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

// Calls holds what a server has decided about the calls of one connection. Safe for concurrent use. The methods of a
// nil *Calls do nothing.
type Calls struct {
	admitted  atomic.Bool
	undecided atomic.Bool
	refused   atomic.Int64
	anonymous atomic.Int64
	headers   atomic.Int64 // bytes of the largest headers of a call
}

// Counted is implemented by the credentials.AuthInfo of connections that have a Calls.
type Counted interface{ Calls() *Calls }

// CallsOf returns the Calls of the connection of a call, or nil if the connection has none.
func CallsOf(ctx context.Context) *Calls {
	if p, ok := peer.FromContext(ctx); ok {
		if counted, ok := p.AuthInfo.(Counted); ok {
			return counted.Calls()
		}
	}
	return nil
}

// Admit records that a caller of the store was identified on the connection.
func (c *Calls) Admit() {
	if c != nil && !c.admitted.Load() {
		c.admitted.Store(true)
	}
}

// Headers records the size of a call's headers, which the server holds until it has written the end of the call. It is
// called by one goroutine at a time.
func (c *Calls) Headers(headers metadata.MD) {
	if c == nil {
		return
	}
	if bytes := bytesOf(headers); bytes > c.headers.Load() {
		c.headers.Store(bytes)
	}
}

// largestHeaders returns the bytes of the largest headers so far; 0: they are not known.
func (c *Calls) largestHeaders() int64 {
	if c == nil {
		return 0
	}
	return c.headers.Load()
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
func (c *Calls) Undecided() {
	if c != nil {
		c.undecided.Store(true)
	}
}

// Refuse records that a call was refused when only its headers had arrived.
func (c *Calls) Refuse() {
	if c != nil {
		c.refused.Add(1)
	}
}

// Anonymous begins a call that anybody may make. The call ends when ctx ends. If no caller was identified on the
// connection, Anonymous returns RESOURCE_EXHAUSTED if too many such calls are open or if the headers have too many
// bytes.
func (c *Calls) Anonymous(ctx context.Context, headers metadata.MD) error {
	if c == nil || c.admitted.Load() {
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
