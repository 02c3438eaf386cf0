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
