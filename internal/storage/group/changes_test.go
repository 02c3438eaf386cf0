package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// copier follows a log with calls to Changes, and keeps the records that it receives.
type copier struct {
	after   uint64
	records map[int64][]byte
	expired int
}

// follow reads the changes to the end. If the cursor has expired, it starts again from a scan.
func (c *copier) follow(t testing.TB, l *Log, opts ChangesOptions) {
	t.Helper()
	for {
		records, through, err := l.Changes(context.Background(), c.after, opts)
		if errors.Is(err, ErrCursorExpired) {
			c.expired++
			c.scan(t, l)
			continue
		}
		ok(t, err)
		last := c.after
		for _, r := range records {
			if r.Index <= last || r.Index > through {
				t.Fatalf("index %d behind %d, read through %d", r.Index, last, through)
			}
			last = r.Index
			if r.Deleted {
				delete(c.records, r.ID)
			} else {
				c.records[r.ID] = r.Data
			}
		}
		if through == c.after {
			return
		}
		c.after = through
	}
}

// scan replaces the copier's records with those of a snapshot.
func (c *copier) scan(t testing.TB, l *Log) {
	t.Helper()
	id, err := l.OpenScan(time.Hour)
	ok(t, err)
	defer l.CloseScan(id)
	info, err := l.ScanInfo(id)
	ok(t, err)
	c.after, c.records = info.Index, map[int64][]byte{}
	for r, err := range l.Scan(context.Background(), id, 0, info.Index, false) {
		ok(t, err)
		c.records[r.ID] = bytes.Clone(r.Data)
	}
}

func (c *copier) wants(t testing.TB, l *Log, truth map[int64][]byte) {
	t.Helper()
	if c.after != l.AppliedIndex() || len(c.records) != len(truth) {
		t.Fatalf("at %d of %d: %d records, want %d", c.after, l.AppliedIndex(), len(c.records), len(truth))
	}
	for id, data := range truth {
		if !bytes.Equal(c.records[id], data) {
			t.Fatalf("record %d differs", id)
		}
	}
}

// TestChangesReportEveryLatestState checks that a reader that follows the changes has the same records as the log,
// whatever compactions and restarts happen meanwhile.
func TestChangesReportEveryLatestState(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		for seed := range uint64(20) {
			random := rand.New(rand.NewPCG(seed, 1))
			d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 4<<10))
			truth := map[int64][]byte{}
			often, seldom := &copier{records: map[int64][]byte{}}, &copier{records: map[int64][]byte{}}
			for range 120 {
				id := random.Int64N(40)
				if random.IntN(3) == 0 {
					d.put(format.Entry{ID: id, Kind: format.KindDelete})
					delete(truth, id)
				} else {
					truth[id] = payload(id, 1+random.IntN(300))
					d.put(format.Entry{ID: id, Data: truth[id]})
				}
				switch random.IntN(20) {
				case 0:
					ok(t, d.log.Seal())
				case 1, 2:
					_, err := d.log.Compact(context.Background(), CompactOptions{All: true})
					ok(t, err)
				case 3:
					ok(t, d.log.Close(random.IntN(2) == 0))
					d.load()
					ok(t, d.log.Apply(d.last(), nil))
				case 4:
					seldom.follow(t, d.log, ChangesOptions{RecordsMax: 1000, BytesMax: 1 << 20})
					seldom.wants(t, d.log, truth)
				}
				often.follow(t, d.log, ChangesOptions{RecordsMax: 1 + random.IntN(3), BytesMax: 1 << 20})
				often.wants(t, d.log, truth)
			}
			seldom.follow(t, d.log, ChangesOptions{RecordsMax: 1000, BytesMax: 1})
			seldom.wants(t, d.log, truth)
			ok(t, sealAndClose(d.log))
		}
	})
}

// TestChangesExpireBelowForgottenDeletes checks that a reader that has not read a delete which compaction has dropped
// gets ErrCursorExpired, and does not silently miss the delete.
func TestChangesExpireBelowForgottenDeletes(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 4<<10))
	d.put(format.Entry{ID: 1, Data: []byte("a")}, format.Entry{ID: 2, Data: []byte("b")})
	seen := d.last()
	d.put(format.Entry{ID: 1, Kind: format.KindDelete})
	deleted := d.last()
	ok(t, d.log.Seal())
	for range 2 { // the first compaction drops the version, and the second one drops the delete
		_, err := d.log.Compact(context.Background(), CompactOptions{All: true})
		ok(t, err)
	}
	for _, reopened := range []bool{false, true} {
		if reopened {
			ok(t, sealAndClose(d.log))
			d.load()
		}
		for after := range seen + 1 {
			if _, _, err := d.log.Changes(context.Background(), after,
				ChangesOptions{RecordsMax: 10, BytesMax: 10}); !errors.Is(err, ErrCursorExpired) {
				t.Fatalf("after %d, the delete at %d is forgotten: error %v", after, deleted, err)
			}
		}
		if records, through, err := d.log.Changes(context.Background(), deleted,
			ChangesOptions{RecordsMax: 10, BytesMax: 10}); err != nil || len(records) != 0 || through < deleted {
			t.Fatalf("behind the delete: %d records through %d, %v", len(records), through, err)
		}
	}
	if _, _, err := d.log.Changes(context.Background(), d.last()+1, ChangesOptions{RecordsMax: 1}); !errors.Is(err,
		ErrCursorExpired) {
		t.Fatalf("a cursor of the future: error %v", err)
	}
	ok(t, sealAndClose(d.log))
	if _, _, err := d.log.Changes(context.Background(), deleted, ChangesOptions{RecordsMax: 1}); !errors.Is(err,
		format.ErrClosed) {
		t.Fatalf("a closed log: error %v", err)
	}
}

// TestChangesAreCommitted checks that uncommitted entries are not reported, and that truncated entries are never
// reported.
func TestChangesAreCommitted(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 4<<10))
	d.put(format.Entry{ID: 1, Data: []byte("old")})
	at := d.last()
	ok(t, d.append(format.Entry{ID: 1, Data: []byte("never")}, format.Entry{ID: 2, Data: []byte("never")}))
	ok(t, d.log.Sync())
	all := ChangesOptions{RecordsMax: 10, BytesMax: 100}
	if records, through, err := d.log.Changes(context.Background(), at, all); err != nil || len(records) != 0 ||
		through != at {
		t.Fatalf("%d records through %d, %v", len(records), through, err)
	}
	d.term = 3
	ok(t, d.log.Append(nil, []*raftpb.Entry{
		d.entry(at+1, format.Entry{ID: 3, Data: []byte("new")}), d.entry(at+2, format.Entry{ID: 1, Data: []byte("newer")}),
	}))
	ok(t, d.log.Sync())
	ok(t, d.log.Apply(at+2, nil))
	records, through, err := d.log.Changes(context.Background(), 0, all)
	ok(t, err)
	if through != at+2 || len(records) != 2 || records[0].ID != 3 || string(records[1].Data) != "newer" {
		t.Fatalf("through %d: %+v", through, records)
	}
	ok(t, d.log.Close(false))
}

// TestChangesWakeThoseWhoWait lets many goroutines follow a log while it is written and compacted. Applied entries and
// closing the log must wake them.
func TestChangesWakeThoseWhoWait(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 4<<10))
	const puts, followers = 300, 8
	var all, ready sync.WaitGroup
	ready.Add(followers)
	for range followers {
		all.Go(func() {
			c := &copier{records: map[int64][]byte{}}
			for c.after < puts {
				at, changed := d.log.Applied()
				if at == c.after {
					<-changed
					continue
				}
				c.follow(t, d.log, ChangesOptions{RecordsMax: 7, BytesMax: 1 << 20})
			}
			if len(c.records) != 50 {
				t.Errorf("%d records, want 50", len(c.records))
			}
			_, changed := d.log.Applied()
			ready.Done()
			<-changed // the channel is closed when the log is closed
		})
	}
	for i := range int64(puts) {
		d.put(format.Entry{ID: i % 50, Data: payload(i, 100)})
		if i%100 == 99 {
			_, err := d.log.Compact(context.Background(), CompactOptions{All: true})
			ok(t, err)
		}
	}
	ready.Wait()
	ok(t, sealAndClose(d.log))
	all.Wait()
}

// TestChangesReportDamage checks that bad bytes after the cursor are reported, unless newer versions supersede them,
// and that bad bytes before the cursor are not.
func TestChangesReportDamage(t *testing.T) {
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 1<<20))
	d.fill(10, 200, payload)
	records, _, err := d.log.Changes(context.Background(), 0, ChangesOptions{RecordsMax: 100, BytesMax: 1 << 20})
	ok(t, err)
	bad := records[4]
	f, err := mem.OpenWrite(fmt.Sprintf("%s/%s", d.opts.Dir, format.SegmentName(bad.Location.Segment)))
	ok(t, err)
	_, err = f.WriteAt([]byte{0xff, 0xff, 0xff}, bad.Location.Offset+150)
	ok(t, err)
	ok(t, f.Close())
	all := ChangesOptions{RecordsMax: 100, BytesMax: 1 << 20}
	got, through, err := d.log.Changes(context.Background(), 0, all)
	if err != nil || len(got) != 4 || through != bad.Index-1 {
		t.Fatalf("%d records through %d, %v", len(got), through, err)
	}
	var damage *format.DamageError
	if _, _, err := d.log.Changes(context.Background(), through, all); !errors.As(err, &damage) {
		t.Fatalf("the damaged record is next: error %v", err)
	}
	if got, _, err := d.log.Changes(context.Background(), bad.Index, all); err != nil || len(got) != 5 {
		t.Fatalf("behind the damage: %d records, %v", len(got), err)
	}
	// This put supersedes the damaged version, so the damage does not matter.
	d.put(format.Entry{ID: bad.ID, Data: []byte("anew")})
	if got, _, err := d.log.Changes(context.Background(), through, all); err != nil || len(got) != 6 {
		t.Fatalf("the damaged record is superseded: %d records, %v", len(got), err)
	}
	ok(t, d.log.Close(false))
}
