package index

import (
	"sort"
	"sync"
	"sync/atomic"
)

// Rows are the columns of a hint: all in ascending order of Hash of the ids.
type Rows struct {
	IDs     []int64
	Places  []uint64 // Loc with ordinal 0
	Ordinal uint32   // of the segment
	// Skip leaves rows out; nil: none. Called by several goroutines at once.
	Skip func(row int) bool
}

const (
	// bulkParts cut a stripe so that a part, which is filled from all rows before the next one, stays in the
	// second-level cache.
	bulkParts  = 64
	bulkBits   = stripeBits + 6
	bulkChunks = stripeCount * bulkParts
)

// BulkMax is Fill for many segments at once, by so many goroutines. One segment after another would walk through the
// whole table for each; this fills one small part of it from all segments before it goes on. lost is told of each place
// that is not the newest; it may be called by several goroutines at once, and must not call the table.
func (t *Table) BulkMax(rows []Rows, workers int, lost func(Loc)) error {
	workers = max(1, min(workers, stripeCount))
	var next atomic.Int32
	var wait sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		wait.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= stripeCount {
					return
				}
				errs[w] = t.bulkStripe(i, rows, lost)
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *Table) bulkStripe(stripe int, rows []Rows, lost func(Loc)) error {
	s := &t.stripes[stripe]
	at := make([]int, len(rows)) // first row not taken yet
	for i := range rows {
		at[i] = firstAt(rows[i].IDs, stripe*bulkParts)
	}
	for chunk := stripe * bulkParts; chunk < (stripe+1)*bulkParts; chunk++ {
		for i := range rows {
			r := &rows[i]
			end := at[i]
			for end < len(r.IDs) && int(Hash(r.IDs[end])>>(64-bulkBits)) == chunk {
				end++
			}
			if err := t.fillStripe(s, at[i], end, r.IDs, r.Places, r.Ordinal, r.Skip, lost); err != nil {
				return err
			}
			at[i] = end
		}
	}
	return nil
}

// firstAt is the first row of a chunk or of one behind it.
func firstAt(ids []int64, chunk int) int {
	return sort.Search(len(ids), func(i int) bool { return int(Hash(ids[i])>>(64-bulkBits)) >= chunk })
}
