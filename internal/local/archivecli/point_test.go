package archivecli

import (
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/local/cli"
)

func TestPointsAndPruning(t *testing.T) {
	s, _, w := sample(t)
	now := func() time.Time { return w.Now().Add(time.Minute) }
	create := func(opts PointOptions) commandResult {
		opts.Now = now
		return run(false, func(out *cli.Output) error { return CreatePoint(t.Context(), out, s, opts) })
	}
	got := create(PointOptions{Name: "before-1.2", For: time.Hour})
	if got.err != nil || got.out != "point before-1.2: 2026-11-01T12:00:32Z, in 3 groups\n" {
		t.Errorf("%q, %v", got.out, got.err)
	}
	for what, c := range map[string]struct {
		opts PointOptions
		code int
	}{
		"the same name": {PointOptions{Name: "before-1.2"}, 1}, "no name": {PointOptions{}, 2},
		"an index": {PointOptions{Name: "x", At: "index:1"}, 2}, "in a hole": {PointOptions{Name: "x",
			At: time.Unix(0, w.Groups[1].CommitTime(6)).UTC().Format(time.RFC3339Nano)}, 1},
		"kept for less than nothing": {PointOptions{Name: "x", For: -1}, 2},
	} {
		if got := create(c.opts); got.code != c.code {
			t.Errorf("%s: %d, %v", what, got.code, got.err)
		}
	}
	// The objects that described the store are printed as YAML.
	if _, err := (&prune.Store{Bucket: s.Bucket, UUID: w.Store}).CreatePoint(t.Context(), prune.PointSpec{Name: "facts",
		Made: object.MadeByHand, Facts: []object.Fact{{Name: "RecordStore/quotes", YAML: "kind: RecordStore\n"}}},
		now()); err != nil {
		t.Fatal(err)
	}
	show := run(false, func(out *cli.Output) error {
		return Show(t.Context(), out, s, ShowOptions{Object: "points/facts"})
	})
	if show.err != nil || show.out != "# point facts: 2026-11-01T12:00:32Z, in 3 groups\n---\n# RecordStore/quotes\n"+
		"kind: RecordStore\n" {
		t.Errorf("%q, %v", show.out, show.err)
	}
	list := func(asJSON bool) string {
		got := run(asJSON, func(out *cli.Output) error { return ListPoints(t.Context(), out, s) })
		if got.err != nil {
			t.Error(got.err)
		}
		return got.out
	}
	if out := list(false); !strings.Contains(out, "until 2026-11-01T13:01:32Z") {
		t.Error(out)
	}
	// Records can be read in the state that they had at the point.
	cat := func(at string) commandResult {
		return run(false, func(out *cli.Output) error { return Cat(t.Context(), out, s, CatOptions{ID: "3", At: at}) })
	}
	if got := cat("point:before-1.2"); got.out != "three, second" {
		t.Errorf("%q, %v", got.out, got.err)
	}
	if got := cat("point:none"); got.code != 3 {
		t.Errorf("no such point: %d, %v", got.code, got.err)
	}
	if got := cat("point:/"); got.code != 2 {
		t.Errorf("no name of a point: %d, %v", got.code, got.err)
	}
	l := newLiving(true)
	if got := copyTo(t, s, l, CopyOptions{At: "point:before-1.2", Group: "alpha"}); got.err != nil ||
		string(l.records[client.Key{ID: 3, Group: "alpha"}].Data) != "three, second" {
		t.Errorf("copy: %q, %v", got.out, got.err)
	}
	if got := copyTo(t, s, l, CopyOptions{At: "point:before-1.2", Group: "gamma"}); got.code != 3 {
		t.Errorf("a group that did not exist: %d, %v", got.code, got.err)
	}
	pruned := func(opts PruneOptions) commandResult {
		opts.Now = now
		return run(false, func(out *cli.Output) error { return Prune(t.Context(), out, s, opts) })
	}
	if got := pruned(PruneOptions{Keep: time.Hour, DryRun: true}); !strings.HasPrefix(got.out,
		"would leave out 0 versions in 0 groups\nwould list 1 object, ") || // a catalogue that a newer one has replaced
		!strings.HasSuffix(got.out, " B, for deletion a day later\nwould delete 0 objects, 0 B\n") {
		t.Errorf("%q, %v", got.out, got.err)
	}
	if got := pruned(PruneOptions{Keep: -1}); got.code != 2 {
		t.Errorf("%d, %v", got.code, got.err)
	}
	remove := func(name string) commandResult {
		return run(false, func(out *cli.Output) error { return DeletePoint(t.Context(), out, s, name, now) })
	}
	if got := remove("none"); got.code != 3 {
		t.Errorf("%d, %v", got.code, got.err)
	}
	if got := remove("before-1.2"); got.err != nil || !strings.Contains(list(true), `"deleted": true`) {
		t.Errorf("%v, %s", got.err, list(true))
	}
}
