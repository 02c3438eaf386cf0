package archivecli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/local/cli"
)

// restorePointTime is how long the point of a restore is kept.
const restorePointTime = 30 * 24 * time.Hour

// RestoreAsArchived returns a restore of each group as it was last archived. The first source of a restore notes in the
// archive, as a point named after the new store, which index that is in each group. So a source that starts again
// serves the same state, although the archive has grown. The argument upTo is the time that the first source named, or
// zero.
//
// Nothing is noted if NoUse is set, if a group is refused, or if the account may not create points. A source that
// starts again then takes each group as of upTo, or as it was last archived if that was earlier, and so perhaps more.
// warn is told.
func (s Source) RestoreAsArchived(ctx context.Context, into uuid.UUID, upTo time.Time, now func() time.Time,
	warn func(text string)) (*restore.Restore, time.Time, error) {
	a, err := s.open(ctx)
	if err != nil {
		return nil, upTo, err
	}
	name := "restore-" + into.String()
	point, err := a.NamedPoint(ctx, name)
	switch {
	case err == nil:
		return restoreAgain(ctx, a, into, upTo, point)
	case !reader.IsMissing(err):
		return nil, upTo, coded(err)
	case upTo.IsZero():
		if upTo, err = newest(ctx, a); err != nil {
			return nil, upTo, err
		}
	}
	r, err := restore.NewUpTo(ctx, a, into, upTo)
	if err != nil || s.NoUse {
		return r, upTo, err
	}
	p := &object.Point{Name: name, Time: upTo.UnixNano(), Created: now().UnixNano(), Made: object.MadeByHand,
		Until: now().Add(restorePointTime).UnixNano(), Groups: []object.PointGroup{}}
	if slices.ContainsFunc(r.Groups(), func(g restore.Group) bool { return g.Err != nil }) {
		warn("a source that starts again may serve a later state of some groups, because not all of them can be restored")
		return r, upTo, nil
	}
	for _, g := range r.Groups() {
		p.Groups = append(p.Groups, object.PointGroup{Group: g.Source, Name: g.Name, Index: g.Index})
	}
	archive, err := s.pruned(ctx)
	if err != nil {
		return nil, upTo, err
	}
	switch err := archive.Pin(ctx, p); {
	case errors.Is(err, prune.ErrOther):
		return nil, upTo, fmt.Errorf("another source of the restore into %s has started at the same time: start this again",
			into)
	case err != nil && ctx.Err() == nil:
		warn(fmt.Sprintf("a source that starts again may serve a later state of some groups, because the present one could "+
			"not be noted: %v", err))
	}
	return r, upTo, nil
}

// restoreAgain returns the restore that an earlier source has noted.
func restoreAgain(ctx context.Context, a *reader.Archive, into uuid.UUID, upTo time.Time, point *object.Point) (
	*restore.Restore, time.Time, error) {
	began := time.Unix(0, point.Time).UTC()
	if !upTo.IsZero() && !upTo.Equal(began) {
		return nil, upTo, cli.Usagef("--up-to %s: the restore into %s has begun as of %s: give that time",
			cli.FormatTime(upTo), into, cli.FormatTime(began))
	}
	r, err := restore.NewAtPoint(ctx, a, into, point)
	return r, began, err
}

// newest returns the latest time up to which any group of an archive is archived.
func newest(ctx context.Context, a *reader.Archive) (time.Time, error) {
	groups, _, err := a.Readable(ctx)
	if err != nil {
		return time.Time{}, err
	}
	last := reader.Newest(groups)
	if last.IsZero() {
		return last, cli.NotFoundf("the archive does not say up to when its groups are archived: give --time")
	}
	return last, nil
}
