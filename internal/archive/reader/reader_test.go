package reader_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// sample writes the archive of archivetest.Sample to memory.
func sample(t testing.TB, key object.Key, blobBytes int) (*archivetest.Memory, *archivetest.Writer) {
	t.Helper()
	b := archivetest.NewMemory()
	return b, archivetest.Sample(t, b, key, blobBytes)
}

func open(t testing.TB, b *archivetest.Memory, w *archivetest.Writer) *reader.Archive {
	t.Helper()
	a, err := reader.Open(t.Context(), b, w.Store, object.Keys{w.Key})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func group(t testing.TB, a *reader.Archive, of *archivetest.Group) *reader.Group {
	t.Helper()
	g, err := a.Group(t.Context(), of.UUID)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// record returns a version and its data in the form of the model.
func record(ctx context.Context, v reader.Version) (archivetest.Record, error) {
	r := archivetest.Record{Entry: v.Entry}
	if v.Deleted() {
		return r, nil
	}
	src, err := v.Open(ctx)
	if err != nil {
		return r, err
	}
	r.Data, err = io.ReadAll(src)
	if int64(len(r.Data)) != v.Size && err == nil {
		err = fmt.Errorf("%d bytes, and Size says %d", len(r.Data), v.Size)
	}
	return r, errors.Join(err, src.Close())
}

// differs describes how a version differs from the model's version. It returns "" if they are equal.
func differs(got, want archivetest.Record) string {
	e, w := got.Entry, want.Entry
	if e.Kind != w.Kind || e.ID != w.ID || e.Index != w.Index || e.Term != w.Term || e.CommitTime != w.CommitTime ||
		e.Timestamp != w.Timestamp || e.RequestID != w.RequestID || !bytes.Equal(e.Attributes, w.Attributes) ||
		!bytes.Equal(got.Data, want.Data) {
		return fmt.Sprintf("%s, and the model has %s", got, want)
	}
	return ""
}

// checkState reads a group's state, and compares it with the model.
func checkState(ctx context.Context, g *reader.Group, model *archivetest.Group, index uint64) error {
	want := maps.Clone(model.State(index))
	for v, err := range g.State(ctx, index) {
		if err != nil {
			return err
		}
		got, err := record(ctx, v)
		if err != nil {
			return err
		}
		if what := differs(got, want[v.Entry.ID]); what != "" {
			return wrongData(what)
		}
		delete(want, v.Entry.ID)
	}
	if len(want) > 0 {
		return wrongData(fmt.Sprintf("%d records are missing as of index %d, such as %v", len(want), index, want))
	}
	return nil
}

// wrongData is the error that must never occur: the reader returned data that was never written.
type wrongData string

func (w wrongData) Error() string { return "wrong data: " + string(w) }

// blobHeaderBytes is the length of the header of a blob whose size has seven digits.
const blobHeaderBytes = len(`{"group":"67000000-0000-0000-0000-000000000001","size":2097085}`)

// For every group and every index, the reader returns the state that the model has, or refuses the index if the
// archive has no exact answer.
func TestEveryIndexIsWhatTheModelSays(t *testing.T) {
	for name, c := range map[string]struct {
		key       object.Key
		blobBytes int
	}{
		"small":                        {blobBytes: 50},
		"encrypted":                    {key: archivetest.SampleKey(t), blobBytes: 50},
		"blobs of several chunks":      {blobBytes: 2*object.ChunkBytes + 99},
		"encrypted, several chunks":    {key: archivetest.SampleKey(t), blobBytes: object.ChunkBytes + 99},
		"blobs that end with a chunk":  {blobBytes: 2*object.ChunkBytes - blobHeaderBytes},
		"a blob without a single byte": {},
	} {
		t.Run(name, func(t *testing.T) {
			b, w := sample(t, c.key, c.blobBytes)
			a := open(t, b, w)
			for _, model := range w.Groups {
				g := group(t, a, model)
				if g.Name != model.Name || g.Through != model.Through() || g.Floor != model.Floor || g.Gone != model.Gone {
					t.Fatalf("group %+v, the model is %+v", g, model)
				}
				for index := range model.Through() + 3 {
					err := checkState(t.Context(), g, model, index)
					if refused := refusedIndex(model, index); refused != errors.Is(err, reader.ErrRefused) ||
						err != nil && !refused {
						t.Errorf("%s as of index %d: error %v; must be refused: %t", g, index, err, refused)
					}
					checkRecords(t, g, model, index)
				}
			}
		})
	}
}

// refusedIndex determines from the rules of docs/archive.md whether an index must be refused.
func refusedIndex(model *archivetest.Group, index uint64) bool {
	for _, h := range model.Holes {
		if index >= h.From && index < h.To {
			return true
		}
	}
	return index < model.Floor || index > model.Through()
}

// checkRecords reads individual records as of an index.
func checkRecords(t *testing.T, g *reader.Group, model *archivetest.Group, index uint64) {
	t.Helper()
	want := model.State(index)
	for _, id := range []int64{-2, 1, 3, 4, 5, 10, 11, 12, 99} {
		v, ok, err := g.Record(t.Context(), id, index)
		if refusedIndex(model, index) {
			if !errors.Is(err, reader.ErrRefused) {
				t.Errorf("record %d of %s as of %d: error %v", id, g, index, err)
			}
			continue
		}
		r, exists := want[id]
		if err != nil || ok != exists {
			t.Errorf("record %d of %s as of %d: exists %t, must be %t, error %v", id, g, index, ok, exists, err)
			continue
		}
		if !exists {
			continue
		}
		got, err := record(t.Context(), v)
		if what := differs(got, r); err != nil || what != "" {
			t.Errorf("record %d of %s as of %d: error %v, %s", id, g, index, err, what)
		}
	}
}

// Every answer as of a time agrees with the whole history, including the versions that compaction has dropped.
func TestEveryTimeIsWhatTheModelSays(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	a := open(t, b, w)
	answers := map[string]int{}
	for _, model := range w.Groups {
		g := group(t, a, model)
		for ns := w.Groups[0].CommitTime(1) - 5e8; ns < w.Now().UnixNano()+2e9; ns += 5e8 {
			index, err := g.At(t.Context(), time.Unix(0, ns))
			if errors.Is(err, reader.ErrRefused) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			truth := uint64(0) // index of the last entry committed at or before the time
			for at := uint64(1); at <= model.Through(); at++ {
				if commit := model.CommitTime(at); commit != 0 && commit <= ns {
					truth = at
				}
			}
			answers[g.Name]++
			if err := checkState(t.Context(), g, model, index); err != nil {
				t.Errorf("%s at %d: index %d: %v", g, ns, index, err)
			}
			if got, want := model.State(index), model.State(truth); !maps.EqualFunc(got, want,
				func(a, b archivetest.Record) bool { return a.Entry.Index == b.Entry.Index }) {
				t.Errorf("%s at %d stands for index %d, and the last entry is %d", g, ns, index, truth)
			}
		}
	}
	// The history is 32 s long. The reader refuses times before alpha's floor, around beta's hole, before delta was
	// copied, and after the last read of gamma before its deletion. For all groups, it refuses times after the end.
	if want := map[string]int{"alpha": 57, "beta": 54, "gamma": 32, "delta": 39}; !maps.Equal(answers, want) {
		t.Errorf("groups answered for %v half seconds, not for %v", answers, want)
	}
}

func TestWhatIsRefusedNamesTheNearest(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	a := open(t, b, w)
	alpha, beta := group(t, a, w.Groups[0]), group(t, a, w.Groups[1])
	commit := func(model int, index uint64) time.Time { return time.Unix(0, w.Groups[model].CommitTime(index)).UTC() }
	lost := time.Unix(0, w.Groups[1].CommitTime(5)).UTC()
	for name, c := range map[string]struct {
		group *reader.Group
		time  time.Time
		want  reader.RefusedError
	}{
		"in the hole": {beta, lost, reader.RefusedError{
			Why: "is in the hole from index 5 to 7, in which versions may be missing", Hole: &object.Hole{From: 5, To: 7},
			Earlier: reader.Point{Index: 4, Time: commit(1, 4).Add(-1)}, Later: reader.Point{Index: 7, Time: commit(1, 7)},
		}},
		"below the floor": {alpha, commit(0, 3), reader.RefusedError{
			Why:   "is below the history floor, index 4, under which versions are missing",
			Later: reader.Point{Index: 4, Time: commit(0, 4)},
		}},
		"not archived yet": {alpha, w.Now().Add(1), reader.RefusedError{
			Why: "is not archived yet", Earlier: reader.Point{Index: 10, Time: w.Now()},
		}},
	} {
		_, err := c.group.At(t.Context(), c.time)
		got, ok := errors.AsType[*reader.RefusedError](err)
		if !ok {
			t.Errorf("%s: error %v", name, err)
			continue
		}
		if got.Group != c.group.UUID || got.Why != c.want.Why || got.Earlier != c.want.Earlier || got.Later != c.want.Later ||
			(got.Hole == nil) != (c.want.Hole == nil) || got.Hole != nil && *got.Hole != *c.want.Hole {
			t.Errorf("%s: %+v", name, got)
		}
		for _, p := range []reader.Point{got.Earlier, got.Later} {
			if p.Time.IsZero() {
				continue
			}
			if _, err := c.group.At(t.Context(), p.Time); err != nil {
				t.Errorf("%s: the nearest time %s is refused, too: %v", name, p, err)
			}
		}
	}
}

func TestVersions(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	a := open(t, b, w)
	for _, model := range w.Groups {
		g := group(t, a, model)
		for _, id := range []int64{-2, 1, 3, 4, 5, 10, 11, 12, 99} {
			versions, err := g.Versions(t.Context(), id)
			want := model.Versions(id)
			if err != nil || len(versions) != len(want) {
				t.Fatalf("record %d of %s: %d versions, not %d, error %v", id, g, len(versions), len(want), err)
			}
			for i, v := range versions {
				got, err := record(t.Context(), v)
				if what := differs(got, want[i]); err != nil || what != "" {
					t.Errorf("record %d of %s: error %v, %s", id, g, err, what)
				}
			}
		}
	}
}

func TestGroupsAndStores(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	b.Set("0-is-no-store", []byte("x"))
	b.Set("ffffffff-2222-3333-4444-555555555555/log/x", []byte("a folder without archive.json"))
	stores, err := reader.Stores(t.Context(), b)
	if err != nil || len(stores) != 1 || stores[0] != w.Store {
		t.Fatalf("stores %v, error %v", stores, err)
	}
	a := open(t, b, w)
	groups, err := a.Groups(t.Context())
	if err != nil || len(groups) != len(w.Groups) {
		t.Fatalf("groups %v, error %v", groups, err)
	}
	models := map[string]uuid.UUID{}
	for _, g := range w.Groups {
		models[g.Name] = g.UUID
	}
	for i, g := range groups {
		if g.Name != []string{"alpha", "beta", "delta", "gamma"}[i] || g.UUID != models[g.Name] {
			t.Errorf("group %d is %s", i, g)
		}
		if found, err := a.Find(t.Context(), g.Name); err != nil || found != g {
			t.Errorf("find %s: %v, %v", g.Name, found, err)
		}
	}
	if _, err := a.Find(t.Context(), "omega"); !reader.IsMissing(err) {
		t.Errorf("a group that is not there: %v", err)
	}
	if first, last := a.Logs(); first != 1 || last != 6 {
		t.Errorf("log objects %d to %d", first, last)
	}
}

// Several segments may contain the same index (docs/archive.md). The entry is returned only once.
func TestAnIndexInSeveralSegments(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	g := w.NewGroup("twice", 1)
	for i := range int64(9) {
		g.Put(i%4, fmt.Sprint("data ", i))
	}
	w.Copy(g, 9)
	w.Copy(g, 3)
	opened := group(t, open(t, b, w), g)
	for index := range uint64(10) {
		if err := checkState(t.Context(), opened, g, index); err != nil {
			t.Error(err)
		}
		at := archivetest.Begin.Add(time.Duration(index) * time.Second)
		if got, err := opened.At(t.Context(), at); err != nil || got != index {
			t.Errorf("%s stands for index %d, not %d: %v", at, got, index, err)
		}
	}
	for id := range int64(4) {
		versions, err := opened.Versions(t.Context(), id)
		if want := g.Versions(id); err != nil || len(versions) != len(want) {
			t.Errorf("record %d has %d versions, not %d: %v", id, len(versions), len(want), err)
		}
	}
}

// A state needs at most 24 bytes of memory for each record, and reads each object twice. The ids are random and recur
// often.
func TestAStateOfManyRecords(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	g := w.NewGroup("many", 9)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 30_000 {
		id := int64(rnd.Uint64())
		if i%3 == 0 {
			id = int64(rnd.IntN(5000)) - 2500
		}
		if g.Put(id, "x"); i%10 == 0 {
			g.Delete(id)
		}
	}
	w.Copy(g, 7000)
	opened := group(t, open(t, b, w), g)
	b.Opens()
	for _, index := range []uint64{g.Through(), 20_000, 1} {
		if err := checkState(t.Context(), opened, g, index); err != nil {
			t.Fatal(err)
		}
	}
	if opens := b.Opens(); opens > 2*(5+3+1)*2 {
		t.Errorf("%d reads of the bucket for 18 walks over segments", opens)
	}
}
