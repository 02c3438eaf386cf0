package serve

import (
	"context"
	"sync/atomic"
	"time"
)

// turns bounds how many scans read their log at the same time: each holds buffers of the log then, up to
// group.ScanBufferBytes where it reads ahead. Who comes later waits in line. Safe for concurrent use.
type turns struct {
	slots   chan struct{}
	waiting atomic.Int64
}

// turnTime is how long a scan reads on while others wait in line.
const turnTime = 500 * time.Millisecond

func newTurns(most int) *turns { return &turns{slots: make(chan struct{}, most)} }

// begin waits for a turn; end must follow where it answers nil.
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

// end gives the turn to the one that has waited longest.
func (t *turns) end() { <-t.slots }

// wanted says that others wait.
func (t *turns) wanted() bool { return t.waiting.Load() > 0 }
