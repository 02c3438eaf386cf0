package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/archive/upkeep"
	"sheaf.dev/sheaf/internal/base/schedule"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// archiverOfAll implements upkeep.Archiver for an archive that nobody else writes.
type archiverOfAll struct{}

func (archiverOfAll) Owns(context.Context) error  { return nil }
func (archiverOfAll) Cover(context.Context) error { return nil }

func TestWrongArgumentsOfUpkeep(t *testing.T) {
	folder := "file://" + filepath.Join(t.TempDir(), "archive")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no schedule":     {[]string{"--points-schedule", "daily"}, "such as 0 3 * * *"},
		"a time zone":     {[]string{"--points-schedule", "TZ=Europe/Berlin 0 3 * * *"}, "no time zone"},
		"negative window": {[]string{"--prune", "--keep-window", "-1s"}, "must not be negative"},
		"no points":       {[]string{"--prune", "--keep-points", "0"}, "at least 1"},
	} {
		if code, _, errs := runArchive(t, append([]string{"run", folder}, c.args...)...); code != 2 ||
			!strings.Contains(errs, c.want) {
			t.Errorf("%s: %d, %s", name, code, errs)
		}
	}
	for _, args := range []upkeepFlags{{points: 1}, {points: 1, window: time.Hour}} {
		if u, err := args.open(nil); u != nil || err != nil {
			t.Errorf("%+v: %v, %v", args, u, err)
		}
	}
}

func TestWhatIsWantedIsReadFromAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "wanted.json")
	if w, err := readWanted(file); err != nil || len(w.Points) != 0 {
		t.Errorf("no file: %+v, %v", w, err)
	}
	for text, wrong := range map[string]bool{
		`{"points": [{"name": "a", "drop": true}], "facts": [{"name": "x", "yaml": "y"}]}`: false, "x": true,
		strings.Repeat(" ", 2<<20): true,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := readWanted(file)
		if (err != nil) != wrong || err != nil && !strings.Contains(err.Error(), file) || err == nil &&
			(w.Points[0] != upkeep.WantedPoint{Name: "a", Drop: true} || w.Facts[0] != object.Fact{Name: "x", YAML: "y"}) {
			t.Errorf("%.40s: %+v, %v", text, w, err)
		}
	}
}

// A process reports its points and what it has deleted, both in its report and in its metrics. An archiver that has not
// begun has no upkeep, and it can be stopped.
func TestUpkeepIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(archivetest.Begin))
		b := archivetest.NewMemory()
		w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
		g := w.NewGroup("alpha", 1)
		g.Put(1, "data")
		w.Copy(g, 1)
		w.Log(g)
		every, err := schedule.Parse("0 * * * *")
		if err != nil {
			t.Fatal(err)
		}
		p := newProcess("v", 10*time.Second)
		p.upkeep = upkeep.New(upkeep.Options{Schedule: every, Prune: true, Window: time.Hour, Points: 1,
			Log: slog.New(slog.DiscardHandler)})
		archive := &prune.Store{Bucket: b, UUID: archivetest.SampleStore}
		a, err := archiver.New(archiver.Options{Bucket: b, Source: noSource{}, Store: archivetest.SampleStore})
		if err != nil {
			t.Fatal(err)
		}
		stop := keepUp(t.Context(), p.upkeep, archive, a)
		time.Sleep(2 * time.Hour)
		if r := p.report().Upkeep; r == nil || r.Points != nil || r.Schedule != "0 * * * *" || !r.Prunes {
			t.Errorf("before the archiver has begun: %+v", r)
		}
		stop()
		ctx, cancel := context.WithCancel(t.Context())
		go p.upkeep.Run(ctx, archive, archiverOfAll{})
		time.Sleep(90 * time.Minute)
		synctest.Wait()
		r := p.report().Upkeep
		if r.Points == nil || *r.Points == 0 || r.NewestPointTime == nil || r.NextPoint == nil || r.LastPrune == nil ||
			r.PointTrouble != nil || r.PruneTrouble != nil || r.Sentence() != "" ||
			r.PointsSentence(time.Now()) != "2 points, the newest 3 h ago" {
			t.Errorf("%+v, %q, %q", r, r.Sentence(), r.PointsSentence(time.Now()))
		}
		b.Set(w.Name(object.ArchiveName), nil)
		time.Sleep(26 * time.Hour)
		synctest.Wait()
		if r = p.report().Upkeep; r.PointTrouble == nil || r.PruneTrouble == nil ||
			!strings.HasPrefix(r.Sentence(), "a point could not be made: there is no archive") || r.Errors["prune"] == 0 {
			t.Errorf("%+v, %q", r, r.Sentence())
		}
		cancel()
		registry := prometheus.NewRegistry()
		registry.MustRegister(series{p})
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range families {
			names = append(names, f.GetName())
		}
		for _, name := range []string{"points", "newest_point_timestamp_seconds", "next_point_timestamp_seconds",
			"last_prune_timestamp_seconds", "deleted_objects_total", "deleted_bytes_total", "upkeep_errors_total"} {
			if !slices.Contains(names, "sheaf_archive_"+name) {
				t.Errorf("no series %s in %q", name, names)
			}
		}
	})
}
