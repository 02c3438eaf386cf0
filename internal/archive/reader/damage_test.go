package reader_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// readAll reads all groups as of the end of the archive, and compares them with the model.
func readAll(ctx context.Context, b bucket.Bucket, w *archivetest.Writer, keys object.Keys) error {
	a, err := reader.Open(ctx, b, w.Store, keys)
	if err != nil {
		return err
	}
	groups, err := a.Groups(ctx)
	if err != nil {
		return err
	}
	if len(groups) != len(w.Groups) {
		return wrongData("groups are missing")
	}
	for _, model := range w.Groups {
		g, err := a.Group(ctx, model.UUID)
		if err != nil {
			return err
		}
		if g.Missing != "" {
			return errors.New(g.Missing)
		}
		if err := checkState(ctx, g, model, model.Through()); err != nil {
			return err
		}
	}
	return nil
}

// namesObject reports whether an error contains the name of an object.
func namesObject(err error, name string) bool {
	_, name, _ = strings.Cut(name, "/") // remove the store's folder
	return strings.Contains(err.Error(), name)
}

// When any byte of an object is flipped, or an object is truncated, the reader either names the object in an error or
// still returns correct data.
func TestEachFlippedByteIsFound(t *testing.T) {
	for _, key := range []object.Key{{}, archivetest.SampleKey(t)} {
		b, w := sample(t, key, 50)
		keys := object.Keys{w.Key}
		harmless := map[string]int{}
		bytesTotal := 0
		for _, name := range b.Names() {
			whole := b.Get(name)
			bytesTotal += len(whole)
			step := 1
			if !key.IsZero() {
				step = 29 // a sample of the bytes is enough, because the encrypted archive has the same structure
			}
			for at := 0; at < len(whole); at += step {
				changed := bytes.Clone(whole)
				changed[at] ^= 1 << (at % 8)
				b.Set(name, changed)
				found(t, readAll(t.Context(), b, w, keys), name, harmless, "byte %d flipped", at)
			}
			for n := 0; n < len(whole); n += 29 * step {
				b.Set(name, whole[:n])
				found(t, readAll(t.Context(), b, w, keys), name, harmless, "cut after %d bytes", n)
			}
			b.Set(name, append(bytes.Clone(whole), 0))
			longer := harmless
			if strings.Contains(name, "/seg/") {
				longer = map[string]int{} // the catalogue contains the length of the segment, so bytes after it are not read
			}
			found(t, readAll(t.Context(), b, w, keys), name, longer, "longer than %d bytes", len(whole))
			b.Set(name, whole)
		}
		if err := readAll(t.Context(), b, w, keys); err != nil {
			t.Fatal(err)
		}
		// Only alpha's first catalogue is not needed, because the second one contains everything that is in it.
		if len(harmless) != 1 || harmless[w.Name(object.CatalogueName(w.Groups[0].UUID, 1))] == 0 {
			t.Errorf("changes of these objects were not noticed: %v", harmless)
		}
		if bytesTotal < 8_000 {
			t.Errorf("the archive has %d bytes only", bytesTotal)
		}
	}
}

func found(t *testing.T, err error, name string, harmless map[string]int, what string, at int) {
	t.Helper()
	var wrong wrongData
	switch {
	case err == nil:
		harmless[name]++
	case errors.As(err, &wrong) || !namesObject(err, name):
		t.Fatalf("%s: "+what+": %v", name, at, err)
	}
}

// When any two objects are exchanged, the reader either names one of them in an error or still returns correct data.
func TestExchangedObjectsAreFound(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	all := b.Names()
	var harmless []string
	for i, one := range all {
		for _, other := range all[:i] {
			x, y := b.Get(one), b.Get(other)
			b.Set(one, y)
			b.Set(other, x)
			err := readAll(t.Context(), b, w, nil)
			var wrong wrongData
			switch {
			case err == nil:
				harmless = append(harmless, one, other)
			case errors.As(err, &wrong) || !namesObject(err, one) && !namesObject(err, other):
				t.Fatalf("%s and %s are exchanged: %v", one, other, err)
			}
			b.Set(one, x)
			b.Set(other, y)
		}
	}
	// Alpha's first catalogue and the log objects after it contain the same facts as the second catalogue.
	alpha := w.Groups[0].UUID
	want := []string{w.Name(object.CatalogueName(alpha, 2)), w.Name(object.CatalogueName(alpha, 1))}
	if !slices.Equal(harmless, want) {
		t.Errorf("exchanges of these objects were not noticed: %v", harmless)
	}
}

// A missing object is named in an error. If a log object is missing, the archive ends before it.
func TestMissingObjectsAreFound(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	for _, name := range b.Names() {
		whole := b.Get(name)
		b.Set(name, nil)
		err := readAll(t.Context(), b, w, nil)
		b.Set(name, whole)
		switch {
		case strings.Contains(name, w.Groups[0].UUID.String()+"/cat/"), name == w.Name(object.LogName(6)):
			if err != nil { // one of alpha's two catalogues is enough, and the last log object has no entries
				t.Errorf("%s is not needed: %v", name, err)
			}
		case err == nil:
			t.Errorf("nobody misses %s", name)
		case strings.Contains(name, "/log/"), strings.Contains(name, "/cat/"):
			// Without this object, the groups end at an earlier index, so readAll fails to read as of a later one.
		case !namesObject(err, name) && !strings.HasSuffix(name, object.ArchiveName):
			t.Errorf("%s is missing: %v", name, err)
		}
	}
}

// Log objects after a gap in the numbers are ignored.
func TestAnArchiveEndsAtTheFirstGap(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	b.Set(w.Name(object.LogName(5)), nil)
	a := open(t, b, w)
	for i, through := range []uint64{9, 7, 2, 2} { // index 10 of alpha and index 8 of beta are in log object 5
		g := group(t, a, w.Groups[i])
		if g.Through != through || !strings.Contains(g.Missing, object.LogName(5)) {
			t.Errorf("%s is archived through %d, not %d; missing: %s", g, g.Through, through, g.Missing)
		}
		if err := checkState(t.Context(), g, w.Groups[i], through); err != nil {
			t.Error(err)
		}
		if err := g.Check(t.Context(), through+1); !errors.Is(err, reader.ErrRefused) {
			t.Errorf("%s as of %d: %v", g, through+1, err)
		}
	}
}

// Log objects may be deleted if catalogues cover them. If a log object is still needed, its absence is reported.
func TestAnArchiveMayBeginWithALaterLogObject(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	b.Set(w.Name(object.LogName(1)), nil)
	a := open(t, b, w)
	alpha, beta := w.Groups[0], w.Groups[1]
	if err := checkState(t.Context(), group(t, a, alpha), alpha, alpha.Through()); err != nil {
		t.Errorf("alpha is in segments up to log object 3: %v", err)
	}
	if _, err := a.Group(t.Context(), beta.UUID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("beta has no catalogue, and log object 1 is missing: %v", err)
	}
	b.Set(w.Name(object.CatalogueName(beta.UUID, 1)), w.Encode(&object.Catalogue{
		Group: beta.UUID, Name: "beta", Log: 1, Segments: []object.SegmentRef{},
	}, nil))
	g := group(t, open(t, b, w), beta)
	if !strings.Contains(g.Missing, object.LogName(2)+" continues from index 2") || g.Through != 0 {
		t.Errorf("beta lacks its first entries: %+v", g)
	}
	if err := g.Check(t.Context(), 8); !errors.Is(err, reader.ErrRefused) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("beta: %v", err)
	}
}

// If a listing is out of date and lacks an object, the reader looks for the object by its name.
func TestStaleListing(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	stale := forgetful{Memory: b, name: w.Name(object.LogName(4))}
	if err := readAll(t.Context(), stale, w, nil); err != nil {
		t.Fatal(err)
	}
}

type forgetful struct {
	*archivetest.Memory
	name string
}

func (f forgetful) List(ctx context.Context, prefix, after string) iterInfo {
	return func(yield func(bucket.Info, error) bool) {
		for info, err := range f.Memory.List(ctx, prefix, after) {
			if info.Name != f.name && !yield(info, err) {
				return
			}
		}
	}
}

type iterInfo = iter.Seq2[bucket.Info, error]

// A read that fails once is repeated. A read that always fails results in an error that names the object.
func TestFailedReadIsRepeatedOnce(t *testing.T) {
	broken := errors.New("the connection broke")
	other := bytes.Repeat([]byte("other"), object.ChunkBytes)
	for what, change := range map[string]func(content []byte) (io.Reader, error){
		"refused":                 func([]byte) (io.Reader, error) { return nil, broken },
		"cut at the begin":        func([]byte) (io.Reader, error) { return bytes.NewReader(nil), nil },
		"cut in the middle":       func(b []byte) (io.Reader, error) { return bytes.NewReader(b[:len(b)/2]), nil },
		"broken in the middle":    func(b []byte) (io.Reader, error) { return breaks(b[:len(b)/2], broken), nil },
		"flipped in the middle":   func(b []byte) (io.Reader, error) { return bytes.NewReader(flip(b, len(b)/2)), nil },
		"flipped in the envelope": func(b []byte) (io.Reader, error) { return bytes.NewReader(flip(b, 40)), nil },
		"of another object":       func(b []byte) (io.Reader, error) { return bytes.NewReader(other[:len(b)]), nil },
	} {
		for _, attempts := range []int{1, 1 << 30} {
			b, w := sample(t, object.Key{}, object.ChunkBytes+99)
			fails := 0
			b.OnOpen = func(name string, attempt int, content []byte) (io.Reader, error) {
				if attempt <= attempts && strings.Contains(name, "/blob/") {
					fails++
					return change(content)
				}
				return bytes.NewReader(content), nil
			}
			err := readAll(t.Context(), b, w, nil)
			var wrong wrongData
			switch {
			case fails < 2:
				t.Errorf("%s: only %d reads failed", what, fails)
			case attempts == 1 && err != nil:
				t.Errorf("%s once: %v", what, err)
			case attempts > 1 && (err == nil || errors.As(err, &wrong) || !strings.Contains(err.Error(), "/blob/")):
				t.Errorf("%s always: %v", what, err)
			}
		}
	}
}

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

func breaks(b []byte, err error) io.Reader {
	return io.MultiReader(bytes.NewReader(b), iotest.ErrReader(err))
}

func TestAForeignOrNewerArchiveIsRefused(t *testing.T) {
	b, w := sample(t, archivetest.SampleKey(t), 50)
	wrong, err := object.NewKey(bytes.Repeat([]byte{1}, object.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	for what, keys := range map[string]object.Keys{"no key": nil, "a wrong key": {wrong}} {
		b.Opens()
		a, err := reader.Open(t.Context(), b, w.Store, keys) // archive.json is not encrypted
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := a.Groups(t.Context()); !errors.Is(err, object.ErrKey) || reader.IsBroken(err) ||
			!strings.Contains(err.Error(), w.Key.ID().String()) {
			t.Errorf("%s: %v", what, err)
		}
		if n := b.Opens(); n != 2 {
			t.Errorf("%s: %d reads, though another read cannot help", what, n)
		}
	}
	if _, err := reader.Open(t.Context(), b, uuid.New(), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a store that is not there: %v", err)
	}
	sealed, err := os.ReadFile("../object/testdata/v1/archive-encrypted") // no program writes it, and it is accepted
	if err != nil {
		t.Fatal(err)
	}
	b.Set(w.Name(object.ArchiveName), sealed)
	if _, err := reader.Open(t.Context(), b, w.Store, object.Keys{w.Key}); err != nil {
		t.Errorf("an encrypted archive.json: %v", err)
	}
	if _, err := reader.Open(t.Context(), b, w.Store, nil); !errors.Is(err, object.ErrKey) {
		t.Errorf("an encrypted archive.json without the key: %v", err)
	}
	if r, err := reader.Verify(t.Context(), b, w.Store, nil, reader.VerifyOptions{}); err != nil || !r.Keyless ||
		len(r.Problems) > 0 {
		t.Errorf("verify of an encrypted archive.json without the key: %+v, %v", r, err)
	}
	name := w.Name(object.ArchiveName)
	other := archivetest.New(t, archivetest.NewMemory(), uuid.New(), w.Key)
	b.Set(name, other.Bucket.(*archivetest.Memory).Get(other.Name(object.ArchiveName)))
	if _, err := reader.Open(t.Context(), b, w.Store, object.Keys{w.Key}); !errors.Is(err, object.ErrForeign) {
		t.Errorf("archive.json of another store: %v", err)
	}
}

// A frame from another segment is refused, even if its own checksums are correct and its index and length fit.
func TestFrameFromAnotherSegmentIsRefused(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	g := w.NewGroup("one", 1)
	for _, data := range []string{"aaa", "bbb", "ccc"} {
		g.Put(7, data)
	}
	w.Log(g)
	name := w.Name(object.LogName(1))
	var h object.Log
	d, err := object.NewDecoder(bytes.NewReader(b.Get(name)), w.Store, object.KindLog, nil)
	if err == nil {
		err = d.Header(&h)
	}
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(d)
	if err != nil {
		t.Fatal(err)
	}
	entries := g.Entries()
	entries[1].Data = []byte("BBB")
	other := archivetest.EncodeSegment(format.SegmentHeader{Store: w.Store, Group: g.UUID, FirstIndex: 1}, entries)
	length := format.FrameBytes(len(entries[1].Attributes), 3)
	at := format.SegmentHeaderBytes + length
	for what, frame := range map[string][]byte{
		"of another segment": other[at : at+length],
		"of another offset":  body[at+length : at+2*length],
	} {
		changed := bytes.Clone(body)
		copy(changed[at:], frame)
		b.Set(name, w.Encode(&h, changed))
		err := checkState(t.Context(), group(t, open(t, b, w), g), g, 3)
		if !errors.Is(err, object.ErrCorrupt) || !namesObject(err, name) {
			t.Errorf("a frame %s: %v", what, err)
		}
	}
}

// Two blobs of a group with the same size are exchanged. Only the checksum in the entry can reveal this, so the
// reader never returns the last part of the data.
func TestABlobOfAnotherRecordIsRefused(t *testing.T) {
	for _, size := range []int{50, 2 * object.ChunkBytes} {
		b := archivetest.NewMemory()
		w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
		g := w.NewGroup("one", 1)
		for id, fill := range []byte{1, 2} {
			g.PutBlob(int64(id), bytes.Repeat([]byte{fill}, size))
		}
		w.Log(g)
		var blobs []string
		for _, name := range b.Names() {
			if strings.Contains(name, "/blob/") {
				blobs = append(blobs, name)
			}
		}
		one, other := b.Get(blobs[0]), b.Get(blobs[1])
		b.Set(blobs[0], other)
		b.Set(blobs[1], one)
		v, ok, err := group(t, open(t, b, w), g).Record(t.Context(), 0, 2)
		if err != nil || !ok {
			t.Fatal(err)
		}
		src, err := v.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(src)
		if !errors.Is(err, object.ErrForeign) || !namesObject(err, blobs[0]) || len(data) >= size {
			t.Errorf("%d of %d bytes were handed out, error %v", len(data), size, err)
		}
	}
}
