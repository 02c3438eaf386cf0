package replica

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

const (
	benchRecordBytes = 10 << 10
	benchWriters     = 64
)

// BenchmarkDurablePut compares two workloads. In one, 64 writers put records of 10 KB into 1 or 64 groups. In the
// other, 64 writers each append the same number of bytes to a separate file and call fdatasync. The workloads
// alternate, and the ratio compares their medians. -benchtime sets the number of rounds. In each round,
// SHEAF_BENCH_RECORDS records are written (default 20,000).
func BenchmarkDurablePut(b *testing.B) {
	records := 20000
	if s := os.Getenv("SHEAF_BENCH_RECORDS"); s != "" {
		if _, err := fmt.Sscan(s, &records); err != nil {
			b.Fatal(err)
		}
	}
	data := make([]byte, benchRecordBytes)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	rates := map[string][]float64{}
	variants := []string{"raw", "groups1", "groups64"}
	if s := os.Getenv("SHEAF_BENCH_VARIANT"); s != "" {
		variants = []string{s}
	}
	run := func(round int, variant string) {
		dir := b.TempDir()
		var rate float64
		switch variant {
		case "raw":
			rate = rawAppend(b, dir, records, data)
		case "groups1":
			rate = durablePut(b, vfs.OS{}, dir, 1, records, data)
		case "groups64":
			rate = durablePut(b, vfs.OS{}, dir, 64, records, data)
		}
		ok(b, os.RemoveAll(dir))
		if round >= 0 {
			rates[variant] = append(rates[variant], rate)
		}
	}
	for _, v := range variants {
		run(-1, v) // the first run only warms up
	}
	b.ResetTimer()
	for i := range b.N {
		for j := range variants {
			run(i, variants[(i+j)%len(variants)])
		}
	}
	for _, v := range variants {
		b.ReportMetric(median(rates[v])*benchRecordBytes/1e6, v+"-MB/s")
	}
	b.ReportMetric(0, "ns/op")
	if len(variants) == 1 {
		return
	}
	raw := median(rates["raw"])
	b.ReportMetric(median(rates["groups1"])/raw, "groups1/raw")
	b.ReportMetric(median(rates["groups64"])/raw, "groups64/raw")
	b.ReportMetric(median(rates["groups1"])/median(rates["groups64"]), "cost64/cost1")
}

func median(v []float64) float64 {
	s := append([]float64(nil), v...)
	sort.Float64s(s)
	return s[len(s)/2]
}

// writers runs f in benchWriters goroutines until n calls are made, and returns calls per second.
func writers(n int, f func(writer, call int)) float64 {
	var next atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for w := range benchWriters {
		wg.Go(func() {
			for {
				call := int(next.Add(1)) - 1
				if call >= n {
					return
				}
				f(w, call)
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(begin).Seconds()
}

func rawAppend(b *testing.B, dir string, records int, data []byte) float64 {
	files := make([]*os.File, benchWriters)
	for i := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		ok(b, err)
		defer f.Close()
		files[i] = f
	}
	return writers(records, func(w, _ int) {
		if _, err := files[w].Write(data); err != nil {
			b.Error(err)
		}
		if err := unix.Fdatasync(int(files[w].Fd())); err != nil {
			b.Error(err)
		}
	})
}

// BenchmarkMemoryPut measures puts of small records by 64 writers into 1 and 64 groups, on a disk in memory. It
// therefore shows the cost of a durable write without the disk, including the journal and all locks.
func BenchmarkMemoryPut(b *testing.B) {
	for _, groups := range []int{1, 64} {
		b.Run(fmt.Sprintf("groups=%d", groups), func(b *testing.B) {
			durablePut(b, vfstest.NewMem(), "/m", groups, b.N, make([]byte, 100))
		})
	}
}

func durablePut(b *testing.B, fs vfs.FS, dir string, groups, records int, data []byte) float64 {
	m := newMachine(b, fs, dir)
	members := make([]*member, groups)
	for i := range members {
		members[i] = m.open(name(i), nil)
	}
	runtime.GC()
	b.ResetTimer()
	rate := writers(records, func(w, call int) {
		one := members[(w*7+call)%groups]
		if _, err := one.Propose(write{Write{ID: int64(call), Data: data}}).Wait(context.Background()); err != nil {
			b.Error(err)
		}
	})
	m.halt()
	return rate
}

// BenchmarkPropose measures the cost of a write without a log, with 64 writers and one group.
func BenchmarkPropose(b *testing.B) {
	for _, size := range []int{100, benchRecordBytes} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			c := NewCommitter()
			defer c.Close()
			r, err := start(Options{Committer: c, RaftID: raftID}, newMemoryLog(raftID))
			ok(b, err)
			data := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			writers(b.N, func(_, call int) {
				if _, err := r.Propose(Write{ID: int64(call), Data: data}).Wait(context.Background()); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// BenchmarkReadBarrier measures the cost of the barrier before a linearizable read, in a group with a single voter.
func BenchmarkReadBarrier(b *testing.B) {
	c := NewCommitter()
	defer c.Close()
	r, err := start(Options{Committer: c, RaftID: raftID}, newMemoryLog(raftID))
	ok(b, err)
	b.ReportAllocs()
	for b.Loop() {
		ok(b, r.ReadBarrier(context.Background()))
	}
}

// memoryLog is a log that stores nothing, so that a benchmark measures the cost of everything except the log.
type memoryLog struct {
	*raft.MemoryStorage
	applied atomic.Uint64
}

func newMemoryLog(voters ...uint64) *memoryLog {
	l := &memoryLog{MemoryStorage: raft.NewMemoryStorage()}
	_ = l.ApplySnapshot(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		ConfState: &raftpb.ConfState{Voters: voters}, Index: proto.Uint64(0), Term: proto.Uint64(0),
	}})
	return l
}

func (l *memoryLog) Append(hs *raftpb.HardState, entries []*raftpb.Entry) error {
	if hs != nil {
		if err := l.SetHardState(hs); err != nil {
			return err
		}
	}
	return l.MemoryStorage.Append(entries)
}

func (l *memoryLog) Apply(index uint64, _ func(*format.Entry)) error {
	l.applied.Store(index)
	if index%1024 == 0 {
		return l.Compact(index - 1)
	}
	return nil
}

func (l *memoryLog) Sync() error                             { return nil }
func (l *memoryLog) SyncShared() bool                        { return true }
func (l *memoryLog) Tick() error                             { return nil }
func (l *memoryLog) SetConf(*raftpb.ConfState, uint64) error { return nil }
func (l *memoryLog) AppliedIndex() uint64                    { return l.applied.Load() }
func (l *memoryLog) LastCommitTime() int64                   { return 0 }
func (l *memoryLog) ConfIndex() uint64                       { return 0 }
func (l *memoryLog) Damaged() bool                           { return false }
func (l *memoryLog) MissingBlobs([]*raftpb.Entry) ([]format.BlobRef, error) {
	return nil, nil
}
func (l *memoryLog) RecentRequests(format.RequestWindow, int64) iter.Seq[format.Request] {
	return func(func(format.Request) bool) {}
}
func (l *memoryLog) Head(int64) (index uint64, deleted bool, err error) {
	return 0, false, group.ErrNotFound
}
