package group

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func benchLog(b *testing.B, residency Residency, records, size int) *logDriver {
	b.Helper()
	opts := driverOptions(vfs.OS{}, residency, 64<<20)
	opts.Dir = b.TempDir() + "/7"
	d := newDriver(b, opts)
	data := make([]byte, size)
	for i := 0; i < records; i += 100 {
		var batch []format.Entry
		for j := range 100 {
			batch = append(batch, format.Entry{ID: int64(i + j), Data: data})
		}
		d.put(batch...)
	}
	b.Cleanup(func() { _ = d.log.Close(false) })
	return d
}

func BenchmarkGet(b *testing.B) {
	for _, residency := range []Residency{Index, Resident} {
		for _, size := range []int{1 << 10, 10 << 10} {
			b.Run(fmt.Sprintf("residency=%d/bytes=%d", residency, size), func(b *testing.B) {
				d := benchLog(b, residency, 10000, size)
				for _, buffer := range []bool{false, true} {
					b.Run(fmt.Sprintf("buffer=%t", buffer), func(b *testing.B) {
						b.SetBytes(int64(size))
						b.ReportAllocs()
						b.RunParallel(func(pb *testing.PB) {
							opts := GetOptions{}
							if buffer {
								opts.Buffer = make([]byte, 0, 32<<10)
							}
							id := int64(0)
							for pb.Next() {
								id = (id + 7919) % 10000
								if _, err := d.log.Get(id, opts); err != nil {
									b.Error(err)
									return
								}
							}
						})
					})
				}
			})
		}
	}
}

// BenchmarkScan reads 10,000 records of 1 KiB in order.
func BenchmarkScan(b *testing.B) {
	for _, residency := range []Residency{Index, Resident} {
		b.Run(fmt.Sprintf("residency=%d", residency), func(b *testing.B) {
			d := benchLog(b, residency, 10000, 1<<10)
			b.SetBytes(10000 << 10)
			b.ReportAllocs()
			for b.Loop() {
				id, err := d.log.OpenScan(time.Hour)
				ok(b, err)
				records := 0
				for _, err := range d.log.Scan(b.Context(), id, 0, math.MaxUint64, false) {
					ok(b, err)
					records++
				}
				d.log.CloseScan(id)
				// The commit index of the last batch was never written, so the load does not apply that batch.
				if records < 9900 {
					b.Fatalf("%d records", records)
				}
			}
		})
	}
}

func BenchmarkAppendSync(b *testing.B) {
	for _, residency := range []Residency{Index, Resident} {
		for _, batch := range []int{1, 64} {
			b.Run(fmt.Sprintf("residency=%d/batch=%d", residency, batch), func(b *testing.B) {
				opts := driverOptions(vfs.OS{}, residency, 256<<20)
				opts.Dir = b.TempDir() + "/7"
				d := newDriver(b, opts)
				defer func() { _ = d.log.Close(false) }()
				data := make([]byte, 10<<10)
				b.SetBytes(int64(batch * len(data)))
				b.ReportAllocs()
				vote := uint64(1)
				for b.Loop() {
					last := d.last()
					commit := d.log.AppliedIndex()
					entries := make([]*raftpb.Entry, batch)
					for i := range entries {
						entries[i] = d.entry(last+1+uint64(i), format.Entry{ID: int64(i), Data: data})
					}
					ok(b, d.log.Append(&raftpb.HardState{Term: &d.term, Vote: &vote, Commit: &commit}, entries))
					ok(b, d.log.Sync())
					ok(b, d.log.Apply(last+uint64(batch), nil))
				}
			})
		}
	}
}

// BenchmarkLoad loads a group of SHEAF_BENCH_RECORDS records of 100 bytes (by default 1,000,000), once from hints and
// once from data.
func BenchmarkLoad(b *testing.B) {
	records := 1 << 20
	if n, err := strconv.Atoi(os.Getenv("SHEAF_BENCH_RECORDS")); err == nil {
		records = n
	}
	opts := driverOptions(vfs.OS{}, Index, 256<<20)
	opts.Dir = b.TempDir() + "/7"
	d := newDriver(b, opts)
	data := make([]byte, 100)
	for i := 0; i < records; i += 1000 {
		batch := make([]format.Entry, 1000)
		for j := range batch {
			batch[j] = format.Entry{ID: int64(i + j), Data: data}
		}
		ok(b, d.append(batch...))
		ok(b, d.log.Apply(d.last(), nil))
	}
	ok(b, sealAndClose(d.log))
	for _, residency := range []Residency{Index, Resident} {
		b.Run(fmt.Sprintf("residency=%d", residency), func(b *testing.B) {
			d.opts.Residency = residency
			var stats Stats
			for b.Loop() {
				d.load()
				stats = d.log.Stats()
				b.StopTimer()
				ok(b, d.log.Close(false))
				b.StartTimer()
			}
			b.ReportMetric(float64(stats.MemoryBytes)/float64(stats.Records), "B/record")
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)*1e9/float64(records), "ns/record")
		})
	}
}

// BenchmarkInMemory appends, syncs and applies one small entry, and gets one, on an in-memory disk. It measures what
// the log itself costs, including its locks.
func BenchmarkInMemory(b *testing.B) {
	data := make([]byte, 100)
	begin := func(b *testing.B) (d *logDriver, put func(id int64)) {
		d = newDriver(b, driverOptions(vfstest.NewMem(), Index, 1<<20))
		b.Cleanup(func() { _ = d.log.Close(false) })
		vote := uint64(1)
		return d, func(id int64) {
			last, commit := d.last(), d.log.AppliedIndex()
			entries := []*raftpb.Entry{d.entry(last+1, format.Entry{ID: id, Data: data})}
			ok(b, d.log.Append(&raftpb.HardState{Term: &d.term, Vote: &vote, Commit: &commit}, entries))
			ok(b, d.log.Sync())
			ok(b, d.log.Apply(last+1, nil))
		}
	}
	b.Run("put", func(b *testing.B) {
		_, put := begin(b)
		for n := int64(0); b.Loop(); n++ {
			put(n % 100)
		}
	})
	b.Run("get", func(b *testing.B) {
		d, put := begin(b)
		for id := range int64(100) {
			put(id)
		}
		opts := GetOptions{Buffer: make([]byte, 0, 1<<10)}
		for n := int64(0); b.Loop(); n++ {
			if _, err := d.log.Get(n%100, opts); err != nil {
				b.Fatal(err)
			}
		}
	})
}
