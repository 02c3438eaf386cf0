package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/index"
)

// PlanLoad computes the Need of the group in opts.Dir.
func PlanLoad(opts Options) (Need, error) {
	opts = opts.withDefaults()
	m, err := ReadManifest(opts.FS, opts.Dir)
	if err == nil {
		err = checkIdentity(m.Identity, opts.Identity)
	}
	if err != nil {
		return Need{}, fmt.Errorf("plan the load of group %s from %s: %w", opts.Identity.Name, opts.Dir, err)
	}
	need, err := planLoad(opts, m)
	if err != nil {
		return Need{}, fmt.Errorf("plan the load of group %s from %s: %w", opts.Identity.Name, opts.Dir, err)
	}
	return need, nil
}

// planLoad looks at the sizes of the files, and of an unsealed segment into what is above the mark.
func planLoad(opts Options, m *Manifest) (Need, error) {
	var need Need
	mark, _, _, err := ReadMark(opts.FS, opts.Dir)
	if err != nil {
		return Need{}, err
	}
	for _, s := range m.Segments {
		bytes, err := sizeOf(opts, SegmentName(s.Number))
		if err != nil {
			return Need{}, err
		}
		hint, err := sizeOf(opts, HintName(s.Number))
		if err != nil {
			return Need{}, err
		}
		records, end := hint/hintRowBytes, bytes
		if hint == 0 || !s.Sealed() {
			if records, end, err = entriesAtMost(opts, s, bytes, mark); err != nil {
				return Need{}, err
			}
			need.LoadBytes += bytes
			need.MemoryBytes += records * hintRowBytes
		} else if opts.Residency == Resident {
			need.LoadBytes += bytes + hint
		} else {
			need.LoadBytes += hint
		}
		if opts.Residency == Resident {
			need.MemoryBytes += end
		}
		need.Records += records
		need.StoredBytes += bytes + hint
	}
	need.MemoryBytes += index.BytesFor(need.Records)
	names, err := opts.FS.List(opts.Dir)
	if err != nil {
		return Need{}, err
	}
	for _, name := range names {
		if _, ok := ParseBlobName(name); ok {
			bytes, err := sizeOf(opts, name)
			if err != nil {
				return Need{}, err
			}
			need.StoredBytes += bytes
		}
	}
	return need, nil
}

// hintRowBytes is what a row takes in a hint, but for its used flag.
const hintRowBytes = 8 + 8 + 4

func hintBytesFor(rows int64) int64 { return layoutHint(rows, 1, 0).end }

// entriesAtMost bounds the entries of a segment without a hint, and tells where they end. Of a sealed segment the manifest
// knows the indexes. An unsealed one has room at its end, which may be most of the file: where that is much, what is above
// the mark is counted up to the first header that is none, where recovery cuts it.
func entriesAtMost(opts Options, s ManifestSegment, bytes int64, mark Mark) (entries, end int64, err error) {
	fit := max(0, bytes-SegmentHeaderBytes) / (FrameHeaderBytes + 8)
	if s.Sealed() {
		return min(fit, int64(s.LastIndex-s.FirstIndex+1)), bytes, nil
	}
	if bytes < SegmentHeaderBytes {
		return 0, bytes, nil
	}
	from := int64(SegmentHeaderBytes)
	if mark.Segment == s.ID && mark.Index >= s.FirstIndex && mark.Offset >= from && mark.Offset <= bytes {
		from, entries = mark.Offset, min(fit, int64(mark.Index-s.FirstIndex+1))
	}
	if room := (bytes - from) / (FrameHeaderBytes + 8); room < countedMin {
		return min(fit, entries+room), bytes, nil
	}
	above, end, err := countFrames(opts, s, from, bytes)
	return entries + above, end, err
}

// countedMin is the number of entries that may be above the mark from which they are counted. Fewer cost little memory, and
// the plan of all groups should not wait for a read in each.
const countedMin = 8192

// countFrames counts the frames of entries with a whole header from an offset on, and tells where they end.
func countFrames(opts Options, s ManifestSegment, from, bytes int64) (frames, end int64, err error) {
	f, err := opts.FS.Open(path.Join(opts.Dir, SegmentName(s.Number)))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	space := frameBuffers.Get().(*[]byte)
	defer frameBuffers.Put(space)
	w := openWindow(f, from, bytes)
	w.space = *space
	for end = from; end < bytes && w.err == nil; {
		e, _, _, n, err := DecodeHeader(w.fill(end, FrameHeaderBytes), s.ID, end)
		if err != nil {
			break
		}
		if e.Kind != KindState {
			frames++
		}
		end = min(end+n, bytes)
	}
	return frames, end, w.err
}

// sizeOf is the size of a file in the group's folder; 0 where there is none.
func sizeOf(opts Options, name string) (int64, error) {
	info, err := opts.FS.Stat(path.Join(opts.Dir, name))
	if errors.Is(err, iofs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
