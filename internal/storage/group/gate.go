package group

import (
	"runtime"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// gate is the entrance of a log: reads go through it, and Close shuts it. Safe for concurrent use. Whoever is in must
// not wait for writer.mu: Close holds that while it waits for those that are in.
type gate struct {
	closed  atomic.Bool
	readers atomic.Int64 // reads under way
}

// usable tells whether the log is open.
func (g *gate) usable() error {
	if g.closed.Load() {
		return format.ErrClosed
	}
	return nil
}

// enter begins a read; leave must follow.
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

// awaitReaders returns when the last reader is out. The gate is shut.
func (g *gate) awaitReaders() {
	for g.readers.Load() > 0 { // reads are short, and Close is rare
		runtime.Gosched()
	}
}
