package upkeep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
)

// Wanted is what others want of the points of an archive. It is level-based: it may be read again and again. A point
// that is not in it stays as it is.
type Wanted struct {
	// Facts are stored in each new point.
	Facts []object.Fact
	// Points are the points that are to be made or dropped.
	Points []WantedPoint
}

// WantedPoint is a point that is to be made or dropped.
type WantedPoint struct {
	Name  string
	Until time.Time // if zero, the point is kept until it is dropped
	Drop  bool
}

// wantedEvery is the time between two looks at what is wanted.
const wantedEvery = 10 * time.Second

// wantedRetries determines the pauses after an attempt that failed.
var wantedRetries = backoff.Doubling{First: 20 * time.Second, Most: 10 * time.Minute}

// Named says what has become of a WantedPoint.
type Named struct {
	Time    time.Time // the time of the point; zero if there is no such point
	Dropped bool      // there is no such point, or it is dropped
	Error   string    // why the last attempt failed; "" if it succeeded
}

// named makes and drops the points that are wanted.
func (u *Upkeep) named(ctx context.Context, archive *prune.Store) {
	now := wall()
	if u.opts.Wanted == nil || now.Before(u.nextNamed) {
		return
	}
	call, cancel := context.WithTimeout(ctx, pointMax)
	defer cancel()
	w, err := u.opts.Wanted()
	if err == nil {
		u.facts = w.Facts
		err = u.fulfil(call, archive, w, now)
	}
	if ctx.Err() != nil {
		return
	}
	u.nextNamed = wall().Add(wantedEvery)
	if err == nil {
		u.namedFailed = 0
		u.board.update(func(s *Status) { s.WantedError = "" })
		return
	}
	u.nextNamed = wall().Add(wantedRetries.After(u.namedFailed))
	u.namedFailed++
	u.opts.Log.Warn("the points that are wanted are not as they should be; this is tried again", "at", u.nextNamed,
		"error", err)
	u.board.update(func(s *Status) { s.failed(JobNamed, err, now) })
}

// fulfil makes and drops points. It reads the archive only if an outcome is not known yet.
func (u *Upkeep) fulfil(ctx context.Context, archive *prune.Store, w *Wanted, now time.Time) error {
	outcomes := map[string]Named{}
	var open []WantedPoint
	before := u.board.read().Named
	for _, p := range w.Points {
		is, ok := before[p.Name]
		outcomes[p.Name] = is
		if !ok || is.Error != "" || is.Dropped != p.Drop {
			open = append(open, p)
		}
	}
	defer func() { u.board.update(func(s *Status) { s.Named = maps.Clone(outcomes) }) }()
	if len(open) == 0 {
		return nil
	}
	points, err := archive.Points(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, p := range open {
		is, err := u.settle(ctx, archive, points, p, now)
		if err != nil {
			is.Error = err.Error()
			failed = append(failed, err)
		}
		outcomes[p.Name] = is
	}
	u.nextPoint = time.Time{} // read the points again
	return errors.Join(failed...)
}

// coverAll makes the archive complete up to now. A point that is made afterwards has everything that was acknowledged
// before the point was wanted.
func (u *Upkeep) coverAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, coverMax)
	defer cancel()
	return u.cover(ctx)
}

// settle makes or drops one point, unless that was done before.
func (u *Upkeep) settle(ctx context.Context, archive *prune.Store, points []prune.Point, p WantedPoint, now time.Time) (
	is Named, err error) {
	at := slices.IndexFunc(points, func(is prune.Point) bool { return is.Name == p.Name })
	switch exists := at >= 0; {
	case p.Drop && exists && !points[at].Dropped:
		is.Time = time.Unix(0, points[at].Time)
		err = archive.DropPoint(ctx, p.Name, now)
		is.Dropped = err == nil
		return is, err
	case p.Drop:
		return Named{Dropped: true}, nil
	case exists && points[at].Dropped:
		return Named{Dropped: true}, fmt.Errorf("a point %s was made and deleted before: choose another name", p.Name)
	case exists:
		return Named{Time: time.Unix(0, points[at].Time)}, nil
	}
	if err := u.coverAll(ctx); err != nil {
		return Named{}, fmt.Errorf("point %s: %w", p.Name, err)
	}
	made, err := archive.CreatePoint(ctx, prune.PointSpec{Name: p.Name, Until: p.Until, Made: object.MadeByHand,
		Facts: u.facts}, now)
	if err != nil {
		return Named{}, err
	}
	u.opts.Log.Info("a point was made", "point", made.Name, "time", time.Unix(0, made.Time).UTC())
	return Named{Time: time.Unix(0, made.Time)}, nil
}
