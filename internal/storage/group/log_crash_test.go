package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// modelEntry is an entry as it was appended.
type modelEntry struct {
	entry format.Entry
	blob  []byte // the data, if it is in a blob
}

// model records the operations on a log, and which of their effects the log must not lose.
type model struct {
	mu      sync.Mutex
	byIndex map[uint64][]modelEntry // all entries that were ever appended, by index; the last one at each index is valid
	last    uint64
	synced  uint64 // entries up to this index were synced, and not truncated since then
	applied uint64 // entries up to this index were acknowledged
	written uint64 // term of the last appended hard state
	term    uint64 // term of the last synced hard state
}

func newModel() *model { return &model{byIndex: make(map[uint64][]modelEntry)} }

// needs returns what must survive a crash at this moment. This is the term, and the entries up to the synced and
// acknowledged indexes.
func (m *model) needs() (synced, applied, term uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced, m.applied, m.term
}

// workload performs random operations on a log on a vfstest.Mem.
type workload struct {
	*logDriver
	mem    *vfstest.Mem
	model  *model
	random *rand.Rand
	ids    int64

	valid []modelEntry // the appended entries, without void ones
	other []modelEntry // entries that the last truncation made void; the first one has the index otherAt
	// otherAt is the index of the first entry in other, or 0 if these entries must not be appended again.
	otherAt uint64
}

func newWorkload(t testing.TB, seed uint64, mem *vfstest.Mem, fs vfs.FS, residency Residency) *workload {
	mem.SetCheapOverwrite(seed%2 == 1) // on half of the seeds, the log writes zeros ahead
	w := &workload{mem: mem, model: newModel(), random: rand.New(rand.NewPCG(seed, 1)), ids: 6}
	w.logDriver = newDriver(t, driverOptions(fs, residency, 4<<10))
	return w
}

func (w *workload) randomEntry() modelEntry {
	id := w.random.Int64N(w.ids)
	switch w.random.IntN(10) {
	case 0:
		return modelEntry{entry: format.Entry{Kind: format.KindDelete, ID: id}}
	case 1:
		return modelEntry{entry: format.Entry{Kind: format.KindEmpty}}
	}
	data := make([]byte, w.random.IntN(700))
	for i := range data {
		data[i] = byte(w.random.Uint32())
	}
	attributes, err := format.EncodeAttributes(map[string][]byte{"n": {byte(id)}})
	ok(w.t, err)
	return modelEntry{entry: format.Entry{Kind: format.KindPut, ID: id, Data: data, Attributes: attributes, Timestamp: 7}}
}

// appendBatch appends a batch. The argument from is the index of the batch's first entry. It is either the next index
// of the log, or a lower index that is above the applied index.
func (w *workload) appendBatch(from uint64, batch []modelEntry) error {
	for i := range batch {
		e := &batch[i].entry
		e.Index, e.Term = from+uint64(i), w.term
		if e.Kind.IsVersion() {
			w.time++
			e.CommitTime = w.time
		}
	}
	return w.appendStamped(from, batch)
}

func (w *workload) batch() []modelEntry {
	batch := make([]modelEntry, 1+w.random.IntN(4))
	for i := range batch {
		batch[i] = w.randomEntry()
	}
	return batch
}

func (w *workload) sync() error {
	if err := w.log.Sync(); err != nil {
		return err
	}
	w.model.mu.Lock()
	defer w.model.mu.Unlock()
	w.model.synced, w.model.term = w.model.last, w.model.written
	return nil
}

func (w *workload) apply() error {
	m := w.model
	if err := w.log.Apply(m.synced, nil); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applied = m.synced
	return nil
}

// step performs one random operation.
func (w *workload) step() error {
	switch w.random.IntN(14) {
	case 0, 1, 2, 3:
		return w.appendBatch(w.model.last+1, w.batch())
	case 4, 5, 6:
		return w.sync()
	case 7, 8:
		return errors.Join(w.sync(), w.apply())
	case 9:
		return w.log.Tick()
	case 10:
		return w.log.Seal()
	case 11:
		return w.putBlob()
	case 12:
		if w.model.last > w.model.applied { // a new leader may have entries that differ from those of this log
			return w.conflict(w.model.applied + 1 + w.random.Uint64N(w.model.last-w.model.applied))
		}
	case 13:
		return w.reload()
	}
	return nil
}

func (w *workload) putBlob() error {
	b, err := w.log.CreateBlob()
	if err != nil {
		return err
	}
	data := bytes.Repeat([]byte{byte(w.random.Uint32())}, 3000)
	_, err = b.Write(data)
	var ref format.BlobRef
	if err == nil {
		ref, err = b.Commit()
	}
	if err = errors.Join(err, b.Close()); err != nil {
		return err
	}
	e := modelEntry{entry: format.Entry{Kind: format.KindPut, Codec: format.CodecBlob, ID: w.random.Int64N(w.ids),
		Data: ref.Encode()}, blob: data}
	return w.appendBatch(w.model.last+1, []modelEntry{e})
}

// reload closes the log and loads it. Unsynced data still exists, because the machine has not crashed.
func (w *workload) reload() error {
	if err := w.log.Close(w.random.IntN(2) == 0); err != nil {
		return err
	}
	l, report, err := Load(context.Background(), w.opts, nil)
	if err != nil {
		return err
	}
	if report.Outcome != Loaded {
		return fmt.Errorf("outcome %d: %v", report.Outcome, report.Damages)
	}
	w.log = l
	m := w.model
	if last := w.last(); last != m.last {
		return fmt.Errorf("last index is %d after reload, not %d", last, m.last)
	}
	m.mu.Lock()
	m.synced = m.last // loading syncs the tail
	m.mu.Unlock()
	if l.AppliedIndex() < m.applied {
		return l.Apply(m.applied, nil)
	}
	return nil
}

// check checks a loaded log's content. The entries up to the indexes synced and applied must not be lost, and neither
// must the term. Every entry must be one that was appended.
func (m *model) check(l *Log, synced, applied, term uint64) error {
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if last < synced {
		return fmt.Errorf("last index is %d, synced was %d", last, synced)
	}
	hard, _, err := l.InitialState()
	if err != nil {
		return err
	}
	if hard.GetTerm() < term {
		return fmt.Errorf("term is %d, synced was %d", hard.GetTerm(), term)
	}
	if last == 0 {
		return nil
	}
	entries, err := l.Entries(1, last+1, 1<<40)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	log := make([]modelEntry, 0, len(entries))
	for i, r := range entries {
		at := uint64(i) + 1
		if r.GetIndex() != at {
			return fmt.Errorf("entry %d has index %d", at, r.GetIndex())
		}
		e, err := m.find(r, at <= synced)
		if err != nil {
			return err
		}
		log = append(log, e)
	}
	if got := l.AppliedIndex(); got > last {
		return fmt.Errorf("applied index %d is above the last one, %d", got, last)
	}
	if err := m.compare(l, log[:l.AppliedIndex()]); err != nil {
		return fmt.Errorf("as loaded: %w", err)
	}
	if err := l.Apply(max(l.AppliedIndex(), applied), nil); err != nil {
		return err
	}
	if err := m.compare(l, log[:l.AppliedIndex()]); err != nil {
		return fmt.Errorf("acknowledged: %w", err)
	}
	if err := l.Apply(last, nil); err != nil {
		return err
	}
	return m.compare(l, log)
}

// find returns the appended entry that equals r. If exact is true, only the newest entry appended with that index is
// compared. The caller sets exact for entries that were synced.
func (m *model) find(r *raftpb.Entry, exact bool) (modelEntry, error) {
	candidates := m.byIndex[r.GetIndex()]
	for i := len(candidates) - 1; i >= 0; i-- {
		want := format.RaftEntry(&candidates[i].entry)
		if want.GetTerm() == r.GetTerm() && bytes.Equal(want.Data, r.Data) && want.GetType() == r.GetType() {
			return candidates[i], nil
		}
		if exact {
			break
		}
	}
	return modelEntry{}, fmt.Errorf("entry %d of term %d was not appended like this", r.GetIndex(), r.GetTerm())
}

// compare compares the results of all reads with the applied entries.
func (m *model) compare(l *Log, applied []modelEntry) error {
	newest := make(map[int64]modelEntry)
	versions := make(map[int64][]uint64)
	for _, e := range applied {
		if e.entry.Kind.IsVersion() {
			newest[e.entry.ID] = e
			versions[e.entry.ID] = append([]uint64{e.entry.Index}, versions[e.entry.ID]...)
		}
	}
	live := 0
	for id := range int64(8) {
		want, known := newest[id]
		if err := compareRecord(l, id, want, known); err != nil {
			return err
		}
		if known && want.entry.Kind == format.KindPut {
			live++
		}
		got, err := l.Versions(id, 0, 1000)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if len(got) != len(versions[id]) {
			return fmt.Errorf("record %d has %d versions, want %d", id, len(got), len(versions[id]))
		}
		for i, r := range got {
			if r.Index != versions[id][i] {
				return fmt.Errorf("record %d: version %d is %d, want %d", id, i, r.Index, versions[id][i])
			}
		}
	}
	if got := l.Stats().Records; got != int64(live) {
		return fmt.Errorf("%d records, want %d", got, live)
	}
	return compareScan(l, newest, live)
}

func compareRecord(l *Log, id int64, want modelEntry, known bool) error {
	r, err := l.Get(id, GetOptions{})
	at, deleted, headErr := l.Head(id)
	var damage *format.DamageError
	switch {
	case errors.As(errors.Join(err, headErr), &damage):
		return damage
	case !known:
		if !errors.Is(err, ErrNotFound) || !errors.Is(headErr, ErrNotFound) {
			return fmt.Errorf("record %d: %w, %w, want not found", id, err, headErr)
		}
		return nil
	case headErr != nil || at != want.entry.Index || deleted != (want.entry.Kind == format.KindDelete):
		return fmt.Errorf("record %d: head %d, %t, %w, want %d", id, at, deleted, headErr, want.entry.Index)
	case want.entry.Kind == format.KindDelete:
		if !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("record %d: %w, want deleted", id, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("record %d: %w", id, err)
	case r.Index != want.entry.Index || r.CommitTime != want.entry.CommitTime || r.Timestamp != want.entry.Timestamp ||
		!bytes.Equal(r.Attributes, want.entry.Attributes):
		return fmt.Errorf("record %d: %+v, want %+v", id, r, want.entry)
	case r.Blob != nil:
		return compareBlob(l, r, want.blob)
	case !bytes.Equal(r.Data, want.entry.Data):
		return fmt.Errorf("record %d: wrong data", id)
	}
	return nil
}

func compareBlob(l *Log, r Record, want []byte) error {
	b, err := l.OpenBlob(*r.Blob)
	if err != nil {
		return err
	}
	got := make([]byte, r.Size)
	if _, err := b.ReadAt(got, 0); err != nil {
		return errors.Join(err, b.Close())
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("blob of record %d: wrong data", r.ID)
	}
	return b.Close()
}

func compareScan(l *Log, newest map[int64]modelEntry, live int) error {
	id, err := l.OpenScan(1 << 40)
	if err != nil {
		return err
	}
	defer l.CloseScan(id)
	seen, before := 0, uint64(0)
	for r, err := range l.Scan(context.Background(), id, 0, ^uint64(0), false) {
		if err != nil {
			return err
		}
		want := newest[r.ID]
		if r.Index != want.entry.Index || r.Index <= before || r.Blob == nil && !bytes.Equal(r.Data, want.entry.Data) {
			return fmt.Errorf("scan gave record %d with index %d behind %d, want %d", r.ID, r.Index, before, want.entry.Index)
		}
		before = r.Index
		seen++
	}
	if seen != live {
		return fmt.Errorf("scan gave %d records, want %d", seen, live)
	}
	return nil
}

// crashCheck loads and checks the state after a crash. Then it performs one more put and crashes once more, to check
// that the log can be continued.
func crashCheck(w *workload, disk *vfstest.Mem, synced, applied, term uint64) error {
	opts := w.opts
	opts.FS = disk
	l, report, err := Load(context.Background(), opts, nil)
	if errors.Is(err, errNoGroup) {
		return nil
	}
	if err != nil {
		return err
	}
	if report.Outcome == Damaged {
		return fmt.Errorf("a crash looks like damage: %v", report.Damages)
	}
	if err := w.model.check(l, synced, applied, term); err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	e := format.Entry{Kind: format.KindPut, ID: 99, Index: last + 1, Term: term + 100, CommitTime: 1 << 40,
		Data: []byte("after the crash")}
	if err := errors.Join(l.Append(nil, []*raftpb.Entry{format.RaftEntry(&e)}), l.Sync(),
		l.Apply(last+1, nil)); err != nil {
		return err
	}
	opts.FS = disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	if err := l.Close(false); err != nil {
		return err
	}
	l, report, err = Load(context.Background(), opts, nil)
	if err != nil {
		return err
	}
	if report.Outcome != Loaded {
		return fmt.Errorf("outcome %d after a second crash: %v", report.Outcome, report.Damages)
	}
	if err := l.Apply(last+1, nil); err != nil {
		return err
	}
	r, err := l.Get(99, GetOptions{})
	if err != nil || !bytes.Equal(r.Data, e.Data) {
		return fmt.Errorf("put after the crash: %w", err)
	}
	return l.Close(false)
}

var errNoGroup = errors.New("no group") // the crash happened during Create, which the workloads do not cover

func TestCrashAtEveryOperation(t *testing.T) {
	seeds, steps := uint64(3), 40
	switch {
	case soaktest.Long():
		seeds = 60
	case testing.Short():
		// Short mode is used with the race detector, which makes each crash point slow.
		seeds, steps = 1, 18
	}
	var points atomic.Int64
	t.Run("workloads", func(t *testing.T) {
		for seed := range seeds {
			for _, residency := range []Residency{Index, Resident} {
				t.Run(fmt.Sprintf("seed %d residency %d", seed, residency), func(t *testing.T) {
					t.Parallel()
					crashWorkload(t, seed, residency, steps, &points)
				})
			}
		}
	})
	t.Logf("%d crash points", points.Load())
	if points.Load() < int64(seeds)*int64(steps)*int64(len(vfstest.SurvivalKinds)) {
		t.Errorf("only %d crash points were visited", points.Load())
	}
}

func crashWorkload(t *testing.T, seed uint64, residency Residency, steps int, points *atomic.Int64) {
	mem := vfstest.NewMem()
	w := newWorkload(t, seed, mem, mem, residency)
	var mu sync.Mutex // hints are written by another goroutine
	var failed error
	var doing string
	mem.AfterOp(func(op vfstest.Op) {
		mu.Lock()
		defer mu.Unlock()
		if failed != nil {
			return
		}
		synced, applied, term := w.model.needs()
		kinds := vfstest.SurvivalKinds
		if op.Kind == vfstest.OpRename { // a rename may be a commit point, so the crash keeps some names and loses others
			kinds = append(slices.Clone(kinds), slices.Repeat([]vfstest.SurvivalKind{vfstest.SurviveRandom}, 8)...)
		}
		for i, kind := range kinds {
			s := vfstest.Survival{Kind: kind, Seed: uint64(op.Number)<<8 + uint64(i)}
			points.Add(1)
			if err := crashCheck(w, mem.CrashClone(s), synced, applied, term); err != nil {
				failed = fmt.Errorf("crash after operation %d (%s) of %s, survival %s: %w", op.Number, op, doing, s, err)
				return
			}
		}
	})
	for i := range steps {
		doing = fmt.Sprintf("step %d", i)
		if err := w.step(); err != nil {
			t.Fatalf("%s: %v", doing, err)
		}
		w.log.hints.writing.Wait() // makes the operations the same in each run
		mu.Lock()
		if failed != nil {
			t.Fatal(failed)
		}
		mu.Unlock()
	}
	mem.AfterOp(nil)
	ok(t, w.log.Close(true))
}
