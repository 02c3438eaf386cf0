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

// planLoad looks at the sizes of the files, not into them.
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
		records := hint / hintRowBytes
		if hint == 0 || !s.Sealed() {
			records = entriesAtMost(s, bytes, mark)
			need.LoadBytes += bytes
			need.MemoryBytes += records * hintRowBytes
		} else if opts.Residency == Resident {
			need.LoadBytes += bytes + hint
		} else {
			need.LoadBytes += hint
		}
		if opts.Residency == Resident {
			need.MemoryBytes += bytes
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

// entriesAtMost bounds the entries of a segment without a hint: by its indexes as far as these are known, else by what
// fits.
func entriesAtMost(s ManifestSegment, bytes int64, mark Mark) int64 {
	fit := max(0, bytes-SegmentHeaderBytes) / (FrameHeaderBytes + 8)
	switch {
	case s.Sealed():
		return min(fit, int64(s.LastIndex-s.FirstIndex+1))
	case mark.Segment == s.ID && mark.Index >= s.FirstIndex && mark.Offset <= bytes:
		return min(fit, int64(mark.Index-s.FirstIndex+1)+(bytes-mark.Offset)/(FrameHeaderBytes+8))
	}
	return fit
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
