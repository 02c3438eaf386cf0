package serve

import (
	"context"
	"sync/atomic"
	"time"
)

// turns bounds how many scans read their log at the same time: each then holds buffers of the log, up to
// group.ScanBufferBytes if it reads ahead. Later scans queue. Safe for concurrent use.
type turns struct {
	slots   chan struct{}
	waiting atomic.Int64
}

// turnTime is how long a scan continues to read while others queue.
const turnTime = 500 * time.Millisecond

func newTurns(most int) *turns { return &turns{slots: make(chan struct{}, most)} }

// begin waits for a turn; if it returns nil, end must follow.
func (t *turns) begin(ctx context.Context) error {
	select {
	case t.slots <- struct{}{}:
		return nil
	default:
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	select {
	case t.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end passes the turn to the scan that has waited longest.
func (t *turns) end() { <-t.slots }

// wanted reports whether other scans wait for a turn.
func (t *turns) wanted() bool { return t.waiting.Load() > 0 }
