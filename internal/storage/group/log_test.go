package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

var logIdentity = format.Identity{Store: uuid.UUID{1}, Group: uuid.UUID{2}, Name: "7"}

// logDriver calls a log's methods as a replica with one voter does.
type logDriver struct {
	t    testing.TB
	opts Options
	log  *Log
	term uint64
	time int64
}

func driverOptions(fs vfs.FS, residency Residency, segmentBytes int64) Options {
	return Options{FS: fs, Dir: "/v/7", Identity: logIdentity, Residency: residency, SegmentBytes: segmentBytes}
}

func newDriver(t testing.TB, opts Options) *logDriver {
	t.Helper()
	ok(t, Create(opts, &raftpb.ConfState{Voters: []uint64{1}}))
	d := &logDriver{t: t, opts: opts, term: 1}
	d.load()
	return d
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (d *logDriver) load() Report {
	d.t.Helper()
	l, report, err := Load(context.Background(), d.opts, nil)
	ok(d.t, err)
	d.log = l
	return report
}

// last returns the last index of the log.
func (d *logDriver) last() uint64 {
	last, err := d.log.LastIndex()
	ok(d.t, err)
	return last
}

// entry returns the Raft entry of a put or delete with the given index.
func (d *logDriver) entry(at uint64, e format.Entry) *raftpb.Entry {
	d.time++
	e.Index, e.Term, e.CommitTime = at, d.term, d.time
	if e.Kind == 0 {
		e.Kind = format.KindPut
	}
	return format.RaftEntry(&e)
}

// append appends entries without syncing them.
func (d *logDriver) append(entries ...format.Entry) error {
	last := d.last()
	batch := make([]*raftpb.Entry, len(entries))
	for i, e := range entries {
		batch[i] = d.entry(last+1+uint64(i), e)
	}
	commit := d.log.AppliedIndex()
	vote := uint64(1)
	return d.log.Append(&raftpb.HardState{Term: &d.term, Vote: &vote, Commit: &commit}, batch)
}

// put appends, syncs and applies entries.
func (d *logDriver) put(entries ...format.Entry) {
	d.t.Helper()
	ok(d.t, d.append(entries...))
	ok(d.t, d.log.Sync())
	ok(d.t, d.log.Apply(d.last(), nil))
}

// fill puts the records 0 to n-1. The function content returns the data of each record.
func (d *logDriver) fill(n int64, size int, content func(id int64, size int) []byte) {
	d.t.Helper()
	for id := range n {
		d.put(format.Entry{ID: id, Data: content(id, size)})
	}
}

func (d *logDriver) get(id int64) ([]byte, error) {
	r, err := d.log.Get(id, GetOptions{})
	return r.Data, err
}

func (d *logDriver) wants(id int64, data []byte) {
	d.t.Helper()
	got, err := d.get(id)
	if data == nil {
		if !errors.Is(err, ErrNotFound) {
			d.t.Fatalf("record %d: %d bytes, %v, want none", id, len(got), err)
		}
		return
	}
	if err != nil || !bytes.Equal(got, data) {
		d.t.Fatalf("record %d: %d bytes, %v, want %d bytes", id, len(got), err, len(data))
	}
}

func payload(id int64, size int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("%d.", id)), size)
}

// random returns size bytes that cannot be compressed. They are always the same for the same id.
func random(id int64, size int) []byte { return grouptest.RandomBytes(uint64(id), size) }

// mustLoad loads a log.
func mustLoad(t testing.TB, opts Options) *Log {
	t.Helper()
	l, _, err := Load(t.Context(), opts, nil)
	ok(t, err)
	return l
}

func TestSmoke(t *testing.T) {
	for _, residency := range []Residency{Index, Resident} {
		for _, seal := range []bool{false, true} {
			d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 64<<10))
			for i := range int64(500) {
				d.put(format.Entry{ID: i % 300, Data: payload(i, 100)})
			}
			d.put(format.Entry{ID: 5, Kind: format.KindDelete})
			check := func() {
				for i := range int64(300) {
					want := payload(i, 100)
					if i < 200 {
						want = payload(i+300, 100)
					}
					if i == 5 {
						want = nil
					}
					d.wants(i, want)
				}
				vs, err := d.log.Versions(7, 0, 10)
				ok(t, err)
				if len(vs) != 2 {
					t.Fatalf("%d versions", len(vs))
				}
				r, err := d.log.Get(7, GetOptions{Index: vs[1].Index})
				ok(t, err)
				if !bytes.Equal(r.Data, payload(7, 100)) {
					t.Fatal("old version")
				}
				id, err := d.log.OpenScan(1e9)
				ok(t, err)
				n := 0
				for r, err := range d.log.Scan(context.Background(), id, 0, 1000, false) {
					ok(t, err)
					_ = r
					n++
				}
				if n != 299 {
					t.Fatalf("scan gave %d", n)
				}
				es, err := d.log.Entries(1, d.last()+1, 1<<40)
				ok(t, err)
				if len(es) != 501 {
					t.Fatalf("%d entries", len(es))
				}
			}
			check()
			ok(t, d.log.Tick())
			t.Logf("%+v", d.log.Stats())
			ok(t, d.log.Close(seal))
			rep := d.load()
			if rep.Outcome != Loaded {
				t.Fatalf("%+v", rep)
			}
			if d.log.AppliedIndex() != d.last() {
				ok(t, d.log.Apply(d.last(), nil))
			}
			check()
			v, err := d.log.Verify(context.Background(), 0)
			ok(t, err)
			if len(v.Damages) > 0 {
				t.Fatalf("%+v", v)
			}
			t.Logf("%+v", v)
			t.Logf("%+v", d.log.Stats())
			ok(t, d.log.Close(false))
		}
	}
}
