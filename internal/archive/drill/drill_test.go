package drill

import (
	"bytes"
	"context"
	"errors"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/archivetest"
	"sheaf.dev/sheaf/internal/test/drilltest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

const scratchDir = "/scratch"

// scene is an archive with its living store, and a scratch folder.
type scene struct {
	b     *archivetest.Memory
	w     *archivetest.Writer
	store *drilltest.Store
	disk  *vfstest.Mem
	opts  Options
}

// sampleScene is the sample archive, whose store has not changed since.
func sampleScene(t *testing.T, key object.Key) *scene {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, key, 50)
	return newScene(b, w)
}

func newScene(b *archivetest.Memory, w *archivetest.Writer) *scene {
	s := &scene{b: b, w: w, store: drilltest.New(w), disk: vfstest.NewMem()}
	now := w.Now().Add(time.Hour)
	s.opts = Options{
		Bucket: b, Store: w.Store, Keys: object.Keys{w.Key}, Key: w.Key, Living: s.store, Groups: 10, At: w.Now(),
		Scratch: Scratch{FS: s.disk, Dir: scratchDir},
		Random:  func(n int64) int64 { return n / 2 },
		Now: func() time.Time {
			now = now.Add(1500 * time.Millisecond)
			return now
		},
	}
	return s
}

// run runs a drill, and checks that it has written what it returns, and has left nothing behind.
func (s *scene) run(t *testing.T) *object.Drill {
	t.Helper()
	d, err := Run(t.Context(), s.opts)
	if err != nil {
		t.Fatal(err)
	}
	a, err := reader.Open(t.Context(), s.b, s.w.Store, s.opts.Keys)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := a.NewestDrill(t.Context())
	if err != nil || !reflect.DeepEqual(stored, d) {
		t.Fatalf("stored is %+v, not %+v, error %v", stored, d, err)
	}
	if names, err := s.disk.List(scratchDir); err != nil || !slices.Equal(names, []string{lockName}) {
		t.Fatalf("the scratch folder has %v, error %v", names, err)
	}
	if s.store.Copies != 0 {
		t.Fatalf("%d copies are open", s.store.Copies)
	}
	return d
}

// of returns the outcome of a group.
func of(t *testing.T, d *object.Drill, g *archivetest.Group) object.DrillGroup {
	t.Helper()
	i := slices.IndexFunc(d.Groups, func(in object.DrillGroup) bool { return in.Group == g.UUID })
	if i < 0 {
		t.Fatalf("%s is not in the drill %+v", g.Name, d)
	}
	return d.Groups[i]
}

// A drill on a good archive proves it, as of any time of its window.
func TestAGoodArchiveIsProven(t *testing.T) {
	for name, key := range map[string]object.Key{"plain": {}, "encrypted": archivetest.SampleKey(t)} {
		s := sampleScene(t, key)
		alpha, beta, delta := s.w.Groups[0], s.w.Groups[1], s.w.Groups[3]
		d := s.run(t)
		if d.Result != object.DrillProven || len(d.Groups) != 3 || d.Point != s.w.Now().UnixNano() || d.Seconds != 2 {
			t.Fatalf("%s: %+v", name, d)
		}
		sum := int64(0)
		for _, g := range []*archivetest.Group{alpha, beta, delta} {
			got, records := of(t, d, g), int64(len(g.State(g.Through())))
			sum += records
			if got.Index != g.Through() || got.Records != records || got.Compared != records || got.Changed != 0 {
				t.Errorf("%s: %+v, the group has %d records", name, got, records)
			}
		}
		if d.Records != sum || d.Bytes == 0 {
			t.Errorf("%s: %d records, %d bytes", name, d.Records, d.Bytes)
		}
	}
}

// As of each random time, what is proven has the state of the model at that time. A group that cannot be read then is
// refused, and this is no difference.
func TestAnyTimeOfTheWindowIsProven(t *testing.T) {
	s := sampleScene(t, object.Key{})
	s.opts.At = time.Time{}
	proven, changed, refused, points := 0, int64(0), 0, map[int64]bool{}
	const times = 12
	for i := range int64(times) {
		s.opts.Random = func(n int64) int64 { return (n - 1) * i / (times - 1) }
		d := s.run(t)
		points[d.Point] = true
		if d.Result != object.DrillProven {
			t.Fatalf("%+v", d)
		}
		for _, g := range d.Groups {
			changed += g.Changed
			switch g.Result {
			case object.DrillProven:
				proven++
			case object.DrillRefused:
				refused++
			default:
				t.Errorf("%+v", g)
			}
		}
	}
	if proven < times || refused == 0 || changed == 0 || len(points) != times {
		t.Errorf("%d groups proven, %d refused, %d records changed since, %d points", proven, refused, changed, len(points))
	}
}

// A harmed archive differs, and the drill names what is wrong with which group.
func TestAHarmedArchiveDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(t *testing.T, s *scene)
		want string // text of a difference
		id   string // record of the difference; empty if it is about the group
	}{
		"one bit in a segment": {func(t *testing.T, s *scene) {
			flip(t, s, "/seg/")
		}, "the object is damaged", ""},
		"one bit in a blob": {func(t *testing.T, s *scene) {
			flip(t, s, "/blob/")
		}, "the object is damaged", ""},
		"a segment is missing": {func(t *testing.T, s *scene) {
			s.b.Set(s.find(t, "/seg/"), nil)
		}, "/seg/", ""},
		"a catalogue is damaged": {func(t *testing.T, s *scene) {
			flip(t, s, "/cat/0000000000000000002")
		}, "the object is damaged", ""},
		"a log object is missing": {func(_ *testing.T, s *scene) {
			s.b.Set(s.w.Name(object.LogName(4)), nil)
		}, "is missing", ""},
		"a record is missing": {func(_ *testing.T, s *scene) {
			g := s.w.Groups[3]
			g.Put(77, "never archived")
			s.store.Set(s.w, g, g.History())
			g.Compact(g.Put(78, "archived")-1, 0)
			s.w.Log(g, s.w.Groups[0], s.w.Groups[1])
			s.opts.At = s.w.Now()
			s.store.Set(s.w, g, g.History())
		}, "the store has it since index 3, and it was not restored", "77"},
		"a delete is missing": {func(_ *testing.T, s *scene) {
			g := s.w.Groups[3]
			g.Compact(g.Delete(1))
			s.w.Log(g, s.w.Groups[0], s.w.Groups[1])
			s.opts.At = s.w.Now()
			s.store.Set(s.w, g, g.History())
		}, "index 1 of it was restored, but it was deleted at index 3", "1"},
		"a version is missing": {func(_ *testing.T, s *scene) {
			g := s.w.Groups[3]
			g.Compact(g.Put(1, "rests no more"))
			s.w.Log(g, s.w.Groups[0], s.w.Groups[1])
			s.opts.At = s.w.Now()
			s.store.Set(s.w, g, g.History())
		}, "index 1 of it was restored, but its newest one is 3", "1"},
		"other data": {func(t *testing.T, s *scene) {
			g := s.w.Groups[3]
			s.store.Set(s.w, g, change(t, g.History(), 1, func(e *format.Entry) { e.Data = []byte("other") }))
		}, "checksum", "1"},
		"a record that the store never had": {func(t *testing.T, s *scene) {
			g := s.w.Groups[3]
			s.store.Set(s.w, g, change(t, g.History(), 1, func(e *format.Entry) { e.ID = 9 }))
		}, "the store has neither the record nor a delete of it", "1"},
	} {
		s := sampleScene(t, object.Key{})
		c.harm(t, s)
		d := s.run(t)
		if d.Result != object.DrillDiffers || d.Differing < 1 || !slices.ContainsFunc(d.Differences,
			func(is object.DrillDifference) bool {
				return is.Group != uuid.Nil && strings.Contains(is.What, c.want) && is.ID == c.id
			}) {
			t.Errorf("%s: %+v", name, d)
		}
		if d.Differing > 4 {
			t.Errorf("%s: %d differences: %+v", name, d.Differing, d.Differences)
		}
	}
}

// find returns the first object whose name contains a text.
func (s *scene) find(t *testing.T, part string) string {
	t.Helper()
	names := s.b.Names()
	i := slices.IndexFunc(names, func(name string) bool { return strings.Contains(name, part) })
	if i < 0 {
		t.Fatalf("no object has %q in its name", part)
	}
	return names[i]
}

// change returns entries of which one has been changed.
func change(t *testing.T, entries []format.Entry, index uint64, change func(e *format.Entry)) []format.Entry {
	t.Helper()
	for i := range entries {
		if entries[i].Index == index {
			change(&entries[i])
			return entries
		}
	}
	t.Fatalf("no entry has index %d", index)
	return nil
}

// flip changes one bit in the middle of an object.
func flip(t *testing.T, s *scene, part string) {
	t.Helper()
	name := s.find(t, part)
	b := bytes.Clone(s.b.Get(name))
	b[len(b)/2] ^= 8
	s.b.Set(name, b)
}

// What was written or deleted since the point is not compared. A group that the store does not have any more is not
// compared, either.
func TestWhatChangedSinceIsNoDifference(t *testing.T) {
	s := sampleScene(t, object.Key{})
	alpha, beta, delta := s.w.Groups[0], s.w.Groups[1], s.w.Groups[3]
	alpha.Put(3, "written since")
	alpha.Put(99, "new")
	delta.Delete(1)
	for _, g := range []*archivetest.Group{alpha, delta} {
		s.store.Set(s.w, g, g.History())
	}
	delete(s.store.Groups, beta.UUID)
	d := s.run(t)
	if d.Result != object.DrillProven {
		t.Fatalf("%+v", d)
	}
	if g := of(t, d, alpha); g.Changed != 1 || g.Compared != g.Records-1 || g.NotCompared != "" {
		t.Errorf("alpha: %+v", g)
	}
	if g := of(t, d, beta); g.Compared != 0 || g.Changed != 0 || g.NotCompared == "" || g.Result != object.DrillProven {
		t.Errorf("beta: %+v", g)
	}
	if g := of(t, d, delta); g.Changed != 1 || g.Compared != 0 {
		t.Errorf("delta: %+v", g)
	}
	// The store has dropped the delete since, and does not know any more when the record was deleted.
	history := delta.History()
	r := s.store.Set(s.w, delta, history[1:2])
	r.Manifest.TombstoneFloor = 3
	if g := of(t, s.run(t), delta); g.Changed != 1 || g.Result != object.DrillProven {
		t.Errorf("delta without its delete: %+v", g)
	}
	// A replica that is behind does not have what is archived.
	s.store.Set(s.w, alpha, alpha.History()).Applied = 3
	d = s.run(t)
	if g := of(t, d, alpha); g.Compared+g.Changed != 0 || !strings.Contains(g.NotCompared, "is behind") {
		t.Errorf("a replica that is behind: %+v", d)
	}
}

// Entries in the files of a replica that a later leader has replaced do not count.
func TestReplacedEntriesOfTheStoreDoNotCount(t *testing.T) {
	s := sampleScene(t, object.Key{})
	alpha := s.w.Groups[0]
	history := alpha.History()
	last := len(history)
	void := slices.Clone(history[last-2:])
	for i := range void {
		void[i].ID, void[i].Kind, void[i].Codec, void[i].Data = 3, format.KindPut, format.CodecPlain, []byte("void")
	}
	s.store.Set(s.w, alpha, slices.Concat(history[:last-2], void, history[last-2:]))
	if d := s.run(t); d.Result != object.DrillProven {
		t.Errorf("%+v", d)
	}
}

// The groups take turns, and the turn begins behind the last group of the newest drill.
func TestGroupsTakeTurns(t *testing.T) {
	s := sampleScene(t, object.Key{})
	s.opts.Groups = 2
	var taken []string
	for range 3 {
		for _, g := range s.run(t).Groups {
			taken = append(taken, g.Name)
		}
	}
	if want := []string{"alpha", "beta", "delta", "alpha", "beta", "delta"}; !slices.Equal(taken, want) {
		t.Errorf("groups %v, not %v", taken, want)
	}
	// A damaged drill does not stop the turn.
	flip(t, s, object.DrillPrefix)
	if g := s.run(t).Groups[0].Name; g != "alpha" {
		t.Errorf("group %s", g)
	}
}

// What the drill cannot find out is no proof, and no difference.
func TestADrillThatDoesNotFindOutHasFailed(t *testing.T) {
	for name, c := range map[string]struct {
		trouble func(s *scene)
		want    string
	}{
		"no room on the disk": {func(s *scene) { s.disk.SetCapacity(slackBytes) }, ErrNoRoom.Error()},
		"no room by its limit": {func(s *scene) { s.opts.Scratch.BytesMax = slackBytes + 100 },
			"at most 16777316 may be used"},
		"the store is away": {func(s *scene) { s.store.Err = errors.New("connection refused") },
			"the store could not be read, so the records were not compared: connection refused"},
		"no group can be compared": {func(s *scene) { clear(s.store.Groups) },
			"none of the groups was compared with the store: group delta: no shard of the store has the group"},
		"no group can be read": {func(s *scene) { s.opts.At, s.opts.Groups = archivetest.Begin, 1 },
			"none of the groups can be read as of this point"},
	} {
		s := sampleScene(t, object.Key{})
		c.trouble(s)
		d := s.run(t)
		if d.Result != object.DrillFailed || d.Differing != 0 || !strings.Contains(d.Error, c.want) {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// The bytes of the scratch folder are checked after the install. A bit of a blob, which is in no entry, would not be
// found otherwise.
func TestEveryRestoredByteIsRead(t *testing.T) {
	s := sampleScene(t, object.Key{})
	rotten := 0
	s.disk.AfterOp(func(op vfstest.Op) {
		if op.Kind == vfstest.OpSyncDir && op.Name == path.Join(scratchDir, scratchName) {
			names, _ := s.disk.List(op.Name)
			for _, name := range names {
				if strings.HasPrefix(name, "blob-") && rotten == 0 &&
					s.disk.Rot(path.Join(op.Name, name), 150, 1, func(b []byte) { b[0] ^= 1 }) {
					rotten++
				}
			}
		}
	})
	d := s.run(t)
	if rotten != 1 {
		t.Fatal("no blob was changed")
	}
	if d.Result != object.DrillDiffers || d.Differing != 1 || !strings.Contains(d.Differences[0].What, "blob-") {
		t.Errorf("%+v", d)
	}
}

// A drill that was killed leaves files, which the next one removes. Two drills never share the folder. Other files in
// the folder are left alone.
func TestScratchOfAKilledDrillIsRemoved(t *testing.T) {
	s := sampleScene(t, object.Key{})
	left := path.Join(scratchDir, scratchName, "sub")
	if err := s.disk.MkdirAll(left); err != nil {
		t.Fatal(err)
	}
	// The next drill could install nothing beside a manifest that is damaged.
	for _, name := range []string{path.Join(left, "file"), path.Join(scratchDir, scratchName, format.ManifestName),
		path.Join(scratchDir, scratchName, format.ReplicaName)} {
		if err := vfs.WriteAside(s.disk, name, []byte("left by a drill that was killed")); err != nil {
			t.Fatal(err)
		}
	}
	if d := s.run(t); d.Result != object.DrillProven {
		t.Errorf("%+v", d)
	}
	lock, err := s.disk.Lock(path.Join(scratchDir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := Run(t.Context(), s.opts); err == nil || !strings.Contains(err.Error(), "another drill is using it") {
		t.Errorf("error %v", err)
	}
}

// A drill that was stopped, or cannot begin, writes nothing.
func TestADrillWithoutAResultWritesNothing(t *testing.T) {
	s := sampleScene(t, object.Key{})
	ctx, cancel := context.WithCancel(t.Context())
	s.opts.Tell = func(object.DrillGroup) { cancel() }
	if _, err := Run(ctx, s.opts); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	s.opts.Point = "none"
	if _, err := Run(t.Context(), s.opts); !reader.IsMissing(err) {
		t.Errorf("error %v", err)
	}
	empty := archivetest.NewMemory()
	w := archivetest.New(t, empty, archivetest.SampleStore, object.Key{})
	if _, err := Run(t.Context(), newScene(empty, w).opts); !errors.Is(err, ErrNothing) {
		t.Errorf("error %v", err)
	}
	for _, name := range slices.Concat(s.b.Names(), empty.Names()) {
		if strings.Contains(name, object.DrillPrefix) {
			t.Errorf("there is %s", name)
		}
	}
}

// As of a named point, each group is restored as of the index that the point has.
func TestADrillOfANamedPoint(t *testing.T) {
	s := sampleScene(t, object.Key{})
	archive := &prune.Store{Bucket: s.b, UUID: s.w.Store, Keys: s.opts.Keys}
	spec := prune.PointSpec{Name: "before", Time: s.w.Now().Add(-11 * time.Second), Made: object.MadeByHand}
	p, err := archive.CreatePoint(t.Context(), spec, s.w.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.opts.At, s.opts.Point = time.Time{}, "before"
	d := s.run(t)
	if d.Result != object.DrillProven || d.Point != p.Time || len(d.Groups) != len(p.Groups) {
		t.Fatalf("%+v, the point is %+v", d, p)
	}
	for _, in := range p.Groups {
		i := slices.IndexFunc(d.Groups, func(g object.DrillGroup) bool { return g.Group == in.Group })
		if i < 0 || d.Groups[i].Index != in.Index {
			t.Errorf("group %s: %+v", in.Name, d.Groups)
		}
	}
}
