package archiver

import "sheaf.dev/sheaf/internal/archive/pieces"

// buffers keeps the memory of new entries that were archived, for those that follow. Otherwise, the memory of each
// group's entries would grow from nothing in each interval, which copies most bytes several times, and makes garbage.
type buffers struct {
	bytesMax int64 // the most bytes that are kept
	bytes    int64
	free     [][]byte
}

// take makes a new builder use memory that was kept, if there is any.
func (b *buffers) take(news *pieces.Builder) {
	if n := len(b.free); n > 0 {
		buffer := b.free[n-1]
		b.free[n-1], b.free = nil, b.free[:n-1]
		b.bytes -= int64(cap(buffer))
		news.UseBuffer(buffer)
	}
}

// give keeps the memory of a builder, which must not be used any more. The builder may be nil.
func (b *buffers) give(news *pieces.Builder) {
	if news == nil {
		return
	}
	buffer := news.Buffer()
	if b.bytes+int64(cap(buffer)) > b.bytesMax {
		return
	}
	b.bytes += int64(cap(buffer))
	b.free = append(b.free, buffer)
}

// frameBytesMax is more than the size of every frame.
const frameBytesMax = 2 << 20

// spare keeps the memory of the segment that was created last for the next one. It would otherwise be garbage for some
// time, and one segment after another is made. It is safe for concurrent use.
type spare struct {
	kept     chan []byte // holds at most one element
	bytesMax int64       // the size of the largest segment
}

// take returns memory for a segment of the given size.
func (s *spare) take(bytes int64) []byte {
	select {
	case b := <-s.kept:
		if int64(cap(b)) >= bytes {
			return b
		}
	default:
	}
	return make([]byte, 0, max(bytes, min(2*bytes, s.bytesMax))) // the next one may be larger
}

// give keeps the memory of a segment that was created, unless that of another one is kept already. The builder must
// not be used any more.
func (s *spare) give(b *pieces.Builder) {
	select {
	case s.kept <- b.Buffer():
	default:
	}
}
