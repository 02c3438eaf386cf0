package group

import (
	"crypto/rand"
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"go.etcd.io/raft/v3/raftpb"

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
		return fail(noSpace(err))
	}
	if err := clearUnfinished(opts.FS, opts.Dir); err != nil {
		return fail(err)
	}
	segment := ManifestSegment{Number: 1, FirstIndex: 1}
	segment.ID = newSegmentID()
	f, err := writeSegmentHeader(opts, segment, false)
	if err != nil {
		return fail(err)
	}
	if err := f.Close(); err != nil {
		return fail(err)
	}
	if err := CreateMark(opts.FS, opts.Dir); err != nil {
		return fail(err)
	}
	err = WriteManifest(opts.FS, opts.Dir, &Manifest{
		Identity: opts.Identity, Sequence: 1, Segments: []ManifestSegment{segment}, NextSegment: 2, Conf: conf,
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
		unfinished := name == MarkName || name == MarkName+TmpSuffix || name == ManifestName+TmpSuffix ||
			name == SegmentName(1) && info.Size() <= SegmentHeaderBytes
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

func newSegmentID() SegmentID {
	var id SegmentID
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// writeSegmentHeader makes a segment file with its header, durable when it returns.
func writeSegmentHeader(opts Options, m ManifestSegment, rewritten bool) (vfs.File, error) {
	name := path.Join(opts.Dir, SegmentName(m.Number))
	f, err := createAnew(opts.FS, name)
	if err != nil {
		return nil, noSpace(err)
	}
	header := SegmentHeader{
		Store: opts.Identity.Store, Group: opts.Identity.Group, ID: m.ID,
		FirstIndex: m.FirstIndex, Created: opts.Now().UnixNano(), Rewritten: rewritten,
	}
	_, err = f.WriteAt(header.Encode(), 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = opts.FS.SyncDir(opts.Dir)
	}
	if err != nil {
		return nil, noSpace(errors.Join(err, f.Close(), opts.FS.Remove(name)))
	}
	return f, nil
}

// ReadIdentity reads who the group in dir is, without loading it.
func ReadIdentity(fs vfs.FS, dir string) (Identity, error) {
	m, err := ReadManifest(fs, dir)
	if err != nil {
		return Identity{}, err
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
	if err := l.newImage(s, max(l.opts.SegmentBytes, SegmentHeaderBytes+bytes)); err != nil {
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
	m := ManifestSegment{Number: w.nextNumber, ID: newSegmentID(), FirstIndex: first}
	w.nextNumber++
	f, err := writeSegmentHeader(l.opts, m, rewritten)
	if err != nil {
		return nil, err
	}
	s := newSegment(l.fs, l.dir, m, ordinal)
	s.file.Store(&openFile{f})
	s.rows = new(rowTable)
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

// writeManifest replaces the manifest by a changed copy. After an error the old one counts, unless w.unsure is set: then
// settle writes it again before anything is acknowledged. The caller holds wmu.
func (l *Log) writeManifest(change func(*Manifest)) error {
	w := &l.w
	m := *w.manifest
	m.Segments = append([]ManifestSegment(nil), m.Segments...)
	w.sequence++
	m.Sequence, m.NextSegment = w.sequence, w.nextNumber
	change(&m)
	err := WriteManifest(l.fs, l.dir, &m)
	if err == nil {
		w.manifest, w.unsure = &m, false
		l.changesFloor.Store(max(m.TombstoneFloor, m.AcceptedThrough))
		return nil
	}
	seen, readErr := ReadManifest(l.fs, l.dir)
	if readErr != nil || seen.Sequence != w.manifest.Sequence {
		w.unsure = true
	}
	return err
}
