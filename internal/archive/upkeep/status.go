package upkeep

import (
	"maps"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/archive/prune"
)

// Job is something that an Upkeep does again and again.
type Job string

// These are the jobs.
const (
	JobPoint Job = "point" // make a point of the schedule
	JobPrune Job = "prune"
	JobNamed Job = "named" // make and drop the points that others want
)

// Status describes what an Upkeep has done. Counters begin at 0 in each process.
type Status struct {
	// Known reports whether the points of the archive have been read. If not, the fields about points are zero.
	Known       bool
	Points      int       // number of points that are not dropped and have not ended
	NewestPoint string    // name of the one with the latest time; "" if there is none
	NewestTime  time.Time // its time
	NextPoint   time.Time // when the next point of the schedule is made; zero without a schedule

	LastPrune    time.Time // when the last complete prune ended; zero if this process has completed none
	Deleted      int64     // number of objects that were deleted
	DeletedBytes int64     // total size of these objects
	Waits        string    // who reads the archive, so that it was not pruned; "" if nobody did

	Errors map[Job]int64
	// PointError and PruneError say why the last attempt failed. They are "" if it succeeded.
	PointError, PruneError     string
	PointErrorAt, PruneErrorAt time.Time

	Named       map[string]Named // what has become of the points that are wanted, by name
	WantedError string           // why what is wanted could not be read or fulfilled; "" if it was
}

// board guards the Status, which other goroutines read.
type board struct {
	mu     sync.Mutex
	status Status // guarded by mu
}

func (b *board) read() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	s.Errors, s.Named = maps.Clone(s.Errors), maps.Clone(s.Named)
	return s
}

func (b *board) update(change func(s *Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.status)
}

// failed notes an error of a job.
func (s *Status) failed(job Job, err error, now time.Time) {
	if s.Errors == nil {
		s.Errors = map[Job]int64{}
	}
	s.Errors[job]++
	switch job {
	case JobPoint:
		s.PointError, s.PointErrorAt = err.Error(), now
	case JobPrune:
		s.PruneError, s.PruneErrorAt = err.Error(), now
	case JobNamed:
		s.WantedError = err.Error()
	}
}

// tell notes the points of the archive.
func (s *Status) tell(points []prune.Point, now, next time.Time) {
	s.Known, s.NextPoint, s.PointError = true, next, ""
	s.Points, s.NewestPoint, s.NewestTime = 0, "", time.Time{}
	for i := range points {
		p := &points[i]
		if p.Dropped || p.Until != 0 && time.Unix(0, p.Until).Before(now) {
			continue
		}
		s.Points++
		if at := time.Unix(0, p.Time); at.After(s.NewestTime) {
			s.NewestPoint, s.NewestTime = p.Name, at
		}
	}
}

// pruned notes what a prune has done, even if it failed later.
func (s *Status) pruned(r *prune.Report) {
	s.Deleted += r.Deleted
	s.DeletedBytes += r.DeletedBytes
	s.Waits = r.InUse
}
