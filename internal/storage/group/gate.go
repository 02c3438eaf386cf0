package group

import (
	"sync/atomic"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// gate guards the access to a log: reads enter it, and Close shuts it. It is safe for concurrent use. A caller that
// has entered must not wait for writer.mu, because Close holds writer.mu while it waits for those callers.
type gate struct {
	closed  atomic.Bool
	readers atomic.Int64 // reads in progress
}

// usable returns an error unless the log is open.
func (g *gate) usable() error {
	if g.closed.Load() {
		return format.ErrClosed
	}
	return nil
}

// enter begins a read; the caller must call leave.
func (g *gate) enter() error {
	g.readers.Add(1)
	if g.closed.Load() {
		g.leave()
		return format.ErrClosed
	}
	return nil
}

// leave ends a read.
func (g *gate) leave() { g.readers.Add(-1) }
