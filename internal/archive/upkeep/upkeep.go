// Package upkeep makes the points of a schedule and those that others want, and prunes an archive, beside the archiver
// that writes it. It never stops or delays the archiver: its errors are part of its Status, and it tries again later.
package upkeep

import (
	"context"
	"log/slog"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/base/schedule"
)

const (
	// pruneEvery is the time from the end of a prune to the next one. What one prune lists may be deleted a day later, by
	// the clock of the bucket, which is as far as the newest object. An idle store gets an object every 10 minutes.
	pruneEvery = 24*time.Hour + 15*time.Minute
	// pruneFirst is how long a process archives before it prunes. So a process that ends again and again, perhaps for
	// lack of memory while it prunes, archives meanwhile.
	pruneFirst = 15 * time.Minute
	// pruneRetry is the pause after a prune that failed, or that found somebody reading.
	pruneRetry = time.Hour
	// pruneMax and pointMax limit the duration of one attempt.
	pruneMax = 12 * time.Hour
	pointMax = time.Hour
	// coverMax limits how long a point that others want waits until all groups are archived up to now. Meanwhile, nothing
	// else is done.
	coverMax = 2 * time.Minute
	// look is the longest sleep. Timers stand still while a machine is suspended.
	look = time.Minute
)

// pointRetries determines the pauses after attempts to make a point that failed. Each attempt reads the catalogues of
// all groups.
var pointRetries = backoff.Doubling{First: time.Minute, Most: time.Hour}

// Options say what an Upkeep does.
type Options struct {
	Schedule *schedule.Schedule // of points; nil: no points are made
	Prune    bool               // if false, nothing is deleted, and the following two fields have no effect
	Window   time.Duration      // times that are younger stay readable as they are
	Points   int                // number of points of the schedule that are kept
	// Wanted returns which further points are wanted, and what is stored in new points. It may be nil.
	Wanted func() (*Wanted, error)

	Log *slog.Logger // nil means slog.Default()
}

// Upkeep makes points and prunes. It belongs to a process, and is used by one archiver after another.
type Upkeep struct {
	opts  Options
	board board

	// Only the goroutine that calls Run uses the following fields.

	nextPoint   time.Time // when the points are read again, and a point is made if one is due
	pointFailed int       // number of attempts to do so that failed, one after another
	nextPrune   time.Time
	nextNamed   time.Time                       // when what is wanted is read again
	namedFailed int                             // number of attempts to fulfil it that failed, one after another
	facts       []object.Fact                   // what is stored in new points
	cover       func(ctx context.Context) error // Archiver.Cover
}

// New returns an Upkeep. It does nothing until Run is called.
func New(opts Options) *Upkeep {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	return &Upkeep{opts: opts}
}

// Options returns the options that New was given.
func (u *Upkeep) Options() Options { return u.opts }

// Status returns what was done so far. It is safe for concurrent use.
func (u *Upkeep) Status() Status { return u.board.read() }

// Archiver is the archiver that writes the archive.
type Archiver interface {
	// Owns returns an error unless the process still writes the archive. It is called before the archive is changed.
	Owns(ctx context.Context) error
	// Cover returns when the objects of the archive say of each group that it is archived up to a time after the call. It
	// returns an error if ctx ends earlier.
	Cover(ctx context.Context) error
}

// Run makes points and prunes, beside the archiver a, until ctx ends. Only one Run of an Upkeep may be active.
func (u *Upkeep) Run(ctx context.Context, archive *prune.Store, a Archiver) {
	fenced := *archive
	fenced.Bucket, u.cover = &fence{Bucket: archive.Bucket, owns: a.Owns}, a.Cover
	if u.nextPrune.IsZero() {
		u.nextPrune = wall().Add(pruneFirst)
	}
	u.nextPoint, u.pointFailed = time.Time{}, 0 // another archiver may have made points meanwhile
	for ctx.Err() == nil {
		u.named(ctx, &fenced)
		u.points(ctx, &fenced)
		u.prune(ctx, &fenced)
		if !backoff.Sleep(ctx, max(u.wait(), time.Second)) {
			return
		}
	}
}

// wall returns the time of the wall clock.
func wall() time.Time { return time.Now().Round(0) }

// wait returns how long nothing is due.
func (u *Upkeep) wait() time.Duration {
	now := wall()
	wait := min(look, u.nextPoint.Sub(now))
	if u.opts.Prune {
		wait = min(wait, u.nextPrune.Sub(now))
	}
	if u.opts.Wanted != nil {
		wait = min(wait, u.nextNamed.Sub(now))
	}
	return wait
}

// points reads the points of the archive and makes one, if that is due.
func (u *Upkeep) points(ctx context.Context, archive *prune.Store) {
	now := wall()
	if now.Before(u.nextPoint) {
		return
	}
	call, cancel := context.WithTimeout(ctx, pointMax)
	defer cancel()
	made, err := u.point(call, archive, now)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		u.nextPoint = wall().Add(pointRetries.After(u.pointFailed))
		u.pointFailed++
		u.opts.Log.Warn("a point of the archive was not made; this is tried again", "at", u.nextPoint, "error", err)
		u.board.update(func(s *Status) { s.failed(JobPoint, err, now) })
		return
	}
	if made != nil {
		u.opts.Log.Info("a point was made", "point", made.Name, "time", time.Unix(0, made.Time).UTC())
	}
	u.pointFailed = 0
}

// point reads the points, and makes one if the schedule had a time since the last point that was made for it. It makes
// one even if several times have passed. It returns the point that it has made, or nil.
func (u *Upkeep) point(ctx context.Context, archive *prune.Store, now time.Time) (made *object.Point, err error) {
	points, err := archive.Points(ctx)
	if err != nil {
		return nil, err
	}
	var next time.Time
	if u.opts.Schedule != nil {
		last, err := lastScheduled(ctx, archive, points, now)
		if err != nil {
			return nil, err
		}
		if next = u.opts.Schedule.Next(last); !next.After(now) {
			spec := prune.PointSpec{Name: pointName(now), Made: object.MadeBySchedule, Facts: u.facts}
			if made, err = archive.CreatePoint(ctx, spec, now); err != nil {
				return nil, err
			}
			points = append(points, prune.Point{Point: *made})
			next = u.opts.Schedule.Next(now)
		}
	}
	u.board.update(func(s *Status) { s.tell(points, now, next) })
	if u.nextPoint = next; next.IsZero() {
		u.nextPoint = now.Add(pruneEvery)
	}
	return made, nil
}

// lastScheduled returns when the last point of the schedule was made, or when the archive was made if it has none. A
// point from the future counts for nothing: the clock that made it was wrong.
func lastScheduled(ctx context.Context, archive *prune.Store, points []prune.Point, now time.Time) (last time.Time,
	err error) {
	for i := range points {
		created := time.Unix(0, points[i].Created)
		if points[i].Made == object.MadeBySchedule && created.After(last) && !created.After(now) {
			last = created
		}
	}
	if !last.IsZero() {
		return last, nil
	}
	a, err := reader.Open(ctx, archive.Bucket, archive.UUID, archive.Keys)
	if err != nil {
		return time.Time{}, err
	}
	return time.Unix(0, a.Header().Created), nil
}

// prune prunes the archive, if that is due.
func (u *Upkeep) prune(ctx context.Context, archive *prune.Store) {
	now := wall()
	if !u.opts.Prune || now.Before(u.nextPrune) {
		return
	}
	call, cancel := context.WithTimeout(ctx, pruneMax)
	defer cancel()
	report, err := archive.Run(call, prune.Options{Window: u.opts.Window, Points: u.opts.Points, Now: wall})
	if report != nil {
		u.board.update(func(s *Status) { s.pruned(report) })
	}
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		u.nextPrune = wall().Add(pruneRetry)
		u.opts.Log.Warn("the archive was not pruned; this is tried again", "at", u.nextPrune, "error", err)
		u.board.update(func(s *Status) { s.failed(JobPrune, err, now) })
		return
	case report.InUse != "":
		u.nextPrune = wall().Add(pruneRetry)
		u.opts.Log.Info("the archive is not pruned while somebody reads it", "by", report.InUse)
		return
	}
	u.opts.Log.Info("the archive was pruned", "versions", report.Versions, "listed", report.Listed,
		"deleted", report.Deleted, "deleted_bytes", report.DeletedBytes)
	u.nextPrune = wall().Add(pruneEvery)
	u.nextPoint = time.Time{} // read the points again
	u.board.update(func(s *Status) { s.LastPrune, s.PruneError = wall(), "" })
}

// pointName returns the name of a point of the schedule that is made at a given time.
func pointName(now time.Time) string { return "auto-" + now.UTC().Format("20060102-150405") }
