package segio

import (
	"errors"
	"io"
	"sync"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	aheadBytes = 1 << 20 // bytes of one read
	aheadDepth = 3       // number of concurrent reads
	// carryBytes is the unused space before the bytes of each read. The end of the previous piece is copied into this
	// space, so that a frame that spans both pieces is contiguous.
	carryBytes = WindowBytes
	// ScanBufferBytes is the maximum total size of the buffers of a Scan that reads a cold log. They hold the bytes read
	// ahead, the current piece, and a window.
	ScanBufferBytes = (aheadDepth+1)*(carryBytes+aheadBytes) + WindowBytes
)

var aheadBuffers = sync.Pool{New: func() any { b := vfs.AlignedBytes(carryBytes + aheadBytes); return &b }}

// ReadAhead is the source of a Window. It reads a file sequentially and keeps several reads in flight, so that the
// device works while checksums are computed. The window uses the bytes without copying them. If the window requests an
// unexpected offset, ReadAhead starts again at that offset. A ReadAhead is not safe for concurrent use.
type ReadAhead struct {
	src   io.ReaderAt
	end   int64 // offset at which the reads end
	at    int64 // offset at which the next call to next must begin; -1 after a failed read
	asked int64 // offset up to which reads were started
	queue []*aheadRead
	lent  []*aheadRead // pieces that next has returned and that were not released
}

type aheadRead struct {
	offset int64
	buffer *[]byte // carryBytes of unused space, then the bytes that were read
	n      int
	err    error
	done   chan struct{} // closed when the read has finished and n and err are set
}

// NewReadAhead returns a ReadAhead that reads src, and that stops at the offset end.
func NewReadAhead(src io.ReaderAt, end int64) *ReadAhead { return &ReadAhead{src: src, end: end} }

// ReadAt reads from the source directly. A window calls it for bytes that next did not return.
func (r *ReadAhead) ReadAt(p []byte, offset int64) (int, error) { return r.src.ReadAt(p, offset) }

// ask starts further reads until aheadDepth reads are in flight.
func (r *ReadAhead) ask() {
	for len(r.queue) < aheadDepth && r.asked < r.end {
		a := &aheadRead{offset: r.asked, buffer: aheadBuffers.Get().(*[]byte), done: make(chan struct{})}
		r.queue = append(r.queue, a)
		r.asked += aheadBytes
		go func() {
			defer close(a.done)
			a.n, a.err = r.src.ReadAt((*a.buffer)[carryBytes:], a.offset)
		}()
	}
}

// next returns a part of the file in buffer[begin:]. The part begins at the offset at, which must be a multiple of the
// block size, and extends to the end of the read that contains this offset. The caller may write to buffer[:begin]
// until it calls release, for example to put the end of the previous piece there. The buffer is nil at the end of the
// file and after an error.
func (r *ReadAhead) next(at int64) (buffer []byte, begin int) {
	if at%format.BlockBytes != 0 || at >= r.end {
		return nil, 0
	}
	if at != r.at {
		r.drop()
		r.at, r.asked = at, at
	}
	r.ask()
	head := r.queue[0]
	<-head.done
	skip := int(at - head.offset)
	if head.err != nil && !errors.Is(head.err, io.EOF) || skip >= head.n {
		r.drop()
		r.at = -1
		return nil, 0
	}
	r.queue, r.lent = r.queue[1:], append(r.lent, head)
	r.at = head.offset + int64(head.n)
	if head.n < aheadBytes {
		// The file ends in this piece, so no read in flight can continue it.
		r.at = -1
	}
	return (*head.buffer)[:carryBytes+head.n], carryBytes + skip
}

// release takes back all pieces that next has returned, except the last one.
func (r *ReadAhead) release() {
	for len(r.lent) > 1 {
		r.free(r.lent[0])
		r.lent = append(r.lent[:0], r.lent[1:]...)
	}
}

// Close takes back all pieces and waits for all reads in flight. After that, the caller may close the file.
func (r *ReadAhead) Close() {
	r.drop()
	for _, a := range r.lent {
		r.free(a)
	}
	r.lent = nil
}

// drop waits for all reads in flight and discards their results.
func (r *ReadAhead) drop() {
	for _, a := range r.queue {
		<-a.done
		r.free(a)
	}
	r.queue = nil
}

func (r *ReadAhead) free(a *aheadRead) { aheadBuffers.Put(a.buffer) }
