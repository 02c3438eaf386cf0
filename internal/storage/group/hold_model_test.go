package group

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// version is a put or delete of a record.
type version struct {
	id      int64
	index   uint64
	commit  int64
	deleted bool
}

// stored returns the versions that a log stores, by index. The result sealed says which of them are in segments that a
// compaction rewrites.
func stored(t testing.TB, l *Log) (all map[uint64]version, sealed map[uint64]bool) {
	t.Helper()
	all, sealed = map[uint64]version{}, map[uint64]bool{}
	views := l.reader.views(0, everything)
	defer unpinAll(views)
	applied := l.AppliedIndex()
	for _, v := range views {
		rows, err := l.reader.rowsOf(v)
		ok(t, err)
		for i, id := range rows.IDs {
			at := v.first + uint64(rows.Indexes[i])
			if at <= min(v.through, applied) {
				all[at] = version{id: id, index: at, deleted: rows.Places[i]&1 != 0}
				sealed[at] = !v.active && v.through <= applied
			}
		}
	}
	return all, sealed
}

// asOf returns, for each record that exists as of an index, the index of its newest version at or below that index.
func asOf(versions map[uint64]version, at uint64) map[int64]uint64 {
	out := map[int64]uint64{}
	for _, index := range slices.Sorted(maps.Keys(versions)) {
		switch v := versions[index]; {
		case index > at:
		case v.deleted:
			delete(out, v.id)
		default:
			out[v.id] = index
		}
	}
	return out
}

// nextOf returns the version that superseded the version at an index. It returns false if there is none.
func nextOf(model map[uint64]version, at uint64) (next version, found bool) {
	for index, v := range model {
		if v.id == model[at].id && index > at && (!found || index < next.index) {
			next, found = v, true
		}
	}
	return next, found
}

// holdBed drives a log with random writes and compactions under random holds, and compares its history with the model.
type holdBed struct {
	*logDriver
	random *rand.Rand
	now    time.Time
	model  map[uint64]version
	hold   *Hold // the hold that this process has set, or nil if none
	folder int
	floor  uint64
	counts map[string]int // how often each event that the test must cover has happened
}

func newHoldBed(t testing.TB, seed uint64, counts map[string]int) *holdBed {
	b := &holdBed{
		random: rand.New(rand.NewPCG(seed, 35)), now: time.Unix(1_700_000_000, 0), model: map[uint64]version{},
		counts: counts,
	}
	opts := driverOptions(vfstest.NewMem(), Residency(seed%2), 2<<10)
	opts.Now = func() time.Time { return b.now }
	opts.Retention = Retention{Versions: 1 + int(seed%3)/2, MinAge: time.Duration(seed%4/3) * 30 * time.Minute}
	b.logDriver = newDriver(t, opts)
	b.time = b.now.UnixNano()
	return b
}

// write puts or deletes a random record. Most of the time it chooses one of only a few records.
func (b *holdBed) write() {
	e := format.Entry{ID: int64(b.random.ExpFloat64() * 3), Kind: format.KindPut}
	if b.random.IntN(4) == 0 {
		e.Kind = format.KindDelete
	} else {
		e.Data = payload(e.ID, b.random.IntN(200))
	}
	b.put(e)
	b.model[b.last()] = version{e.ID, b.last(), b.time, e.Kind == format.KindDelete}
}

// pass lets a random amount of time pass.
func (b *holdBed) pass() {
	b.now = b.now.Add(time.Duration(b.random.IntN(8)) * time.Minute)
	b.time = max(b.time, b.now.UnixNano())
}

func (b *holdBed) step() {
	switch n := b.random.IntN(60); {
	case n < 42:
		b.write()
	case n < 46:
		b.pass()
	case n < 49:
		ok(b.t, b.log.Seal())
	case n < 52:
		b.hold = &Hold{Index: b.random.Uint64N(b.last() + 3), On: b.random.IntN(8) > 0}
		b.log.SetHold(*b.hold)
	case n < 53:
		ok(b.t, b.log.BeginHistory())
	case n < 54:
		b.reload()
	case n < 55:
		b.install()
	default:
		b.compact()
	}
}

func (b *holdBed) reload() {
	ok(b.t, b.log.Close(b.random.IntN(2) == 0))
	b.hold = nil
	b.load()
	ok(b.t, b.log.Apply(b.last(), nil))
}

// install installs this replica's files in another replica, and continues with that replica.
func (b *holdBed) install() {
	to := b.opts
	b.folder++
	to.Dir = fmt.Sprintf("/v/copy-%d", b.folder)
	ok(b.t, to.FS.MkdirAll(to.Dir))
	ok(b.t, install(b.log, to))
	floor, known := b.log.HistoryFloor()
	ok(b.t, b.log.Close(false))
	b.opts, b.hold = to, nil
	b.load()
	ok(b.t, b.log.Apply(b.last(), nil))
	if got, gotKnown := b.log.HistoryFloor(); got != floor || gotKnown != known {
		b.t.Fatalf("history floor %d, %t became %d, %t", floor, known, got, gotKnown)
	}
	b.counts["install"]++
}

// compact compacts the log, and checks which versions were dropped and which ones remain.
func (b *holdBed) compact() {
	opts := CompactOptions{All: b.random.IntN(3) > 0, IgnoreHold: b.random.IntN(6) == 0, SpaceLow: b.random.IntN(6) == 0}
	before, _ := stored(b.t, b.log)
	floor, known := b.log.HistoryFloor()
	scans := len(b.log.Scans())
	_, err := b.log.Compact(b.t.Context(), opts)
	ok(b.t, err)
	b.log.hints.writing.Wait()
	after, sealed := stored(b.t, b.log)
	limit, age := uint64(everything), b.opts.Retention.MinAge
	switch {
	case opts.IgnoreHold:
	case b.hold == nil && known:
		limit = floor
	case b.hold != nil && b.hold.On:
		limit, age = b.hold.Index, max(age, heldAgeMin)
	}
	mayGo := func(at uint64) (may, superseded bool) {
		next, found := nextOf(b.model, at)
		return found && next.index <= limit && (age == 0 || next.commit <= b.now.Add(-age).UnixNano()), found
	}
	for at, v := range before {
		if _, left := after[at]; left {
			continue
		}
		b.counts["dropped"]++
		if may, superseded := mayGo(at); superseded && !may || !superseded && !v.deleted {
			next, _ := nextOf(b.model, at)
			b.t.Fatalf("%+v dropped version %d of record %d, superseded by %+v, hold %+v, at %d", opts, at, v.id, next,
				b.hold, b.now.UnixNano())
		}
	}
	for at := range after {
		may, superseded := mayGo(at)
		if superseded && !may && limit < everything {
			b.counts["kept"]++
		}
		if opts.All && !opts.SpaceLow && sealed[at] && may && b.opts.Retention.Versions == 1 && scans == 0 {
			b.t.Fatalf("version %d of record %d may go, and is left: hold %+v", at, b.model[at].id, b.hold)
		}
	}
}

// check compares the history above the floor with the model.
func (b *holdBed) check() {
	floor, known := b.log.HistoryFloor()
	if !known {
		return
	}
	if floor < b.floor {
		b.t.Fatalf("the history floor fell from %d to %d", b.floor, floor)
	}
	b.floor = floor
	have, _ := stored(b.t, b.log)
	applied := b.log.AppliedIndex()
	for _, at := range []uint64{floor, floor + b.random.Uint64N(applied-floor+1), applied} {
		if want, got := asOf(b.model, at), asOf(have, at); !maps.Equal(want, got) {
			b.t.Fatalf("as of %d, floor %d: %v, want %v", at, floor, got, want)
		}
		b.counts["read"]++
	}
}

// TestHistoryAboveTheFloorEqualsTheModel performs random writes, compactions under random holds, restarts and
// installs. Above the history floor, the state as of any index must equal that of the model. A compaction must keep
// each version that was superseded too recently or by an entry above the hold, and drop all other superseded versions.
func TestHistoryAboveTheFloorEqualsTheModel(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() {
		seeds = 8
	}
	counts := map[string]int{}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			b := newHoldBed(t, seed, counts)
			for range 300 {
				b.step()
				b.check()
			}
			ok(t, b.log.Close(false))
		})
	}
	for _, what := range []string{"dropped", "kept", "read", "install"} {
		if counts[what] < int(seeds) {
			t.Errorf("%s: only %d times", what, counts[what])
		}
	}
	t.Log(counts)
}

// TestHistoryBesideWrites compacts repeatedly while writes continue, under a hold that follows the writes at a small
// distance, as an archive's hold does. After each compaction, the state as of the hold and the state as of the floor
// must equal those of the model.
func TestHistoryBesideWrites(t *testing.T) {
	d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 8<<10), 0)
	var mu sync.Mutex // guards model
	model := map[uint64]version{}
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		defer close(done)
		random := rand.New(rand.NewPCG(1, 2))
		for range 3000 {
			e := format.Entry{ID: random.Int64N(20), Kind: format.KindPut, Data: payload(1, 60)}
			if random.IntN(5) == 0 {
				e = format.Entry{ID: e.ID, Kind: format.KindDelete}
			}
			mu.Lock()
			model[d.last()+1] = version{id: e.ID, index: d.last() + 1, deleted: e.Kind == format.KindDelete}
			mu.Unlock()
			d.put(e)
		}
	})
	dropped := int64(0)
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		at := d.log.AppliedIndex()
		d.log.SetHold(Hold{Index: at, On: true})
		ok(t, d.log.Seal())
		report, err := d.log.Compact(t.Context(), CompactOptions{All: true})
		ok(t, err)
		dropped += report.EntriesDropped
		floor, known := d.log.HistoryFloor()
		if !known || floor > at {
			t.Fatalf("history floor %d, %t, above the hold %d", floor, known, at)
		}
		have, _ := stored(t, d.log)
		mu.Lock()
		for _, as := range []uint64{floor, at} {
			if want, got := asOf(model, as), asOf(have, as); !maps.Equal(want, got) {
				t.Errorf("as of %d, floor %d, hold %d: %v, want %v", as, floor, at, got, want)
			}
		}
		mu.Unlock()
	}
	wait.Wait()
	if dropped < 1000 {
		t.Errorf("only %d versions were dropped", dropped)
	}
	ok(t, d.log.Close(false))
}
