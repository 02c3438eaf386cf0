package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Export is the state of a log at one index. It can be read until Close is called, even while the log changes. An
// Export is safe for concurrent use.
type Export struct {
	Index uint64 // index up to which the export has all entries
	Term  uint64 // term of the entry at that index
	Bytes int64  // total size of the files in bytes

	group    string
	gate     *gate
	folder   *folder // opens the files; its list of files is only read while the export is being created
	reader   *reader
	blobs    *blobSet
	manifest []byte
	files    []transfer.File
	sizes    map[string]int64 // by name

	mu     sync.Mutex
	views  []view      // pinned segments; guarded by mu
	pinned []uuid.UUID // pinned blobs; guarded by mu
	closed bool        // guarded by mu
}

// Export returns an export of the log at its applied index, or at the index before a membership change that has not
// been passed to SetConf yet. It holds no lock for long. Compaction is possible during the export, but the files that
// it removes occupy disk space until Close. If the log has damage, Export returns *DamageError.
func (l *Log) Export(ctx context.Context) (_ *Export, err error) {
	defer l.addNames("export", &err)
	l.blobs.hold() // keeps blobs from being removed until it is known which ones the export needs
	defer l.blobs.release()
	e := &Export{
		group: l.opts.Identity.Name, gate: &l.gate, folder: &l.folder, reader: &l.reader, blobs: &l.blobs,
		sizes: make(map[string]int64),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	m, err := e.pin(&l.w, &l.damages)
	if err != nil {
		return nil, err
	}
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	if err := e.addSegments(m); err != nil {
		return nil, err
	}
	if err := e.addBlobs(ctx); err != nil {
		return nil, err
	}
	if e.manifest, err = m.Encode(); err != nil {
		return nil, err
	}
	return e, nil
}

// pin pins the segments of the export in their current state, and returns a manifest without segments.
func (e *Export) pin(w *writer, damages *damages) (*format.Manifest, error) {
	w.mu.Lock() // prevents entries from being applied at the same time
	defer w.mu.Unlock()
	if err := e.gate.usable(); err != nil {
		return nil, err
	}
	st, now := w.state, e.folder.manifest
	st.mu.RLock()
	e.Index = st.exportIndex()
	term, termErr := st.term(e.Index)
	m := &format.Manifest{
		Identity: now.Identity, Sequence: 1, NextSegment: e.folder.nextNumber, Conf: st.conf, ConfIndex: st.confIndex,
		CompactedThrough: now.CompactedThrough, CompactedTerm: now.CompactedTerm,
		TombstoneFloor: now.TombstoneFloor, AcceptedThrough: now.AcceptedThrough,
		HistoryFloor: now.HistoryFloor, HistoryKnown: now.HistoryKnown,
		// There is no vote, because the vote belongs to this replica.
		HardState: format.StateRecord{Term: max(w.hard.Term, term), Commit: e.Index},
	}
	st.mu.RUnlock()
	if err := errors.Join(damages.first(), termErr); err != nil {
		return nil, err
	}
	e.Term = term
	e.views = e.reader.views(0, e.Index)
	// An empty segment whose first index is above the export's index is not part of the export.
	for n := len(e.views); n > 0 && e.views[n-1].first > e.Index; n-- {
		e.views[n-1].unpin()
		e.views = e.views[:n-1]
	}
	return m, nil
}

// addSegments adds the segments to the manifest and to the files. The last segment ends at the export's index.
func (e *Export) addSegments(m *format.Manifest) error {
	for i, v := range e.views {
		s := v.m
		if v.active || v.through > e.Index {
			end, last, err := e.reader.endOf(v, e.Index, m.CompactedThrough)
			if err != nil {
				return err
			}
			s.Bytes, s.LastIndex = end, last
			e.views[i].end, e.views[i].through = end, e.Index
		}
		m.Segments = append(m.Segments, s)
		e.add(transfer.File{Kind: transfer.SegmentFile, Name: format.SegmentName(s.Number), Bytes: s.Bytes})
	}
	return nil
}

func (e *Export) add(f transfer.File) {
	e.files = append(e.files, f)
	e.sizes[f.Name] = f.Bytes
	e.Bytes += f.Bytes
}

// endOf returns the offset in a segment at which the entries with indexes at or below `at` end. It also returns the
// index of the last of these entries in file order. Every void entry lies before that last entry or after the returned
// offset, because committed entries are never truncated.
func (r *reader) endOf(v view, at, floor uint64) (end int64, last uint64, err error) {
	end, last = format.SegmentHeaderBytes, v.first-1
	var damage error
	err = v.frames(r.startOf(v, at), func(step *segio.FrameStep) bool {
		e := &step.Entry
		switch {
		case step.Status != segio.FrameWhole:
			damage = r.damages.found(v.damage(r.group, step), 0)
		case e.Kind != format.KindState && e.Index <= at && r.isValid(e):
			end, last = step.Offset+step.Bytes, e.Index
		}
		return damage == nil && last < at
	})
	if err = errors.Join(damage, err); err != nil {
		return 0, 0, err
	}
	if last != at && at > max(floor, v.first-1) {
		return 0, 0, fmt.Errorf("entry with index %d is missing", at)
	}
	return end, last, nil
}

// addBlobs pins the blobs to which the exported entries refer, and adds them to the files.
func (e *Export) addBlobs(ctx context.Context) error {
	listed := make(map[uuid.UUID]bool)
	for _, v := range e.views {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		rows, err := e.reader.rowsOf(v)
		if err != nil {
			return err
		}
		for _, b := range rows.Blobs {
			if b.Index > v.through || listed[b.Ref.ID] {
				continue
			}
			listed[b.Ref.ID] = true
			e.blobs.pin(b.Ref.ID)
			e.pinned = append(e.pinned, b.Ref.ID)
			e.add(transfer.File{Kind: transfer.BlobFile, Name: format.BlobName(b.Ref.ID),
				Bytes: format.BlobFileBytes(b.Ref.Size)})
		}
	}
	return nil
}

// Manifest returns the manifest for NewInstall. All its segments are sealed, the commit of its hard state is Index,
// and it holds no vote.
func (e *Export) Manifest() []byte { return e.manifest }

// Open opens a file of the export for reading from an offset up to the end of the file. It returns ErrNotFound for a
// file that is not part of the export, and ErrClosed after Close.
func (e *Export) Open(name string, offset int64) (io.ReadCloser, error) {
	size, found := e.sizes[name]
	switch {
	case !found:
		return nil, fmt.Errorf("group %s: export: %w: no file %q", e.group, ErrNotFound, name)
	case offset < 0 || offset > size:
		return nil, fmt.Errorf("group %s: export: %s has %d bytes, asked was offset %d", e.group, name, size, offset)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.gate.closed.Load() {
		return nil, format.ErrClosed
	}
	f, err := e.folder.fs.Open(path.Join(e.folder.dir, name))
	if err != nil {
		return nil, fmt.Errorf("group %s: export: %w", e.group, err)
	}
	return &exportReader{file: f, at: offset, asked: offset, end: size}, nil
}

// exportReader reads a range of a file. The file may be removed from the folder while it is being read.
type exportReader struct {
	file  vfs.File
	at    int64 // offset of the next read
	asked int64 // offset up to which the kernel has been asked to read ahead
	end   int64
}

// readAheadBytes is the number of bytes that the kernel is asked to read ahead at a time.
const readAheadBytes = 4 << 20

// Read implements io.Reader.
func (r *exportReader) Read(p []byte) (int, error) {
	if r.at >= r.end {
		return 0, io.EOF
	}
	if r.asked < r.end && r.at+readAheadBytes/2 >= r.asked {
		to := min(r.at+readAheadBytes, r.end)
		vfs.StartReading(r.file, r.asked, to-r.asked)
		r.asked = to
	}
	n, err := r.file.ReadAt(p[:min(int64(len(p)), r.end-r.at)], r.at)
	r.at += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil // if the file is too short, the next read fails
	}
	return n, err
}

func (r *exportReader) Close() error { return r.file.Close() }

// Close ends the export and unpins its files. Readers that are open can still be used.
func (e *Export) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	unpinAll(e.views)
	for _, id := range e.pinned {
		e.blobs.close(id)
	}
	e.views, e.pinned = nil, nil
	return nil
}
