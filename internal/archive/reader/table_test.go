package reader

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

// The table keeps the greatest index of each id, returns each of them once, and stays within its memory limit.
func TestTable(t *testing.T) {
	for _, ids := range []int{1, 100, blockRows, 10 * blockRows} {
		rnd := rand.New(rand.NewPCG(1, uint64(ids)))
		want := map[int64]uint64{}
		table := &table{}
		for index := uint64(1); index <= uint64(3*ids); index++ {
			id := int64(rnd.IntN(ids)) - int64(ids/2)
			table.add(id, index)
			want[id] = index
			if bytes, bound := table.bytes(), int64(24*len(want)+4*blockRows*rowBytes); bytes > bound {
				t.Fatalf("%d bytes for %d records, at most %d are promised", bytes, len(want), bound)
			}
		}
		table.done()
		if table.rows != len(want) {
			t.Fatalf("%d rows, not %d", table.rows, len(want))
		}
		for id, index := range want {
			if table.take(id, index-1) || !table.take(id, index) || table.take(id, index) {
				t.Fatalf("id %d, index %d is not handed out once", id, index)
			}
		}
		if table.take(int64(ids), 1) || (&tableOfNone).take(1, 1) {
			t.Fatal("an id that was never added is handed out")
		}
	}
}

var tableOfNone table

const rowBytes = int(unsafe.Sizeof(row{}))

// bytes returns the size of the memory that the table uses.
func (t *table) bytes() int64 {
	n := cap(t.recent)
	for _, blocks := range [][][]row{t.blocks, t.free} {
		for _, b := range blocks {
			n += cap(b)
		}
	}
	return int64(n * rowBytes)
}
