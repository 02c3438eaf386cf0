package liveness

import (
	"sync/atomic"
	"time"
)

// Tenure is the period in which a server is responsible for something, such as a group that it leads. When another
// server becomes responsible, a call that the first server accepted earlier may never get a response. For example, a
// read waits forever if the disk hangs. The server still responds to other calls, so a Pulse does not consider it
// hung. The zero value and nil do nothing. Tenure is safe for concurrent use.
type Tenure struct {
	pulse   *Pulse
	over    atomic.Bool
	waiting atomic.Int64 // number of waits that began during the tenure and have not ended
}

// Tenure starts a tenure of this server.
func (p *Pulse) Tenure() *Tenure { return &Tenure{pulse: p} }

// Begin counts a call or a stream that starts to wait for its next response. When the wait ends, the caller must pass
// Begin's result to End. A wait that begins after the tenure is not counted, because the server still answers a stream
// that continues.
func (t *Tenure) Begin() (counted bool) {
	if t == nil || t.over.Load() {
		return false
	}
	t.waiting.Add(1)
	return true
}

// End removes a wait from the count. The argument is the result of Begin.
func (t *Tenure) End(counted bool) {
	if counted {
		t.waiting.Add(-1)
	}
}

// Over ends the tenure, because another server is responsible now. If a wait that started before does not end within
// the duration patience, Over closes the connections to this server, which aborts the calls on them. Then it calls the
// function cut.
func (t *Tenure) Over(patience time.Duration, cut func()) {
	if t == nil || t.pulse == nil {
		return
	}
	t.over.Store(true)
	time.AfterFunc(patience, func() {
		if t.waiting.Load() > 0 {
			t.pulse.HangUp()
			cut()
		}
	})
}
