package liveness

import (
	"testing"
	"time"
)

// At the end of a tenure, a call that has waited since before that end is ended. A stream that is answered all the time
// is not ended.
func TestOnlyWhatStillWaitsIsDisconnected(t *testing.T) {
	p := New(Options{})
	defer p.Close()
	moves, hangs := p.Tenure(), p.Tenure()
	waits, cut, early := moves.Begin(), make(chan struct{}), make(chan struct{}, 1)
	hangs.Begin()
	moves.End(waits)
	moves.Over(time.Millisecond, func() { early <- struct{}{} })
	again := moves.Begin() // for the next message
	hangs.Over(100*time.Millisecond, func() { close(cut) })
	<-cut
	moves.End(again)
	if len(early) > 0 || again {
		t.Error("a stream that goes on was cut")
	}
}
