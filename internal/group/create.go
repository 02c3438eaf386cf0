package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/index"
	"sheaf.dev/sheaf/internal/vfs"
)

// ordinalStep leaves an odd ordinal beside each even one for what compaction makes of a segment.
const ordinalStep = 2

// Create makes the files of a new, empty group, durable when it returns, with the given Raft voters. The folder must
// not exist or be empty, but for what an earlier try of Create left.
func Create(opts Options, conf *raftpb.ConfState) error {
	opts = opts.withDefaults()
	fail := func(err error) error {
		return fmt.Errorf("create group %s in %s: %w", opts.Identity.Name, opts.Dir, err)
	}
	if err := opts.FS.MkdirAll(opts.Dir); err != nil {
		return fail(format.NoSpace(err))
	}
	if err := clearUnfinished(opts.FS, opts.Dir); err != nil {
		return fail(err)
	}
	segment := format.ManifestSegment{Number: 1, FirstIndex: 1}
	segment.ID = format.NewSegmentID()
	if err := format.MakeSegment(opts.FS, opts.Dir, opts.Identity, segment, opts.Now()); err != nil {
		return fail(err)
	}
	if err := format.CreateMark(opts.FS, opts.Dir); err != nil {
		return fail(err)
	}
	err := format.WriteManifest(opts.FS, opts.Dir, &format.Manifest{
		Identity: opts.Identity, Sequence: 1, Segments: []format.ManifestSegment{segment}, NextSegment: 2, Conf: conf,
	})
	if err != nil {
		return fail(err)
	}
	return nil
}

// clearUnfinished removes what a Create that did not end has left. Anything else in the folder is an error: a group
// whose manifest is gone must not be written over.
func clearUnfinished(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := fs.Stat(path.Join(dir, name))
		if err != nil {
			return err
		}
		unfinished := name == format.MarkName || name == format.MarkName+format.TmpSuffix || name == format.ManifestName+format.TmpSuffix ||
			name == format.SegmentName(1) && info.Size() <= format.SegmentHeaderBytes
		if !unfinished {
			return fmt.Errorf("the folder holds %s: %w; choose an empty one", name, iofs.ErrExist)
		}
	}
	for _, name := range names {
		if err := fs.Remove(path.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// ReadIdentity reads who the group in dir is, without loading it.
func ReadIdentity(fs vfs.FS, dir string) (format.Identity, error) {
	m, err := format.ReadManifest(fs, dir)
	if err != nil {
		return format.Identity{}, err
	}
	return m.Identity, nil
}

// createSegment makes the file of the next segment, with room in memory for a first batch of bytes: durable, and not in
// the manifest yet. The caller holds wmu.
func (l *Log) createSegment(first uint64, bytes int64) (*segment, error) {
	s, err := l.createSegmentAt(first, l.w.active.ordinal&^1+ordinalStep, false)
	if err != nil {
		return nil, err
	}
	if err := l.newImage(s, max(l.opts.SegmentBytes, format.SegmentHeaderBytes+bytes)); err != nil {
		l.discardSegment(s)
		return nil, err
	}
	return s, nil
}

// createSegmentAt is createSegment with an ordinal, without an image, also for one that entries of others are copied
// to. The caller holds wmu.
func (l *Log) createSegmentAt(first uint64, ordinal uint32, rewritten bool) (*segment, error) {
	w := &l.w
	if ordinal > index.OrdinalMax {
		return nil, fmt.Errorf("the log has used up its %d segment ordinals: load it again", index.OrdinalMax)
	}
	m := format.ManifestSegment{Number: w.nextNumber, ID: format.NewSegmentID(), FirstIndex: first}
	w.nextNumber++
	f, err := format.WriteSegmentHeader(l.fs, l.dir, l.opts.Identity, m, l.now(), rewritten)
	if err != nil {
		return nil, err
	}
	s := newSegment(l.fs, l.dir, m, ordinal)
	s.file.Store(&openFile{f})
	s.rows = new(format.Rows)
	return s, nil
}

// discardSegment removes a segment that no manifest lists. Best effort: what stays is garbage for the next load.
func (l *Log) discardSegment(s *segment) {
	s.retired = func() { l.removeFile(path.Base(s.path)) }
	s.unpin()
}

// discardUnlessListed removes a segment after the manifest that lists it could not be written, unless it perhaps was.
func (l *Log) discardUnlessListed(s *segment) {
	if l.w.unsure {
		s.unpin()
		return
	}
	l.discardSegment(s)
}

// removeFile removes a file that the manifest does not list. A failure costs room until the next load.
func (l *Log) removeFile(name string) {
	if err := l.fs.Remove(path.Join(l.dir, name)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		l.logger.Warn("garbage stays until the next load", "group", l.opts.Identity.Name, "file", name, "error", err)
	}
}

// writeManifest replaces the manifest by a changed copy. After an error the old one counts, unless w.unsure is set:
// then settle writes it again before anything is acknowledged. The caller holds wmu.
func (l *Log) writeManifest(change func(*format.Manifest)) error {
	w := &l.w
	m := *w.manifest
	m.Segments = append([]format.ManifestSegment(nil), m.Segments...)
	w.sequence++
	m.Sequence, m.NextSegment = w.sequence, w.nextNumber
	change(&m)
	err := format.WriteManifest(l.fs, l.dir, &m)
	if err == nil {
		w.manifest, w.unsure = &m, false
		l.changesFloor.Store(max(m.TombstoneFloor, m.AcceptedThrough))
		return nil
	}
	seen, readErr := format.ReadManifest(l.fs, l.dir)
	if readErr != nil || seen.Sequence != w.manifest.Sequence {
		w.unsure = true
	}
	return err
}
