package archivecli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/drill"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/archivetest"
	"sheaf.dev/sheaf/internal/test/drilltest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func drillOptions(w *archivetest.Writer) DrillOptions {
	return DrillOptions{
		Living:  func(context.Context, uuid.UUID) (drill.Living, error) { return drilltest.New(w), nil },
		Scratch: drill.Scratch{FS: vfstest.NewMem(), Dir: "/scratch"}, Groups: 8,
		At: cli.FormatTime(w.Now()), Now: func() time.Time { return w.Now().Add(time.Hour) },
	}
}

// The golden files show a drill that proves the sample archive, and the status after it.
func TestDrill(t *testing.T) {
	for name, asJSON := range map[string]bool{"drill.txt": false, "drill.json": true} {
		s, b, w := sample(t)
		got := run(asJSON, func(out *cli.Output) error { return Drill(t.Context(), out, s, drillOptions(w)) })
		if got.err != nil {
			t.Fatalf("%s: %v", name, got.err)
		}
		golden(t, name, anySize.ReplaceAllString(got.out, ", 0 B"))
		for _, object := range b.Names() {
			if strings.Contains(object, "/use/") {
				t.Errorf("%s remains", object)
			}
		}
		status := run(asJSON, func(out *cli.Output) error {
			return Status(t.Context(), out, s, StatusOptions{LagMax: time.Minute, Now: w.Now})
		})
		if status.err != nil {
			t.Fatal(status.err)
		}
		golden(t, "status-"+name, anySize.ReplaceAllString(status.out, ", 0 B"))
	}
}

// A drill on a harmed archive exits with 1 and names the difference, and so does the status from then on.
func TestDrillOnAHarmedArchive(t *testing.T) {
	s, b, w := sample(t)
	name := w.Name(object.CatalogueName(w.Groups[3].UUID, 1))
	whole := bytes.Clone(b.Get(name))
	whole[len(whole)-1] ^= 1
	b.Set(name, whole)
	got := run(false, func(out *cli.Output) error { return Drill(t.Context(), out, s, drillOptions(w)) })
	if got.code != 1 || !strings.Contains(got.err.Error(), "the archive is not proven: 1 difference was found") ||
		!strings.Contains(got.err.Error(), w.Groups[3].UUID.String()) {
		t.Errorf("exit code %d, %s, %v", got.code, got.out, got.err)
	}
}

func TestDrillRefusesOptions(t *testing.T) {
	s, b, w := sample(t)
	objects := len(b.Names())
	for what, c := range map[string]struct {
		change func(o *DrillOptions)
		want   string
		code   int
	}{
		"an index":         {func(o *DrillOptions) { o.At = "index:5" }, "--at index:5: must be a time", 2},
		"no time":          {func(o *DrillOptions) { o.At = "yesterday" }, "is not a point in time", 2},
		"no groups":        {func(o *DrillOptions) { o.Groups = 0 }, "--groups 0: must be from 1", 2},
		"too many groups":  {func(o *DrillOptions) { o.Groups = 1001 }, "--groups 1001", 2},
		"no folder":        {func(o *DrillOptions) { o.Scratch.Dir = "" }, "--scratch: must name a folder", 2},
		"a negative size":  {func(o *DrillOptions) { o.Scratch.BytesMax = -1 }, "--scratch-max", 2},
		"an unknown point": {func(o *DrillOptions) { o.At = "point:none" }, "none", 3},
		"another store": {func(o *DrillOptions) {
			o.Living = func(context.Context, uuid.UUID) (drill.Living, error) { return nil, errors.New("another store") }
		}, "another store", 1},
	} {
		opts := drillOptions(w)
		c.change(&opts)
		got := run(false, func(out *cli.Output) error { return Drill(t.Context(), out, s, opts) })
		if got.code != c.code || !strings.Contains(got.err.Error(), c.want) {
			t.Errorf("%s: exit code %d, %v", what, got.code, got.err)
		}
	}
	if n := len(b.Names()); n != objects {
		t.Errorf("%d objects, before %d", n, objects)
	}
}
