package group

import (
	"errors"
	"path"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// overwritten writes the log of a follower to which three leaders write index 3. The leader of term 1 writes an entry
// that no majority has. The leader of term 2, which does not have that entry, writes another one. Then the first
// leader leads again in term 3, and sends its old entry again. As a result, one void entry has a greater term than
// the entry that replaced it, and another entry is in the log twice.
func overwritten(t *testing.T, d *logDriver) {
	t.Helper()
	ok(t, d.append(format.Entry{ID: 1, Data: payload(1, 10)}, format.Entry{ID: 2, Data: payload(2, 10)}))
	ok(t, d.log.Sync())
	ok(t, d.log.Apply(1, nil))
	first := []*raftpb.Entry{d.entry(3, format.Entry{ID: 3, Data: payload(3, 20)}),
		d.entry(4, format.Entry{ID: 4, Data: payload(4, 20)})}
	d.write(first...)
	d.term = 2
	d.write(d.entry(3, format.Entry{ID: 9, Data: payload(9, 20)}))
	d.term = 3
	d.write(first[0], d.entry(4, format.Entry{ID: 5, Data: payload(5, 20)}))
}

// write appends and syncs entries that already have an index and a term.
func (d *logDriver) write(entries ...*raftpb.Entry) {
	d.t.Helper()
	commit, vote := d.log.AppliedIndex(), uint64(1)
	ok(d.t, d.log.Append(&raftpb.HardState{Term: &d.term, Vote: &vote, Commit: &commit}, entries))
	ok(d.t, d.log.Sync())
}

// wantsOverwritten checks which records and terms are visible after entries were overwritten.
func (d *logDriver) wantsOverwritten() {
	d.t.Helper()
	for id, data := range map[int64][]byte{1: payload(1, 10), 2: payload(2, 10), 3: payload(3, 20), 5: payload(5, 20),
		4: nil, 9: nil} {
		d.wants(id, data)
	}
	for at, want := range []uint64{1, 1, 1, 3} {
		if term, err := d.log.Term(uint64(at) + 1); err != nil || term != want {
			d.t.Errorf("index %d has term %d, %v, not %d", at+1, term, err, want)
		}
	}
}

// TestAnOlderTermTruncatesANewerOne checks that an entry makes entries from a newer term void if the older term's
// leader was elected again. This is not damage.
func TestAnOlderTermTruncatesANewerOne(t *testing.T) {
	for _, seal := range []string{"never", "before", "between", "behind"} {
		mem := vfstest.NewMem()
		opts := driverOptions(mem, Index, 64<<10)
		ok(t, Create(opts, &raftpb.ConfState{Voters: []uint64{1, 2, 3}}))
		d := &logDriver{t: t, opts: opts, term: 1}
		d.load()
		ok(t, d.append(format.Entry{ID: 1, Data: payload(1, 10)}, format.Entry{ID: 2, Data: payload(2, 10)}))
		old := d.entry(3, format.Entry{ID: 3, Data: payload(3, 20)})
		if seal == "before" {
			ok(t, d.log.Seal())
		}
		d.term = 2
		d.write(d.entry(3, format.Entry{ID: 9, Data: payload(9, 20)}))
		if seal == "between" {
			ok(t, d.log.Seal())
		}
		d.term = 3
		d.write(old, d.entry(4, format.Entry{ID: 5, Data: payload(5, 20)}))
		if seal == "behind" {
			ok(t, d.log.Seal())
		}
		check := func() {
			t.Helper()
			report, err := fsck.VerifyDir(t.Context(), mem, opts.Dir, nil)
			ok(t, err)
			if len(report.Damages) > 0 {
				t.Errorf("sealed %s: %v", seal, report.Damages)
			}
			ok(t, d.log.Apply(4, nil))
			d.wantsOverwritten()
		}
		check()
		ok(t, d.log.Close(false))
		d.load()
		check()
		ok(t, sealAndClose(d.log))
	}
}

// TestCompactionKeepsAnEntryThatCameAgain checks an entry that was written twice. Its location is that of its last
// frame, even if the entry was not applied before the load. Compaction drops the first frame, which is void.
func TestCompactionKeepsAnEntryThatCameAgain(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		// The load takes the locations of the tail's entries from a hint if the segment is sealed, and from rows if it is
		// not.
		for _, seal := range []bool{false, true} {
			d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 64<<10))
			overwritten(t, d)
			ok(t, d.log.Close(seal))
			if report := d.load(); report.Outcome != Loaded || d.log.AppliedIndex() >= 3 {
				t.Fatalf("%+v, applied %d", report, d.log.AppliedIndex())
			}
			ok(t, d.log.Apply(4, nil))
			d.wantsOverwritten()
			ok(t, d.log.Seal())
			_, err := d.log.Compact(t.Context(), CompactOptions{All: true})
			ok(t, err)
			d.put(format.Entry{ID: 1, Data: payload(11, 10)}) // gives the compaction something to drop
			ok(t, d.log.Seal())
			_, err = d.log.Compact(t.Context(), CompactOptions{All: true})
			ok(t, err)
			d.wants(3, payload(3, 20))
			ok(t, sealAndClose(d.log))
			d.load()
			d.wants(3, payload(3, 20))
			ok(t, d.log.Close(false))
		}
	})
}

// TestAnEntryThatCameAgainIsGivenOnce checks that ReadRange returns one entry for each index, even if several entries
// were written with that index.
func TestAnEntryThatCameAgainIsGivenOnce(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	overwritten(t, d)
	ok(t, d.log.Apply(4, nil))
	a, err := d.log.ReadRange(IndexRange{1, 4}, 1<<20)
	ok(t, err)
	if len(a.Entries) != 4 {
		t.Errorf("%d entries: %v", len(a.Entries), a.Entries)
	}
	for i, e := range a.Entries {
		if e.GetIndex() != uint64(i)+1 {
			t.Errorf("entry %d has index %d", i+1, e.GetIndex())
		}
	}
	ok(t, d.log.Close(false))
}

// TestBadBytesThatHideAnOlderTerm checks that entries with a newer term are never read if bad bytes after them hide the
// entry of an older term that has made them void.
func TestBadBytesThatHideAnOlderTerm(t *testing.T) {
	mem := vfstest.NewMem()
	opts := driverOptions(mem, Index, 64<<10)
	ok(t, Create(opts, &raftpb.ConfState{Voters: []uint64{1, 2, 3}}))
	d := &logDriver{t: t, opts: opts, term: 1}
	d.load()
	d.put(format.Entry{ID: 1, Data: payload(1, 10)})
	first := []*raftpb.Entry{d.entry(2, format.Entry{ID: 3, Data: payload(3, 20)}),
		d.entry(3, format.Entry{ID: 4, Data: payload(4, 20)})}
	d.term = 2
	d.write(d.entry(2, format.Entry{ID: 9, Data: payload(9, 20)}))
	d.term = 3
	d.write(append(first, d.entry(4, format.Entry{ID: 5, Data: payload(5, 20)}))...)
	hit, name := d.log.state.tail.at(2).loc.Offset(), d.log.w.active.path
	ok(t, d.log.Apply(4, nil))
	d.write() // this writes only the commit
	ok(t, d.log.Tick())
	ok(t, d.log.Close(false))
	f, err := mem.OpenWrite(name)
	ok(t, err)
	_, err = f.WriteAt(make([]byte, 64), hit+8)
	ok(t, errors.Join(err, f.Close()))
	if report := d.load(); report.Outcome != Damaged || report.Damages[0].IndexFirst > 2 ||
		report.Damages[0].IndexLast < 2 {
		t.Fatalf("%s: %+v", path.Base(name), report)
	}
	var damage *format.DamageError
	if _, err := d.log.Get(9, GetOptions{}); !errors.As(err, &damage) { // the damaged entry may belong to this record
		t.Errorf("a record that was never committed: %v", err)
	}
	d.wants(4, payload(4, 20))
	if term, err := d.log.Term(3); err != nil || term != 1 {
		t.Errorf("index 3 has term %d, %v", term, err)
	}
	ok(t, d.log.Close(false))
	found, err := fsck.VerifyDir(t.Context(), mem, opts.Dir, nil)
	ok(t, err)
	if len(found.Damages) != 1 || found.Damages[0].Offset != hit || found.Damages[0].IndexFirst != 2 ||
		found.Damages[0].IndexLast != 2 {
		t.Errorf("verify: %v", found.Damages)
	}
}

// conflict makes a new leader overwrite entries that are not applied. In some cases, chosen at random, the leader
// still has the entries that the last conflict made void. It then writes these again, and overwrites entries from a
// newer term.
func (w *workload) conflict(from uint64) error {
	w.term++
	n := 0
	if w.otherAt > w.model.applied && w.random.IntN(2) == 0 {
		for n < len(w.other) && w.other[n].blob == nil && n < 3 {
			n++
		}
	}
	if n == 0 {
		return w.appendBatch(from, w.batch())
	}
	again, at := w.other[:n:n], w.otherAt
	if err := w.appendStamped(at, again); err != nil {
		return err
	}
	return w.appendBatch(at+uint64(n), w.batch())
}

// appendStamped is like appendBatch, for entries that already have an index and a term.
func (w *workload) appendStamped(from uint64, batch []modelEntry) error {
	m := w.model
	raftEntries := make([]*raftpb.Entry, len(batch))
	for i := range batch {
		raftEntries[i] = format.RaftEntry(&batch[i].entry)
	}
	m.mu.Lock()
	for _, b := range batch {
		m.byIndex[b.entry.Index] = append(m.byIndex[b.entry.Index], b)
	}
	m.synced = min(m.synced, from-1)
	m.mu.Unlock()
	vote, commit := uint64(1), w.log.AppliedIndex()
	err := w.log.Append(&raftpb.HardState{Term: &w.term, Vote: &vote, Commit: &commit}, raftEntries)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && len(batch) > 0 {
		if cut := w.valid[from-1:]; len(cut) > 0 {
			w.other, w.otherAt = slices.Clone(cut), from
		}
		w.valid = append(w.valid[:from-1], batch...)
		m.last = from + uint64(len(batch)) - 1
		m.written = w.term
	}
	return err
}

// TestABatchThatTruncatesTheLogIsWrittenToANewSegmentWhole appends a batch that makes synced entries void, and lets
// operations on the segment's file fail before or during the write. The log must continue in a new segment that begins
// with the first entry of the batch and has none of the void entries.
func TestABatchThatTruncatesTheLogIsWrittenToANewSegmentWhole(t *testing.T) {
	// The write of the batch fails halfway, and then truncating the file fails too.
	t.Run("halfway", func(t *testing.T) {
		truncatesInNewSegment(t, 20, vfstest.OpWrite, vfstest.OpTruncate)
	})
	// The old segment has no space for the batch, so it must be synced and sealed first. That sync fails.
	t.Run("before", func(t *testing.T) {
		truncatesInNewSegment(t, 64<<10, vfstest.OpSync)
	})
}

func truncatesInNewSegment(t *testing.T, size int, fail ...vfstest.OpKind) {
	residencies(t, func(t *testing.T, residency Residency) {
		mem := vfstest.NewMem()
		fs := vfstest.NewFaulty(mem)
		opts := driverOptions(fs, residency, 64<<10)
		ok(t, Create(opts, &raftpb.ConfState{Voters: []uint64{1, 2, 3}}))
		d := &logDriver{t: t, opts: opts, term: 1}
		d.load()
		ok(t, d.append(format.Entry{ID: 1, Data: payload(1, 10)}, format.Entry{ID: 2, Data: payload(2, 10)}))
		ok(t, d.log.Sync())
		ok(t, d.log.Apply(1, nil))
		d.write(d.entry(3, format.Entry{ID: 3, Data: payload(3, 20)}), d.entry(4, format.Entry{ID: 4, Data: payload(4, 20)}))
		for _, kind := range fail {
			fs.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
				return op.Kind == kind && isSegmentFile(op.Name)
			}, Count: 1, Effect: vfstest.EffectPart})
		}
		d.term = 2
		d.write(d.entry(3, format.Entry{ID: 9, Data: payload(9, size)}),
			d.entry(4, format.Entry{ID: 5, Data: payload(5, 20)}))
		if fs.Fired() != int64(len(fail)) {
			t.Fatalf("%d faults fired", fs.Fired())
		}
		d.write(d.entry(5, format.Entry{ID: 6, Data: payload(6, 20)}))
		for _, again := range []bool{false, true} {
			if again {
				ok(t, d.log.Close(false))
				d.opts.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
				if report := d.load(); report.Outcome == Damaged {
					t.Fatalf("%+v", report)
				}
			}
			ok(t, d.log.Apply(5, nil))
			for id, data := range map[int64][]byte{1: payload(1, 10), 2: payload(2, 10), 9: payload(9, size), 5: payload(5, 20),
				6: payload(6, 20), 3: nil, 4: nil} {
				d.wants(id, data)
			}
			d.log.hints.writing.Wait()
			report, err := fsck.VerifyDir(t.Context(), mem, opts.Dir, nil)
			ok(t, err)
			if len(report.Damages) > 0 {
				t.Errorf("again %v: %v", again, report.Damages)
			}
		}
		ok(t, d.log.Close(false))
	})
}
