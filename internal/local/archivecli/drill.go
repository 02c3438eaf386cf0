package archivecli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/drill"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
)

// DrillOptions are the options of Drill.
type DrillOptions struct {
	// Living returns the store with the given UUID, with which the restored records are compared.
	Living  func(ctx context.Context, store uuid.UUID) (drill.Living, error)
	Scratch drill.Scratch
	Groups  int
	At      string // a time, or point:NAME; if empty, a random time
	Now     func() time.Time
	Random  func(n int64) int64 // nil: rand.Int64N
}

// DrillJSON is a drill as Drill and Status print it.
type DrillJSON struct {
	Time        string           `json:"time"`
	Seconds     int64            `json:"seconds"`
	Point       string           `json:"point,omitempty"`
	Result      string           `json:"result"`
	Error       string           `json:"error,omitempty"`
	Records     int64            `json:"records"`
	Bytes       int64            `json:"bytes"`
	Compared    int64            `json:"compared"`
	Groups      []DrillGroupJSON `json:"groups,omitempty"`
	Differing   int64            `json:"differing"`
	Differences []string         `json:"differences,omitempty"`
}

// DrillGroupJSON is a group of a drill.
type DrillGroupJSON struct {
	Group       string `json:"group"`
	UUID        string `json:"uuid"`
	Index       uint64 `json:"index"`
	Result      string `json:"result"`
	Records     int64  `json:"records"`
	Bytes       int64  `json:"bytes"`
	Compared    int64  `json:"compared"`
	Changed     int64  `json:"changed"`
	NotCompared string `json:"notCompared,omitempty"`
	Error       string `json:"error,omitempty"`
}

func drillJSON(d *object.Drill) *DrillJSON {
	j := &DrillJSON{Time: unixTime(d.Time), Seconds: d.Seconds, Point: unixTime(d.Point), Result: d.Result, Error: d.Error,
		Records: d.Records, Bytes: d.Bytes, Groups: []DrillGroupJSON{}, Differing: d.Differing}
	for i := range d.Groups {
		g := &d.Groups[i]
		j.Compared += g.Compared
		j.Groups = append(j.Groups, DrillGroupJSON{Group: g.Name, UUID: g.Group.String(), Index: g.Index, Result: g.Result,
			Records: g.Records, Bytes: g.Bytes, Compared: g.Compared, Changed: g.Changed, NotCompared: g.NotCompared,
			Error: g.Error})
	}
	for _, difference := range d.Differences {
		j.Differences = append(j.Differences, difference.String())
	}
	return j
}

// Drill proves that the archive can be restored: it restores some groups into the scratch folder, compares them with
// the living store, and writes what it has found into the archive. It returns an error unless the archive is proven.
func Drill(ctx context.Context, out *cli.Output, s Source, opts DrillOptions) error {
	at, err := ParseAt(opts.At)
	switch {
	case err != nil:
		return err
	case at.Index != 0:
		return cli.Usagef("--at %s: must be a time such as 2026-11-01T12:00:00Z, or point:NAME", opts.At)
	case opts.Groups < 1 || opts.Groups > object.DrillGroupsMax:
		return cli.Usagef("--groups %d: must be from 1 to %d", opts.Groups, object.DrillGroupsMax)
	case opts.Scratch.Dir == "":
		return cli.Usagef("--scratch: must name a folder for the restored files")
	case opts.Scratch.BytesMax < 0:
		return cli.Usagef("--scratch-max: must not be negative")
	}
	if opts.Random == nil {
		opts.Random = rand.Int64N
	}
	store, err := s.store(ctx)
	if err != nil {
		return err
	}
	living, err := opts.Living(ctx, store)
	if err != nil {
		return err
	}
	var d *object.Drill
	warn := func(text string) { fmt.Fprintln(out.Err, text) }
	err = s.Reading(ctx, "drill", warn, func(ctx context.Context) (err error) {
		d, err = drill.Run(ctx, drill.Options{
			Bucket: s.Bucket, Store: store, Key: s.Keys.First(), Keys: s.Keys, Living: living, Scratch: opts.Scratch,
			Groups: opts.Groups, At: at.Time, Point: at.Point, Random: opts.Random, Now: opts.Now,
		})
		return err
	})
	switch {
	case errors.Is(err, prune.ErrOther):
		return fmt.Errorf("another drill began at the same time: %w", err)
	case reader.IsMissing(err):
		return cli.NotFoundf("%w", err)
	case err != nil:
		return err
	}
	if err := printDrill(out, drillJSON(d)); err != nil {
		return err
	}
	switch d.Result {
	case object.DrillProven:
		return nil
	case object.DrillDiffers:
		return fmt.Errorf("the archive is not proven: %s found, such as %s",
			units.Count(d.Differing, "difference was", "differences were"), d.Differences[0])
	}
	return fmt.Errorf("the drill did not find out whether the archive can be restored: %s", d.Error)
}

func printDrill(out *cli.Output, d *DrillJSON) error {
	if out.JSON {
		return out.WriteJSON(d)
	}
	t := cli.Table{Header: []string{"GROUP", "AS OF INDEX", "RECORDS", "EQUAL", "CHANGED SINCE", "RESULT"}}
	number := func(n int64) cli.Cell { return cli.Number(cli.FormatCount(n)) }
	for i := range d.Groups {
		g := &d.Groups[i]
		result := cli.Cell{Text: g.Result, Colour: cli.Green}
		switch {
		case g.Result != object.DrillProven && g.Error != "":
			result = cli.Cell{Text: g.Result + ": " + g.Error, Colour: cli.Yellow}
		case g.Result != object.DrillProven:
			result.Colour = cli.Red
		case g.NotCompared != "":
			result.Text = "restored, not compared: " + g.NotCompared
		}
		t.Rows = append(t.Rows, []cli.Cell{cli.Text(g.Group), cli.Number(fmt.Sprint(g.Index)), number(g.Records),
			number(g.Compared), number(g.Changed), result})
	}
	if err := out.WriteTable(t); err != nil {
		return err
	}
	for _, text := range d.Differences {
		fmt.Fprintln(out.Out, text)
	}
	if more := d.Differing - int64(len(d.Differences)); more > 0 {
		fmt.Fprintf(out.Out, "and %s\n", units.Count(more, "more difference", "more differences"))
	}
	_, err := fmt.Fprintf(out.Out, "%s as of %s, in %d s: %s, %s, %s equal in the store\n", d.Result, d.Point, d.Seconds,
		units.Count(d.Records, "record", "records"), cli.FormatBytes(d.Bytes), cli.FormatCount(d.Compared))
	return err
}
