package restore

import (
	"cmp"
	"slices"
)

// row is what newest knows of one record: its newest version.
type row struct {
	id    int64
	index uint64
	units uint32 // length of the frame in units of 8 bytes; 0: the record is deleted
}

// blockRows is the number of rows in a block.
const blockRows = 1 << 12

// block has rows in the order of their ids, in 20 bytes for each.
type block struct {
	ids     [blockRows]int64
	indexes [blockRows]uint64
	units   [blockRows]uint32
}

func (b *block) row(i int) row { return row{id: b.ids[i], index: b.indexes[i], units: b.units[i]} }

// newest has the newest version of each record, in at most 24 bytes for each: 20 for the row, and an eighth of a row of
// 24 bytes for rows that are not in order yet.
type newest struct {
	blocks []*block // full, apart from the last one; in the order of the ids
	rows   int
	recent []row    // not in order, and not in blocks yet
	free   []*block // empty
}

// add says that a record has a version. The version with the greatest index counts.
func (n *newest) add(r row) {
	n.recent = append(n.recent, r)
	if len(n.recent) >= max(blockRows, n.rows/8) {
		n.merge()
	}
}

// merge brings the recent rows into the blocks. Blocks that were read are used again for what is written.
func (n *newest) merge() {
	slices.SortFunc(n.recent, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(b.index, a.index))
	})
	recent := slices.CompactFunc(n.recent, func(a, b row) bool { return a.id == b.id }) // the greatest index remains
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

// done ends the calls of add.
func (n *newest) done() {
	n.merge()
	n.recent, n.free = nil, nil
}

// each calls visit for each record. The calls of add have ended.
func (n *newest) each(visit func(r row)) {
	for i := range n.rows {
		visit(n.blocks[i/blockRows].row(i % blockRows))
	}
}

// has reports whether a version is the newest of its record. It may be called concurrently once the calls of add have
// ended.
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
