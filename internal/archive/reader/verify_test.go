package reader_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

func verify(t *testing.T, b *archivetest.Memory, w *archivetest.Writer, opts reader.VerifyOptions) *reader.Report {
	t.Helper()
	r, err := reader.Verify(t.Context(), b, w.Store, object.Keys{w.Key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVerifyCountsWhatItChecked(t *testing.T) {
	for _, key := range []object.Key{{}, archivetest.SampleKey(t)} {
		b, w := sample(t, key, object.ChunkBytes+50)
		var bytesTotal int64
		for _, name := range b.Names() {
			bytesTotal += int64(len(b.Get(name)))
		}
		b.Set(w.Name("g/67000000-0000-0000-0000-000000000001/seg/of-an-attempt-that-was-cut"), []byte("x"))
		got := verify(t, b, w, reader.VerifyOptions{})
		archive := int64(len(b.Get(w.Name(object.ArchiveName))))
		want := reader.Report{
			Store: w.Store, Name: "quotes", Groups: 4, Logs: 6, Catalogues: 3, Segments: 4, Blobs: 2,
			Bytes: bytesTotal - archive, Unused: 1, Covered: w.Now(), Problems: []reader.Problem{},
		}
		if !key.IsZero() {
			want.Keys = []reader.KeyUse{{KeyID: key.ID().String(), Objects: 15}}
		}
		for _, g := range w.Groups {
			entries := g.Entries()
			want.Entries += int64(len(entries))
			for _, e := range entries {
				if e.Kind.IsVersion() {
					want.Records++
				}
			}
		}
		want.Entries += 2 // two of alpha's entries are both in log objects and in a segment
		want.Records += 2
		if fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", want) {
			t.Errorf("report\n%+v, not\n%+v", *got, want)
		}
	}
}

// When an object is removed, flipped or truncated, Verify names it. A sample may miss faults in objects that it did
// not read, but reports how many it skipped.
func TestVerifyNamesWhatIsWrong(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	old := w.Name(object.CatalogueName(w.Groups[0].UUID, 1))
	for _, name := range b.Names() {
		whole := b.Get(name)
		short := strings.TrimPrefix(name, w.Store.String()+"/")
		for what, changed := range map[string][]byte{
			"missing": nil, "flipped": flip(whole, len(whole)-1), "cut": whole[:len(whole)-1],
			"longer": append(bytes.Clone(whole), 0), "flipped in the envelope": flip(whole, 33),
		} {
			b.Set(name, changed)
			r, err := reader.Verify(t.Context(), b, w.Store, nil, reader.VerifyOptions{})
			b.Set(name, whole)
			if err != nil {
				if short != object.ArchiveName || what != "missing" && !namesObject(err, name) || changed == nil &&
					!errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s %s: %v", name, what, err)
				}
				continue
			}
			switch last := short == object.LogName(6); {
			case what == "missing" && (name == old || last):
				if len(r.Problems) > 0 { // an older catalogue may be deleted, and nothing shows how many log objects existed
					t.Errorf("%s is missing: %v", name, r.Problems)
				}
			case what == "missing" && strings.Contains(name, "/cat/"):
				// Without delta's catalogue, delta's entries are missing. Without alpha's newest catalogue, alpha's segment is
				// unused.
				if len(r.Problems) == 0 && r.Unused == 0 {
					t.Errorf("%s is missing, and nothing is wrong", name)
				}
			case len(r.Problems) == 0 || !strings.Contains(r.Problems[0].What, short) &&
				(what != "missing" || short != object.LogName(1)):
				t.Errorf("%s %s: problems %v", name, what, r.Problems)
			}
		}
	}
}

func TestVerifyOfASample(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	all := verify(t, b, w, reader.VerifyOptions{})
	objects := all.Segments + all.Blobs + all.Logs
	skipped := map[int64]bool{}
	for seed := range uint64(20) {
		read := int64(0)
		r := verify(t, b, w, reader.VerifyOptions{Sample: 30, Seed: seed, Progress: func(string, int64) { read++ }})
		if len(r.Problems) > 0 || r.Gaps != 0 {
			t.Errorf("seed %d: %d gaps, problems %v", seed, r.Gaps, r.Problems)
		}
		if r.Skipped+read > objects || r.Entries > all.Entries || r.Skipped == 0 {
			t.Errorf("seed %d: %d objects skipped and %d read of %d", seed, r.Skipped, read, objects)
		}
		skipped[r.Skipped] = true
	}
	if len(skipped) < 3 {
		t.Errorf("all seeds skip %v objects", skipped)
	}
}

// Without the key, checksums and lengths are still verified.
func TestVerifyWithoutTheKey(t *testing.T) {
	b, w := sample(t, archivetest.SampleKey(t), 50)
	check := func() *reader.Report {
		r, err := reader.Verify(t.Context(), b, w.Store, nil, reader.VerifyOptions{})
		if err != nil || !r.Keyless {
			t.Fatalf("report %+v, error %v", r, err)
		}
		return r
	}
	if r := check(); len(r.Problems) > 0 || r.Logs != 6 || r.Segments != 4 || r.Blobs != 2 || r.Catalogues != 3 {
		t.Errorf("report %+v", r)
	}
	name := b.Names()[3]
	b.Set(name, flip(b.Get(name), 200))
	if r := check(); len(r.Problems) != 1 || !namesObject(errors.New(r.Problems[0].What), name) {
		t.Errorf("problems %v", r.Problems)
	}
}

// Gaps between indexes above the floor are counted, unless a hole explains them.
func TestVerifyCountsGaps(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	g := w.NewGroup("one", 1)
	for range 9 {
		g.Put(1, "x")
	}
	g.Compact(1, 2, 4, 7)
	g.Floor = 3
	g.Holes = []object.Hole{{From: 7, To: 8}}
	w.Copy(g, 4)
	if r := verify(t, b, w, reader.VerifyOptions{}); r.Gaps != 1 || len(r.Problems) > 0 {
		t.Errorf("report %+v", r)
	}
}

// Catalogues must be consistent with each other, with their group and with the log objects.
func TestVerifyFindsInconsistentObjects(t *testing.T) {
	for what, c := range map[string]struct {
		build func(w *archivetest.Writer, g *archivetest.Group)
		want  string
	}{
		"an older catalogue goes further": {func(w *archivetest.Writer, g *archivetest.Group) {
			w.Copy(g, 9)
			put(t, w, object.CatalogueName(g.UUID, 2), &object.Catalogue{Group: g.UUID, Segments: []object.SegmentRef{}})
		}, "an older one"},
		"a catalogue names a log object of the future": {func(w *archivetest.Writer, g *archivetest.Group) {
			put(t, w, object.CatalogueName(g.UUID, 1), &object.Catalogue{Group: g.UUID, Log: 9,
				Segments: []object.SegmentRef{}})
		}, "the last one is 1"},
		"a catalogue that is behind its log object": {func(w *archivetest.Writer, g *archivetest.Group) {
			put(t, w, object.CatalogueName(g.UUID, 1), &object.Catalogue{Group: g.UUID, Log: 1,
				Segments: []object.SegmentRef{}})
		}, "its piece goes through index 3"},
		"a catalogue of another group": {func(w *archivetest.Writer, g *archivetest.Group) {
			put(t, w, object.CatalogueName(g.UUID, 1), &object.Catalogue{Group: uuid.UUID{9}, Segments: []object.SegmentRef{}})
		}, "it is of group 09"},
	} {
		b := archivetest.NewMemory()
		w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
		g := w.NewGroup("one", 1)
		for range 3 {
			g.Put(1, "x")
		}
		w.Log(g)
		c.build(w, g)
		r := verify(t, b, w, reader.VerifyOptions{})
		if len(r.Problems) == 0 || !strings.Contains(fmt.Sprint(r.Problems), c.want) {
			t.Errorf("%s: problems %v", what, r.Problems)
		}
	}
}

// put writes an object that a Writer would not write.
func put(t *testing.T, w *archivetest.Writer, name string, header object.Header) {
	t.Helper()
	b := w.Encode(header, nil)
	if err := w.Bucket.Create(t.Context(), w.Name(name), int64(len(b)), bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
}

func TestKindOf(t *testing.T) {
	id := uuid.UUID{1}
	for name, want := range map[string]object.Kind{
		object.ArchiveName: object.KindArchive, object.LogName(7): object.KindLog, "points/a": object.KindPoint,
		object.CatalogueName(id, 2): object.KindCatalogue, object.BlobName(id, id): object.KindBlob,
		object.SegmentName(id, 1, 2, format.SegmentID{}): object.KindSegment, "use/a": object.KindUse,
		"drop/1": object.KindDrop, "drill/1": object.KindDrill, "seg/1": 0, "log/01/1": 0, "g/x/points/a": 0, "x": 0, "": 0,
	} {
		if kind, ok := reader.KindOf(name); kind*map[bool]object.Kind{true: 1}[ok] != want {
			t.Errorf("%q: %v, %t", name, kind, ok)
		}
	}
}

// vanishing is a bucket that lists a use whose reader ends before the use is read.
type vanishing struct{ *archivetest.Memory }

func (v vanishing) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if strings.Contains(name, "/"+object.UsePrefix) {
		v.Set(name, nil)
	}
	return v.Memory.Open(ctx, name, offset, length)
}

// A use that is deleted while Verify reads the archive is not a problem, with and without the archive's key.
func TestVerifyDoesNotMissAUseThatHasEnded(t *testing.T) {
	key := archivetest.SampleKey(t)
	for _, keys := range []object.Keys{{key}, nil} {
		b := vanishing{archivetest.NewMemory()}
		w := archivetest.Sample(t, b.Memory, key, 50)
		name := w.Name(object.UsePrefix + "11111111-2222-3333-4444-555555555555")
		b.Set(name, w.Encode(&object.Use{Created: 1, Until: 2, What: "a restore"}, nil))
		r, err := reader.Verify(t.Context(), b, w.Store, keys, reader.VerifyOptions{})
		if err != nil || len(r.Problems) > 0 || b.Get(name) != nil || r.Keyless != (keys == nil) {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// An archive with objects of two keys and without a key is read with both keys. If one of them is missing, everything
// names it; verify checks what needs no key, and says that a key is missing if another one was given.
func TestObjectsOfSeveralKeys(t *testing.T) {
	first, second := archivetest.SampleKey(t), otherKey(t)
	for turn := range 3 {
		b := archivetest.NewMemory()
		w := archivetest.Turns(t, b, 50, append([]object.Key{{}, first, second}[turn:], first, second, object.Key{})...)
		both := object.Keys{second, first}
		if err := readAll(t.Context(), b, w, both); err != nil {
			t.Fatal(err)
		}
		r, err := reader.Verify(t.Context(), b, w.Store, both, reader.VerifyOptions{})
		if err != nil || r.Keyless || len(r.Problems) > 0 || len(r.Keys) != 3 || r.Keys[0].KeyID != "" {
			t.Fatalf("%+v, %v", r, err)
		}
		for what, keys := range map[string]object.Keys{"no key": nil, "the first key": {first}, "the second key": {second}} {
			missing := []string{first.ID().String()}
			switch what {
			case "no key":
				missing = []string{first.ID().String(), second.ID().String()}
			case "the first key":
				missing = []string{second.ID().String()}
			}
			slices.Sort(missing)
			if err := readAll(t.Context(), b, w, keys); !errors.Is(err, object.ErrKey) ||
				!slices.ContainsFunc(missing, func(id string) bool { return strings.Contains(err.Error(), id) }) {
				t.Errorf("%s: %v", what, err)
			}
			r, err := reader.Verify(t.Context(), b, w.Store, keys, reader.VerifyOptions{})
			if err != nil || !r.Keyless || !slices.Equal(r.UnknownKeys, missing) || len(r.Keys) != 3 ||
				len(r.Problems) != len(keys)*len(missing) {
				t.Errorf("verify with %s: %+v, %v", what, r, err)
			}
			name := w.Name(object.LogName(2))
			whole := b.Get(name)
			b.Set(name, flip(whole, len(whole)-2))
			r, err = reader.Verify(t.Context(), b, w.Store, keys, reader.VerifyOptions{})
			if err != nil || !slices.ContainsFunc(r.Problems, func(p reader.Problem) bool {
				return strings.Contains(p.What, object.LogName(2))
			}) {
				t.Errorf("verify with %s does not find the flipped byte: %+v, %v", what, r.Problems, err)
			}
			b.Set(name, whole)
		}
	}
}

func otherKey(t testing.TB) object.Key {
	t.Helper()
	k, err := object.NewKey(bytes.Repeat([]byte{8}, object.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return k
}
