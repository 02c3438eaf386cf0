package liveness

import (
	"testing"
	"time"
)

// After a tenure, a call that began to wait during the tenure is aborted. A stream whose messages all arrive is not
// aborted.
func TestOnlyWhatStillWaitsIsDisconnected(t *testing.T) {
	p := New(Options{})
	defer p.Close()
	moves, hangs := p.Tenure(), p.Tenure()
	waits, cut, early := moves.Begin(), make(chan struct{}), make(chan struct{}, 1)
	hangs.Begin()
	moves.End(waits)
	moves.Over(time.Millisecond, func() { early <- struct{}{} })
	again := moves.Begin() // the wait for the next message of the stream
	hangs.Over(100*time.Millisecond, func() { close(cut) })
	<-cut
	moves.End(again)
	if len(early) > 0 || again {
		t.Error("a stream that goes on was cut")
	}
}
