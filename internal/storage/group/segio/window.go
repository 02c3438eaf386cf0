package segio

import (
	"errors"
	"io"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// WindowBytes is the size of a window. The largest frame, and a blob chunk, fit into it at any offset in a block.
const WindowBytes = 2 << 20

// Window reads a file sequentially in large, aligned pieces, and returns contiguous parts of the file. It replaces
// unreadable sectors with bytes that pass no checksum.
type Window struct {
	src        io.ReaderAt // nil if bytes holds the whole file
	ahead      *ReadAhead  // src as a ReadAhead, or nil if src is a different type
	end        int64       // offset at which the range to read ends
	bytes      []byte      // content of the file, beginning at the offset in the field at
	at         int64
	space      []byte // the memory that contains bytes; aligned for O_DIRECT
	unreadable []byteRange
	failed     error      // the error that made the whole file unreadable
	read       *ImageRead // fills bytes concurrently; nil if bytes is complete
	arrived    int64      // offset before which all bytes have arrived
}

// ErrStop ends the reading if the source returns it. Any other error of the source counts as a bad sector.
var ErrStop = errors.New("stopped")

type byteRange struct{ offset, bytes int64 }

// OpenWindow returns a window that reads src between two offsets. Reads are large and aligned, so src may be a file
// opened with OpenDirect.
func OpenWindow(src io.ReaderAt, from, to int64) Window {
	ahead, _ := src.(*ReadAhead)
	return Window{src: src, ahead: ahead, end: to, at: from &^ (format.BlockBytes - 1)}
}

// FrameBuffer returns a buffer for FrameReader.UseBuffer.
func FrameBuffer() []byte { return vfs.AlignedBytes(WindowBytes) }

// UseBuffer sets the window's memory, which FrameBuffer must have created. This lets one buffer serve many windows,
// one after another. UseBuffer must be called before the first read.
func (w *Window) UseBuffer(buffer []byte) { w.space = buffer }

// Await makes the window wait for the bytes that it needs from an ImageRead, which fills the window's memory
// concurrently. Await must be called before the first read.
func (w *Window) Await(read *ImageRead) { w.read = read }

// Err returns the error that ended the reading early, because the file as a whole could not be read.
func (w *Window) Err() error { return w.failed }

// Fill returns bytes of the file, beginning at offset. There are at least n bytes, unless the window ends earlier.
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

// slideAhead moves the window to offset. It consumes reads that are already in flight until the window has n bytes
// beginning at offset, and copies only the bytes that it keeps from the previous piece. It returns false if a piece
// cannot be read.
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
		if len(kept) > carryBytes {
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

// slide moves the window to offset and fills it. The caller needs at least want bytes from that offset on.
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
		// The kept bytes end at a block boundary, because every read ends at one, except for the last read of the file.
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
		// The caller uses these bytes before it calls Err, so there must be as many as it asked for.
		w.bytes = w.space[:wanted]
	}
}

// BlockTries is the number of attempts to read a block before it counts as unreadable, because some devices fail once
// and then succeed.
const BlockTries = 3

// readBlocks reads block by block after a large read has failed. It replaces unreadable blocks with bytes that pass no
// checksum. If it cannot read any block, and offset is 0, it returns the last read's error.
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
		return 0, last // not a single block is readable, so the error concerns the whole file, and not just a sector
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

// isUnreadable reports whether the device failed to read a part of the range.
func (w *Window) isUnreadable(offset, bytes int64) bool {
	return overlaps(w.unreadable, offset, bytes) || w.read != nil && w.read.isUnreadable(offset, bytes)
}

func overlaps(ranges []byteRange, offset, bytes int64) bool {
	return slices.ContainsFunc(ranges, func(r byteRange) bool {
		return r.offset < offset+bytes && offset < r.offset+r.bytes
	})
}
