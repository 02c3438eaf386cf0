package restore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/archivetest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// newStore is the UUID of the store to which the tests restore.
var newStore = uuid.UUID{0x99, 15: 1}

// founder is the Raft id of the replica that installs an image.
const founder = 77

// tiny is a set of limits with which an image has several segments of a few records.
var tiny = limits{segmentBytes: 400, partBytes: 150}

func open(t testing.TB, b *archivetest.Memory, w *archivetest.Writer) *reader.Archive {
	t.Helper()
	a, err := reader.Open(t.Context(), b, w.Store, object.Keys{w.Key})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// imageOf creates the image of a group as of an index.
func imageOf(ctx context.Context, a *reader.Archive, of uuid.UUID, index uint64, l limits) (*Image, error) {
	g, err := a.Group(ctx, of)
	if err != nil {
		return nil, err
	}
	p, err := makePlan(ctx, g, format.Identity{Store: newStore, Group: GroupUUID(newStore, of), Name: g.Name}, index, l)
	if err != nil {
		return nil, err
	}
	return newImage(p, founder, nil)
}

const dir = "/volume/group"

// install installs an image as a shard would, and returns the options with which the log can be opened.
func install(ctx context.Context, i *Image, fs vfs.FS) (group.Options, error) {
	if err := fs.MkdirAll(dir); err != nil {
		return group.Options{}, err
	}
	opts := group.Options{FS: fs, Dir: dir, Identity: i.plan.identity}
	replica := format.ReplicaFile{RaftID: founder, Volume: uuid.UUID{8}}
	in, err := transfer.NewInstall(ctx, opts.ForInstall(), replica, i.Manifest())
	if err != nil {
		return opts, err
	}
	for missing := in.Missing(); len(missing) > 0; missing = in.Missing() {
		for _, f := range missing {
			if err := fetch(ctx, i, in, f); err != nil {
				return opts, err
			}
		}
	}
	return opts, in.Finish(ctx)
}

// fetch receives the missing part of a file.
func fetch(ctx context.Context, i *Image, in *transfer.Install, f transfer.File) (err error) {
	r, err := i.Open(ctx, f.Name, f.Have)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	w, err := in.File(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if _, err := io.Copy(struct{ io.Writer }{w}, r); err != nil {
		return err
	}
	return w.Commit()
}

// check installs an image on an empty disk, and compares the installed group with the model.
func check(ctx context.Context, i *Image, model *archivetest.Group, index uint64) error {
	fs := vfstest.NewMem()
	opts, err := install(ctx, i, fs)
	if err != nil {
		return err
	}
	report, err := fsck.VerifyDir(ctx, fs, dir, nil)
	if err != nil || len(report.Damages) > 0 {
		return fmt.Errorf("verify: %v, %w", report.Damages, err)
	}
	m, err := format.ReadManifest(fs, dir)
	if err != nil {
		return err
	}
	want := format.Identity{Store: newStore, Group: GroupUUID(newStore, model.UUID), Name: model.Name}
	if m.Identity != want || !slices.Equal(m.Conf.GetVoters(), []uint64{founder}) || len(m.Conf.GetLearners()) > 0 {
		return fmt.Errorf("identity %+v, membership %v", m.Identity, m.Conf)
	}
	log, loaded, err := group.Load(ctx, opts, nil)
	if err != nil {
		return err
	}
	err = compare(log, model, index)
	if next := model.Through() + 1<<32; loaded.Outcome != group.Loaded || log.AppliedIndex() != next {
		err = errors.Join(err, fmt.Errorf("%v, applied index %d, not %d", loaded.Outcome, log.AppliedIndex(), next))
	}
	return errors.Join(err, log.Close(false))
}

// compare compares all records in a log with the records in the model.
func compare(log *group.Log, model *archivetest.Group, index uint64) error {
	want := model.State(index)
	if got := log.Stats().Records; got != int64(len(want)) {
		return fmt.Errorf("%d records, the model has %d", got, len(want))
	}
	for id, w := range want {
		got, err := log.Get(id, group.GetOptions{})
		if err != nil {
			return fmt.Errorf("record %d: %w", id, err)
		}
		e, data := w.Entry, got.Data
		if got.Blob != nil {
			blob, err := log.OpenBlob(*got.Blob)
			if err != nil {
				return err
			}
			data, err = io.ReadAll(io.NewSectionReader(blob, 0, got.Blob.Size))
			if err := errors.Join(err, blob.Close()); err != nil {
				return err
			}
		}
		if got.Index != e.Index || got.Timestamp != e.Timestamp || got.CommitTime != e.CommitTime ||
			!bytes.Equal(got.Attributes, e.Attributes) || !bytes.Equal(data, w.Data) {
			return fmt.Errorf("record %+v, the model has %s", got, w)
		}
		if versions, err := log.Versions(id, 0, 10); err != nil || len(versions) != 1 {
			return fmt.Errorf("record %d has %d versions, %w", id, len(versions), err)
		}
	}
	return nil
}

// For every group and every index, the restored state agrees with the model, or the index is refused because the
// archive has no exact answer.
func TestEveryGroupAtEveryIndexIsRestored(t *testing.T) {
	for name, key := range map[string]object.Key{"plain": {}, "encrypted": archivetest.SampleKey(t)} {
		t.Run(name, func(t *testing.T) {
			b := archivetest.NewMemory()
			w := archivetest.Sample(t, b, key, 50)
			a := open(t, b, w)
			restored, blobs := 0, 0
			for _, model := range w.Groups {
				g, err := a.Group(t.Context(), model.UUID)
				if err != nil {
					t.Fatal(err)
				}
				for index := range model.Through() + 1 {
					if g.Check(t.Context(), index) != nil {
						continue
					}
					i, err := imageOf(t.Context(), a, model.UUID, index, tiny)
					if err == nil {
						err = check(t.Context(), i, model, index)
						restored++
						blobs += len(i.plan.names)
					}
					if err != nil {
						t.Errorf("%s as of index %d: %v", model.Name, index, err)
					}
				}
			}
			if restored < 18 || blobs < 5 {
				t.Errorf("only %d states with %d blobs", restored, blobs)
			}
		})
	}
}

// A group with a long random history, large records and blobs of several chunks is restored, both in one segment and
// in many.
func TestALargeGroupIsRestored(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	g := w.NewGroup("large", 1)
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, format.DataBytesMax)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(data)
	for n := range 600 {
		id := random.Int64N(80) - 40
		switch random.IntN(10) {
		case 0:
			g.Delete(id)
		case 1:
			g.Put(id, string(data[:random.IntN(len(data))]))
		default:
			g.Put(id, fmt.Sprint(n))
		}
		if n%200 == 199 {
			g.PutBlob(id, data[n:])
			g.PutBlob(id+1, append(bytes.Clone(data), data[:n]...))
		}
		if n%50 == 49 {
			w.Log(g)
		}
		if n == 400 {
			w.Roll(g)
		}
	}
	a := open(t, b, w)
	for _, l := range []limits{defaultLimits, tiny, {segmentBytes: 3 << 20, partBytes: 1 << 20}} {
		for _, index := range []uint64{1, 100, 333, g.Through()} {
			i, err := imageOf(t.Context(), a, g.UUID, index, l)
			if err == nil {
				err = check(t.Context(), i, g, index)
			}
			if err != nil {
				t.Errorf("%+v, index %d: %v", l, index, err)
			}
			if n := len(i.plan.segments); index > 100 && (n > 1) != (l != defaultLimits) {
				t.Errorf("%+v, index %d: %d segments", l, index, n)
			}
		}
	}
}

// Reading a file from any offset returns the rest of the file, even in another process. A shard relies on this to
// continue after a lost connection.
func TestFileCanBeContinuedByAnotherProcess(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	alpha := w.Groups[0]
	read := func(i *Image, name string, offset int64) []byte {
		r, err := i.Open(t.Context(), name, offset)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		return got
	}
	image := func() *Image {
		i, err := imageOf(t.Context(), open(t, b, w), alpha.UUID, alpha.Through(), tiny)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	first := image()
	if n := len(first.Files()); n < 3 {
		t.Fatalf("only %d files", n)
	}
	for _, f := range first.Files() {
		whole := read(first, f.Name, 0)
		if int64(len(whole)) != f.Bytes {
			t.Fatalf("%s has %d bytes, not %d", f.Name, len(whole), f.Bytes)
		}
		second := image()
		for offset := range f.Bytes + 1 {
			if got := read(second, f.Name, offset); !bytes.Equal(got, whole[offset:]) {
				t.Fatalf("%s from %d on: %d bytes, not the %d that are wanted", f.Name, offset, len(got), f.Bytes-offset)
			}
		}
		for _, offset := range []int64{-1, f.Bytes + 1} {
			if _, err := second.Open(t.Context(), f.Name, offset); err == nil {
				t.Errorf("%s from %d on can be read", f.Name, offset)
			}
		}
	}
	for _, name := range []string{"segment-000000000000", "segment-000000000009", "blob-x", "manifest", ""} {
		if _, err := first.Open(t.Context(), name, 0); !errors.Is(err, ErrNoFile) {
			t.Errorf("file %q: error %v", name, err)
		}
	}
	if !bytes.Equal(first.Manifest(), image().Manifest()) {
		t.Error("two processes make different manifests")
	}
}

// The data from the bucket is checked while it is read. A flipped byte, a truncated object or a missing object never
// results in a complete file.
func TestDamagedObjectsAreNeverInstalled(t *testing.T) {
	whole := archivetest.NewMemory()
	w := archivetest.Sample(t, whole, object.Key{}, 50)
	alpha := w.Groups[0]
	fired := 0
	for _, name := range whole.Names() {
		for what, change := range map[string]func([]byte) []byte{
			"missing": func([]byte) []byte { return nil },
			"flipped": func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
			"cut":     func(b []byte) []byte { return b[:len(b)-1] },
		} {
			b := archivetest.NewMemory()
			for _, n := range whole.Names() {
				b.Set(n, bytes.Clone(whole.Get(n)))
			}
			i, err := imageOf(t.Context(), open(t, b, w), alpha.UUID, alpha.Through(), tiny)
			if err != nil {
				t.Fatal(err)
			}
			b.Set(name, change(b.Get(name)))
			if err := check(t.Context(), i, alpha, alpha.Through()); err != nil {
				fired++
				if !reader.IsBroken(err) {
					t.Errorf("%s is %s: error %v", name, what, err)
				}
			}
		}
	}
	if fired < 9 { // alpha's data is in at least two segments or pieces, and in one blob
		t.Errorf("only %d faults were met", fired)
	}
}

// If the disk is full, or the source ends between two files, the received data is kept. The next attempt fetches the
// rest.
func TestInstallContinuesAfterSourceWasReplaced(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	alpha := w.Groups[0]
	fs := vfstest.NewMem()
	if err := fs.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	for attempt := 0; ; attempt++ {
		i, err := imageOf(t.Context(), open(t, b, w), alpha.UUID, alpha.Through(), tiny)
		if err != nil {
			t.Fatal(err)
		}
		opts := group.Options{FS: fs, Dir: dir, Identity: i.plan.identity}
		in, err := transfer.NewInstall(t.Context(), opts.ForInstall(), format.ReplicaFile{RaftID: founder,
			Volume: uuid.UUID{8}}, i.Manifest())
		if err != nil {
			t.Fatal(err)
		}
		missing := in.Missing()
		if len(missing) == 0 {
			if attempt != len(i.Files()) {
				t.Errorf("%d attempts for %d files", attempt, len(i.Files()))
			}
			if err := in.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			log, _, err := group.Load(t.Context(), opts, nil)
			if err == nil {
				err = errors.Join(compare(log, alpha, alpha.Through()), log.Close(false))
			}
			if err != nil {
				t.Error(err)
			}
			return
		}
		if err := fetch(t.Context(), i, in, missing[0]); err != nil {
			t.Fatal(err)
		}
	}
}

// The segments of an image are in log order, regardless of their sizes.
func TestSegmentsAreInTheOrderOfTheLog(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	i, err := imageOf(t.Context(), open(t, b, w), w.Groups[0].UUID, w.Groups[0].Through(), limits{partBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := format.DecodeManifest(i.Manifest())
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Segments) < 3 || !slices.IsSortedFunc(m.Segments, func(a, b format.ManifestSegment) int {
		return cmp.Compare(a.FirstIndex, b.FirstIndex)
	}) {
		t.Errorf("segments %+v", m.Segments)
	}
	if index, term := i.Position(); index != m.HardState.Commit || term != m.HardState.Term || m.HardState.Vote != 0 {
		t.Errorf("position %d, %d; hard state %+v", index, term, m.HardState)
	}
	if sum := i.Bytes(); sum <= 0 || i.Records() != int64(len(w.Groups[0].State(w.Groups[0].Through()))) {
		t.Errorf("%d bytes, %d records", sum, i.Records())
	}
}
