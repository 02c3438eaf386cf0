package segio

import (
	"errors"
	"io"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// WindowBytes is large enough for the largest frame, and for a chunk of a blob, at any offset in a block.
const WindowBytes = 2 << 20

// Window reads a file sequentially in large, aligned pieces and returns contiguous views of it. It replaces
// unreadable sectors by bytes that no checksum passes.
type Window struct {
	src        io.ReaderAt // nil if bytes is the whole file
	ahead      *ReadAhead  // src, if it is a ReadAhead
	end        int64       // end of the part of the file to be read
	bytes      []byte      // content of the file from offset at on
	at         int64
	space      []byte // the memory that bytes is a part of; aligned for O_DIRECT
	unreadable []byteRange
	failed     error      // the error if the file cannot be read at all
	read       *ImageRead // fills bytes concurrently; nil if bytes is complete
	arrived    int64      // offset up to which bytes have arrived
}

// ErrStop ends the reading when the source returns it. Any other error of the source is treated as a bad sector.
var ErrStop = errors.New("stopped")

type byteRange struct{ offset, bytes int64 }

// OpenWindow returns a window on src between two offsets. Reads are large and aligned, so src may be a file opened by
// OpenDirect.
func OpenWindow(src io.ReaderAt, from, to int64) Window {
	ahead, _ := src.(*ReadAhead)
	return Window{src: src, ahead: ahead, end: to, at: from &^ (format.BlockBytes - 1)}
}

// FrameBuffer returns a buffer for FrameReader.UseBuffer.
func FrameBuffer() []byte { return vfs.AlignedBytes(WindowBytes) }

// UseBuffer sets the working memory of the window, made by FrameBuffer, so that one buffer can serve many windows. It
// must be called before the first read.
func (w *Window) UseBuffer(buffer []byte) { w.space = buffer }

// Await makes the window wait for an ImageRead, which fills the image of the window concurrently. Await must be called
// before the first read.
func (w *Window) Await(read *ImageRead) { w.read = read }

// Err returns the error that ended the reading early because the file could not be read at all.
func (w *Window) Err() error { return w.failed }

// Fill returns the bytes of the file from offset on: at least n, or fewer if the window ends earlier.
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

// slideAhead moves the window to offset. It takes pieces whose reads were started already until the window has n bytes
// there, and copies only the bytes that are kept from the previous piece. It returns false if a part cannot be read.
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

// slide moves the window to offset, where at least want bytes are needed, and fills it.
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
		// The kept bytes end at a block boundary, because every read ends at one, except the last read of the file.
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
		w.bytes = w.space[:wanted] // callers access these bytes before they call Err
	}
}

// BlockTries is the number of times that a block is read before it counts as unreadable: some devices fail once and
// then succeed.
const BlockTries = 3

// readBlocks reads block by block after a large read has failed. It replaces unreadable blocks by bytes that no
// checksum passes. If no block can be read, and the read begins at the start of the file, it returns the error.
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
		return 0, last // not a single block can be read, so the file has failed, and not just a sector
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

// isUnreadable reports whether the device failed to read a part of a range.
func (w *Window) isUnreadable(offset, bytes int64) bool {
	return overlaps(w.unreadable, offset, bytes) || w.read != nil && w.read.isUnreadable(offset, bytes)
}

func overlaps(ranges []byteRange, offset, bytes int64) bool {
	return slices.ContainsFunc(ranges, func(r byteRange) bool {
		return r.offset < offset+bytes && offset < r.offset+r.bytes
	})
}
