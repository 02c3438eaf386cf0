package restore

import (
	"cmp"
	"slices"
)

// row describes the newest version of one record.
type row struct {
	id    int64
	index uint64
	units uint32 // length of the frame in units of 8 bytes; 0 if the record is deleted
}

// blockRows is the number of rows in a block.
const blockRows = 1 << 12

// block holds rows sorted by id, in 20 bytes for each row.
type block struct {
	ids     [blockRows]int64
	indexes [blockRows]uint64
	units   [blockRows]uint32
}

func (b *block) row(i int) row { return row{id: b.ids[i], index: b.indexes[i], units: b.units[i]} }

// newest holds the newest version of each record, in at most 24 bytes for each record. A row needs 20 bytes, and rows
// that are not sorted yet need an eighth of 24 bytes more.
type newest struct {
	blocks []*block // sorted by id; all blocks except the last one are full
	rows   int
	recent []row    // rows that are neither sorted nor in blocks yet
	free   []*block // empty blocks, for reuse
}

// add adds a version of a record. Only the version with the greatest index is kept.
func (n *newest) add(r row) {
	n.recent = append(n.recent, r)
	if len(n.recent) >= max(blockRows, n.rows/8) {
		n.merge()
	}
}

// merge merges the recent rows into the blocks. Blocks that have been read are reused for the result.
func (n *newest) merge() {
	slices.SortFunc(n.recent, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(b.index, a.index))
	})
	recent := slices.CompactFunc(n.recent, func(a, b row) bool { return a.id == b.id }) // keep each id's greatest index
	old, oldRows, at := n.blocks, n.rows, 0
	n.blocks, n.rows = nil, 0
	for oldRows > 0 || len(recent) > 0 {
		var next row
		fromOld := oldRows > 0 && (len(recent) == 0 || old[0].ids[at] <= recent[0].id)
		if fromOld {
			next = old[0].row(at)
			oldRows--
			if at++; at == blockRows || oldRows == 0 {
				n.free = append(n.free, old[0])
				old, at = old[1:], 0
			}
		}
		if len(recent) > 0 && (!fromOld || recent[0].id == next.id) {
			if !fromOld || recent[0].index > next.index {
				next = recent[0]
			}
			recent = recent[1:]
		}
		n.put(next)
	}
	n.recent = n.recent[:0]
}

// put appends a row to the blocks.
func (n *newest) put(r row) {
	at := n.rows % blockRows
	if at == 0 {
		b := new(block)
		if f := len(n.free); f > 0 {
			b, n.free = n.free[f-1], n.free[:f-1]
		}
		n.blocks = append(n.blocks, b)
	}
	b := n.blocks[len(n.blocks)-1]
	b.ids[at], b.indexes[at], b.units[at] = r.id, r.index, r.units
	n.rows++
}

// done must be called once all versions have been added.
func (n *newest) done() {
	n.merge()
	n.recent, n.free = nil, nil
}

// each calls visit for each record. It must be called only after done.
func (n *newest) each(visit func(r row)) {
	for i := range n.rows {
		visit(n.blocks[i/blockRows].row(i % blockRows))
	}
}

// has reports whether a version is the newest of its record. After done, it may be called concurrently.
func (n *newest) has(id int64, index uint64) bool {
	lo, hi := 0, n.rows
	for lo < hi {
		mid := (lo + hi) / 2
		if n.blocks[mid/blockRows].ids[mid%blockRows] < id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == n.rows {
		return false
	}
	r := n.blocks[lo/blockRows].row(lo % blockRows)
	return r.id == id && r.index == index
}
