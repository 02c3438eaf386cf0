package group

import (
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// segment is one segment file while the log is open. It is shared by the list of the log and by readers, who pin it;
// the last one to leave closes the file and frees the memory.
//
// Ordinals: a segment takes an even one, rising by two in order of the log. What compaction writes in its place takes
// the odd one beside it, and the next rewrite the even one again. So the old and the new place of an entry never look
// the same, and the order of places stays that of the log.
type segment struct {
	number  uint64
	id      format.SegmentID
	first   uint64
	ordinal uint32
	fs      vfs.FS
	path    string

	refs    atomic.Int64 // 1 for the list of the log, 1 for each reader; freed at 0
	retired func()       // called when freed; nil: nothing. Set before the list lets go

	fileMu longlock.Mutex
	file   atomic.Pointer[openFile] // opened at the first read; the active one from its begin
	cold   *segio.ColdFile          // reads past the page cache; nil: none. Set before the segment is published

	// image is the content of the file in Resident residency, from its first byte to its end or, for the active one,
	// with room behind; nil: read the file. Set before the segment is published.
	image []byte
	free  func() // gives the image back; nil: nothing to do

	// last and bytes are those of ManifestSegment: 0 while active. Guarded by state.mu.
	last  uint64
	bytes int64
	// rows are the puts and deletes in order of place: those of the active segment, and of a sealed one until its hint
	// is written. Nil: read the hint. Guarded by state.mu; what is in it never changes, only its length.
	rows *format.Rows
	// incomplete: rows lack entries that bad bytes have hit. A hint made of them would hide the damage from the next
	// load. Set before the segment is published.
	incomplete bool
	moving     bool // its entries are on their way to another segment. Guarded by state.mu
	// of all entries, where they were read from the segment; nil: ask the log. Guarded by state.mu
	terms []format.TermRun
	used  usedFlags
	// rowCount is the number of puts and deletes once that is known; 0 before.
	rowCount atomic.Int64
	// requestCount is the number of entries of KindRequest, as far as that is known.
	requestCount atomic.Int64
	aged         aged // guarded by state.mu

	checkpointsOnce longlock.Mutex
	checkpoints     []checkpoint // sparse: where to begin reading for an index; made when first needed
}

// openFile makes an interface fit into an atomic pointer.
type openFile struct{ vfs.File }

// checkpoint says that the entry with this index, a put or delete, stands at offset.
type checkpoint struct {
	index  uint64
	offset int64
}

func newSegment(fs vfs.FS, dir string, m format.ManifestSegment, ordinal uint32) *segment {
	s := &segment{
		number: m.Number, id: m.ID, first: m.FirstIndex, last: m.LastIndex, bytes: m.Bytes,
		ordinal: ordinal, fs: fs, path: path.Join(dir, format.SegmentName(m.Number)),
	}
	s.refs.Store(1)
	return s
}

// manifest is what the manifest says of the segment. The caller holds state.mu or writer.mu.
func (s *segment) manifest() format.ManifestSegment {
	return format.ManifestSegment{Number: s.number, ID: s.id, FirstIndex: s.first, LastIndex: s.last, Bytes: s.bytes}
}

// counted notes what a table says of how many entries the segment has.
func (s *segment) counted(r *format.Rows) {
	s.rowCount.Store(int64(len(r.IDs)))
	s.requestCount.Store(int64(r.Requests))
}

// pin keeps the segment usable until unpin; false where it is freed already.
func (s *segment) pin() bool {
	for {
		n := s.refs.Load()
		if n <= 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unpin lets go; the last one frees.
func (s *segment) unpin() {
	if s.refs.Add(-1) != 0 {
		return
	}
	if f := s.file.Load(); f != nil {
		_ = f.Close() // read only, or synced: nothing is lost
	}
	if s.cold != nil {
		s.cold.Close()
	}
	if s.free != nil {
		s.free()
	}
	if s.retired != nil {
		s.retired()
	}
}

// reader is the open file. The caller has a pin.
func (s *segment) reader() (vfs.File, error) {
	if f := s.file.Load(); f != nil {
		return f, nil
	}
	s.fileMu.Lock()
	defer s.fileMu.Unlock()
	if f := s.file.Load(); f != nil {
		return f, nil
	}
	f, err := s.fs.Open(s.path)
	if err != nil {
		return nil, err
	}
	s.file.Store(&openFile{f})
	return f, nil
}

// read fills buf from offset on and returns what there is: less at the end of the file. The caller has a pin. For an
// image the result aliases it, and buf is not used.
func (s *segment) read(buf []byte, offset int64) ([]byte, error) {
	if s.image != nil {
		if offset > int64(len(s.image)) {
			return nil, nil
		}
		return s.image[offset:min(offset+int64(len(buf)), int64(len(s.image)))], nil
	}
	f, err := s.reader()
	if err != nil {
		return nil, err
	}
	n, err := f.ReadAt(buf, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: read %d bytes at offset %d: %w", s.path, len(buf), offset, err)
	}
	return buf[:n], nil
}

// walkFile reads all frames of a segment's file up to an offset. It reads past the page cache where it can: after a
// failed sync the cache holds what the disk does not (rule 5). rows as for replay.Segment.
func (s *segment) walkFile(through int64, rows bool) (*replay.Walk, error) {
	w := replay.New(s.first, rows)
	return w, s.walkFileOn(w, format.SegmentHeaderBytes, through)
}

// walkFileOn is walkFile from an offset on, with what is known of the frames before it.
func (s *segment) walkFileOn(w *replay.Walk, from, through int64) error {
	f, err := s.fs.OpenDirect(s.path)
	if err != nil {
		return err
	}
	window := segio.FrameBuffers.Get().(*[]byte)
	defer segio.FrameBuffers.Put(window)
	r := segio.NewFrameReader(f, s.id, from, through)
	r.UseBuffer(*window)
	err = w.GoOn(r, s.first, through)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}

// holds tells whether the image has room for bytes of frames.
func (s *segment) holds(bytes int64) bool {
	return s.image == nil || format.SegmentHeaderBytes+bytes <= int64(len(s.image))
}

// place is where a frame of this segment stands.
func (s *segment) place(offset, length int64, tombstone bool) index.Loc {
	return index.MakeLoc(s.ordinal, offset, length, tombstone)
}

// usedFlags remembers which frames of a segment are superseded: one bit for 64 bytes of the file, in which at most one
// frame can begin because its header alone is longer. Made in pieces where it is needed.
type usedFlags struct {
	mu      sync.Mutex
	pieces  map[int64]*[usedPieceWords]uint64 // by offset / usedPieceBytes
	bytes   int64                             // of the frames superseded, estimated by index.Loc's length
	unknown int64                             // frames of them that are not in the hint on disk yet
}

const (
	usedPieceWords = 64
	usedPieceBytes = usedPieceWords * 64 * 64
)

// supersede marks the frame at a place as superseded; false where it was marked already.
func (u *usedFlags) supersede(loc index.Loc) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	offset := loc.Offset()
	piece := u.pieces[offset/usedPieceBytes]
	if piece == nil {
		if u.pieces == nil {
			u.pieces = make(map[int64]*[usedPieceWords]uint64)
		}
		piece = new([usedPieceWords]uint64)
		u.pieces[offset/usedPieceBytes] = piece
	}
	bit := offset % usedPieceBytes / 64
	if piece[bit/64]>>(bit%64)&1 != 0 {
		return false
	}
	piece[bit/64] |= 1 << (bit % 64)
	u.bytes += loc.LengthBound()
	u.unknown++
	return true
}

// superseded tells whether the frame at offset is.
func (u *usedFlags) superseded(offset int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	piece := u.pieces[offset/usedPieceBytes]
	if piece == nil {
		return false
	}
	bit := offset % usedPieceBytes / 64
	return piece[bit/64]>>(bit%64)&1 != 0
}

// figures tells the bytes of what is superseded.
func (u *usedFlags) figures() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes
}

// drop forgets all flags, and tells the bytes of what was superseded.
func (u *usedFlags) drop() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	bytes := u.bytes
	u.pieces, u.bytes, u.unknown = nil, 0, 0
	return bytes
}

// written tells that a hint with unknown flags as of its making is on disk.
func (u *usedFlags) written(flags int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unknown -= flags
}

// notInHint is the number of flags that the hint on disk does not know.
func (u *usedFlags) notInHint() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.unknown
}
