package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/archive/upkeep"
	"sheaf.dev/sheaf/internal/base/schedule"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// upkeepFlags are the flags of the command run that say which points it makes, and what it deletes.
type upkeepFlags struct {
	schedule string
	window   time.Duration
	points   int
	prune    bool
	wanted   string
}

func (f *upkeepFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.schedule, "points-schedule", "",
		"when points are made, as five fields of cron in UTC, such as '0 3 * * *'; empty: never")
	flags.BoolVar(&f.prune, "prune", false, "prune the archive once a day; without it nothing is deleted")
	flags.DurationVar(&f.window, "keep-window", 7*24*time.Hour, "with --prune: how far back every state stays readable")
	flags.IntVar(&f.points, "keep-points", 30,
		"with --prune: points of a schedule that are kept; others are kept until they end")
	flags.StringVar(&f.wanted, "points-file", "",
		"file with JSON that names points to make and to drop, and what to store in points; it is read every 10 s")
}

// open returns the Upkeep that the flags describe, or nil if they describe none. It returns an error if a flag is
// wrong.
func (f *upkeepFlags) open(log *slog.Logger) (*upkeep.Upkeep, error) {
	opts := upkeep.Options{Prune: f.prune, Window: f.window, Points: f.points, Log: log}
	if f.window < 0 {
		return nil, cli.Usagef("--keep-window %v: must not be negative", f.window)
	}
	if f.points < 1 {
		return nil, cli.Usagef("--keep-points %d: must be at least 1", f.points)
	}
	if f.schedule != "" {
		var err error
		if opts.Schedule, err = schedule.Parse(f.schedule); err != nil {
			return nil, cli.Usagef("--points-schedule: %w", err)
		}
	}
	if f.wanted != "" {
		opts.Wanted = func() (*upkeep.Wanted, error) { return readWanted(f.wanted) }
	}
	if opts.Schedule == nil && opts.Wanted == nil && !f.prune {
		return nil, nil //nolint:nilnil // nothing is to be done
	}
	return upkeep.New(opts), nil
}

// readWanted reads which points are wanted from a file. If there is no file, none are.
func readWanted(name string) (w *upkeep.Wanted, err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return &upkeep.Wanted{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err := io.ReadAll(io.LimitReader(f, archiving.WantedBytesMax+1))
	if err != nil {
		return nil, err
	}
	read, err := archiving.ParseWanted(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	w = &upkeep.Wanted{}
	for _, fact := range read.Facts {
		w.Facts = append(w.Facts, object.Fact(fact))
	}
	for _, p := range read.Points {
		w.Points = append(w.Points, upkeep.WantedPoint(p))
	}
	return w, nil
}

// keepUp runs u beside an archiver, from the time at which the archiver has taken over. It ends u when the returned
// function is called. u may be nil.
func keepUp(ctx context.Context, u *upkeep.Upkeep, archive *prune.Store, a *archiver.Archiver) (stop func()) {
	if u == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-ctx.Done():
		case <-a.Begun():
			u.Run(ctx, archive, a)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// upkeepReport returns the part of the report about points and pruning.
func upkeepReport(u *upkeep.Upkeep) *archiving.Upkeep {
	opts, s := u.Options(), u.Status()
	r := &archiving.Upkeep{NewestPoint: s.NewestPoint, NewestPointTime: known(s.NewestTime), NextPoint: known(s.NextPoint),
		Prunes: opts.Prune, LastPrune: known(s.LastPrune), DeletedObjects: s.Deleted, DeletedBytes: s.DeletedBytes,
		InUse: s.Waits, Errors: map[string]int64{}}
	if opts.Schedule != nil {
		r.Schedule = opts.Schedule.String()
	}
	if s.Known {
		r.Points = &s.Points
	}
	if s.PointError != "" {
		r.PointTrouble = &archiving.Trouble{Reason: archiving.ReasonPointFailed, Message: s.PointError, At: s.PointErrorAt}
	}
	if s.PruneError != "" {
		r.PruneTrouble = &archiving.Trouble{Reason: archiving.ReasonPruneFailed, Message: s.PruneError, At: s.PruneErrorAt}
	}
	for name, is := range s.Named {
		r.Named = append(r.Named, archiving.NamedPoint{Name: name, Time: known(is.Time), Dropped: is.Dropped,
			Error: cutText(is.Error)})
	}
	slices.SortFunc(r.Named, func(a, b archiving.NamedPoint) int { return strings.Compare(a.Name, b.Name) })
	r.WantedError = cutText(s.WantedError)
	for job, n := range s.Errors {
		r.Errors[string(job)] = n
	}
	return r
}

// cutText returns at most the first 300 bytes of a text, so that a report with many points stays small.
func cutText(text string) string {
	if len(text) > 300 {
		return strings.ToValidUTF8(text[:300], "") + "..."
	}
	return text
}

// known returns nil if a time is zero.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

var (
	descPoints = describe("points", "Points that are kept. Absent until the points of the archive have been read.")
	descNewest = describe("newest_point_timestamp_seconds", "The time of the newest point. Absent if there is none.")
	descNext   = describe("next_point_timestamp_seconds", "When the next point of the schedule is made.")
	descPruned = describe("last_prune_timestamp_seconds",
		"When the process last completed a prune. Absent if it has completed none.")
	descDeletedObjects = describe("deleted_objects_total", "Objects that pruning has deleted.")
	descDeletedBytes   = describe("deleted_bytes_total", "Bytes of objects that pruning has deleted.")
	descUpkeepErrors   = describe("upkeep_errors_total",
		"Errors by what was tried: point (of the schedule), named (points that others want), prune.", "job")
)

func describeUpkeep(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPoints, descNewest, descNext, descPruned, descDeletedObjects,
		descDeletedBytes, descUpkeepErrors} {
		to <- d
	}
}

// collectUpkeep sends the metrics of points and pruning.
func collectUpkeep(u *archiving.Upkeep,
	send func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string)) {
	if u.Points != nil {
		send(descPoints, prometheus.GaugeValue, float64(*u.Points))
	}
	for d, at := range map[*prometheus.Desc]*time.Time{descNewest: u.NewestPointTime, descNext: u.NextPoint,
		descPruned: u.LastPrune} {
		if at != nil {
			send(d, prometheus.GaugeValue, float64(at.UnixMilli())/1000)
		}
	}
	send(descDeletedObjects, prometheus.CounterValue, float64(u.DeletedObjects))
	send(descDeletedBytes, prometheus.CounterValue, float64(u.DeletedBytes))
	for job, n := range u.Errors {
		send(descUpkeepErrors, prometheus.CounterValue, float64(n), job)
	}
}
