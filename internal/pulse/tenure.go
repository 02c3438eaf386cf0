package pulse

import (
	"sync/atomic"
	"time"
)

// Tenure is the time for which a server answers for something, such as a group that it leads. When it is over, a call
// that the server took before and has not answered waits for nothing: a disk that hangs lets a read wait without an
// error, while the server answers everything else and does not look silent. The zero value and nil count nothing. Safe
// for concurrent use.
type Tenure struct {
	pulse   *Pulse
	waiting atomic.Int64
}

// Tenure begins one of this server.
func (p *Pulse) Tenure() *Tenure { return &Tenure{pulse: p} }

// Begin counts in a call that waits for an answer. End must follow.
func (t *Tenure) Begin() {
	if t != nil {
		t.waiting.Add(1)
	}
}

// End counts a call out.
func (t *Tenure) End() {
	if t != nil {
		t.waiting.Add(-1)
	}
}

// Over tells that another server answers now. Where calls still wait after patience, the connections to this server are
// cut, which ends the calls on them, and cut is told.
func (t *Tenure) Over(patience time.Duration, cut func()) {
	if t == nil || t.pulse == nil {
		return
	}
	time.AfterFunc(patience, func() {
		if t.waiting.Load() > 0 {
			t.pulse.HangUp()
			cut()
		}
	})
}
