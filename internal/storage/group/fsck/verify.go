package fsck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"path"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// verifyWorkers is the number of goroutines that read segments and blobs. It is enough to keep an SSD busy, and to
// compute checksums as fast as the SSD reads.
const verifyWorkers = 4

// VerifyReport is the result of VerifyDir and VerifyFiles.
type VerifyReport struct {
	Group     string
	Bytes     int64 // number of bytes read
	Entries   int64 // number of valid entries
	Blobs     int64 // number of blobs that entries refer to
	Damages   []format.Damage
	TornBytes int64 // size of a torn tail above the synced mark; it is not damage, and the next load truncates it
	Joining   bool  // whether the replica is still joining, so that its folder holds no valid data yet
	// Exchanged, if not empty, says that the manifest belongs to a different group than the folder, and what to do. In
	// that case nothing else was checked. It is empty if both belong to the same group.
	Exchanged string
}

// VerifyOptions holds the options of VerifyFiles.
type VerifyOptions struct {
	// Manifest is the open log's manifest in memory. If it is nil, the manifest is read from its file, which is also
	// checked.
	Manifest *format.Manifest
	// ActiveBytes is the end of the active segment's synced part. The bytes after it are not checked. 0 means the end
	// of the file.
	ActiveBytes int64
	// ActiveIndex is the index of the last entry before ActiveBytes.
	ActiveIndex uint64
	// BlobGone is called for a blob whose file is missing. It reports whether compaction has dropped the blob, together
	// with the entry that referred to it, during the check. If BlobGone is nil, a missing blob is always damage.
	BlobGone func(id uuid.UUID) bool
	// RateBytesPerSecond limits the read rate. 0 means no limit.
	RateBytesPerSecond int64
	// Progress is called with the number of bytes read since the last call. Calls do not overlap. Progress may be nil.
	Progress func(bytes int64)
}

// VerifyDir checks every byte of a group that no log has open. It checks the manifest, segment headers, all frames,
// padding and preallocated space, the order of indexes, hints against the segments, used flags, blobs against the
// entries that refer to them, and the mark. The function progress is called with the number of bytes read since its
// last call. The report lists the damage. The error says why something could not be checked, for example because ctx is
// done, the format is newer, or the folder does not exist.
func VerifyDir(ctx context.Context, fs vfs.FS, dir string, progress func(bytes int64)) (VerifyReport, error) {
	return VerifyFiles(ctx, fs, dir, VerifyOptions{Progress: progress})
}

// VerifyFiles is like VerifyDir, for a log that is open. The caller must ensure that no file in the manifest is removed
// during the call. Blobs may be removed (see VerifyOptions.BlobGone).
func VerifyFiles(ctx context.Context, fs vfs.FS, dir string, opts VerifyOptions) (VerifyReport, error) {
	v := newVerifier(ctx, fs, dir, opts)
	err := v.run()
	return v.report, err
}

// verifier checks the files of a group. Its method run returns the result.
type verifier struct {
	ctx      context.Context
	fs       vfs.FS
	dir      string
	opts     VerifyOptions
	manifest *format.Manifest
	replica  *format.ReplicaFile // nil if the replica file is missing or cannot be read
	mark     format.Mark
	scans    []*segmentScan // in the order of the manifest
	report   VerifyReport
	hard     format.StateRecord // the hard state, combined from the manifest and the state frames
	lost     bool               // whether entries are or may be lost for a reason other than a bad blob
	badMark  bool
	// badReplica means that a copy of the replica file is invalid.
	badReplica bool
	started    time.Time

	mu       longlock.Mutex // guards badBlobs, report.Bytes and report.Damages while workers run
	badBlobs map[uuid.UUID]bool
}

func newVerifier(ctx context.Context, fs vfs.FS, dir string, opts VerifyOptions) *verifier {
	return &verifier{ctx: ctx, fs: fs, dir: dir, opts: opts, manifest: opts.Manifest, started: time.Now()}
}

func (v *verifier) run() error {
	if v.manifest == nil {
		if joining, err := v.readReplica(); err != nil || joining {
			return err
		}
		if ok, err := v.readManifest(); err != nil || !ok {
			return err
		}
		if why := exchanged(v.fs, v.dir, v.manifest); why != "" {
			v.report.Exchanged = why
			v.damage(format.Damage{File: format.ManifestName, What: why})
			return nil
		}
		if err := v.readMark(); err != nil {
			return err
		}
	} else {
		v.mark.Index = v.opts.ActiveIndex
	}
	v.report.Group = v.manifest.Identity.Name
	if err := v.scanSegments(); err != nil {
		return err
	}
	v.checkOrder()
	if err := v.checkHints(); err != nil {
		return err
	}
	v.dropVoid()
	v.reportRanges()
	if v.opts.Manifest == nil {
		// The hints of an open log are still being written, and may include entries that this check does not read.
		// Therefore the used flags are checked only if the log is not open.
		v.checkUsed()
	}
	if err := v.checkBlobs(); err != nil {
		return err
	}
	slices.SortStableFunc(v.report.Damages, func(a, b format.Damage) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset))
	})
	return nil
}

// readManifest reads the manifest. It returns false if there is no valid manifest. The names of the other files are
// not known in that case.
func (v *verifier) readManifest() (bool, error) {
	b, err := format.ReadAll(v.fs, path.Join(v.dir, format.ManifestName), format.ManifestBytesMax)
	switch {
	case errors.Is(err, iofs.ErrNotExist):
		if _, err := v.fs.List(v.dir); err != nil {
			return false, err
		}
		v.damage(format.Damage{File: format.ManifestName, What: "the manifest is missing: which segments live is not known"})
		return false, nil
	case err != nil && !errors.Is(err, format.ErrCorrupt):
		v.damage(format.Damage{File: format.ManifestName, What: "the manifest cannot be read: " + err.Error()})
		return false, nil
	}
	v.count(int64(len(b)))
	m, bad, err := format.DecodeManifest(b)
	if errors.Is(err, format.ErrFormatVersion) {
		return false, fmt.Errorf("%s: %w", path.Join(v.dir, format.ManifestName), err)
	}
	if err != nil {
		v.damage(format.Damage{File: format.ManifestName, Length: int64(len(b)), What: err.Error()})
		return false, nil //nolint:nilerr // the error is in the report
	}
	v.report.Group = m.Identity.Name
	v.damage(format.CopyDamages(format.ManifestName, int64(len(b)/2), bad)...)
	v.manifest = m
	if f := v.replica; f != nil && (f.Store != m.Identity.Store || f.Group != m.Identity.Group) {
		v.damage(format.Damage{File: format.ReplicaName, Length: format.ReplicaFileBytes,
			What: fmt.Sprintf("it is of group %s of store %s, the manifest of group %s of store %s", f.Group, f.Store,
				m.Identity.Group, m.Identity.Store)})
	}
	return true, nil
}

// readReplica reads and checks the replica file. It returns true if the replica is still joining.
func (v *verifier) readReplica() (joining bool, err error) {
	v.report.Group = path.Base(v.dir)
	b, err := format.ReadAll(v.fs, path.Join(v.dir, format.ReplicaName), 2*format.ReplicaFileBytes)
	switch {
	case errors.Is(err, iofs.ErrNotExist):
		return false, nil
	case err != nil && !errors.Is(err, format.ErrCorrupt):
		v.damage(format.Damage{File: format.ReplicaName, What: "the replica file cannot be read: " + err.Error()})
		return false, nil
	}
	v.count(int64(len(b)))
	f, bad, err := format.DecodeReplicaFile(b)
	if errors.Is(err, format.ErrFormatVersion) {
		return false, fmt.Errorf("%s: %w", path.Join(v.dir, format.ReplicaName), err)
	}
	v.badReplica = bad != [2]error{}
	v.damage(format.CopyDamages(format.ReplicaName, format.BlockBytes, bad)...)
	if err != nil {
		return false, nil //nolint:nilerr // the error is in the report
	}
	v.replica = &f
	_, err = v.fs.Stat(path.Join(v.dir, format.ManifestName))
	v.report.Joining = f.Joining && errors.Is(err, iofs.ErrNotExist)
	return v.report.Joining, nil
}

func (v *verifier) readMark() error {
	mark, found, bad, err := format.ReadMark(v.fs, v.dir)
	if err != nil && !errors.Is(err, format.ErrCorrupt) {
		return err
	}
	if err != nil {
		bad[0] = err
	}
	v.badMark = bad != [format.MarkSlots]error{}
	v.damage(format.CopyDamages(format.MarkName, format.BlockBytes, bad)...)
	if found {
		v.mark = mark
		if owner := v.neighbourOf(mark.Segment); owner != "" {
			v.mark, v.badMark = format.Mark{}, true
			v.damage(format.Damage{File: format.MarkName, Length: format.MarkFileBytes,
				What: "it is the mark of group " + owner + ", whose folder is beside this one"})
		}
	}
	v.count(format.MarkFileBytes)
	return nil
}

// neighbourOf returns the name of the group in a sibling folder whose manifest lists the segment. It returns an empty
// string if no sibling lists the segment, or if this group does. If no manifest lists the segment to which a mark
// refers, compaction may simply have replaced that segment.
func (v *verifier) neighbourOf(id format.SegmentID) string {
	has := func(m *format.Manifest) bool {
		return slices.ContainsFunc(m.Segments, func(s format.ManifestSegment) bool { return s.ID == id })
	}
	if id == (format.SegmentID{}) || has(v.manifest) {
		return ""
	}
	beside, _ := v.fs.List(path.Dir(v.dir)) // without a list, no sibling is known
	for _, name := range beside {
		if name == path.Base(v.dir) {
			continue
		}
		if m, err := format.ReadManifest(v.fs, path.Join(path.Dir(v.dir), name)); err == nil && has(m) {
			return m.Identity.Name
		}
	}
	return ""
}

// damage adds the given damage to the report.
func (v *verifier) damage(damages ...format.Damage) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, d := range damages {
		d.Group = v.report.Group
		v.report.Damages = append(v.report.Damages, d)
	}
}

// count adds bytes to the total and passes them to the callback Progress. To limit the read rate, it waits until the
// total is due.
func (v *verifier) count(bytes int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.Bytes += bytes
	if v.opts.Progress != nil {
		v.opts.Progress(bytes)
	}
	if v.opts.RateBytesPerSecond <= 0 {
		return
	}
	due := v.started.Add(time.Duration(float64(v.report.Bytes) / float64(v.opts.RateBytesPerSecond) * float64(
		time.Second)))
	// mu stays locked during the wait, so that all workers wait.
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-v.ctx.Done():
	}
}

// countingFile is a file that reports the bytes read from it to a verifier. Its reads fail when the context is done.
type countingFile struct {
	vfs.File
	v *verifier
}

func (f countingFile) ReadAt(p []byte, offset int64) (int, error) {
	if err := f.v.ctx.Err(); err != nil {
		return 0, fmt.Errorf("%w: %w", segio.ErrStop, err)
	}
	n, err := f.File.ReadAt(p, offset)
	f.v.count(int64(n))
	return n, err
}

// each calls work for each number from 0 to n - 1, on several goroutines. Each goroutine has a separate buffer.
func (v *verifier) each(n int, work func(i int, buffer []byte) error) error {
	all, ctx := errgroup.WithContext(v.ctx)
	all.SetLimit(verifyWorkers)
	for i := range n {
		all.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			pooled := segio.FrameBuffers.Get().(*[]byte)
			defer segio.FrameBuffers.Put(pooled)
			return work(i, *pooled)
		})
	}
	return all.Wait()
}
