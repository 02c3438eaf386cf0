package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"path"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// folder is the files of a log: which segments there are is what its manifest says. All but remove and clear is called
// with writer.mu held.
type folder struct {
	fs       vfs.FS
	dir      string
	identity format.Identity
	now      func() time.Time
	logger   *slog.Logger

	manifest *format.Manifest // as it is on disk
	// a manifest was perhaps replaced, perhaps not durably: write it again before anything is acknowledged
	unsure     bool
	nextNumber uint64 // of the next segment file
	sequence   uint64 // of the last manifest that was tried
	// changesFloor: of the changes at or below it some may be missing. See Log.Changes.
	changesFloor atomic.Uint64
}

// create makes the file of a segment with an ordinal, also of one that entries of others are copied to: durable,
// without an image, and not in the manifest yet.
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

// discard removes a segment that no manifest lists. Best effort: what stays is garbage for the next load.
func (f *folder) discard(s *segment) {
	s.retired = func() { f.remove(path.Base(s.path)) }
	s.unpin()
}

// discardUnlessListed removes a segment after the manifest that lists it could not be written, unless it perhaps was.
func (f *folder) discardUnlessListed(s *segment) {
	if f.unsure {
		s.unpin()
		return
	}
	f.discard(s)
}

// remove removes a file that the manifest does not list. A failure costs room until the next load.
func (f *folder) remove(name string) {
	if err := f.fs.Remove(path.Join(f.dir, name)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		f.logger.Warn("garbage stays until the next load", "group", f.identity.Name, "file", name, "error", err)
	}
}

// clear removes files to which nothing in the log refers, durably.
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

// writeManifest replaces the manifest by a changed copy. After an error the old one counts, unless unsure is set:
// then settle writes it again before anything is acknowledged.
func (f *folder) writeManifest(change func(*format.Manifest)) error {
	m := *f.manifest
	m.Segments = append([]format.ManifestSegment(nil), m.Segments...)
	f.sequence++
	m.Sequence, m.NextSegment = f.sequence, f.nextNumber
	change(&m)
	err := format.WriteManifest(f.fs, f.dir, &m)
	if err == nil {
		f.manifest, f.unsure = &m, false
		f.changesFloor.Store(max(m.TombstoneFloor, m.AcceptedThrough))
		return nil
	}
	seen, readErr := format.ReadManifest(f.fs, f.dir)
	if readErr != nil || seen.Sequence != f.manifest.Sequence {
		f.unsure = true
	}
	return err
}

// retire removes the files of a segment that left the manifest, when the last reader has left it.
func (f *folder) retire(s *segment) {
	s.retired = func() {
		f.remove(path.Base(s.path))
		f.remove(format.HintName(s.number))
	}
	s.unpin()
}
