package prune

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// deleted is an archive with a group that was deleted, and another group of its name.
type deleted struct {
	*aged
	gone  *archivetest.Group
	next  *archivetest.Group // another group of the same name
	ended time.Time          // the last time that the archive covers of the deleted group
}

func newDeleted(t *testing.T) *deleted {
	d := &deleted{aged: newAged(t)}
	d.gone = d.w.NewGroup("beta", 2)
	d.gone.Put(1, "one")
	d.gone.PutBlob(2, []byte("large"))
	d.w.Copy(d.gone, 1)
	d.gone.Put(1, "two")
	d.ended = d.w.Now()
	d.w.Log(d.gone)
	d.gone.Gone = true
	d.pass(1)
	d.w.Log(d.gone)
	d.w.Roll(d.gone)
	d.next = d.w.NewGroup("beta", 3)
	d.next.Floor = d.next.Put(1, "of another group")
	d.w.Copy(d.next, 1)
	return d
}

// prefix is the prefix of the names of the deleted group's objects.
func (d *deleted) prefix() string { return object.GroupPrefix(d.gone.UUID) }

func (d *deleted) group() *reader.Group {
	d.t.Helper()
	archive, err := d.store.open(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	g, err := archive.Group(d.t.Context(), d.gone.UUID)
	if err != nil {
		d.t.Fatal(err)
	}
	return g
}

// A deleted group is forgotten after the window, in two phases. What remains says that it existed, and up to when.
func TestADeletedGroupIsForgottenAfterTheWindow(t *testing.T) {
	d := newDeleted(t)
	d.prune(Options{})
	d.pass(47)
	if r := d.prune(Options{}); r.Forgotten != 0 {
		t.Errorf("within the window: %+v", r)
	}
	d.pass(3)
	if r := d.prune(Options{DryRun: true}); r.Forgotten != 1 || d.group().Check(t.Context(), 3) != nil {
		t.Errorf("dry run: %+v", r)
	}
	before := len(names(d.b.Memory, d.prefix()))
	r := d.prune(Options{})
	if r.Forgotten != 1 || len(names(d.b.Memory, d.prefix())) != before+1 {
		t.Errorf("%+v, %q", r, names(d.b.Memory, d.prefix()))
	}
	for _, phase := range []string{"after the first phase", "after the second phase"} {
		g := d.group()
		if _, err := g.At(t.Context(), d.ended); !errors.Is(err, reader.ErrRefused) ||
			!strings.Contains(err.Error(), "its history was pruned") || !g.Gone || !g.Covered.Equal(d.ended) ||
			g.Name != "beta" {
			t.Errorf("%s: %+v, %v", phase, g, err)
		}
		d.restores(t, phase)
		d.pass(25)
		if r := d.prune(Options{}); r.Forgotten != 0 || len(names(d.b.Memory, d.prefix())) != 1 {
			t.Errorf("%s: %+v, %q", phase, r, names(d.b.Memory, d.prefix()))
		}
	}
}

// restores checks that a restore as of a time at which the deleted group existed names it, and that a restore as of a
// later time has the other group of its name.
func (d *deleted) restores(t *testing.T, phase string) {
	t.Helper()
	report, err := reader.Verify(t.Context(), d.b, d.store.UUID, nil, reader.VerifyOptions{})
	if err != nil || len(report.Problems) > 0 {
		t.Errorf("%s: verify: %+v, %v", phase, report, err)
	}
	for at, can := range map[time.Time]bool{d.ended: false, d.w.Now(): true} {
		d.w.Log(d.g, d.next)
		archive, err := d.store.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all, err := restore.New(t.Context(), archive, uuid.UUID{1}, at)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, g := range all.Groups() {
			if g.Name != "beta" {
				continue
			}
			found++
			if (g.Err == nil) != can || can && g.Source != d.next.UUID {
				t.Errorf("%s: restore as of %v: %+v", phase, at, g)
			}
		}
		if found != 1 {
			t.Errorf("%s: restore as of %v: %d groups", phase, at, found)
		}
	}
}

// A deleted group stays while a point reads it, and until the bucket's clock has passed the window, too.
func TestADeletedGroupStaysForPointsAndClocks(t *testing.T) {
	d := newDeleted(t)
	spec := PointSpec{Name: "p", Time: d.ended, Made: object.MadeByHand}
	now := d.w.Now()
	d.next.Floor = 0
	d.w.Roll(d.next)
	if _, err := d.store.CreatePoint(t.Context(), spec, now); err != nil {
		t.Fatal(err)
	}
	d.pass(100)
	if r := d.prune(Options{}); r.Forgotten != 0 {
		t.Errorf("a point reads it: %+v", r)
	}
	if err := d.store.DropPoint(t.Context(), "p", d.w.Now()); err != nil {
		t.Fatal(err)
	}
	if r := d.prune(Options{}); r.Forgotten != 1 {
		t.Errorf("the point was dropped: %+v", r)
	}

	d = newDeleted(t)
	d.w.Wait(100 * hour) // by this process's clock alone
	d.w.Log(d.g)
	if r := d.prune(Options{}); r.Forgotten != 0 {
		t.Errorf("the bucket's clock stood still: %+v", r)
	}
}
