package group

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/vfs"
)

// Which entries of a log count after a leader cut it, and what bad bytes may hide of that, is found out by several walks: that of a
// load, those of both checks (of an open log, and of a folder), Raft's and a peer's reads, and the two ways of giving up what is lost.
// These tests live through random histories, with and without damage, and hold all of them against one plain model.

// walkHistory is a random log with cuts, and the model of what counts in it.
type walkHistory struct {
	*logDriver
	dice    *rand.Rand
	entries map[uint64]counted        // by index: what counts
	newest  map[int64]string          // by id; empty: deleted
	ever    map[int64]map[string]bool // by id: what was ever committed
	serial  int                       // makes each content its own
	cuts    int                       // how often a leader cut the log
	void    map[string]bool           // content that was cut off
}

// counted is an entry that counts.
type counted struct {
	term uint64
	kind Kind
	id   int64
	data string
}

const (
	walkSegmentBytes = 6 << 10 // small, so that what is cut lies in several segments
	walkIDs          = 6
)

func newWalkHistory(t *testing.T, seed uint64, residency Residency) *walkHistory {
	h := &walkHistory{
		dice: rand.New(rand.NewPCG(seed, 1)), entries: map[uint64]counted{}, newest: map[int64]string{}, ever: map[int64]map[string]bool{}, void: map[string]bool{},
	}
	h.logDriver = newDriver(t, driverOptions(vfs.NewMem(), residency, walkSegmentBytes))
	h.commit(1)
	ok(t, h.log.SetConf(&raftpb.ConfState{Voters: []uint64{1}, AutoLeave: new(bool)}, 1)) // there were others, who may have led
	for range 10 + h.dice.IntN(30) {
		switch h.dice.IntN(8) {
		case 0, 1, 2:
			h.commit(1 + h.dice.IntN(3))
		case 3, 4:
			h.cut()
		case 5:
			ok(t, h.log.Seal())
		case 6:
			ok(t, h.append()) // the commit, in a frame of state
			ok(t, h.log.Sync())
		case 7:
			h.log.hints.Wait()
		}
	}
	ok(t, h.append())
	ok(t, h.log.Sync())
	if h.dice.IntN(2) == 0 {
		ok(t, h.log.Seal())
	}
	ok(t, h.log.Tick())
	h.log.hints.Wait()
	ok(t, h.log.Close(h.dice.IntN(2) == 0))
	return h
}

// some makes an entry with content of its own, which says whether it will count.
func (h *walkHistory) some(at uint64, word string) (counted, *raftpb.Entry) {
	h.serial++
	c := counted{term: h.term, kind: KindPut, id: int64(h.dice.IntN(walkIDs))}
	switch h.dice.IntN(8) {
	case 0:
		c.kind = KindDelete
	case 1:
		c.kind, c.id = KindEmpty, 0
	default:
		c.data = fmt.Sprintf("%s %d %s", word, h.serial, payload(int64(h.serial), 20+h.dice.IntN(300)))
	}
	return c, h.entry(at, Entry{Kind: c.kind, ID: c.id, Data: []byte(c.data)})
}

// batch makes entries that count, from an index on.
func (h *walkHistory) batch(from uint64, n int) (entries []*raftpb.Entry) {
	for at := from; at < from+uint64(n); at++ {
		c, e := h.some(at, "counts")
		entries = append(entries, e)
		h.entries[at] = c
		switch c.kind {
		case KindPut, KindDelete:
			h.newest[c.id] = c.data
			if h.ever[c.id] == nil {
				h.ever[c.id] = map[string]bool{}
			}
			h.ever[c.id][c.data] = true
		}
	}
	return entries
}

func (h *walkHistory) commit(n int) {
	h.write(h.batch(h.last()+1, n)...)
	ok(h.t, h.log.Apply(h.last(), nil))
}

// cut appends what does not count, and then as a leader of a later term what does, from the same index on.
func (h *walkHistory) cut() {
	from := h.last() + 1
	for n := range 1 + h.dice.IntN(6) {
		c, e := h.some(from+uint64(n), "void")
		h.void[c.data] = true
		h.write(e)
		if h.dice.IntN(5) == 0 {
			ok(h.t, h.log.Seal())
		}
	}
	h.term++
	h.cuts++
	h.write(h.batch(from, 1+h.dice.IntN(3))...)
	ok(h.t, h.log.Apply(h.last(), nil))
}

// open loads a copy of the disk, and applies all.
func (h *walkHistory) open(disk *vfs.Mem) (*Log, Report) {
	h.t.Helper()
	opts := h.opts
	opts.FS = disk
	l, report, err := Load(context.Background(), opts, nil)
	ok(h.t, err)
	last, err := l.LastIndex()
	ok(h.t, err)
	ok(h.t, l.Apply(max(last, l.AppliedIndex()), nil))
	return l, report
}

func (h *walkHistory) disk() *vfs.Mem {
	return h.opts.FS.(*vfs.Mem).CrashClone(vfs.Survival{Kind: vfs.SurviveAll})
}

// holds compares what a log answers with the model. whole: nothing may be missing; else damage may answer in place of it.
func (h *walkHistory) holds(l *Log, whole bool) {
	h.t.Helper()
	may := func(err error) bool { return !whole && err != nil }
	for id := range int64(walkIDs) {
		r, err := l.Get(id, GetOptions{})
		var damage *DamageError
		switch want := h.newest[id]; {
		case !whole && errors.As(err, &damage):
		case want == "" && !errors.Is(err, ErrNotFound), want != "" && (err != nil || string(r.Data) != want):
			h.t.Errorf("record %d: %.20q, %v, want %.20q", id, r.Data, err, want)
		}
	}
	for at, want := range h.entries {
		entries, err := l.Entries(at, at+1, 1<<20)
		switch {
		case may(err):
		case err != nil || len(entries) != 1:
			h.t.Errorf("Raft reads entry %d: %d entries, %v", at, len(entries), err)
		default:
			h.same(at, entries[0], want)
		}
		answer, err := l.ReadRange(IndexRange{at, at}, 1<<20)
		switch {
		case may(err):
		case err != nil || len(answer.Entries) > 1 || len(answer.Entries) == 0 && whole:
			h.t.Errorf("a peer reads entry %d: %d entries, %v", at, len(answer.Entries), err)
		case len(answer.Entries) == 1:
			h.same(at, answer.Entries[0], want)
		default:
			h.t.Errorf("a peer is told that entry %d holds nothing that counts", at)
		}
		// Of a damaged log Term may still tell the term of an entry that a hidden cut made void: Raft takes no error there.
		if term, err := l.Term(at); whole && (err != nil || term != want.term) {
			h.t.Errorf("entry %d has term %d, %v, want %d", at, term, err, want.term)
		}
	}
}

func (h *walkHistory) same(at uint64, e *raftpb.Entry, want counted) {
	h.t.Helper()
	is, err := DecodePayload(e)
	if err != nil || e.GetTerm() != want.term || is.Kind != want.kind || is.ID != want.id || string(is.Data) != want.data {
		h.t.Errorf("entry %d: term %d, kind %v, record %d, %.20q, %v, want %+v", at, e.GetTerm(), is.Kind, is.ID, is.Data, err, want)
	}
}

// left is what is there after the loss was accepted: of each record one that was committed once, or none.
func (h *walkHistory) left(l *Log, way string) map[int64]string {
	h.t.Helper()
	out := map[int64]string{}
	for id := range int64(walkIDs) {
		r, err := l.Get(id, GetOptions{})
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil || !h.ever[id][string(r.Data)] {
			h.t.Errorf("%s: record %d is %.20q, %v", way, id, r.Data, err)
		}
		out[id] = string(r.Data)
	}
	return out
}

func walkSeeds() uint64 {
	if soak {
		return 20_000
	}
	return 300
}

// eachHistory runs a test on random histories in both residencies.
func eachHistory(t *testing.T, run func(h *walkHistory)) {
	residencies(t, func(t *testing.T, residency Residency) {
		cuts := 0
		for seed := range walkSeeds() {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				h := newWalkHistory(t, seed, residency)
				cuts += h.cuts
				run(h)
			})
		}
		if cuts == 0 {
			t.Error("no walkHistory has a cut")
		}
	})
}

func TestWalksOfAWholeLogAgree(t *testing.T) {
	eachHistory(t, func(h *walkHistory) {
		l, report := h.open(h.disk())
		if report.Outcome != Loaded || len(report.Damages) > 0 || report.CutBytes > 0 {
			h.t.Errorf("loaded: %+v", report)
		}
		h.holds(l, true)
		if open, err := l.Verify(h.t.Context(), 0); err != nil || len(open.Damages) > 0 {
			h.t.Errorf("check of the open log: %v, %v", open.Damages, err)
		}
		ok(h.t, l.Close(false))
		disk := h.disk()
		if folder, err := VerifyDir(h.t.Context(), disk, h.opts.Dir, nil); err != nil || len(folder.Damages) > 0 || folder.TornBytes > 0 {
			h.t.Errorf("check of the folder: %v, %d bytes torn, %v", folder.Damages, folder.TornBytes, err)
		}
		if repair, err := RepairDir(h.t.Context(), disk, h.opts.Dir, nil); err != nil || len(repair.Rewritten) > 0 || repair.NextIndex > 0 {
			h.t.Errorf("repair: %+v, %v", repair, err)
		}
	})
}

// damage flips a bit, or zeros some bytes, of a segment. Half of the time the hint is gone too.
func (h *walkHistory) damage() (*vfs.Mem, string) {
	h.t.Helper()
	disk := h.disk()
	names, err := disk.List(h.opts.Dir)
	ok(h.t, err)
	var segments []string
	gone := h.dice.IntN(2) == 0
	for _, name := range names {
		if _, is := ParseSegmentName(name); is {
			segments = append(segments, name)
		}
		if _, is := ParseHintName(name); is && gone {
			ok(h.t, disk.Remove(path.Join(h.opts.Dir, name)))
		}
	}
	name := segments[h.dice.IntN(len(segments))]
	f, err := disk.OpenWrite(path.Join(h.opts.Dir, name))
	ok(h.t, err)
	end, err := f.Size()
	ok(h.t, err)
	at := h.dice.Int64N(end)
	what := fmt.Sprintf("a bit of byte %d of %d", at, end)
	if h.dice.IntN(3) == 0 {
		n := min(end-at, 1+h.dice.Int64N(512))
		what = fmt.Sprintf("%d bytes from %d of %d", n, at, end)
		_, err = f.WriteAt(make([]byte, n), at)
	} else {
		err = flip(f, at)
	}
	ok(h.t, errors.Join(err, f.Sync(), f.Close()))
	return disk, fmt.Sprintf("%s: %s, hints gone %t", name, what, gone)
}

func TestWalksOfADamagedLogAgree(t *testing.T) {
	eachHistory(t, func(h *walkHistory) {
		given, what := h.damage()
		copied := func() *vfs.Mem { return given.CrashClone(vfs.Survival{Kind: vfs.SurviveAll}) }
		defer func() {
			if h.t.(*testing.T).Failed() {
				h.t.Log(what)
			}
		}()

		folder, err := VerifyDir(h.t.Context(), copied(), h.opts.Dir, nil)
		ok(h.t, err)
		l, _ := h.open(copied())
		h.holds(l, false)
		open, err := l.Verify(h.t.Context(), 0)
		ok(h.t, err)
		h.holds(l, false)
		if len(folder.Damages) > 0 && len(open.Damages) == 0 && !l.Damaged() {
			h.t.Errorf("the check of the folder finds %v, that of the open log none", folder.Damages)
		}
		if l.Damaged() && len(folder.Damages) == 0 {
			h.t.Errorf("the open log has damage, the check of the folder finds none")
		}
		_, err = l.AcceptLoss()
		ok(h.t, err)
		open2, err := l.Verify(h.t.Context(), 0)
		if err != nil || len(open2.Damages) > 0 {
			h.t.Errorf("after the loss was accepted: %v, %v", open2.Damages, err)
		}
		h.left(l, "accepted")
		ok(h.t, l.Close(false))

		repaired := copied()
		_, err = RepairDir(h.t.Context(), repaired, h.opts.Dir, nil)
		ok(h.t, err)
		l, _ = h.open(repaired)
		h.left(l, "repaired") // it may give up more than an accepted loss does: all that a hidden cut may have made void
		ok(h.t, l.Close(false))
	})
}
