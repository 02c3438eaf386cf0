package segio

import (
	"errors"
	"io"
	"sync"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	aheadBytes = 1 << 20 // of one read
	aheadDepth = 3       // reads under way at the same time
	// aheadRoom in front of what is read takes the end of the piece before it, so that a frame that is in both is in
	// one piece.
	aheadRoom = WindowBytes
	// ScanBufferBytes is what a Scan holds in buffers at most while it reads a log that is cold: what is read ahead,
	// the piece that it works on, and a window.
	ScanBufferBytes = (aheadDepth+1)*(aheadRoom+aheadBytes) + WindowBytes
)

var aheadBuffers = sync.Pool{New: func() any { b := vfs.AlignedBytes(aheadRoom + aheadBytes); return &b }}

// ReadAhead keeps reads of a file under way that is read in order, so that the device works while checksums are
// computed. A read at another place than expected begins anew there; one of a single block, as behind a bad sector,
// goes to the file itself. A window takes the pieces as they are, anyone else copies. For one goroutine.
type ReadAhead struct {
	src   io.ReaderAt
	end   int64 // nothing is asked for from here on
	at    int64 // what comes next in order
	asked int64 // up to here it was asked for
	queue []*aheadRead
	lent  []*aheadRead // what next gave away, until release or close
}

type aheadRead struct {
	offset int64
	buffer *[]byte // aheadRoom, then what was read
	n      int
	err    error
	done   chan struct{} // closed when n and err are set
}

// NewReadAhead reads src in order, up to an end.
func NewReadAhead(src io.ReaderAt, end int64) *ReadAhead { return &ReadAhead{src: src, end: end} }

// ReadAt reads in order what is under way. Offsets and lengths are as aligned as the file wants them.
func (r *ReadAhead) ReadAt(p []byte, offset int64) (int, error) {
	if offset%format.BlockBytes != 0 || offset >= r.end || len(p) <= format.BlockBytes {
		return r.src.ReadAt(p, offset)
	}
	if offset != r.at {
		r.drop()
		r.at, r.asked = offset, offset
	}
	n := 0
	for n < len(p) {
		r.ask()
		if len(r.queue) == 0 {
			return n, io.EOF
		}
		head := r.queue[0]
		<-head.done
		skip := int(r.at - head.offset)
		if skip < head.n {
			k := copy(p[n:], (*head.buffer)[aheadRoom+skip:aheadRoom+head.n])
			n, r.at, skip = n+k, r.at+int64(k), skip+k
		}
		if skip < head.n {
			break
		}
		if head.n < aheadBytes || head.err != nil && !errors.Is(head.err, io.EOF) {
			err := head.err // the end, or a bad place: the next read asks the file itself
			r.drop()
			if err == nil {
				err = io.EOF
			}
			r.at = -1
			return n, err
		}
		r.free(head)
		r.queue = r.queue[1:]
	}
	return n, nil
}

// ask starts reads until enough are under way.
func (r *ReadAhead) ask() {
	for len(r.queue) < aheadDepth && r.asked < r.end {
		a := &aheadRead{offset: r.asked, buffer: aheadBuffers.Get().(*[]byte), done: make(chan struct{})}
		r.queue = append(r.queue, a)
		r.asked += aheadBytes
		go func() {
			defer close(a.done)
			a.n, a.err = r.src.ReadAt((*a.buffer)[aheadRoom:], a.offset)
		}()
	}
}

// next gives what stands at an offset, a multiple of a block, as far as one read brought it: the bytes of buffer from
// begin on. Those before are free for the caller until release. Nil: there is nothing, or it cannot be read; ReadAt
// says what is wrong.
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
	return (*head.buffer)[:aheadRoom+head.n], aheadRoom + skip
}

// release takes back all that next gave but the last.
func (r *ReadAhead) release() {
	for len(r.lent) > 1 {
		r.free(r.lent[0])
		r.lent = append(r.lent[:0], r.lent[1:]...)
	}
}

// Close takes back everything, and waits for all reads under way; the file may be closed after it.
func (r *ReadAhead) Close() {
	r.drop()
	for _, a := range r.lent {
		r.free(a)
	}
	r.lent = nil
}

// drop waits for all reads under way.
func (r *ReadAhead) drop() {
	for _, a := range r.queue {
		<-a.done
		r.free(a)
	}
	r.queue = nil
}

func (r *ReadAhead) free(a *aheadRead) { aheadBuffers.Put(a.buffer) }
