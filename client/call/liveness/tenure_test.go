package liveness

import (
	"testing"
	"time"
)

// When a tenure ends, a call that has been waiting since before the end is aborted. A stream whose messages still
// arrive is not aborted.
func TestOnlyWaitingCallsAreAborted(t *testing.T) {
	p := New(Options{})
	defer p.Close()
	moves, hangs := p.Tenure(), p.Tenure()
	waits, cut, early := moves.Begin(), make(chan struct{}), make(chan struct{}, 1)
	hangs.Begin()
	moves.End(waits)
	moves.Over(time.Millisecond, func() { early <- struct{}{} })
	again := moves.Begin() // the stream waits for its next message
	hangs.Over(100*time.Millisecond, func() { close(cut) })
	<-cut
	moves.End(again)
	if len(early) > 0 || again {
		t.Error("a stream that goes on was cut")
	}
}
