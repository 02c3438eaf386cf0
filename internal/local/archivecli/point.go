package archivecli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
)

// pruned opens the archive that s selects as a prune.Store, which can change it.
func (s Source) pruned(ctx context.Context) (*prune.Store, error) {
	store, err := s.store(ctx)
	return &prune.Store{Bucket: s.Bucket, UUID: store, Key: s.Keys.First(), Keys: s.Keys}, err
}

// PointOptions describe the point that CreatePoint creates.
type PointOptions struct {
	Name     string
	At       string        // a time; if empty, the time up to which all groups are archived
	For      time.Duration // how long the point is kept; 0 means until it is deleted
	Schedule bool          // whether a schedule creates this point; pruning keeps only the newest of these points
	Now      func() time.Time
}

// PointRow is a point as ListPoints prints it.
type PointRow struct {
	Name    string `json:"name"`
	Time    string `json:"time"`
	Created string `json:"created"`
	Made    string `json:"made"`
	Until   string `json:"until,omitempty"` // if empty, the point is kept until it is deleted
	Groups  int    `json:"groups"`
	Deleted bool   `json:"deleted,omitempty"` // whether the point was deleted, so that pruning no longer keeps it
}

func pointRow(p *object.Point, dropped bool) PointRow {
	return PointRow{Name: p.Name, Time: unixTime(p.Time), Created: unixTime(p.Created), Made: p.Made,
		Until: unixTime(p.Until), Groups: len(p.Groups), Deleted: dropped}
}

// CreatePoint creates a point in time that pruning keeps, and prints the point.
func CreatePoint(ctx context.Context, out *cli.Output, s Source, opts PointOptions) error {
	at, err := ParseAt(opts.At)
	switch {
	case err != nil:
		return err
	case at.Index != 0 || at.Point != "":
		return cli.Usagef("--at %s: a point is a time", opts.At)
	case opts.For < 0:
		return cli.Usagef("--for %v: must not be negative", opts.For)
	}
	if err := object.CheckPointName(opts.Name); err != nil {
		return cli.Usagef("%w", err)
	}
	archive, err := s.pruned(ctx)
	if err != nil {
		return err
	}
	now := opts.Now()
	spec := prune.PointSpec{Name: opts.Name, Time: at.Time, Made: object.MadeByHand}
	if opts.Schedule {
		spec.Made = object.MadeBySchedule
	}
	if opts.For > 0 {
		spec.Until = now.Add(opts.For)
	}
	p, err := archive.CreatePoint(ctx, spec, now)
	switch {
	case errors.Is(err, prune.ErrOther):
		return fmt.Errorf("there is a point %s already: choose another name", opts.Name)
	case err != nil:
		return coded(err)
	}
	row := pointRow(p, false)
	return out.Print(row, "point %s: %s, in %s\n", row.Name, row.Time, units.Count(int64(row.Groups), "group", "groups"))
}

// ListPoints prints the points of an archive.
func ListPoints(ctx context.Context, out *cli.Output, s Source) error {
	archive, err := s.pruned(ctx)
	if err != nil {
		return err
	}
	points, err := archive.Points(ctx)
	if err != nil {
		return coded(err)
	}
	rows := []PointRow{}
	t := cli.Table{Header: []string{"POINT", "TIME", "MADE BY", "GROUPS", "KEPT"}}
	for i := range points {
		row := pointRow(&points[i].Point, points[i].Dropped)
		rows = append(rows, row)
		keep := "until it is deleted"
		switch {
		case row.Deleted:
			keep = "no: it was deleted"
		case row.Until != "":
			keep = "until " + row.Until
		case row.Made == object.MadeBySchedule:
			keep = "as one of the newest"
		}
		t.Rows = append(t.Rows, []cli.Cell{cli.Text(row.Name), cli.Text(row.Time), cli.Text(row.Made),
			cli.Number(cli.FormatCount(int64(row.Groups))), cli.Text(keep)})
	}
	return out.WriteRows(rows, t)
}

// DeletePoint deletes a point, so that pruning no longer keeps it.
func DeletePoint(ctx context.Context, out *cli.Output, s Source, name string, now func() time.Time) error {
	archive, err := s.pruned(ctx)
	if err != nil {
		return err
	}
	if err := archive.DropPoint(ctx, name, now()); err != nil {
		return coded(err)
	}
	out.Sayf("point %s is not kept any more; `sheaf-archive prune` deletes it a day from now at the earliest", name)
	return nil
}

// PruneOptions are the options of Prune.
type PruneOptions struct {
	Keep   time.Duration // reads as of times less than Keep ago return the same results as before
	Points int           // number of scheduled points to keep
	DryRun bool
	Now    func() time.Time
}

// Prune removes old versions and unused objects from an archive, and prints what it did.
func Prune(ctx context.Context, out *cli.Output, s Source, opts PruneOptions) error {
	if opts.Keep < 0 || opts.Points < 0 {
		return cli.Usagef("--keep %v, --points %d: must not be negative", opts.Keep, opts.Points)
	}
	archive, err := s.pruned(ctx)
	if err != nil {
		return err
	}
	r, err := archive.Run(ctx, prune.Options{Window: opts.Keep, Points: opts.Points, DryRun: opts.DryRun, Now: opts.Now})
	switch {
	case errors.Is(err, prune.ErrOther):
		return fmt.Errorf("prune: %w: somebody else prunes this archive: run it again later", err)
	case err != nil:
		return fmt.Errorf("prune: %w", coded(err))
	case r.InUse != "":
		out.Sayf("nothing more is pruned while the archive is read by %s", r.InUse)
	}
	verbs := [3]string{"left out", "listed", "deleted"}
	if r.DryRun {
		verbs = [3]string{"would leave out", "would list", "would delete"}
	}
	if r.Forgotten > 0 {
		out.Sayf("%s the whole history of %s that had been deleted", verbs[0],
			units.Count(int64(r.Forgotten), "group", "groups"))
	}
	if r.Honoured > 0 {
		out.Sayf("kept points that were created while the archive was pruned, in %s",
			units.Count(int64(r.Honoured), "group", "groups"))
	}
	for _, g := range r.Unpruned {
		out.Sayf("group %s (%s) is left as it is: %s", g.Name, g.Group, g.Why)
	}
	return out.Print(r, "%s %s in %s\n%s %s, %s, for deletion a day later\n%s %s, %s\n",
		verbs[0], units.Count(r.Versions, "version", "versions"), units.Count(int64(r.Groups), "group", "groups"),
		verbs[1], units.Count(r.Listed, "object", "objects"), cli.FormatBytes(r.ListedBytes),
		verbs[2], units.Count(r.Deleted, "object", "objects"), cli.FormatBytes(r.DeletedBytes))
}
