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

// segment is one segment file while the log is open. The log's list of segments and the readers share the object.
// Readers pin it. The last holder to release it closes the file and frees the memory.
//
// Each segment has an ordinal. A new segment takes an even ordinal, two above the ordinal of the segment before it. The
// segment that replaces it in a compaction takes the odd ordinal above it, and the next rewrite takes the even one
// again. As a result, an entry's old and new locations always differ, and locations are in log order.
type segment struct {
	number  uint64
	id      format.SegmentID
	first   uint64
	ordinal uint32
	fs      vfs.FS
	path    string

	// refs is the number of readers, plus 1 while the log's list has the segment. The segment is freed when refs becomes
	// 0.
	refs atomic.Int64
	// retired is called when the segment is freed. It may be nil, and must be set before the list releases the segment.
	retired func()

	fileMu longlock.Mutex
	// file is opened at the first read. For the active segment, it is opened when the segment begins.
	file atomic.Pointer[openFile]
	// cold reads the file, bypassing the page cache. It is nil if all reads use the cache, and is set before the
	// segment is published.
	cold *segio.ColdFile

	// image is the content of the whole file, in Resident residency. The active segment's image has unused space at the
	// end. If image is nil, the file has to be read. It is set before the segment is published.
	image []byte
	free  func() // releases the memory of the image; nil if there is none

	// last and bytes correspond to LastIndex and Bytes of ManifestSegment. They are 0 while the segment is active. Guarded
	// by state.mu.
	last  uint64
	bytes int64
	// rows has the segment's puts and deletes, sorted by location. It is nil for a sealed segment whose hint is written,
	// because the hint has the rows. Rows are only appended or truncated, and existing rows never change. Guarded by
	// state.mu.
	rows *format.Rows
	// incomplete means that rows lacks entries that are in bad bytes. A hint made from such rows would hide the damage
	// from the next load. It is set before the segment is published.
	incomplete bool
	moving     bool // whether the entries are being moved to another segment; guarded by state.mu
	// terms are the term runs of all entries if the load read the whole segment. If terms is nil, state.terms has them.
	// Guarded by state.mu.
	terms []format.TermRun
	used  usedFlags
	// rowCount is the number of puts and deletes. It is 0 until the number is known.
	rowCount atomic.Int64
	// requestCount is the number of entries of KindRequest, as far as it is known.
	requestCount atomic.Int64
	// lastCommit is an upper bound on the commit times of the entries. It is set when the segment is sealed, loaded or
	// rewritten.
	lastCommit atomic.Int64
	held       heldBytes // guarded by state.mu

	checkpointsOnce longlock.Mutex
	// checkpoints are positions in the segment at which reading can start, so that a read from a given index need not
	// begin at the start of the segment. They are computed when they are first needed.
	checkpoints []checkpoint
}

// openFile wraps the interface vfs.File for an atomic pointer.
type openFile struct{ vfs.File }

// checkpoint is the offset of a frame, and the index of its entry, which is a put or delete.
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

// manifest returns the segment's manifest entry. The caller holds state.mu or writer.mu.
func (s *segment) manifest() format.ManifestSegment {
	return format.ManifestSegment{Number: s.number, ID: s.id, FirstIndex: s.first, LastIndex: s.last, Bytes: s.bytes}
}

// counted stores the number of the segment's entries of each kind, and their greatest commit time, both taken from its
// rows.
func (s *segment) counted(r *format.Rows) {
	s.lastCommit.Store(r.LastCommit)
	s.rowCount.Store(int64(len(r.IDs)))
	s.requestCount.Store(int64(r.Requests))
}

// pin keeps the segment usable until unpin. It returns false if the segment was already freed.
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

// unpin releases the segment. The last holder frees it.
func (s *segment) unpin() {
	if s.refs.Add(-1) != 0 {
		return
	}
	if f := s.file.Load(); f != nil {
		_ = f.Close() // an error loses nothing, because the file was only read or is synced
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

// reader returns the file, and opens it if necessary. The caller has a pin.
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

// read reads len(buf) bytes from offset on. It returns fewer bytes if the file ends earlier. The caller has a pin. If
// there is an image, the result aliases the image and buf is not used.
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

// walkFile reads all frames of a segment's file up to an offset. It bypasses the page cache if possible, because the
// cache may differ from the disk after a failed sync (rule 5). The argument rows is passed to replay.New.
func (s *segment) walkFile(through int64, rows bool) (*replay.Walk, error) {
	w := replay.New(s.first, rows)
	return w, s.walkFileOn(w, format.SegmentHeaderBytes, through)
}

// walkFileOn is like walkFile, but it starts at a given offset. The walk w already has the frames before that offset.
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

// holds reports whether the image, if there is one, has space for the given number of bytes of frames.
func (s *segment) holds(bytes int64) bool {
	return s.image == nil || format.SegmentHeaderBytes+bytes <= int64(len(s.image))
}

// place returns the location of a frame in this segment.
func (s *segment) place(offset, length int64, tombstone bool) index.Loc {
	return index.MakeLoc(s.ordinal, offset, length, tombstone)
}

// usedFlags records which frames of a segment are superseded, with one bit for each 64 bytes of the file. At most one
// frame can begin in 64 bytes, because a frame's header is longer than that. Pieces of the bitmap are allocated when
// they are needed.
type usedFlags struct {
	mu     sync.Mutex
	pieces map[int64]*[usedPieceWords]uint64 // by the frame's offset divided by usedPieceBytes; guarded by mu
	// bytes is the size of the superseded frames, estimated from the lengths in their locations.
	bytes   atomic.Int64
	unknown atomic.Int64 // number of superseded frames whose flags in the hint on disk are outdated
}

const (
	usedPieceWords = 64
	usedPieceBytes = usedPieceWords * 64 * 64
)

// supersede marks the frame at a location as superseded. It returns false if the frame was already marked.
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
	u.bytes.Add(loc.LengthBound())
	u.unknown.Add(1)
	return true
}

// superseded reports whether the frame at offset is superseded.
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

// drop clears all flags, and returns how many bytes the superseded frames take.
func (u *usedFlags) drop() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pieces = nil
	u.unknown.Store(0)
	return u.bytes.Swap(0)
}
