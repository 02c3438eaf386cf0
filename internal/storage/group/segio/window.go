package segio

import (
	"errors"
	"io"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// WindowBytes holds the greatest frame, and a chunk of a blob, wherever it begins in a block.
const WindowBytes = 2 << 20

// Window reads a file in order in large, aligned pieces and gives contiguous views of it. Sectors that cannot be read
// become bytes that no checksum passes.
type Window struct {
	src        io.ReaderAt // nil: bytes is the whole file
	ahead      *ReadAhead  // src where it is one
	end        int64       // of what is read of the file
	bytes      []byte      // of the file from at on
	at         int64
	space      []byte // what bytes is a part of; aligned for O_DIRECT
	unreadable []byteRange
	failed     error      // the file cannot be read at all
	read       *ImageRead // that fills bytes meanwhile; nil: they are there
	arrived    int64      // up to where they are
}

// ErrStop from a reader ends the reading, whereas any other error is taken for a bad sector.
var ErrStop = errors.New("stopped")

type byteRange struct{ offset, bytes int64 }

// OpenWindow reads src between two offsets. Reads are large and aligned, so src may be a file opened by OpenDirect.
func OpenWindow(src io.ReaderAt, from, to int64) Window {
	ahead, _ := src.(*ReadAhead)
	return Window{src: src, ahead: ahead, end: to, at: from &^ (format.BlockBytes - 1)}
}

// FrameBuffer makes a buffer for FrameReader.UseBuffer.
func FrameBuffer() []byte { return vfs.AlignedBytes(WindowBytes) }

// UseBuffer gives the window memory to work in, made by FrameBuffer, so that one buffer serves many. Before anything is
// read.
func (w *Window) UseBuffer(buffer []byte) { w.space = buffer }

// Await says that the image which the window looks at is filled by read meanwhile. Before anything is read.
func (w *Window) Await(read *ImageRead) { w.read = read }

// Err is what ended the reading before its end: the file could not be read at all.
func (w *Window) Err() error { return w.failed }

// Fill returns the bytes of the file from offset on: at least n, unless the end comes before.
func (w *Window) Fill(offset, n int64) []byte {
	n = min(n, w.end-offset)
	if w.read != nil && offset+n > w.arrived && w.failed == nil {
		w.arrived, w.failed = w.read.await(offset + n)
	}
	have := w.at + int64(len(w.bytes))
	if offset+n > have && w.src != nil && w.failed == nil {
		w.slide(offset, n)
		have = w.at + int64(len(w.bytes))
	}
	return w.bytes[offset-w.at : min(have, w.end)-w.at]
}

// slideAhead moves the window to offset, in pieces that are being read already, until it has n bytes there; only what
// is kept of the piece before is copied. False: that cannot be, because something cannot be read.
func (w *Window) slideAhead(offset, n int64) bool {
	for {
		have := w.at + int64(len(w.bytes))
		if offset+n <= have {
			return true
		}
		var kept []byte
		at := have
		switch {
		case offset < have:
			kept = w.bytes[offset-w.at:]
		case offset-have >= aheadBytes:
			at = offset &^ (format.BlockBytes - 1)
		}
		if len(kept) > aheadRoom {
			return false
		}
		buffer, begin := w.ahead.next(at)
		if buffer == nil {
			return false
		}
		w.at, w.bytes = at-int64(len(kept)), buffer[begin-len(kept):]
		copy(w.bytes, kept)
		w.ahead.release()
	}
}

// slide moves the window to offset, where so many bytes are wanted at least, and fills it up.
func (w *Window) slide(offset, want int64) {
	if w.ahead != nil && w.slideAhead(offset, want) {
		return
	}
	if w.space == nil {
		w.space = FrameBuffer()
	}
	at := offset &^ (format.BlockBytes - 1)
	kept := 0
	if have := w.at + int64(len(w.bytes)); at >= w.at && at < have {
		// What is kept ends at a block, because all reads before the end of the file do.
		kept = copy(w.space, w.bytes[at-w.at:])
	}
	wanted := min(int64(len(w.space)), (w.end-at+format.BlockBytes-1)&^(format.BlockBytes-1))
	w.at = at
	n, err := w.src.ReadAt(w.space[kept:wanted], at+int64(kept))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, ErrStop) {
		n, err = w.readBlocks(w.space[kept:wanted], at+int64(kept))
	}
	w.bytes = w.space[:kept+n]
	if at+int64(kept+n) < min(w.end, at+wanted) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		w.failed = err
		w.bytes = w.space[:wanted] // callers look into it before they see the error
	}
}

// BlockTries is how often a block is read before it counts as unreadable: some devices fail once and then answer.
const BlockTries = 3

// readBlocks reads block by block where a large read failed. Blocks that cannot be read become bytes that no checksum
// passes; where none can, the error is returned.
func (w *Window) readBlocks(b []byte, offset int64) (n int, err error) {
	var last error
	good := false
	for n < len(b) {
		block := b[n:min(n+format.BlockBytes, len(b))]
		got, err := w.src.ReadAt(block, offset+int64(n))
		for try := 1; try < BlockTries && err != nil && !errors.Is(err, io.EOF); try++ {
			got, err = w.src.ReadAt(block, offset+int64(n))
		}
		switch {
		case err == nil || errors.Is(err, io.EOF):
			good = true
			if got < len(block) {
				return n + got, err
			}
		default:
			last = err
			for i := range block {
				block[i] = 0xff
			}
			w.noteUnreadable(offset+int64(n), int64(len(block)))
		}
		n += len(block)
	}
	if !good && offset == 0 {
		return 0, last // not one block: the file, not a sector of it
	}
	return n, nil
}

func (w *Window) noteUnreadable(offset, bytes int64) {
	if n := len(w.unreadable); n > 0 && w.unreadable[n-1].offset+w.unreadable[n-1].bytes == offset {
		w.unreadable[n-1].bytes += bytes
		return
	}
	w.unreadable = append(w.unreadable, byteRange{offset, bytes})
}

// isUnreadable tells whether the device refused to read a part of a range.
func (w *Window) isUnreadable(offset, bytes int64) bool {
	return overlaps(w.unreadable, offset, bytes) || w.read != nil && w.read.isUnreadable(offset, bytes)
}

func overlaps(ranges []byteRange, offset, bytes int64) bool {
	return slices.ContainsFunc(ranges, func(r byteRange) bool {
		return r.offset < offset+bytes && offset < r.offset+r.bytes
	})
}
