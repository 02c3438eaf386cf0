package group

import (
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// BenchmarkCompact compacts a log on an in-memory disk, with and without a hold at the middle index. The log has
// 200,000 puts to 50,000 records, each with 100 bytes of data. The metric cpu-ms is the CPU time that one compaction
// takes.
func BenchmarkCompact(b *testing.B) {
	mem := vfstest.NewMem()
	d := newDriver(b, driverOptions(mem, Index, 4<<20))
	data := make([]byte, 100)
	for n := 0; n < 200_000; n += 1000 {
		batch := make([]format.Entry, 1000)
		for i := range batch {
			batch[i] = format.Entry{ID: int64((n+i)*7919) % 50_000, Data: data}
		}
		d.put(batch...)
	}
	last := d.last()
	ok(b, sealAndClose(d.log))
	for name, hold := range map[string]*Hold{"free": nil, "held": {Index: last / 2, On: true}} {
		b.Run(name, func(b *testing.B) {
			var used time.Duration
			for b.Loop() {
				b.StopTimer()
				d.opts.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
				d.load()
				ok(b, d.log.Apply(last, nil))
				if hold != nil {
					d.log.SetHold(*hold)
				}
				before := processorTime(b)
				b.StartTimer()
				_, err := d.log.Compact(b.Context(), CompactOptions{All: true})
				ok(b, err)
				b.StopTimer()
				used += processorTime(b) - before
				ok(b, d.log.Close(false))
				b.StartTimer()
			}
			b.ReportMetric(used.Seconds()*1000/float64(b.N), "cpu-ms")
		})
	}
}

// processorTime returns how much CPU time this process has used so far.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	ok(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
