package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestStaleBlocksOfAnOlderSegmentDoNotPass(t *testing.T) {
	// A block of the segment is replaced with a block from another segment, as if a file system had lost a write and
	// returned an old block. The other segment has the same entries at the same offsets, with correct CRCs, but a
	// different segment id.
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 8<<10))
	for range 3 {
		d.fill(7, 400, payload)
		ok(t, d.log.Seal())
	}
	d.log.hints.writing.Wait()
	ok(t, d.log.Close(false))
	b := &damageBed{mem: mem, opts: d.opts, frames: map[string][]bedFrame{}, sizes: map[string]int64{}}
	m, err := format.ReadManifest(mem, d.opts.Dir)
	ok(t, err)
	b.learn(t, m)
	from, to := format.SegmentName(m.Segments[0].Number), format.SegmentName(m.Segments[2].Number)
	src, err := mem.Open(path.Join(d.opts.Dir, from))
	ok(t, err)
	for i, frame := range b.frames[to] {
		if i >= len(b.frames[from]) || b.frames[from][i].offset != frame.offset || b.frames[from][i].bytes != frame.bytes {
			t.Fatal("the segments do not look alike")
		}
		stale := make([]byte, frame.bytes)
		ok(t, format.ReadFull(src, stale, frame.offset))
		for _, residency := range []Residency{Index, Resident} {
			disk, err := b.damaged(func(f vfs.File) error { _, err := f.WriteAt(stale, frame.offset); return err }, to)
			ok(t, err)
			opts := d.opts
			opts.FS, opts.Residency = disk, residency
			l := mustLoad(t, opts)
			ok(t, l.Apply(max(d.last0(l), l.AppliedIndex()), nil))
			if frame.kind == format.KindPut {
				_, err = l.Get(frame.id, GetOptions{})
				var damage *format.DamageError
				if !errors.As(err, &damage) {
					t.Errorf("record %d, residency %d: %v", frame.id, residency, err)
				}
			}
			ok(t, l.Close(false))
		}
	}
	ok(t, src.Close())
}

func (d *logDriver) last0(l *Log) uint64 {
	last, err := l.LastIndex()
	ok(d.t, err)
	return last
}

func TestRaftConflictTruncatesTheLog(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 4<<10))
		d.put(format.Entry{ID: 1, Data: []byte("old")})
		for i := range int64(20) { // these entries fill several segments, and are not committed
			ok(t, d.append(format.Entry{ID: 100 + i, Data: payload(i, 200)}))
			ok(t, d.log.Sync())
		}
		d.term = 3
		e := d.entry(3, format.Entry{ID: 1, Data: []byte("new")})
		ok(t, d.log.Append(nil, []*raftpb.Entry{e, d.entry(4, format.Entry{ID: 2, Data: []byte("two")})}))
		if d.last() != 4 {
			t.Fatalf("last index %d", d.last())
		}
		if err := d.log.Append(nil, []*raftpb.Entry{d.entry(1, format.Entry{ID: 9})}); err == nil {
			t.Fatal("an applied entry was cut")
		}
		if err := d.log.Append(nil, []*raftpb.Entry{d.entry(9, format.Entry{ID: 9})}); err == nil {
			t.Fatal("a gap was appended")
		}
		check := func() {
			t.Helper()
			ok(t, d.log.Apply(4, nil))
			d.wants(1, []byte("new"))
			d.wants(2, []byte("two"))
			d.wants(100, payload(0, 200))
			for i := int64(1); i < 20; i++ {
				d.wants(100+i, nil)
			}
			for at, want := range map[uint64]uint64{1: 1, 2: 1, 3: 3, 4: 3} {
				if got, err := d.log.Term(at); err != nil || got != want {
					t.Errorf("term of %d is %d, %v", at, got, err)
				}
			}
			entries, err := d.log.Entries(1, 5, 1<<40)
			if err != nil || len(entries) != 4 || entries[3].GetTerm() != 3 {
				t.Errorf("%d entries, %v", len(entries), err)
			}
		}
		ok(t, d.log.Sync())
		check()
		for _, seal := range []bool{false, true} {
			ok(t, d.log.Close(seal))
			if report := d.load(); report.Outcome != Loaded || d.last() != 4 {
				t.Fatalf("%+v, last index %d", report, d.last())
			}
			check()
		}
	})
}

func TestScanIsExactWhileRecordsAreOverwritten(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 16<<10))
		random := rand.New(rand.NewPCG(1, 2))
		write := func() {
			e := format.Entry{ID: random.Int64N(100), Data: []byte(fmt.Sprint(random.Uint64()))}
			if random.IntN(10) == 0 {
				e.Kind, e.Data = format.KindDelete, nil
			}
			d.put(e)
		}
		for range 500 {
			write()
		}
		for round := range 20 {
			want := make(map[int64]uint64)
			for id := range int64(100) {
				if r, err := d.log.Get(id, GetOptions{}); err == nil {
					want[id] = r.Index
				}
			}
			id, err := d.log.OpenScan(1 << 40)
			ok(t, err)
			done := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						write()
					}
				}
			})
			bounds, err := d.log.ScanSplits(id, 4<<10)
			ok(t, err)
			if len(bounds) < 3 {
				t.Fatalf("splits %v", bounds)
			}
			for i := 1; i < len(bounds); i++ {
				before := bounds[i-1]
				for r, err := range d.log.Scan(context.Background(), id, bounds[i-1], bounds[i], round%2 == 0) {
					ok(t, err)
					if r.Index <= before || r.Index > bounds[i] || want[r.ID] != r.Index {
						t.Fatalf("record %d index %d in (%d, %d], want %d", r.ID, r.Index, before, bounds[i], want[r.ID])
					}
					before = r.Index
					delete(want, r.ID)
				}
			}
			close(done)
			wg.Wait()
			if len(want) > 0 {
				t.Fatalf("round %d: not scanned: %v", round, want)
			}
			d.log.CloseScan(id)
			for _, err := range d.log.Scan(context.Background(), id, 0, 10, false) {
				if !errors.Is(err, ErrCursorExpired) {
					t.Fatalf("closed scan: %v", err)
				}
			}
		}
	})
}

func TestStorageOfRaft(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 4<<10))
	for i := range int64(60) {
		d.put(format.Entry{ID: i, Data: payload(i, 50)}, format.Entry{Kind: format.KindEmpty})
	}
	ok(t, d.append(format.Entry{ID: 1, Data: []byte("tail")}, format.Entry{ID: 2}))
	if _, err := d.log.Entries(0, 2, 100); !errors.Is(err, raft.ErrCompacted) {
		t.Errorf("index 0: %v", err)
	}
	if _, err := d.log.Entries(1, 200, 100); !errors.Is(err, raft.ErrUnavailable) {
		t.Errorf("behind the end: %v", err)
	}
	if _, err := d.log.Term(200); !errors.Is(err, raft.ErrUnavailable) {
		t.Errorf("term behind the end: %v", err)
	}
	for lo := uint64(1); lo <= 122; lo += 7 {
		entries, err := d.log.Entries(lo, 123, 1<<40)
		if err != nil || len(entries) != int(123-lo) {
			t.Fatalf("from %d: %d entries, %v", lo, len(entries), err)
		}
		for i, e := range entries {
			if e.GetIndex() != lo+uint64(i) {
				t.Fatalf("from %d: entry %d has index %d", lo, i, e.GetIndex())
			}
		}
		if one, err := d.log.Entries(lo, 123, 0); err != nil || len(one) != 1 {
			t.Fatalf("from %d: %d entries in no room, %v", lo, len(one), err)
		}
	}
}

func TestABatchGreaterThanASegment(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 4<<10))
		for round := range int64(3) {
			var batch []format.Entry
			for i := range int64(40) {
				batch = append(batch, format.Entry{ID: i, Data: payload(i+round, 300)})
			}
			d.put(batch...)
			d.put(format.Entry{ID: 99, Data: payload(99, 200)})
			for i := range int64(40) {
				d.wants(i, payload(i+round, 300))
			}
		}
		ok(t, sealAndClose(d.log))
		d.load()
		for i := range int64(40) {
			d.wants(i, payload(i+2, 300))
		}
		d.wants(99, payload(99, 200))
	})
}

func TestMemoryBudgetIsAskedFirst(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		budget := &testBudget{limit: 64 << 20}
		opts := driverOptions(vfstest.NewMem(), residency, 64<<10)
		opts.Budget = budget
		d := newDriver(t, opts)
		d.fill(100, 300, payload)
		need, err := PlanLoad(d.opts)
		ok(t, err)
		budget.limit = budget.taken + 1000
		refused := 0
		for i := range int64(3000) {
			switch err := d.append(format.Entry{ID: 1000 + i, Data: payload(i, 300)}); {
			case err == nil:
				ok(t, d.log.Sync())
				ok(t, d.log.Apply(d.last(), nil))
			case errors.Is(err, ErrMemory):
				refused++
			default:
				t.Fatal(err)
			}
		}
		if refused == 0 {
			t.Fatal("nothing was refused")
		}
		d.wants(1, payload(1, 300))
		budget.limit = 64 << 20
		d.put(format.Entry{ID: 5, Data: []byte("again")})
		ok(t, sealAndClose(d.log))
		if budget.taken != 0 {
			t.Fatalf("%d bytes were not given back", budget.taken)
		}
		budget.limit = 10
		if _, _, err := Load(context.Background(), d.opts, nil); !errors.Is(err, ErrMemory) {
			t.Fatalf("load: %v", err)
		}
		if budget.taken != 0 {
			t.Fatalf("%d bytes were not given back", budget.taken)
		}
		t.Logf("%+v", need)
	})
}

type testBudget struct {
	mu           sync.Mutex
	taken, limit int64
}

func (b *testBudget) Take(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && b.taken+n > b.limit {
		return fmt.Errorf("%w: %d bytes taken, %d more wanted, limit %d", ErrMemory, b.taken, n, b.limit)
	}
	b.taken += n
	return nil
}

// TestGetReadsIntoABufferOfLengthBound checks that a buffer of this length holds the record,
// and that it is hardly larger.
func TestGetReadsIntoABufferOfLengthBound(t *testing.T) {
	bothResidencies(t, func(t *testing.T, residency Residency) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 4<<20))
		if n := d.log.LengthBound(0); n != 0 {
			t.Errorf("%d bytes for a record that does not exist", n)
		}
		for id, size := range []int{1, 63, 64, 1000, 70_000, format.DataBytesMax} {
			data := bytes.Repeat([]byte{1, 2, 3, 4, 5}, size)[:size]
			d.put(format.Entry{ID: int64(id), Data: data})
			n := d.log.LengthBound(int64(id))
			if most := format.FrameBytes(0, size) + 63; n > most {
				t.Errorf("%d bytes for a record of %d, and %d are enough", n, size, most)
			}
			buffer := make([]byte, n)
			r, err := d.log.Get(int64(id), GetOptions{Buffer: buffer[:0:n]})
			ok(t, err)
			if !bytes.Equal(r.Data, data) {
				t.Errorf("record of %d bytes: wrong data", size)
			}
			if r.Data[0]++; !bytes.Contains(buffer, r.Data) {
				t.Errorf("a record of %d bytes is not in the buffer", size)
			}
		}
	})
}
