package archiver

import (
	"context"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
)

// pacer divides work into small pieces with pauses between them. An archiver that works without pauses makes the shards
// and the bucket work without pauses, too, and those who write to the store meanwhile wait for their processors: with
// two processors for everything and all files in memory, the pauses made the p99 of puts a third shorter. A pacer is
// not safe for concurrent use.
type pacer struct {
	until  time.Time // from this time on there are no pauses, so that work that takes long is not delayed further
	worked time.Time // end of the last pause
}

// pace begins a piece of work that may have pauses until a time.
func pace(until time.Time) *pacer { return &pacer{until: until, worked: time.Now()} }

// rest pauses for as long as the work since the last pause has taken. Without a pacer, there is no pause.
func (p *pacer) rest(ctx context.Context) {
	if p == nil {
		return
	}
	now := time.Now()
	if pause := min(now.Sub(p.worked), p.until.Sub(now)); pause > 0 {
		backoff.Sleep(ctx, pause)
	}
	p.worked = time.Now()
}
