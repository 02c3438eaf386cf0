package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// redo writes a group's share of a journal to the group's active segment.
type redo struct {
	fs     vfs.FS
	dir    string
	active format.ManifestSegment
	// end is the offset at which the last range ends. last is the index of the last entry in that range, or 0 if the range
	// has none.
	end  int64
	last uint64
	// lostEnd is the greatest offset at which one of the lost ranges with a known location ends, or 0 if there are none.
	lostEnd int64
}

// Redo writes a group's share of a journal into the active segment of a group that is not open, and syncs the segment.
// It skips the ranges of all other segments, because a sealed segment has already been synced, and a segment that the
// manifest does not list is void. If the folder does not exist, Redo does nothing. Redo may be called again with the
// same share. When a range was written to the journal, everything before it in the segment was already durable. Redo
// can therefore raise the synced mark to the end of the range. A load then reports missing bytes below the mark as
// damage, instead of mistaking them for the end of the log. Redo also raises the mark above all bytes that are lost or
// may be lost.
func Redo(fs vfs.FS, dir string, share journal.Share) error {
	m, err := format.ReadManifest(fs, dir)
	if errors.Is(err, iofs.ErrNotExist) {
		if _, stat := fs.Stat(dir); errors.Is(stat, iofs.ErrNotExist) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return redoShare(fs, dir, m, share)
}

// redoShare implements Redo for a group with the given manifest.
func redoShare(fs vfs.FS, dir string, m *format.Manifest, share journal.Share) (err error) {
	active, ok := m.ActiveSegment()
	if !ok {
		return nil
	}
	r := &redo{fs: fs, dir: dir, active: active}
	if err := r.write(m, share.Ranges); err != nil {
		return err
	}
	for i := range share.Lost {
		if lost := &share.Lost[i]; r.isOfActive(m, lost) {
			r.lostEnd = max(r.lostEnd, lost.Offset+lost.Before)
		}
	}
	mark := format.Mark{Segment: active.ID, Offset: r.end, Index: r.last}
	if r.lostEnd > r.end || share.Doubt > 0 {
		if mark, err = r.above(share.Doubt); err != nil {
			return err
		}
	}
	return r.raise(mark)
}

func (r *redo) isOfActive(m *format.Manifest, at *journal.Range) bool {
	return at.Group == m.Identity.Group && at.Number == r.active.Number && format.SegmentID(at.Segment) == r.active.ID &&
		at.Offset >= format.SegmentHeaderBytes
}

// write durably writes the active segment's ranges. If the segment is missing, write does nothing, because the load
// will report this as damage.
func (r *redo) write(m *format.Manifest, ranges []journal.Range) (err error) {
	var file vfs.File
	for i := range ranges {
		one := &ranges[i]
		if !r.isOfActive(m, one) {
			continue
		}
		if file == nil {
			file, err = r.fs.OpenWrite(path.Join(r.dir, format.SegmentName(r.active.Number)))
			if errors.Is(err, iofs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, file.Close()) }()
		}
		if _, err := file.WriteAt(one.Bytes, one.Offset); err != nil {
			return err
		}
		if end := one.Offset + int64(len(one.Bytes)); end > r.end {
			r.end = end
			r.last = max(r.last, lastIndexOf(one.Bytes, r.active.ID, one.Offset))
		}
	}
	if file == nil {
		return nil
	}
	return file.Sync()
}

// lastIndexOf returns the index of the last entry in a sequence of whole frames, or 0 if there is none.
func lastIndexOf(frames []byte, segment format.SegmentID, offset int64) (last uint64) {
	for len(frames) > 0 {
		e, n, err := format.DecodeFrame(frames, segment, offset)
		if err != nil || n > int64(len(frames)) {
			break
		}
		if e.Kind != format.KindState {
			last = e.Index
		}
		frames, offset = frames[n:], offset+n
	}
	return last
}

// above returns a mark beyond all bytes that are known to be lost. The argument doubt is the number of bytes after
// them that may be lost as well. The mark is beyond these bytes too.
func (r *redo) above(doubt int64) (format.Mark, error) {
	f, err := r.fs.OpenDirect(path.Join(r.dir, format.SegmentName(r.active.Number)))
	if errors.Is(err, iofs.ErrNotExist) {
		return format.Mark{Segment: r.active.ID, Offset: r.end, Index: r.last}, nil
	}
	if err != nil {
		return format.Mark{}, err
	}
	_, through, err := dataEnd(f, format.SegmentHeaderBytes)
	w := replay.NewActive(r.active.FirstIndex)
	if err == nil {
		err = w.GoOn(segio.NewFrameReader(f, r.active.ID, format.SegmentHeaderBytes, through), r.active.FirstIndex, through)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return format.Mark{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	end := w.Zeros // offset at which the whole frames end
	for i := len(w.Bad) - 1; i >= 0 && w.Bad[i].After == 0; i-- {
		end = w.Bad[i].Offset
	}
	mark := format.Mark{Segment: r.active.ID, Offset: max(r.end, end), Index: max(r.last, w.Last)}
	missing := max(r.lostEnd-mark.Offset, 0)
	if doubt > 0 {
		missing += max(doubt&^7, format.FrameHeaderBytes)
	}
	mark.Offset += missing
	mark.Index += uint64(missing / format.FrameHeaderBytes)
	return mark, nil
}

// raise makes a mark durable, unless the current mark is at least as high.
func (r *redo) raise(mark format.Mark) error {
	if mark.Offset <= format.SegmentHeaderBytes {
		return nil
	}
	old, _, bad, err := format.ReadMark(r.fs, r.dir)
	if err != nil {
		return err
	}
	if old.Segment == mark.Segment && old.Offset >= mark.Offset {
		return nil
	}
	if old.Segment == mark.Segment {
		mark.Index = max(mark.Index, old.Index)
	}
	f := markFile{fs: r.fs, dir: r.dir, sequence: old.Sequence, broken: bad != [format.MarkSlots]error{}}
	defer f.close()
	return f.write(mark)
}
