package prune

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// clocked is a bucket that gives its objects creation times from a test's clock.
type clocked struct {
	*archivetest.Memory
	now     time.Time
	created map[string]time.Time
	// If not nil, fail decides the result of a Create, no matter what was stored.
	fail func(name string, content []byte) error
	// If not nil, onList is called before each listing.
	onList func(prefix string)
}

func (c *clocked) Create(ctx context.Context, name string, size int64, content io.Reader) error {
	b, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	if c.fail != nil {
		if err := c.fail(name, b); err != nil {
			return err
		}
	}
	if err := c.Memory.Create(ctx, name, size, bytes.NewReader(b)); err != nil {
		return err
	}
	c.created[name] = c.now
	return nil
}

func (c *clocked) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		if c.onList != nil {
			c.onList(prefix)
		}
		for info, err := range c.Memory.List(ctx, prefix, after) {
			info.Created = c.created[info.Name]
			if !yield(info, err) {
				return
			}
		}
	}
}

// aged is an archive with a group in which one record was replaced ten times, long before the window.
type aged struct {
	t     *testing.T
	b     *clocked
	w     *archivetest.Writer
	g     *archivetest.Group
	store *Store
}

func newAged(t *testing.T) *aged {
	b := &clocked{Memory: archivetest.NewMemory(), now: archivetest.Begin, created: map[string]time.Time{}}
	a := &aged{t: t, b: b, w: archivetest.New(t, b, archivetest.SampleStore, object.Key{}),
		store: &Store{Bucket: b, UUID: archivetest.SampleStore}}
	a.g = a.w.NewGroup("alpha", 1)
	for range 10 {
		a.g.Put(1, "data")
	}
	a.w.Copy(a.g, 4)
	a.pass(3 * 24)
	a.g.Put(2, "two")
	a.w.Log(a.g)
	return a
}

// pass advances all clocks by some hours, and then lets the archiver create a log object.
func (a *aged) pass(hours int64) {
	a.w.Wait(hours * hour)
	a.b.now = a.b.now.Add(time.Duration(hours) * time.Hour)
	a.w.Log(a.g)
}

func (a *aged) prune(opts Options) *Report {
	a.t.Helper()
	opts.Window, opts.Now = window, a.w.Now
	r, err := a.store.Run(a.t.Context(), opts)
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

func TestPruningHasTwoPhases(t *testing.T) {
	a := newAged(t)
	segments := len(names(a.b.Memory, "/seg/"))
	dry := a.prune(Options{DryRun: true})
	if dry.Groups != 1 || dry.Versions != 9 || len(names(a.b.Memory, "/base/"))+len(names(a.b.Memory, "/drop/")) > 0 {
		t.Errorf("dry run: %+v, %q", dry, a.b.Names())
	}
	r := a.prune(Options{})
	if r.Groups != 1 || r.Versions != 9 || r.Listed != 3 || r.Deleted != 0 ||
		len(names(a.b.Memory, "/seg/")) != segments+1 {
		t.Errorf("first phase: %+v", r)
	}
	a.pass(23)
	if r := a.prune(Options{}); r.Deleted != 0 || r.Listed != 0 {
		t.Errorf("after 23 hours: %+v", r)
	}
	a.pass(2)
	if r := a.prune(Options{DryRun: true}); r.Deleted != 3 {
		t.Errorf("dry run: %+v", r)
	}
	if r := a.prune(Options{}); r.Deleted != 3 || len(names(a.b.Memory, "/seg/")) != 1 {
		t.Errorf("second phase: %+v", r)
	}
	if got := names(a.b.Memory, "/drop/"); len(got) != 1 {
		t.Errorf("the newest drop stays, so that its number is not used again: %q", got)
	}
}

// A day must pass both by the process's clock and by the bucket's.
func TestWhenADropIsDue(t *testing.T) {
	begin := archivetest.Begin
	d := drop{Drop: &object.Drop{Time: begin.UnixNano()}, created: begin.Add(time.Hour)}
	for _, c := range []struct {
		now, newest time.Duration
		due         bool
	}{
		{24 * time.Hour, 25 * time.Hour, true}, {24*time.Hour - 1, 25 * time.Hour, false},
		{24 * time.Hour, 25*time.Hour - 1, false}, {1000 * time.Hour, time.Hour, false},
	} {
		if due := d.due(begin.Add(c.now), begin.Add(c.newest)); due != c.due {
			t.Errorf("%v, %v: %v", c.now, c.newest, due)
		}
	}
}

func TestNothingIsPrunedWhileTheArchiveIsRead(t *testing.T) {
	a := newAged(t)
	a.prune(Options{})
	a.pass(25)
	use := func(until time.Duration) {
		name := object.UsePrefix + "11111111-2222-3333-4444-555555555555"
		now := a.w.Now()
		a.b.Set(a.w.Name(name), a.w.Encode(&object.Use{Created: now.UnixNano(), Until: now.Add(until).UnixNano(),
			What: "a restore"}, nil))
	}
	use(time.Hour)
	before := a.b.Names()
	if r := a.prune(Options{}); !strings.Contains(r.InUse, "a restore") || !slices.Equal(a.b.Names(), before) {
		t.Errorf("%+v", r)
	}
	// A use that cannot be read is treated as valid.
	name := names(a.b.Memory, "/use/")[0]
	content := bytes.Clone(a.b.Get(name))
	content[len(content)-1] ^= 1
	a.b.Set(name, content)
	if _, err := a.store.Run(t.Context(), Options{Window: window, Now: a.w.Now}); !errors.Is(err, object.ErrCorrupt) ||
		!slices.Equal(a.b.Names(), before) {
		t.Errorf("a damaged use: %v", err)
	}
	use(-time.Second)
	if r := a.prune(Options{}); r.InUse != "" || r.Deleted != 3 || r.Listed != 1 {
		t.Errorf("a use that has ended: %+v", r)
	}
}

// A drop lists objects that then become necessary again: the group is copied again, so the base that has replaced
// these objects is no longer in effect. The objects must not be deleted.
func TestWhatIsNeededAgainIsNotDeleted(t *testing.T) {
	a := newAged(t)
	a.prune(Options{})
	a.pass(25)
	segments := names(a.b.Memory, "/seg/")
	archive, err := a.store.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g, err := archive.Group(t.Context(), a.g.UUID)
	if err != nil {
		t.Fatal(err)
	}
	c, number := g.Catalogue()
	c.Segments = c.Segments[1:] // the catalogue no longer lists all segments that the base replaces
	a.b.Set(a.w.Name(object.CatalogueName(a.g.UUID, number+1)), a.w.Encode(&c, nil))
	// This run makes a new base, which again replaces some of these segments. They must wait for another day.
	r := a.prune(Options{})
	if r.Deleted != 0 || r.Groups != 1 || r.Listed == 0 || len(names(a.b.Memory, "/seg/")) < len(segments) {
		t.Errorf("%+v", r)
	}
	if r := a.prune(Options{}); r.Deleted != 0 || r.Listed != 0 {
		t.Errorf("again: %+v", r)
	}
	a.pass(25)
	if again := a.prune(Options{}); again.Deleted != r.Listed {
		t.Errorf("a day later: %+v", again)
	}
	// The base that is not in effect is kept together with its segment, because it describes the earlier history.
	if bases := names(a.b.Memory, "/base/"); len(bases) != 2 {
		t.Errorf("%q", bases)
	}
}

func TestPointsOfAScheduleAndPointsThatEnd(t *testing.T) {
	a := newAged(t)
	make := func(name, made string, until time.Duration) {
		t.Helper()
		spec := PointSpec{Name: name, Made: made}
		if until > 0 {
			spec.Until = a.w.Now().Add(until)
		}
		if _, err := a.store.CreatePoint(t.Context(), spec, a.w.Now()); err != nil {
			t.Fatal(err)
		}
		a.pass(1)
		a.g.Put(1, name)
		a.w.Log(a.g)
	}
	make("hand", object.MadeByHand, 0)
	make("s1", object.MadeBySchedule, 0)
	make("s2", object.MadeBySchedule, 0)
	make("s3", object.MadeBySchedule, 0)
	make("ends", object.MadeByHand, 10*time.Hour)
	if r := a.prune(Options{Points: 2}); !slices.Equal(r.Points, []string{"s1"}) {
		t.Errorf("two of three points are kept: %+v", r)
	}
	a.pass(11)
	if r := a.prune(Options{Points: 2}); !slices.Equal(r.Points, []string{"s1", "ends"}) {
		t.Errorf("one has ended: %+v", r)
	}
	if err := a.store.DropPoint(t.Context(), "hand", a.w.Now()); err != nil {
		t.Fatal(err)
	}
	if err := a.store.DropPoint(t.Context(), "none", a.w.Now()); !reader.IsMissing(err) {
		t.Error(err)
	}
	a.pass(25)
	a.prune(Options{Points: 2})
	var left []string
	for _, name := range names(a.b.Memory, "/points/") {
		left = append(left, name[strings.LastIndexByte(name, '/')+1:])
	}
	if !slices.Equal(left, []string{"s2", "s3"}) {
		t.Errorf("left: %q", left)
	}
	// After a point was deleted, its name can be used again, even while a drop still lists it.
	make("hand", object.MadeByHand, 0)
	points, err := a.store.Points(t.Context())
	if err != nil || points[len(points)-1].Name != "hand" || points[len(points)-1].Dropped {
		t.Errorf("%+v, %v", points, err)
	}
	if _, err := a.store.CreatePoint(t.Context(), PointSpec{Name: "hand", Made: object.MadeByHand}, a.w.Now()); !errors.Is(
		err, ErrOther) {
		t.Errorf("a second point of the name: %v", err)
	}
}

// If a base leaves out all entries that refer to a blob, the blob is deleted, even if another base is made before the
// deletion.
func TestBlobsOfVersionsThatAreLeftOut(t *testing.T) {
	a := newAged(t)
	a.g.PutBlob(5, []byte("replaced"))
	a.g.PutBlob(6, []byte("stays"))
	a.g.Put(5, "five")
	a.pass(72)
	a.g.Put(2, "two")
	a.w.Roll(a.g)
	if r := a.prune(Options{}); r.Groups != 1 || len(names(a.b.Memory, "/blob/")) != 2 {
		t.Errorf("%+v", r)
	}
	for range 20 {
		a.g.Put(5, "five again")
	}
	a.w.Log(a.g)
	a.w.Roll(a.g)
	a.w.Wait(60 * hour) // the time passes only by this process's clock, so nothing is deleted
	a.g.Put(2, "two")
	a.w.Log(a.g)
	if r := a.prune(Options{}); r.Groups != 1 || r.Deleted != 0 {
		t.Errorf("another base: %+v", r)
	}
	a.pass(25)
	a.prune(Options{})
	blobs := names(a.b.Memory, "/blob/")
	if len(blobs) != 1 || !bytes.Contains(a.b.Get(blobs[0]), []byte("stays")) {
		t.Errorf("%q", blobs)
	}
	report, err := reader.Verify(t.Context(), a.b, a.w.Store, nil, reader.VerifyOptions{})
	if err != nil || len(report.Problems) > 0 || report.Blobs != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

// The segments of a group overlap, because deletes were added to its archive after a further copy. Once all of them are
// older than the window, the group is rewritten like any other. While one of them is in the window, the report names
// the group.
func TestAGroupWithAddedDeletesIsPruned(t *testing.T) {
	a := newAged(t)
	a.w.Roll(a.g)
	if err := a.create("early", 5); err != nil { // keeps a version of record 1, and so its deletes
		t.Fatal(err)
	}
	for i := range int64(2) {
		a.w.Wait(60 * hour)
		for range 20 {
			a.g.Put(3, "three")
		}
		a.g.Compact(a.g.Delete(1))
		a.g.Put(4+i, "behind the delete")
	}
	a.w.CopyMissed(a.g, 21)
	last := a.g.Through()
	a.pass(1)
	a.prune(Options{}) // replaces what was there before
	for _, dry := range []bool{true, false} {
		r := a.prune(Options{DryRun: dry})
		if r.Groups != 0 || len(r.Unpruned) != 1 || r.Unpruned[0].Name != "alpha" ||
			!strings.Contains(r.Unpruned[0].Why, "overlap") {
			t.Errorf("one of them is in the window, dry run %v: %+v", dry, r)
		}
	}
	a.pass(72)
	a.g.Put(2, "two")
	a.w.Log(a.g)
	if r := a.prune(Options{}); r.Groups != 1 || r.Versions < 38 || len(r.Unpruned) > 0 {
		t.Errorf("behind the window: %+v", r)
	}
	m := &model{t: t, bucket: a.b, w: a.w, store: a.store}
	m.check()
	archive, err := a.store.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read, err := archive.Group(t.Context(), a.g.UUID)
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range []uint64{last, a.g.Through()} {
		m.equal(t.Context(), read, a.g, index)
	}
	a.isKept("early", 5)
}

// The report names each group that cannot be rewritten, and says why.
func TestAGroupThatCannotBePrunedIsNamed(t *testing.T) {
	a := newAged(t)
	late := a.w.NewGroup("late", 2)
	late.Put(1, "one")
	a.w.Log(late)
	a.w.Roll(a.g) // covers the log objects so far
	a.g.Put(2, "two")
	lost := a.w.Log(a.g)
	a.g.Put(2, "two again")
	a.w.Log(a.g)
	if err := a.b.Delete(t.Context(), a.w.Name(lost)); err != nil {
		t.Fatal(err)
	}
	r := a.prune(Options{DryRun: true})
	if len(r.Unpruned) != 2 || r.Unpruned[0].Name != "alpha" || !strings.Contains(r.Unpruned[0].Why, "missing") ||
		r.Unpruned[1].Name != "late" || !strings.Contains(r.Unpruned[1].Why, "catalogue") {
		t.Errorf("%+v", r)
	}
}

// A piece says that a group was deleted, and no catalogue says so yet. The group's last entries are only in log
// objects, which must stay.
func TestTheLastPiecesOfADeletedGroupStay(t *testing.T) {
	a := newAged(t)
	b := a.w.NewGroup("beta", 2)
	b.Put(1, "one")
	a.w.Copy(b, 2)
	b.Put(2, "two")
	a.w.Log(b)
	b.Gone = true
	a.w.Log(b)
	for range logsKept + 50 {
		a.w.Log(a.g)
	}
	a.w.Roll(a.g)
	a.prune(Options{})
	a.pass(25)
	a.prune(Options{})
	m := &model{t: t, bucket: a.b, w: a.w, store: a.store}
	m.check()
	archive, err := a.store.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read, err := archive.Group(t.Context(), b.UUID)
	if err != nil || read.Through != 2 || read.Missing != "" {
		t.Fatalf("%+v, %v", read, err)
	}
	m.equal(t.Context(), read, b, 2)
}

// A base is rewritten only when at least as much data as it holds has been added after it.
func TestABaseIsNotRewrittenForLittle(t *testing.T) {
	a := newAged(t)
	a.g.Put(7, strings.Repeat("large", 1000))
	a.w.Log(a.g)
	a.w.Roll(a.g)
	a.pass(72)
	a.g.Put(1, "one")
	a.w.Log(a.g)
	if r := a.prune(Options{}); r.Groups != 1 {
		t.Errorf("the first base: %+v", r)
	}
	for _, c := range []struct{ puts, groups int }{{5, 0}, {100, 1}} {
		for range c.puts {
			a.g.Put(1, "one")
		}
		a.w.Log(a.g)
		a.w.Roll(a.g)
		a.pass(72)
		a.g.Put(2, "two")
		a.w.Log(a.g)
		if r := a.prune(Options{}); r.Groups != c.groups {
			t.Errorf("%d versions more: %+v", c.puts, r)
		}
	}
}

// A point cannot be created if some group cannot be read as of the point's time.
func TestAPointIsReadable(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	store := &Store{Bucket: b, UUID: w.Store}
	beta := w.Groups[1]
	_, err := store.CreatePoint(t.Context(), PointSpec{Name: "x", Time: time.Unix(0, beta.CommitTime(6)),
		Made: object.MadeByHand}, w.Now())
	if !errors.Is(err, reader.ErrRefused) || len(names(b, "/points/")) > 0 {
		t.Error(err)
	}
	if _, err := store.CreatePoint(t.Context(), PointSpec{Name: "x", Made: object.MadeByHand}, w.Now()); err != nil {
		t.Error(err)
	}
	// Verify reports a point that cannot be read.
	for _, name := range names(b, group(4).String()) {
		b.Set(name, nil)
	}
	report, err := reader.Verify(t.Context(), b, w.Store, nil, reader.VerifyOptions{})
	if err != nil || !slices.ContainsFunc(report.Problems, func(p reader.Problem) bool {
		return strings.Contains(p.What, "point x")
	}) {
		t.Errorf("%+v, %v", report, err)
	}
}

// The newest 200 log objects are kept, even though the catalogues cover all of their pieces.
func TestLogObjectsStayForAWhile(t *testing.T) {
	a := newAged(t)
	for range 300 {
		a.g.Put(3, "three")
		a.w.Log(a.g)
	}
	a.w.Roll(a.g)
	a.prune(Options{})
	a.pass(25)
	a.g.Put(3, "three")
	a.w.Log(a.g)
	a.prune(Options{})
	if logs := names(a.b.Memory, "/log/"); len(logs) != logsKept+2 { // two log objects are newer than the catalogue
		t.Errorf("%d log objects are left", len(logs))
	}
	late := a.w.NewGroup("late", 2)
	late.Put(1, "one")
	a.w.Log(late)
	before := len(names(a.b.Memory, "/log/"))
	a.w.Roll(a.g)
	a.prune(Options{})
	a.pass(25)
	a.prune(Options{})
	if logs := names(a.b.Memory, "/log/"); len(logs) != before+1 {
		t.Errorf("%d of %d log objects are left, and a group has no catalogue", len(logs), before)
	}
}

// If the response to a create is lost, the create is repeated. If another process has created the object first, an
// error is returned.
func TestCreatesWhoseAnswersAreLost(t *testing.T) {
	a := newAged(t)
	lost := 0
	a.b.fail = func(name string, content []byte) error {
		if lost++; lost%2 == 0 {
			return nil
		}
		_ = a.b.Memory.Create(t.Context(), name, int64(len(content)), bytes.NewReader(content))
		return errors.New("the answer was lost")
	}
	if r := a.prune(Options{}); r.Groups != 1 || r.Listed != 3 || lost < 3 {
		t.Errorf("%+v, %d answers", r, lost)
	}
	a = newAged(t)
	a.b.fail = func(name string, _ []byte) error {
		if strings.Contains(name, "/base/") {
			other := a.w.Encode(&object.Use{What: "other"}, nil)
			a.b.Set(name, other)
		}
		return nil
	}
	if _, err := a.store.Run(t.Context(), Options{Window: window, Now: a.w.Now}); !errors.Is(err, ErrOther) {
		t.Errorf("another process was first: %v", err)
	}
}
