package archivecli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
)

// StatusOptions are the options of Status.
type StatusOptions struct {
	// LagMax is the maximum age of the time up to which all groups are archived. For groups without writes, the archiver
	// updates this time only every 10 minutes.
	LagMax time.Duration
	Now    func() time.Time // nil means time.Now
}

// StatusJSON is what Status prints about the archive of a store.
type StatusJSON struct {
	Store string `json:"store"`
	Name  string `json:"name"`
	// ArchivedThrough is the time up to which all groups are archived. It is empty if the time is not known.
	ArchivedThrough string `json:"archivedThrough,omitempty"`
	// LagSeconds is the age of ArchivedThrough. It is nil if the age is not known.
	LagSeconds *float64 `json:"lagSeconds,omitempty"`
	// FirstPoint is the earliest time for which the state of all groups can be read, apart from holes. It is empty if
	// the time is not known.
	FirstPoint string       `json:"firstPoint,omitempty"`
	Groups     int          `json:"groups"`
	Deleted    int          `json:"deletedGroups"` // number of deleted groups, which Groups does not include
	Holes      []StatusHole `json:"holes"`
	// Missing describes, for each group that lacks objects, which objects are missing.
	Missing []string `json:"missing,omitempty"`
	// Drill is the newest drill, without its groups; nil if there is none.
	Drill *DrillJSON `json:"drill,omitempty"`
	// Proven is the time of the newest drill that has proven the archive. It is empty if none has.
	Proven  string         `json:"proven,omitempty"`
	Objects []StatusObject `json:"objects"`
	Behind  string         `json:"behind,omitempty"` // why the archive is behind; empty if it is not
}

// StatusHole is a hole in the history of a group.
type StatusHole struct {
	Group string `json:"group"`
	object.Hole
}

// StatusObject counts the objects of one kind.
type StatusObject struct {
	Kind    string `json:"kind"`
	Objects int64  `json:"objects"`
	Bytes   int64  `json:"bytes"`
}

// otherKind is the kind of objects that do not belong to an archive.
const otherKind = "other"

// Status prints how current the archive of a store is, what it contains, what is missing in it, and when it was proven
// that it can be restored. It lists all objects, and reads the catalogues and the headers of log objects. It returns an
// error if the archive is more than LagMax behind, or if objects are missing.
func Status(ctx context.Context, out *cli.Output, s Source, opts StatusOptions) error {
	if opts.LagMax <= 0 {
		return cli.Usagef("--lag-max %v: must be above 0", opts.LagMax)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	a, err := s.open(ctx)
	if err != nil {
		return err
	}
	status := StatusJSON{Store: a.Store().String(), Name: a.Header().Store, Holes: []StatusHole{}}
	groups, err := a.Groups(ctx)
	if err != nil {
		return err
	}
	status.ofGroups(ctx, groups)
	covered := reader.Covered(groups)
	if status.ArchivedThrough = formatTime(covered); !covered.IsZero() {
		status.LagSeconds = new(max(0, opts.Now().Sub(covered).Seconds()))
	}
	if err := status.ofDrills(ctx, s, a.Store()); err != nil {
		return err
	}
	if status.Objects, err = count(ctx, bucket.Under(s.Bucket, status.Store)); err != nil {
		return err
	}
	status.Behind = behind(&status, opts.LagMax)
	if err := status.print(out); err != nil {
		return err
	}
	if status.Behind != "" {
		return fmt.Errorf("status: %s", status.Behind)
	}
	return nil
}

// ofGroups computes the fields that summarize the groups. FirstPoint is the latest of the first points of all groups
// that still exist, because all of these groups can be read from then on.
func (s *StatusJSON) ofGroups(ctx context.Context, groups []*reader.Group) {
	var first time.Time
	known := true
	for _, g := range groups {
		for _, h := range g.Holes {
			s.Holes = append(s.Holes, StatusHole{Group: g.Name, Hole: h})
		}
		if g.Missing != "" {
			s.Missing = append(s.Missing, fmt.Sprintf("%s: %s", g, g.Missing))
		}
		if g.Gone {
			s.Deleted++
			continue
		}
		s.Groups++
		p := g.First(ctx).Time
		if known = known && !p.IsZero(); known && p.After(first) {
			first = p
		}
	}
	if known {
		s.FirstPoint = formatTime(first)
	}
}

// ofDrills sets the fields that tell of drills.
func (s *StatusJSON) ofDrills(ctx context.Context, from Source, store uuid.UUID) error {
	newest, proof, err := reader.NewestDrills(ctx, from.Bucket, store, from.Keys)
	if err != nil || newest == nil {
		return err
	}
	s.Drill = drillJSON(newest)
	s.Drill.Groups = nil
	if proof != nil {
		s.Proven = unixTime(proof.Time)
	}
	return nil
}

// drillRow describes the newest drill and the newest proof.
func (s *StatusJSON) drillRow() (text string, colour cli.Colour) {
	if s.Drill == nil {
		return "never tried: see `sheaf-archive drill`", cli.Plain
	}
	proven := words(s.Proven, "never")
	switch s.Drill.Result {
	case object.DrillProven:
		return fmt.Sprintf("%s, %s", proven, units.Count(s.Drill.Records, "record", "records")), cli.Green
	case object.DrillDiffers:
		return fmt.Sprintf("%s; the drill of %s found %s: %s", proven, s.Drill.Time,
			units.Count(s.Drill.Differing, "difference", "differences"), units.Some(s.Drill.Differences, 3)), cli.Red
	}
	return fmt.Sprintf("%s; the drill of %s did not find out: %s", proven, s.Drill.Time, s.Drill.Error), cli.Yellow
}

// count counts, by kind, the objects in a store's folder.
func count(ctx context.Context, b bucket.Bucket) ([]StatusObject, error) {
	kinds := map[string]*StatusObject{}
	for info, err := range b.List(ctx, "", "") {
		if err != nil {
			return nil, fmt.Errorf("listing the objects: %w", err)
		}
		kind := otherKind
		if k, ok := reader.KindOf(info.Name); ok {
			kind = k.String()
		}
		if kinds[kind] == nil {
			kinds[kind] = &StatusObject{Kind: kind}
		}
		kinds[kind].Objects++
		kinds[kind].Bytes += info.Bytes
	}
	var rows []StatusObject
	for _, k := range kinds {
		rows = append(rows, *k)
	}
	slices.SortFunc(rows, func(a, b StatusObject) int { return cmp.Compare(a.Kind, b.Kind) })
	return rows, nil
}

// behind says why the archive is behind. It returns "" if the archive is not behind.
func behind(s *StatusJSON, lagMax time.Duration) string {
	switch {
	case len(s.Missing) > 0:
		return "objects are missing: " + units.Some(s.Missing, 3)
	case s.LagSeconds == nil:
		return "it is not known up to when the groups are archived"
	case *s.LagSeconds > lagMax.Seconds():
		return fmt.Sprintf("the archive is %s behind, and --lag-max is %v: see that `sheaf-archive run` is running and "+
			"what it says", lag(*s.LagSeconds), lagMax)
	}
	return ""
}

func lag(seconds float64) string {
	return (time.Duration(seconds) * time.Second).String()
}

func (s *StatusJSON) print(out *cli.Output) error {
	if out.JSON {
		return out.WriteJSON(s)
	}
	t := cli.Table{Header: []string{"STORE", strings.TrimSpace(s.Name + " " + s.Store)}}
	row := func(what, text string, colour cli.Colour) {
		t.Rows = append(t.Rows, []cli.Cell{cli.Text(what), {Text: text, Colour: colour}})
	}
	through, colour := words(s.ArchivedThrough, "not known"), cli.Green
	if s.LagSeconds != nil {
		through += ", " + lag(*s.LagSeconds) + " ago"
	}
	if s.Behind != "" {
		colour = cli.Red
	}
	row("archived through", through, colour)
	row("first point", words(s.FirstPoint, "not known"), cli.Plain)
	groups := cli.FormatCount(int64(s.Groups))
	if s.Deleted > 0 {
		groups += ", and " + cli.FormatCount(int64(s.Deleted)) + " deleted"
	}
	row("groups", groups, cli.Plain)
	var holes []string
	for _, h := range s.Holes {
		holes = append(holes, fmt.Sprintf("%s: index %d to %d", h.Group, h.From, h.To))
	}
	if len(holes) == 0 {
		row("holes", "none", cli.Plain)
	} else {
		row("holes", cli.FormatCount(int64(len(holes)))+": "+units.Some(holes, 3), cli.Yellow)
	}
	for _, m := range s.Missing {
		row("missing", m, cli.Red)
	}
	drilled, colour := s.drillRow()
	row("restore proven", drilled, colour)
	for _, o := range s.Objects {
		row(o.Kind, units.Count(o.Objects, "object", "objects")+", "+cli.FormatBytes(o.Bytes), cli.Plain)
	}
	return out.WriteTable(t)
}
