package transfer

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Finish switches the folder to its new state. The commit point is the moment at which the new manifest is renamed.
// After a crash at any time, the folder is either in its old or in its new state. No log may be open on the folder.
// The term in the new state is the greater of the folder's term and the export's term, and a vote in that term is
// kept. Finish returns ErrBehind under the same conditions as NewInstall. After an error, the caller can resume with
// NewInstall. After success, Load loads the new state. The numbers in this function's comments are the numbers of the
// steps in docs/format.md.
func (i *Install) Finish(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("install group %s in %s: %w", i.opts.Identity.Name, i.opts.Dir, format.MarkShortage(err))
		}
	}()
	own, err := readOwn(i.opts.FS, i.opts.Dir, i.manifest.Identity, i.replica)
	if err != nil {
		return err
	}
	if i.opts.Damaged || !own.holds(i.manifest) {
		if err := i.swapIn(ctx, own); err != nil {
			return err
		}
	}
	if err := format.WriteReplicaFile(i.opts.FS, i.opts.Dir, i.replica); err != nil { // 5
		return err
	}
	i.removeOld(own) // 6
	return nil
}

// swapIn performs all steps up to the commit point.
func (i *Install) swapIn(ctx context.Context, own *ownLog) error {
	if err := i.lookAgain(); err != nil {
		return err
	}
	if missing := i.Missing(); len(missing) > 0 || i.blobs == nil {
		return fmt.Errorf("%d files are missing, or still being received", len(missing))
	}
	term, err := i.lastTerm()
	if err != nil {
		return err
	}
	if err := own.readTail(); err != nil {
		return err
	}
	if err := own.checkTail(i.manifest, term); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	next := *i.manifest
	next.Sequence, next.Segments, next.NextSegment = 1, nil, 1
	if own.manifest != nil {
		next.Sequence, next.NextSegment = own.manifest.Sequence+1, own.manifest.NextSegment
		next.TombstoneFloor = i.manifest.TombstoneFloor
	}
	next.HardState = own.hard
	next.HardState.MergeHardState(format.StateRecord{Term: i.manifest.HardState.Term})
	next.HardState.Commit, next.HardState.SyncedOffset, next.HardState.SyncedIndex = i.manifest.HardState.Commit, 0, 0
	for _, f := range i.segments {
		s := f.segment
		s.Number = next.NextSegment
		next.NextSegment++
		next.Segments = append(next.Segments, s)
	}
	if err := i.makeActive(&next); err != nil { // 2
		return err
	}
	if err := i.moveIn(&next); err != nil { // 3
		return err
	}
	return format.WriteManifest(i.opts.FS, i.opts.Dir, &next) // step 4, the commit point
}

// lookAgain checks again whether the blobs that the log already had still exist, because compaction may have removed
// some of them while the log was open.
func (i *Install) lookAgain() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, f := range i.blobs {
		if !f.inPlace {
			continue
		}
		_, err := i.opts.FS.Stat(path.Join(i.opts.Dir, f.name()))
		if errors.Is(err, iofs.ErrNotExist) {
			f.whole, f.inPlace, f.Have = false, false, 0
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lastTerm returns the term of the export's last entry.
func (i *Install) lastTerm() (uint64, error) {
	at := i.manifest.HardState.Commit
	if at == i.manifest.CompactedThrough {
		return i.manifest.CompactedTerm, nil
	}
	if n := len(i.segments); n > 0 {
		h, err := format.ReadHint(i.opts.FS, i.incoming, i.segments[n-1].segment)
		if err != nil {
			return 0, err
		}
		if term := format.TermAt(h.Terms, at); term != 0 {
			return term, nil
		}
	}
	return 0, fmt.Errorf("%w: the export has no entry with index %d", format.ErrCorrupt, at)
}

// makeActive creates a mark file and an empty active segment, whose first index follows the export's last index.
func (i *Install) makeActive(next *format.Manifest) error {
	active := format.ManifestSegment{Number: next.NextSegment, ID: format.NewSegmentID(),
		FirstIndex: i.manifest.HardState.Commit + 1}
	next.NextSegment++
	next.Segments = append(next.Segments, active)
	if err := format.MakeSegment(i.opts.FS, i.opts.Dir, i.opts.Identity, active, i.opts.Now()); err != nil {
		return err
	}
	if _, err := i.opts.FS.Stat(path.Join(i.opts.Dir, format.MarkName)); errors.Is(err, iofs.ErrNotExist) {
		return format.CreateMark(i.opts.FS, i.opts.Dir)
	}
	return nil
}

// moveIn durably moves the files to their final names in the group's folder. No manifest lists these files yet.
func (i *Install) moveIn(next *format.Manifest) error {
	fs := i.opts.FS
	move := func(from, to string) error {
		return fs.Rename(path.Join(i.incoming, from), path.Join(i.opts.Dir, to))
	}
	for k, f := range i.segments {
		to := next.Segments[k].Number
		if err := move(format.SegmentName(f.segment.Number), format.SegmentName(to)); err != nil {
			return err
		}
		if err := move(format.HintName(f.segment.Number), format.HintName(to)); err != nil {
			return err
		}
	}
	for _, f := range i.blobs {
		if f.inPlace {
			continue
		}
		if err := move(f.name(), f.name()); err != nil {
			return err
		}
	}
	if err := fs.SyncDir(i.opts.Dir); err != nil {
		return err
	}
	return fs.SyncDir(i.incoming)
}

// removeOld removes the files of the replaced log, and the incoming folder. Errors are ignored, because the next load
// removes any leftover file.
func (i *Install) removeOld(own *ownLog) {
	if err := RemoveIncoming(i.opts.FS, i.opts.Dir); err != nil {
		i.opts.Logger.Warn("garbage stays until the next load", "group", i.opts.Identity.Name, "error", err)
	}
	now, err := format.ReadManifest(i.opts.FS, i.opts.Dir)
	if err != nil || own.manifest == nil {
		return
	}
	listed := make(map[uint64]bool)
	for _, s := range now.Segments {
		listed[s.Number] = true
	}
	for _, s := range own.manifest.Segments {
		if !listed[s.Number] {
			i.removeGarbage(format.SegmentName(s.Number))
			i.removeGarbage(format.HintName(s.Number))
		}
	}
}

func (i *Install) removeGarbage(name string) {
	if err := i.opts.FS.Remove(path.Join(i.opts.Dir, name)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		i.opts.Logger.Warn("garbage stays until the next load", "group", i.opts.Identity.Name, "file", name, "error", err)
	}
}
