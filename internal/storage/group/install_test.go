package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

var joiner = format.ReplicaFile{RaftID: 3, Volume: uuid.UUID{8}, Store: logIdentity.Store, Group: logIdentity.Group}

// joinerOptions returns options for a replica of the same group on another volume.
func joinerOptions(opts Options, fs vfs.FS) Options {
	opts.FS, opts.Dir = fs, "/w/7"
	return opts
}

// send sends the missing files to an install, pieceBytes bytes at a time.
func send(e *Export, i *transfer.Install, pieceBytes int) error {
	for missing := i.Missing(); len(missing) > 0; missing = i.Missing() {
		for _, f := range missing {
			if err := sendFile(e, i, f, pieceBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

func sendFile(e *Export, i *transfer.Install, f transfer.File, pieceBytes int) error {
	r, err := e.Open(f.Name, f.Have)
	if err != nil {
		return err
	}
	w, err := i.File(f)
	if err != nil {
		return errors.Join(err, r.Close())
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, pieceBytes))
	if err == nil {
		err = w.Commit()
	}
	return errors.Join(err, w.Close(), r.Close())
}

// install exports a log and installs it with the given options.
func install(from *Log, opts Options) error {
	ctx := context.Background()
	e, err := from.Export(ctx)
	if err != nil {
		return err
	}
	i, err := transfer.NewInstall(ctx, opts.ForInstall(), joiner, e.Manifest())
	if err == nil {
		err = send(e, i, 700)
	}
	if err == nil {
		err = i.Finish(ctx)
	}
	return errors.Join(err, e.Close())
}

// sameLogs compares the results of all reads from two logs. Log b must have no entries after the last applied entry of
// a.
func sameLogs(a, b *Log) error {
	at := a.AppliedIndex()
	if last, err := b.LastIndex(); err != nil || last != at || b.AppliedIndex() != at {
		return fmt.Errorf("last index %d, applied %d, want both %d, %w", last, b.AppliedIndex(), at, err)
	}
	if len(b.Stats().Damages) > 0 {
		return fmt.Errorf("damaged: %v", b.Stats().Damages)
	}
	if a.folder.manifest.CompactedThrough != b.folder.manifest.CompactedThrough ||
		a.folder.manifest.TombstoneFloor != b.folder.manifest.TombstoneFloor {
		return errors.New("floors differ")
	}
	if fmt.Sprint(a.state.conf) != fmt.Sprint(b.state.conf) || a.state.confIndex != b.state.confIndex {
		return fmt.Errorf("membership %v as of %d, want %v as of %d", b.state.conf, b.state.confIndex, a.state.conf,
			a.state.confIndex)
	}
	first, _ := a.FirstIndex()
	if at >= first {
		want, err := a.Entries(first, at+1, 1<<40)
		if err != nil {
			return err
		}
		got, err := b.Entries(first, at+1, 1<<40)
		if err != nil || !slices.EqualFunc(want, got, sameRaftEntry) {
			return fmt.Errorf("entries from %d on differ, %w", first, err)
		}
	}
	wantTerm, _ := a.Term(at)
	if term, err := b.Term(at); err != nil || term != wantTerm {
		return fmt.Errorf("term of %d is %d, want %d, %w", at, term, wantTerm, err)
	}
	if want, got := a.Stats().Records, b.Stats().Records; want != got {
		return fmt.Errorf("%d records, want %d", got, want)
	}
	for id := range int64(30) {
		if err := sameVersions(a, b, id); err != nil {
			return fmt.Errorf("record %d: %w", id, err)
		}
	}
	wantRequests := slices.Collect(a.RecentRequests(format.DefaultRequestWindow, 0))
	if got := slices.Collect(b.RecentRequests(format.DefaultRequestWindow, 0)); !slices.Equal(wantRequests, got) {
		return fmt.Errorf("%d request ids, want %d", len(got), len(wantRequests))
	}
	return sameFlags(a, b)
}

func sameRaftEntry(a, b *raftpb.Entry) bool {
	return a.GetIndex() == b.GetIndex() && a.GetTerm() == b.GetTerm() && a.GetType() == b.GetType() &&
		bytes.Equal(a.Data, b.Data)
}

func sameVersions(a, b *Log, id int64) error {
	want, wantErr := a.Versions(id, 0, 1000)
	got, err := b.Versions(id, 0, 1000)
	if (wantErr == nil) != (err == nil) || len(want) != len(got) {
		return fmt.Errorf("%d versions, %w, want %d, %w", len(got), err, len(want), wantErr)
	}
	for i := range want {
		x, xErr := a.Get(id, GetOptions{Index: want[i].Index})
		y, yErr := b.Get(id, GetOptions{Index: want[i].Index})
		if err := errors.Join(xErr, yErr); err != nil {
			return err
		}
		x.Location, y.Location = Location{}, Location{}
		blob := x.Blob
		if (x.Blob == nil) != (y.Blob == nil) || blob != nil && *x.Blob != *y.Blob {
			return errors.New("another blob")
		}
		x.Blob, y.Blob = nil, nil
		if !bytes.Equal(x.Data, y.Data) {
			return fmt.Errorf("version %d: %d other bytes than the %d that are wanted", x.Index, len(y.Data), len(x.Data))
		}
		// A message with megabytes of data would be unreadable.
		x.Data, y.Data = nil, nil
		if fmt.Sprint(x) != fmt.Sprint(y) {
			return fmt.Errorf("version %d: %v, want %v", x.Index, y, x)
		}
		if blob != nil {
			if err := sameBlob(a, b, *blob); err != nil {
				return err
			}
		}
	}
	_, wantErr = a.Get(id, GetOptions{})
	if _, err := b.Get(id, GetOptions{}); !errors.Is(err, wantErr) {
		return fmt.Errorf("%w, want %w", err, wantErr)
	}
	return nil
}

func sameBlob(a, b *Log, ref format.BlobRef) error {
	var data [2][]byte
	for i, l := range []*Log{a, b} {
		r, err := l.OpenBlob(ref)
		if err != nil {
			return err
		}
		data[i], err = io.ReadAll(io.NewSectionReader(r, 0, ref.Size))
		if err := errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	if !bytes.Equal(data[0], data[1]) {
		return errors.New("blobs differ")
	}
	return nil
}

// sameFlags compares the used flags of all valid versions.
func sameFlags(a, b *Log) error {
	var flags [2]map[uint64]bool
	for i, l := range []*Log{a, b} {
		flags[i] = make(map[uint64]bool)
		c := compaction{sealed: l.sealed(), ctx: context.Background(), applied: l.AppliedIndex()}
		for _, v := range l.reader.views(0, c.applied) {
			err := c.eachRow(v, func(r row) {
				newest, _ := l.places.table.Get(r.id)
				superseded := v.used.superseded(r.loc.Offset())
				if superseded == (newest == r.loc) {
					// The flag contradicts the index. The other log cannot have this extra flag, so the comparison fails.
					flags[i][r.index<<1] = true
				}
				flags[i][r.index] = superseded
			})
			v.unpin()
			if err != nil {
				return err
			}
		}
	}
	if !maps.Equal(flags[0], flags[1]) {
		return fmt.Errorf("used flags %v, want %v", flags[1], flags[0])
	}
	return nil
}

// randomState returns a workload after random operations and compactions.
func randomState(t *testing.T, seed uint64, residency Residency, steps int) *workload {
	mem := vfstest.NewMem()
	w := newWorkload(t, seed, mem, mem, residency)
	w.opts.Retention = Retention{Versions: 1 + int(seed%2)}
	for range steps {
		if w.random.IntN(8) == 0 {
			_, err := w.log.Compact(t.Context(), CompactOptions{All: w.random.IntN(2) == 0})
			ok(t, err)
		}
		ok(t, w.step())
	}
	return w
}

func TestInstallGivesTheStateOfTheExporter(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := randomState(t, seed, Residency(seed%2), 80)
			opts := joinerOptions(w.opts, vfstest.NewMem())
			opts.Residency = Residency(seed / 2 % 2)
			joining := joiner
			joining.Joining = true
			ok(t, format.WriteReplicaFile(opts.FS, opts.Dir, joining))
			for round := range 3 { // the later rounds install over an older log of the same replica
				ok(t, install(w.log, opts))
				if f, _, err := format.ReadReplicaFile(opts.FS, opts.Dir); f != joiner || err != nil {
					t.Fatal(f, err)
				}
				verified(t, opts)
				l, report, err := Load(t.Context(), opts, nil)
				ok(t, err)
				if report.Outcome != Loaded {
					t.Fatal(report)
				}
				if err := sameLogs(w.log, l); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				if names, err := opts.FS.List(opts.Dir + "/" + format.IncomingName); err == nil {
					t.Fatalf("left over: %v", names)
				}
				// The test now sends the rest of the log as entries, as Raft would do.
				ok(t, w.sync())
				ok(t, w.apply())
				if last := w.last(); last > l.AppliedIndex() {
					entries, err := w.log.Entries(l.AppliedIndex()+1, last+1, 1<<40)
					ok(t, err)
					ok(t, receiveBlobs(w.log, l, entries))
					ok(t, l.Append(nil, entries))
					ok(t, l.Sync())
					ok(t, l.Apply(last, nil))
					if err := sameLogs(w.log, l); err != nil {
						t.Fatalf("round %d, with the tail: %v", round, err)
					}
				}
				ok(t, l.Close(round == 1))
				for range 20 {
					ok(t, w.step())
				}
			}
		})
	}
}

// receiveBlobs copies, from one log to another, the blobs to which entries refer.
func receiveBlobs(from, to *Log, entries []*raftpb.Entry) error {
	missing, err := to.MissingBlobs(entries)
	for _, ref := range missing {
		r, openErr := from.OpenBlob(ref)
		if openErr != nil {
			return openErr
		}
		w, createErr := to.BlobWriter(ref)
		if createErr != nil {
			return errors.Join(createErr, r.Close())
		}
		_, copyErr := io.Copy(w, io.NewSectionReader(r, 0, ref.Size))
		if copyErr == nil {
			_, copyErr = w.Commit()
		}
		err = errors.Join(err, copyErr, w.Close(), r.Close())
	}
	return err
}

func verified(t *testing.T, opts Options) {
	t.Helper()
	report, err := fsck.VerifyDir(t.Context(), opts.FS, opts.Dir, nil)
	ok(t, err)
	if len(report.Damages) > 0 {
		t.Fatalf("damaged: %v", report.Damages)
	}
}
