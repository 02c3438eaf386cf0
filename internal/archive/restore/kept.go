package restore

import (
	"sort"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// kept holds the frames of a group's puts in memory, in the order of the log, so that the group is read from the bucket
// only once. After the last call of add, it may be used concurrently.
type kept struct {
	max    int64 // bytes that the frames and the rows may need
	rows   []keptRow
	blocks [][]byte // all are full, except for the last one
	bytes  int64    // number of bytes in the blocks
}

// keptRow describes one frame.
type keptRow struct {
	id    int64
	index uint64
	begin int64 // offset of the frame, counted over all blocks
}

const (
	keptRowBytes   = 24
	keptBlockBytes = 1 << 20
)

// keptMax returns the number of bytes that are needed to keep archived entries of the given size. Frames of less than
// 96 bytes need more, so a group that has mostly such frames is not kept.
func keptMax(archived int64) int64 { return archived + archived/4 }

// add adds a frame. It returns false if there is no room for it.
func (k *kept) add(e *format.Entry, frame []byte) bool {
	if k.bytes+int64(len(frame))+int64(len(k.rows)+1)*keptRowBytes > k.max {
		return false
	}
	k.rows = append(k.rows, keptRow{id: e.ID, index: e.Index, begin: k.bytes})
	k.bytes += int64(len(frame))
	for len(frame) > 0 {
		last := len(k.blocks) - 1
		if last < 0 || len(k.blocks[last]) == keptBlockBytes {
			// A group of few bytes needs a small block.
			k.blocks = append(k.blocks, make([]byte, 0, min(keptBlockBytes, k.max)))
			continue
		}
		b := k.blocks[last]
		n := min(len(frame), keptBlockBytes-len(b))
		k.blocks[last], frame = append(b, frame[:n]...), frame[n:]
	}
	return true
}

// from returns the position of the first row with at least the given index.
func (k *kept) from(index uint64) int {
	return sort.Search(len(k.rows), func(i int) bool { return k.rows[i].index >= index })
}

// length returns the length of the frame of a row.
func (k *kept) length(row int) int64 {
	end := k.bytes
	if row+1 < len(k.rows) {
		end = k.rows[row+1].begin
	}
	return end - k.rows[row].begin
}

// appendFrame appends the frame of a row to b.
func (k *kept) appendFrame(b []byte, row int) []byte {
	begin := k.rows[row].begin
	end := begin + k.length(row)
	for begin < end {
		at := begin % keptBlockBytes
		n := min(end-begin, keptBlockBytes-at)
		b = append(b, k.blocks[begin/keptBlockBytes][at:at+n]...)
		begin += n
	}
	return b
}
