package reader

import (
	"cmp"
	"slices"
)

// row is what a table knows of one record: the index of its newest version.
type row struct {
	id    int64
	index uint64 // the bit taken is no part of it
}

// taken marks a row whose version was handed out. No index has this bit (docs/format.md).
const taken = 1 << 63

// blockRows is the number of rows in a block of a table.
const blockRows = 1 << 12

// table has the index of the newest version of each record, ordered by id, in at most 24 bytes for each record: 16 for
// the row, and a quarter of that for rows that are not in order yet. A map would need twice as much while it grows.
type table struct {
	blocks [][]row // full, apart from the last one; in order of the ids
	rows   int
	recent []row   // not in order, and not in blocks yet
	free   [][]row // empty blocks
}

// add says that a record has a version with an index.
func (t *table) add(id int64, index uint64) {
	t.recent = append(t.recent, row{id: id, index: index})
	if len(t.recent) >= max(blockRows, t.rows/4) {
		t.merge()
	}
}

// merge brings the recent rows into order, and into the blocks. Blocks that were read are used again for what is
// written.
func (t *table) merge() {
	slices.SortFunc(t.recent, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(b.index, a.index))
	})
	recent := slices.CompactFunc(t.recent, func(a, b row) bool { return a.id == b.id }) // the greatest index remains
	old := t.blocks
	t.blocks, t.rows = nil, 0
	at := 0 // in the first old block
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

// done ends the calls of add.
func (t *table) done() {
	t.merge()
	t.recent, t.free = nil, nil
}

// take reports whether a version is the newest of its record, and was not taken before. The calls of add have ended.
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
