package sim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Any copy may be read as of an index that it has applied. What it returns must equal the ledger as of that index. It
// may refuse the read because its history floor is above the index, unless it has promised to keep the history.

// asOf returns the records as of an index, by id. It returns false if no replica has reported all entries up to there
// yet. The caller holds no lock.
func (l *ledger) asOf(at uint64) (records map[int64]ledgerEntry, complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	records = map[int64]ledgerEntry{}
	for i := uint64(1); i <= at; i++ {
		f, known := l.entries[i]
		if !known {
			return nil, false
		}
		switch f.kind {
		case format.KindPut:
			records[f.id] = f
		case format.KindDelete:
			delete(records, f.id)
		}
	}
	return records, true
}

// runPastReads reads copies as of indexes in the past: those of open views, and others.
func (w *world) runPastReads() {
	r := rand.New(rand.NewPCG(w.seed, 93))
	for w.sleep(between(r, 20*time.Millisecond, 200*time.Millisecond)) {
		all := w.processes()
		if len(all) == 0 || w.isStopping() {
			continue
		}
		p := all[r.IntN(len(all))]
		w.checkFloor(p)
		if v := w.anyView(r); v != nil && r.IntN(4) > 0 {
			w.readView(p, v, p.keeper.scans, r)
		} else {
			w.readAnyIndex(p, r)
		}
	}
}

// anyView returns an open view, or nil if there is none.
func (w *world) anyView(r *rand.Rand) *openView {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*openView
	for _, v := range w.etcd.views { // in a fixed order
		if open := w.open[v.ID]; open != nil {
			all = append(all, open)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[r.IntN(len(all))]
}

// compareViews reads each open view at each copy.
func (w *world) compareViews() {
	r := rand.New(rand.NewPCG(w.seed, 92))
	w.mu.Lock()
	views := slices.Clone(w.etcd.views)
	w.mu.Unlock()
	for _, p := range w.processes() {
		for _, v := range views {
			w.mu.Lock()
			open := w.open[v.ID]
			w.mu.Unlock()
			if open != nil {
				w.readView(p, open, map[uuid.UUID]group.ScanID{}, r)
				w.fire("view read when all faults are over")
			}
		}
		w.checkFloor(p)
	}
}

// mustKeep reports whether a process's copy has promised to keep the history of a view that is still open.
func (w *world) mustKeep(p *process, v *openView) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	lineage, promised := v.promised[p.machine.number]
	return promised && lineage == p.machine.lineage && !p.dead && w.open[v.id] == v
}

// readView reads a view at a process, as a shard does: it uses the snapshot in scans, or opens one. Afterwards, the
// snapshot sometimes remains open.
func (w *world) readView(p *process, v *openView, scans map[uuid.UUID]group.ScanID, r *rand.Rand) {
	must := w.mustKeep(p, v)
	applied := p.log.AppliedIndex()
	scan, open := scans[v.id]
	var err error
	for range 3 { // a snapshot of before may have expired
		if !open {
			if scan, err = p.log.OpenScanAt(v.index, time.Hour); err != nil {
				break
			}
		}
		if err = w.readSnapshot(p, scan, v.index, r); !errors.Is(err, group.ErrCursorExpired) {
			break
		}
		w.fire("snapshot of the past expired")
		open = false
	}
	delete(scans, v.id)
	if err == nil && r.IntN(3) > 0 {
		scans[v.id] = scan
	} else {
		p.log.CloseScan(scan)
	}
	must = must && w.mustKeep(p, v)
	switch {
	case err == nil && must:
		w.fire("view read from a copy that has promised to keep it")
	case err == nil:
		w.fire("view read from another copy")
	case errors.Is(err, group.ErrNotApplied) && applied < v.index:
		w.fire("view refused: not applied yet")
	case errors.Is(err, group.ErrNotApplied):
		w.judgePast(p, "view %v as of index %d, of applied %d: %v", v.id, v.index, applied, err)
	case errors.Is(err, group.ErrHistoryGone) && must:
		w.violate(oracleHeld, "%v has promised to keep the history of view %v from index %d on: %v", p.machine, v.id, v.index,
			err)
	case errors.Is(err, group.ErrHistoryGone):
		w.fire("view refused: history gone")
	default:
		w.judgeRefusal(p, err)
	}
}

// readAnyIndex reads a process's copy as of any index, whether or not it has the history.
func (w *world) readAnyIndex(p *process, r *rand.Rand) {
	applied := p.log.AppliedIndex()
	at := r.Uint64N(applied + 3)
	if floor, known := p.log.HistoryFloor(); known && floor <= applied && r.IntN(3) > 0 {
		at = floor + r.Uint64N(applied-floor+1)
	}
	scan, err := p.log.OpenScanAt(at, time.Hour)
	if err == nil {
		err = w.readSnapshot(p, scan, at, r)
		p.log.CloseScan(scan)
	}
	floor, known := p.log.HistoryFloor()
	switch {
	case err == nil:
		w.fire("past read")
	case errors.Is(err, group.ErrNotApplied) && at > applied:
		w.fire("past refused: not applied yet")
	case errors.Is(err, group.ErrHistoryGone) && (!known || at < floor):
		w.fire("past refused: history gone")
	case errors.Is(err, group.ErrCursorExpired) && (!known || at < floor):
		w.fire("past refused: history gone while it was read")
	case errors.Is(err, group.ErrHistoryGone), errors.Is(err, group.ErrNotApplied):
		w.judgePast(p, "as of index %d, of applied %d and floor %d (%v): %v", at, applied, floor, known, err)
	default:
		w.judgeRefusal(p, err)
	}
}

// judgePast reports a violation by a process that is alive.
func (w *world) judgePast(p *process, format string, args ...any) {
	if !w.isDead(p) && !p.disk.Crashed() {
		w.violate(oraclePast, "%v: %s", p.machine, fmt.Sprintf(format, args...))
	}
}

// judgeRefusal checks an error that is not about history.
func (w *world) judgeRefusal(p *process, err error) {
	var damage *format.DamageError
	switch {
	case errors.As(err, &damage) && w.mayHaveRot(p.machine):
		w.noteFound(p.machine, "by a read", damage.Damage.File)
		w.fire("past refused: damaged")
	case errors.Is(err, format.ErrClosed), errors.Is(err, group.ErrCursorExpired), p.disk.Crashed(), p.writesFailed.Load():
		w.trace("%v: read of the past: %v", p.machine, err)
	default:
		w.judgePast(p, "read of the past: %v", err)
	}
}

// readSnapshot compares a snapshot of the past with the ledger, in a scan and in gets of some records.
func (w *world) readSnapshot(p *process, scan group.ScanID, at uint64, r *rand.Rand) error {
	want, complete := w.ledger.asOf(at)
	if !complete {
		return nil
	}
	seen := map[int64]bool{}
	for record, err := range p.log.Scan(w.ctx, scan, 0, math.MaxUint64, false) {
		if err != nil {
			return err
		}
		if seen[record.ID] {
			w.judgePast(p, "record %d comes twice in a scan as of index %d", record.ID, at)
		}
		seen[record.ID] = true
		if err := w.checkPast(p, &record, want, at); err != nil {
			return err
		}
		if r.IntN(20) == 0 && !w.sleep(time.Duration(r.Int64N(int64(20*time.Millisecond)))) {
			return format.ErrClosed
		}
	}
	for id, f := range want {
		if !seen[id] {
			w.judgePast(p, "record %d is missing in a scan as of index %d: %+v", id, at, f)
		}
	}
	ids := []int64{r.Int64N(w.cfg.keys), churnIDs + r.Int64N(8), churnIDs + r.Int64N(8), reuseIDs + r.Int64N(4)}
	for _, id := range ids {
		record, err := p.log.GetInScan(scan, id, group.GetOptions{})
		switch f, there := want[id]; {
		case errors.Is(err, group.ErrNotFound) && there:
			w.judgePast(p, "record %d cannot be read as of index %d: %+v", id, at, f)
		case errors.Is(err, group.ErrNotFound):
		case err != nil:
			return err
		default:
			if err := w.checkPast(p, &record, want, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPast compares a record that was read as of an index with the ledger.
func (w *world) checkPast(p *process, record *group.Record, want map[int64]ledgerEntry, at uint64) error {
	f, there := want[record.ID]
	data := record.Data
	if record.Blob != nil {
		data = record.Blob.Encode()
	}
	if !there || f.index != record.Index || f.data != hash(data) {
		w.judgePast(p, "record %d as of index %d is version %d, of %d bytes: there was %+v (%v)", record.ID, at, record.Index,
			len(data), f, there)
	}
	if record.Blob == nil {
		return nil
	}
	content, err := p.readBlob(*record.Blob)
	if err == nil && !w.ledger.isBlob(*record.Blob, content) {
		w.judgePast(p, "version %d of record %d: blob %v is not what was put", record.Index, record.ID, record.Blob)
	}
	return err
}

// checkFloor checks that the history floor of a copy which holds for the archiver is not above what is archived.
func (w *world) checkFloor(p *process) {
	w.mu.Lock()
	a, number, lineage := w.archive, p.machine.number, p.machine.lineage
	w.mu.Unlock()
	if a == nil {
		return
	}
	floor, known := p.log.HistoryFloor()
	w.mu.Lock()
	defer w.mu.Unlock()
	promise, promised := a.promised[number]
	if !promised || promise.lineage != lineage || p.machine.lineage != lineage || p.dead || w.archive != a {
		return
	}
	w.fired["floor of a copy that holds for the archiver checked"]++
	if !known || floor > max(promise.floor, a.position) {
		w.recordViolation(oracleHeld, fmt.Sprintf("%v holds for the archiver, which has read up to index %d: the floor is "+
			"%d (%v), and was %d", p.machine, a.position, floor, known, promise.floor))
	}
}

// promisesOf returns the views, and whether the archiver, that a process's copy keeps history for. The caller holds
// world.mu.
func (w *world) promisesOf(p *process) (kept []*openView, archive *archive) {
	number, lineage := p.machine.number, p.machine.lineage
	for _, v := range w.open {
		if at, promised := v.promised[number]; promised && at == lineage {
			kept = append(kept, v)
		}
	}
	if a := w.archive; a != nil {
		if promise, promised := a.promised[number]; promised && promise.lineage == lineage {
			archive = a
		}
	}
	return kept, archive
}

// inherit records that a copy which was installed keeps the history that its source has kept.
func (m *machine) inherit(source *process, kept []*openView, a *archive) {
	w := m.world
	w.mu.Lock()
	defer w.mu.Unlock()
	m.lineage++
	m.installed = m.disk
	still, archived := w.promisesOf(source)
	for _, v := range kept {
		if slices.Contains(still, v) {
			v.promised[m.number] = m.lineage
			w.fired["view kept by an installed copy"]++
		}
	}
	if a != nil && archived == a && w.archive == a {
		a.promised[m.number] = promise{m.lineage, a.promised[source.machine.number].floor}
		w.fired["history for the archiver kept by an installed copy"]++
	}
}
