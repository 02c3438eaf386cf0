package restore

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

// The version with the greatest index of each id is kept, no matter in which order versions are added. At most 24
// bytes are needed for each record.
func TestNewest(t *testing.T) {
	for _, ids := range []int{1, 100, blockRows, 10 * blockRows} {
		rnd := rand.New(rand.NewPCG(1, uint64(ids)))
		want := map[int64]row{}
		n := &newest{}
		for range 3 * ids {
			r := row{id: int64(rnd.IntN(ids)) - int64(ids/2), index: rnd.Uint64N(1 << 40), units: rnd.Uint32()}
			n.add(r)
			if r.index > want[r.id].index {
				want[r.id] = r
			}
			if bytes, bound := n.bytes(), int64(24*len(want)+4*int(unsafe.Sizeof(block{}))); bytes > bound {
				t.Fatalf("%d bytes for %d records, at most %d are promised", bytes, len(want), bound)
			}
		}
		n.done()
		seen := 0
		n.each(func(r row) {
			if seen++; want[r.id] != r {
				t.Fatalf("row %+v, not %+v", r, want[r.id])
			}
		})
		if seen != len(want) {
			t.Fatalf("%d rows, not %d", seen, len(want))
		}
		for id, r := range want {
			if !n.has(id, r.index) || n.has(id, r.index-1) {
				t.Fatalf("id %d: index %d is not the newest", id, r.index)
			}
		}
		if n.has(int64(ids), 1) || new(newest).has(1, 1) {
			t.Fatal("an id that was never added is there")
		}
	}
}

// bytes returns the size of the memory that the rows use.
func (n *newest) bytes() int64 {
	return int64(cap(n.recent))*int64(unsafe.Sizeof(row{})) +
		int64(len(n.blocks)+len(n.free))*int64(unsafe.Sizeof(block{}))
}
