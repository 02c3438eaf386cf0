package index

import (
	"runtime"
	"sort"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// fillParallelRows is the least number of rows for which Fill uses more than one core.
const fillParallelRows = 1 << 15

// Fill does for many rows what Max does for one row. The rows are in ascending order of Hash, like those of a hint.
// Fill is fast, because it walks the table's memory in order and takes each lock once. Row r has ids[r] and places[r] |
// ordinal; skip, if not nil, excludes rows. The function lost is called for each place that is not the newest, whether
// it was in the table or is in a row. Several goroutines may call lost concurrently, and it must not call the table.
// Fill returns by how much the count of live ids rose.
func (t *Table) Fill(ids []int64, places []uint64, ordinal uint32, skip func(row int) bool,
	lost func(loc Loc)) (live int64, err error) {
	before := t.Live()
	var bounds [stripeCount + 1]int
	bounds[stripeCount] = len(ids)
	for i := 1; i < stripeCount; i++ {
		first := uint64(i) << (64 - stripeBits)
		bounds[i] = sort.Search(len(ids), func(r int) bool { return Hash(ids[r]) >= first })
	}
	workers := 1
	if len(ids) >= fillParallelRows {
		workers = min(runtime.GOMAXPROCS(0), stripeCount)
	}
	var next atomic.Int32
	var fills errgroup.Group
	for range workers {
		fills.Go(func() error {
			for i := int(next.Add(1)) - 1; i < stripeCount; i = int(next.Add(1)) - 1 {
				err := t.fillStripe(&t.stripes[i], bounds[i], bounds[i+1], ids, places, ordinal, skip, lost)
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = fills.Wait()
	return t.Live() - before, err
}

func (t *Table) fillStripe(s *stripe, from, to int, ids []int64, places []uint64, ordinal uint32, skip func(int) bool,
	lost func(Loc)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := from; r < to; r++ {
		if skip != nil && skip(r) {
			continue
		}
		loc := Loc(places[r]).In(ordinal)
		old, won, err := t.max(s, Hash(ids[r]), ids[r], loc)
		if err != nil {
			return err
		}
		switch {
		case !won && old != loc:
			lost(loc)
		case won && old != 0:
			lost(old)
		}
	}
	return nil
}
