package reader

import (
	"cmp"
	"slices"
)

// row holds the index of the newest version of one record.
type row struct {
	id    int64
	index uint64 // index of the newest version; the bit taken is not part of the index
}

// taken is the bit of row.index that marks a row whose version has been returned. No index uses this bit
// (docs/format.md).
const taken = 1 << 63

// blockRows is the number of rows in a block of a table.
const blockRows = 1 << 12

// table holds the index of the newest version of each record, sorted by record id. It needs at most 24 bytes for each
// record: 16 for the row, and a quarter of that for rows that have not been sorted yet. A map would need twice as
// much while it grows.
type table struct {
	blocks [][]row // sorted by id; all blocks except the last one are full
	rows   int
	recent []row   // rows that are neither sorted nor in blocks yet
	free   [][]row // empty blocks
}

// add records that a record has a version with the given index.
func (t *table) add(id int64, index uint64) {
	t.recent = append(t.recent, row{id: id, index: index})
	if len(t.recent) >= max(blockRows, t.rows/4) {
		t.merge()
	}
}

// merge sorts the recent rows, and merges them into the blocks. Blocks that have been read are reused for the result.
func (t *table) merge() {
	slices.SortFunc(t.recent, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(b.index, a.index))
	})
	recent := slices.CompactFunc(t.recent, func(a, b row) bool { return a.id == b.id }) // keep each id's greatest index
	old := t.blocks
	t.blocks, t.rows = nil, 0
	at := 0 // position in old[0]
	for len(old) > 0 || len(recent) > 0 {
		switch {
		case len(old) > 0 && at == len(old[0]):
			t.free = append(t.free, old[0][:0])
			old[0] = nil
			old, at = old[1:], 0
		case len(old) == 0 || len(recent) > 0 && recent[0].id < old[0][at].id:
			t.put(recent[0])
			recent = recent[1:]
		case len(recent) > 0 && recent[0].id == old[0][at].id:
			t.put(row{id: recent[0].id, index: max(recent[0].index, old[0][at].index)})
			recent = recent[1:]
			at++
		default:
			t.put(old[0][at])
			at++
		}
	}
	t.recent = t.recent[:0]
}

// put appends a row to the blocks.
func (t *table) put(r row) {
	if n := len(t.blocks); n == 0 || len(t.blocks[n-1]) == blockRows {
		var block []row
		if n := len(t.free); n > 0 {
			block, t.free = t.free[n-1], t.free[:n-1]
		} else {
			block = make([]row, 0, blockRows)
		}
		t.blocks = append(t.blocks, block)
	}
	last := len(t.blocks) - 1
	t.blocks[last] = append(t.blocks[last], r)
	t.rows++
}

// done prepares the table for take. It must be called once all versions have been added.
func (t *table) done() {
	t.merge()
	t.recent, t.free = nil, nil
}

// take reports whether a version is the newest of its record and has not been taken before. It must be called only
// after done.
func (t *table) take(id int64, index uint64) bool {
	b, _ := slices.BinarySearchFunc(t.blocks, id, func(block []row, id int64) int {
		return cmp.Compare(block[len(block)-1].id, id)
	})
	if b == len(t.blocks) {
		return false
	}
	at, ok := slices.BinarySearchFunc(t.blocks[b], id, func(r row, id int64) int { return cmp.Compare(r.id, id) })
	if !ok || t.blocks[b][at].index != index {
		return false
	}
	t.blocks[b][at].index |= taken
	return true
}
