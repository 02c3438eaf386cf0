package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"path"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// folder holds a log's files. Its manifest lists the segments. The caller must hold writer.mu, except for calls to
// remove and clear.
type folder struct {
	fs       vfs.FS
	dir      string
	identity format.Identity
	now      func() time.Time
	logger   *slog.Logger // logs the group's name with each message

	manifest *format.Manifest // the manifest that is on disk
	// unsure means that an attempt to write the manifest has failed, so that the manifest on disk may be the old or the
	// new one. The manifest must be written again before anything is acknowledged.
	unsure     bool
	nextNumber uint64 // number that the next segment gets
	sequence   uint64 // sequence number of the last manifest that the folder tried to write
	// changesFloor is the index up to which some changes may be missing (see Log.Changes).
	changesFloor atomic.Uint64
	// deletesFloor is the index up to which deletes may be missing (see Log.DeletesFloor).
	deletesFloor atomic.Uint64
	history      atomic.Pointer[historyFloor] // history floor of the manifest on disk, or nil if it has none
}

// create durably creates the file of a segment with the given ordinal. The argument rewritten says whether the segment
// replaces others. The new segment has no image, and is not in the manifest yet.
func (f *folder) create(first uint64, ordinal uint32, rewritten bool) (*segment, error) {
	if ordinal > index.OrdinalMax {
		return nil, fmt.Errorf("the log has used up its %d segment ordinals: load it again", index.OrdinalMax)
	}
	m := format.ManifestSegment{Number: f.nextNumber, ID: format.NewSegmentID(), FirstIndex: first}
	f.nextNumber++
	file, err := format.WriteSegmentHeader(f.fs, f.dir, f.identity, m, f.now(), rewritten)
	if err != nil {
		return nil, err
	}
	s := newSegment(f.fs, f.dir, m, ordinal)
	s.file.Store(&openFile{file})
	s.rows = new(format.Rows)
	return s, nil
}

// discard removes a segment that no manifest lists. Errors are ignored, because the next load removes any leftover
// file.
func (f *folder) discard(s *segment) {
	s.retired = func() { f.remove(path.Base(s.path)) }
	s.unpin()
}

// discardUnlessListed removes a segment after writing the manifest that lists it has failed. It keeps the segment if
// that manifest may nevertheless be on the disk.
func (f *folder) discardUnlessListed(s *segment) {
	if f.unsure {
		s.unpin()
		return
	}
	f.discard(s)
}

// remove removes a file that the manifest does not list. If that fails, the file occupies space until the next load.
func (f *folder) remove(name string) {
	if err := f.fs.Remove(path.Join(f.dir, name)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		f.logger.Warn("garbage stays until the next load", "file", name, "error", err)
	}
}

// clear durably removes files to which nothing in the log refers.
func (f *folder) clear(names []string) error {
	for _, name := range names {
		if err := f.fs.Remove(path.Join(f.dir, name)); err != nil {
			return fmt.Errorf("garbage file %s: %w", name, err)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return f.fs.SyncDir(f.dir)
}

// writeManifest replaces the manifest with a changed copy. After an error the old manifest is still valid, unless
// unsure is set. If unsure is set, writer.recover writes the manifest again before anything is acknowledged.
func (f *folder) writeManifest(change func(*format.Manifest)) error {
	m := *f.manifest
	m.Segments = append([]format.ManifestSegment(nil), m.Segments...)
	f.sequence++
	m.Sequence, m.NextSegment = f.sequence, f.nextNumber
	change(&m)
	err := format.WriteManifest(f.fs, f.dir, &m)
	if err == nil {
		f.manifest, f.unsure = &m, false
		f.publishFloors()
		return nil
	}
	seen, readErr := format.ReadManifest(f.fs, f.dir)
	if readErr != nil || seen.Sequence != f.manifest.Sequence {
		f.unsure = true
	}
	return err
}

// publishFloors makes the floors in the manifest on disk visible to readers.
func (f *folder) publishFloors() {
	f.changesFloor.Store(max(f.manifest.TombstoneFloor, f.manifest.AcceptedThrough))
	f.deletesFloor.Store(max(f.manifest.TombstoneFloor, f.manifest.LossEnd()))
	f.history.Store(historyOf(f.manifest))
}

// retire removes the files of a segment that is no longer in the manifest, as soon as the segment has no readers.
func (f *folder) retire(s *segment) {
	s.retired = func() {
		f.remove(path.Base(s.path))
		f.remove(format.HintName(s.number))
	}
	s.unpin()
}

// ordinalStep is the difference between the ordinals of adjacent segments. It leaves the odd ordinal after each even
// one free. If compaction replaces a segment, the new segment gets this ordinal.
const ordinalStep = 2

// Create durably creates the files of a new, empty group with the given Raft voters. The folder must not exist, or must
// be empty except for files of an unfinished Create.
func Create(opts Options, conf *raftpb.ConfState) (err error) {
	opts = opts.withDefaults()
	defer func() {
		if err != nil {
			err = fmt.Errorf("create group %s in %s: %w", opts.Identity.Name, opts.Dir, err)
		}
	}()
	if err := opts.FS.MkdirAll(opts.Dir); err != nil {
		return format.MarkShortage(err)
	}
	if err := clearUnfinished(opts.FS, opts.Dir); err != nil {
		return err
	}
	segment := format.ManifestSegment{Number: 1, FirstIndex: 1, ID: format.NewSegmentID()}
	if err := format.MakeSegment(opts.FS, opts.Dir, opts.Identity, segment, opts.Now()); err != nil {
		return err
	}
	if err := format.CreateMark(opts.FS, opts.Dir); err != nil {
		return err
	}
	return format.WriteManifest(opts.FS, opts.Dir, &format.Manifest{
		Identity: opts.Identity, Sequence: 1, Segments: []format.ManifestSegment{segment}, NextSegment: 2, Conf: conf,
	})
}

// clearUnfinished removes the files of an unfinished Create. It returns an error if there is any other file in the
// folder, because a group with a missing manifest must not be overwritten.
func clearUnfinished(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		unfinished, err := isUnfinished(fs, dir, name)
		if err != nil {
			return err
		}
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

// isUnfinished reports whether a file in a folder without a manifest was left by an unfinished Create.
func isUnfinished(fs vfs.FS, dir, name string) (bool, error) {
	switch name {
	case format.MarkName, format.MarkName + format.TmpSuffix, format.ManifestName + format.TmpSuffix:
		return true, nil
	case format.SegmentName(1):
		info, err := fs.Stat(path.Join(dir, name))
		return err == nil && info.Size() <= format.SegmentHeaderBytes, err
	}
	return false, nil
}

// HoldsNothing reports whether a folder holds no files of a replica, apart from what a killed Create, or the killed
// start of a learner, has left behind. Such a folder holds no entry and no vote.
func HoldsNothing(fs vfs.FS, dir string) (bool, error) {
	names, err := fs.List(dir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if name == format.ReplicaName+format.TmpSuffix {
			continue
		}
		if unfinished, err := isUnfinished(fs, dir, name); !unfinished || err != nil {
			return false, err
		}
	}
	return true, nil
}
