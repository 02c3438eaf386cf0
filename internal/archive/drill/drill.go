package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/archive/restore"
)

// Options are the options of Run.
type Options struct {
	Bucket  bucket.Bucket // the bucket at the URL, not at the store's folder
	Store   uuid.UUID
	Keys    object.Keys
	Key     object.Key // encrypts the drill object; if zero, it is not encrypted
	Living  Living
	Scratch Scratch
	Groups  int       // number of groups that are restored
	At      time.Time // point in time; if zero, and Point is empty, a random one
	Point   string    // name of a point of the archive, in place of At
	// Random returns a random number from 0 to n - 1.
	Random func(n int64) int64
	Now    func() time.Time
	// Tell hears of each group that has been tried. It may be nil.
	Tell func(g object.DrillGroup)
}

// ErrNothing means that the archive has no group that can be restored.
var ErrNothing = errors.New("the archive has no groups to restore")

// drill is a drill in progress.
type drill struct {
	opts  Options
	point time.Time
	out   object.Drill
}

// Run restores the next groups of an archive as of a point in time, compares them with the store, and creates the
// object that says what it has found. The result says whether the archive is proven; an error means that there is no
// result. The caller protects the archive from pruning (prune.Store.Use).
func Run(ctx context.Context, opts Options) (_ *object.Drill, err error) {
	began := opts.Now()
	a, err := reader.Open(ctx, opts.Bucket, opts.Store, opts.Keys)
	if err != nil {
		return nil, err
	}
	end, err := opts.Scratch.begin()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	d := &drill{opts: opts, out: object.Drill{Time: began.UnixNano(), Groups: []object.DrillGroup{}}}
	if err := d.all(ctx, a); err != nil {
		return nil, err
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause // a drill that was stopped has no result
	}
	d.conclude()
	d.out.Seconds = int64((opts.Now().Sub(began) + time.Second - 1) / time.Second)
	archive := &prune.Store{Bucket: opts.Bucket, UUID: opts.Store, Key: opts.Key, Keys: opts.Keys}
	if err := archive.CreateDrill(ctx, &d.out); err != nil {
		return nil, err
	}
	return &d.out, nil
}

// all tries the groups whose turn it is. Groups that cannot be read at all are differences in each drill.
func (d *drill) all(ctx context.Context, a *reader.Archive) error {
	last, err := a.NewestDrill(ctx)
	if err != nil {
		return err
	}
	groups, broken, err := a.Readable(ctx)
	if err != nil {
		return err
	}
	if len(groups)+len(broken) == 0 {
		return ErrNothing
	}
	for id, err := range broken {
		d.differs(&restore.Group{Source: id}, "", words(err))
	}
	for _, g := range groups {
		if g.Missing != "" {
			d.differs(&restore.Group{Source: g.UUID, Name: g.Name}, "", g.Missing)
		}
	}
	chosen := turn(groups, last, d.opts.Groups)
	var point *object.Point
	switch d.point = d.opts.At; {
	case d.opts.Point != "":
		if point, err = a.NamedPoint(ctx, d.opts.Point); err != nil {
			return err
		}
		d.point = time.Unix(0, point.Time)
	case d.point.IsZero() && len(chosen) > 0:
		if d.point, err = instant(ctx, chosen, d.opts.Random); err != nil {
			return err
		}
	}
	if !d.point.IsZero() {
		d.out.Point = d.point.UnixNano()
	}
	return d.restore(ctx, a, point, chosen)
}

// restore restores the chosen groups one after another.
func (d *drill) restore(ctx context.Context, a *reader.Archive, point *object.Point, chosen []*reader.Group) error {
	ids := make([]uuid.UUID, len(chosen))
	for i, g := range chosen {
		ids[i] = g.UUID
	}
	r, err := restore.NewOfGroups(ctx, a, uuid.New(), d.point, point, ids)
	if err != nil {
		return err
	}
	found := r.Groups()
	for _, id := range ids { // the next drill continues behind the last one of them
		i := slices.IndexFunc(found, func(g restore.Group) bool { return g.Source == id })
		if i < 0 {
			continue // the point does not list it, or another group had its name at that time
		}
		d.group(ctx, r, &found[i])
		if cause := context.Cause(ctx); cause != nil {
			return cause // a drill that was stopped has no result
		}
		if d.opts.Tell != nil {
			d.opts.Tell(d.out.Groups[len(d.out.Groups)-1])
		}
	}
	return nil
}

// differs adds a difference.
func (d *drill) differs(g *restore.Group, id, what string) {
	if d.out.Differing++; len(d.out.Differences) < object.DrillDifferencesMax {
		d.out.Differences = append(d.out.Differences,
			object.DrillDifference{Group: g.Source, Name: g.Name, ID: id, What: what})
	}
}

// conclude computes the sums and the result from the groups.
func (d *drill) conclude() {
	proven, compared := 0, 0
	var failed, refused, alone string // why a group has failed, was refused, or was not compared
	for i := range d.out.Groups {
		g := &d.out.Groups[i]
		why := fmt.Sprintf("group %s: %s", g.Name, g.Error)
		switch g.Result {
		case object.DrillProven:
			if proven++; g.NotCompared == "" {
				compared++
			} else {
				alone = fmt.Sprintf("group %s: %s", g.Name, g.NotCompared)
			}
		case object.DrillFailed:
			failed = why
		case object.DrillRefused:
			refused = why
		}
		d.out.Records += g.Records
		d.out.Bytes += g.Bytes
	}
	switch {
	case d.out.Differing > 0:
		d.out.Result = object.DrillDiffers
	case failed != "":
		d.out.Result, d.out.Error = object.DrillFailed, failed
	case proven == 0:
		d.out.Result, d.out.Error = object.DrillFailed, "none of the groups can be read as of this point: "+
			cmp.Or(refused, "they did not exist, or were deleted")
	case compared == 0:
		d.out.Result, d.out.Error = object.DrillFailed, "none of the groups was compared with the store: "+alone
	default:
		d.out.Result = object.DrillProven
	}
}

// words returns the text of an error in one line.
func words(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
