package group

import (
	"errors"
	"io"
	"sync"

	"sheaf.dev/sheaf/internal/vfs"
)

const (
	aheadBytes = 1 << 20 // of one read
	aheadDepth = 3       // reads under way at the same time
)

var aheadBuffers = sync.Pool{New: func() any { b := vfs.AlignedBytes(aheadBytes); return &b }}

// readAhead keeps reads of a file under way that is read in order, so that the device works while checksums are computed. A
// read at another place than expected begins anew there; one of a single block, as behind a bad sector, goes to the file
// itself. For one goroutine.
type readAhead struct {
	src   io.ReaderAt
	end   int64 // nothing is asked for from here on
	at    int64 // what comes next in order
	asked int64 // up to here it was asked for
	queue []*aheadRead
}

type aheadRead struct {
	offset int64
	buffer *[]byte
	n      int
	err    error
	done   chan struct{} // closed when n and err are set
}

func newReadAhead(src io.ReaderAt, end int64) *readAhead { return &readAhead{src: src, end: end} }

// ReadAt reads in order what is under way. Offsets and lengths are as aligned as the file wants them.
func (r *readAhead) ReadAt(p []byte, offset int64) (int, error) {
	if offset%blockBytes != 0 || offset >= r.end || len(p) <= blockBytes {
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
			k := copy(p[n:], (*head.buffer)[skip:head.n])
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
func (r *readAhead) ask() {
	for len(r.queue) < aheadDepth && r.asked < r.end {
		a := &aheadRead{offset: r.asked, buffer: aheadBuffers.Get().(*[]byte), done: make(chan struct{})}
		r.queue = append(r.queue, a)
		r.asked += aheadBytes
		go func() {
			defer close(a.done)
			a.n, a.err = r.src.ReadAt(*a.buffer, a.offset)
		}()
	}
}

// drop waits for all reads under way; the file may be closed after it.
func (r *readAhead) drop() {
	for _, a := range r.queue {
		<-a.done
		r.free(a)
	}
	r.queue = nil
}

func (r *readAhead) free(a *aheadRead) { aheadBuffers.Put(a.buffer) }
