package replica

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// BenchmarkBatches measures durable batches: 8 callers put 100 records at a time, whose ids are spread evenly over the
// groups, on a real disk and with a journal as in a shard. One operation is one record. The figures are the processor
// time of a record, the number of rounds that wrote 1000 records, the numbers of syncs of the journal and of segments,
// and how many bytes of the journal there are for each byte of data.
func BenchmarkBatches(b *testing.B) {
	for _, size := range []int{1 << 10, 10 << 10} {
		for _, groups := range []int{1, 3, 16} {
			b.Run(fmt.Sprintf("bytes=%d/groups=%d", size, groups), func(b *testing.B) { batches(b, groups, size) })
		}
	}
}

func batches(b *testing.B, groups, size int) {
	const callers, batch = 8, 100
	m := newMachine(b, vfs.OS{}, b.TempDir())
	m.journal = journal.New(journal.Options{FS: vfs.OS{}, Dir: m.dir})
	members := make([]*member, groups)
	for i := range members {
		members[i] = m.open(name(i), nil)
	}
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	var next atomic.Int64
	b.ResetTimer()
	began, used := time.Now(), processorTime(b)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			pending := make([]*Pending, 0, batch)
			for {
				first := next.Add(batch) - batch
				if first >= int64(b.N) {
					return
				}
				for id := first; id < min(first+batch, int64(b.N)); id++ {
					one := members[id%int64(groups)]
					pending = append(pending, one.Replica.Propose(Write{ID: id, Data: data}))
				}
				for _, p := range pending {
					if _, err := p.Wait(context.Background()); err != nil {
						b.Error(err)
					}
				}
				pending = pending[:0]
			}
		})
	}
	all.Wait()
	n, stats := float64(b.N), m.journal.Stats()
	b.ReportMetric(n/time.Since(began).Seconds(), "records/s")
	b.ReportMetric(float64((processorTime(b)-used).Microseconds())/n, "core-µs/record")
	b.ReportMetric(float64(stats.Syncs), "journal-syncs")
	b.ReportMetric(float64(m.committer.Synced())-float64(stats.Writes), "segment-syncs")
	b.ReportMetric(float64(stats.Bytes)/n/float64(size), "journal-bytes/byte")
	b.ReportMetric(float64(m.committer.Synced())*1000/n, "rounds/1000-records")
	b.ReportMetric(0, "ns/op")
	m.halt()
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	ok(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
