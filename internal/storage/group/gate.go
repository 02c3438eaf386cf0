package group

import (
	"runtime"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// gate guards the access to a log: reads enter it, and Close shuts it. Safe for concurrent use. A caller inside must
// not wait for writer.mu: Close holds writer.mu while it waits for the callers inside.
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

// awaitReaders waits until the last reader has left. The gate is shut.
func (g *gate) awaitReaders() {
	for g.readers.Load() > 0 { // reads are short, and Close is rare
		runtime.Gosched()
	}
}
