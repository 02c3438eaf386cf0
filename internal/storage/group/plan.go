package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Plan holds the parts of a group's folder that were read before the load.
type Plan struct {
	Need
	Manifest *format.Manifest
	// Replica is the content of the replica file. It is nil if the file was not read, or if the replica is joining. If
	// there is no replica file, its RaftID is 0.
	Replica *format.ReplicaFile
	mark    *foundMark // nil if only the manifest was read
}

// PlanLoad computes the Need of the group in opts.Dir. It does not read the manifest again if opts.Plan has it.
func PlanLoad(opts Options) (plan *Plan, err error) {
	opts = opts.withDefaults()
	defer func() {
		if err != nil {
			plan, err = nil, fmt.Errorf("plan the load of group %s from %s: %w", opts.Identity.Name, opts.Dir, err)
		}
	}()
	m, err := readManifest(opts)
	if err != nil {
		return nil, err
	}
	active, err := findActiveFile(opts, m, opts.FS.Open)
	if err != nil {
		return nil, err
	}
	if err := active.close(); err != nil {
		return nil, err
	}
	need, err := needOf(opts, m, active)
	plan = &Plan{Need: need, Manifest: m, mark: &active.mark}
	if opts.Plan != nil {
		plan.Replica = opts.Plan.Replica
	}
	return plan, err
}

// readManifest reads the group's manifest, or takes it from the plan, and compares it with the expected identity.
func readManifest(opts Options) (*format.Manifest, error) {
	var m *format.Manifest
	var err error
	if opts.Plan != nil {
		m = opts.Plan.Manifest
	} else if m, err = format.ReadManifest(opts.FS, opts.Dir); err != nil {
		return nil, err
	}
	return m, format.CheckIdentity(m.Identity, opts.Identity)
}

// needOf computes the Need from the sizes of the files. It also reads parts of the active segment above the mark.
func needOf(opts Options, m *format.Manifest, active *activeFile) (Need, error) {
	var need Need
	for _, s := range m.Segments {
		bytes, err := sizeOf(opts, format.SegmentName(s.Number))
		if err != nil {
			return Need{}, err
		}
		name := format.HintName(s.Number)
		if !s.Sealed() {
			name = format.ActiveHintName
		}
		hint, err := sizeOf(opts, name)
		if err != nil {
			return Need{}, err
		}
		records, end := hint/hintRowBytes, bytes
		switch {
		case !s.Sealed():
			end = active.end
			head, used := activeHintHead(opts, s, active)
			if records, err = entriesOfActive(opts, s, active, head); err != nil {
				return Need{}, err
			}
			need.LoadBytes += end
			if used {
				need.LoadBytes += hint - head.End
			}
			need.MemoryBytes += records * hintRowBytes
		case hint == 0:
			// Without a hint, the manifest gives an upper bound for the number of entries.
			records = min(entriesThatFit(bytes), int64(s.LastIndex-s.FirstIndex+1))
			need.LoadBytes += end
			need.MemoryBytes += records * hintRowBytes
		case opts.Residency == Resident:
			need.LoadBytes += bytes + hint
		default:
			need.LoadBytes += hint
		}
		if opts.Residency == Resident {
			need.MemoryBytes += end
		}
		need.Records += records
	}
	need.MemoryBytes += index.BytesFor(need.Records)
	return need, nil
}

// hintRowBytes is the size of a row in a hint, without its used flag.
const hintRowBytes = 8 + 8 + 4

func hintBytesFor(rows int64) int64 { return format.HintBytes(rows, 1, 0) }

// entriesThatFit returns the maximum number of entries that a segment of the given size can hold.
func entriesThatFit(bytes int64) int64 {
	return max(0, bytes-format.SegmentHeaderBytes) / (format.FrameHeaderBytes + 8)
}

// entriesOfActive estimates the number of entries in the active segment. The mark or the hint gives an offset and the
// number of entries before it. The entries after that offset are counted if there may be many of them.
func entriesOfActive(opts Options, s format.ManifestSegment, active *activeFile, hint format.HintPart) (int64, error) {
	from, known := int64(format.SegmentHeaderBytes), int64(0)
	if mark := active.mark.Mark; mark.Segment == s.ID && mark.Index >= s.FirstIndex && mark.Offset >= from &&
		mark.Offset <= active.end {
		from, known = mark.Offset, int64(mark.Index-s.FirstIndex+1)
	}
	if hint.End > from {
		from, known = hint.End, int64(hint.Last-s.FirstIndex+1)
	}
	fit, above := entriesThatFit(active.end), (active.end-from)/(format.FrameHeaderBytes+8)
	if above >= countedMin {
		var err error
		if above, err = countFrames(opts, s, from, active.end); err != nil {
			return 0, err
		}
	}
	return max(0, min(fit, known+above)), nil
}

// countedMin decides whether the entries above the mark are counted. They are counted only if the bytes above the mark
// can hold at least this many entries. Fewer entries take little memory, and counting them would add a read for each
// group to the plan for all groups.
const countedMin = 8192

const (
	countPieceBytes = 16 << 10 // bytes per read; small, because only frame headers are needed
	countPieces     = 64       // maximum number of pieces read from a segment
	countPiecesMin  = 2        // minimum number of pieces read from a segment
	// countShare limits how much is read for an estimate, to about 1/countShare of the bytes above the mark. The share
	// is small because the load reads all of these bytes again.
	countShare = 64
)

// countFrames estimates from samples how many entries there are between an offset and the end of the data. The estimate
// is more likely to be too high than too low.
func countFrames(opts Options, s format.ManifestSegment, from, end int64) (entries int64, err error) {
	f, err := opts.FS.OpenDirect(path.Join(opts.Dir, format.SegmentName(s.Number)))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buffer := vfs.AlignedBytes(countPieceBytes)
	pieces := min(max((end-from)/(countShare*countPieceBytes), countPiecesMin), countPieces)
	var seen int64 // number of bytes that were examined
	for i := range pieces {
		at := (from + (end-from)/pieces*i) &^ (format.BlockBytes - 1)
		n, bytes, err := countHeaders(f, s.ID, buffer, max(at, from), min(at+countPieceBytes, end))
		if err != nil {
			return 0, err
		}
		entries, seen = entries+n, seen+bytes
	}
	return int64(float64(entries)*float64(end-from)/float64(max(seen, 1))*countReserve) + countPieces, nil
}

// countReserve is the factor by which an estimate is raised, because record sizes differ from piece to piece.
const countReserve = 1.25

// countHeaders counts the entries that begin in a part of a segment, and returns how many bytes it has examined. It
// stops at the end of the part, or earlier if it finds bytes that are not a frame.
func countHeaders(f vfs.File, id format.SegmentID, buffer []byte, from, end int64) (entries, bytes int64, err error) {
	w := segio.OpenWindow(f, from, end)
	w.UseBuffer(buffer)
	inFrames := false
	for at := from; at < end && w.Err() == nil; {
		e, _, _, n, err := format.DecodeHeader(w.Fill(at, format.FrameHeaderBytes), id, at)
		switch {
		case err == nil:
			inFrames = true
			if e.Kind != format.KindState {
				entries++
			}
			at += n
		case inFrames:
			return entries, at - from, nil
		default:
			at += 8
		}
	}
	return entries, end - from, w.Err()
}

// sizeOf returns the size of a file in the group's folder, or 0 if the file does not exist.
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
