package group

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"sheaf.dev/sheaf/internal/storage/index"
)

// A snapshot of the past shows the group as of an index below the applied index. The versions that it sees and that
// are superseded by now are still stored if the index is at or above the history floor, which the hold keeps down
// (SetHold). So any replica that has applied the index can open such a snapshot, also after a restart.

// OpenScanAt opens a snapshot of the group as of an index, and returns its id. It reads the places of all versions
// above the index, and of older ones until it has found what they superseded, so its time grows with the number of
// records in these segments. It keeps one place in memory for each record that changed since.
//
// It returns ErrNotApplied if the index is above the applied index, ErrHistoryGone if it is below the history floor,
// and ErrPastTooFar if more records changed since than snapshots may hold in memory. It returns a *DamageError if bytes
// that were bad at the start may hold versions above the index, and it is not known of which records. The snapshot is
// like one of OpenScan, except that it also ends when the history floor rises above its index.
func (l *Log) OpenScanAt(at uint64, ttl time.Duration) (id ScanID, err error) {
	defer l.addNames(fmt.Sprintf("snapshot as of index %d", at), &err)
	if err := l.enter(); err != nil {
		return ScanID{}, err
	}
	defer l.leave()
	if applied := l.state.applied.Load(); at > applied {
		return ScanID{}, fmt.Errorf("%w: %d", ErrNotApplied, applied)
	}
	l.state.mu.Lock()
	id = l.state.openSnapshot(at, ttl, l.now(), &l.places)
	l.state.snapshots[id].past = true
	l.state.mu.Unlock()
	// A floor that rises from here on ends the snapshot, so that it is enough to look at the floor once.
	switch floor, known := l.HistoryFloor(); {
	case !known:
		err = fmt.Errorf("%w: no history is kept", ErrHistoryGone)
	case at < floor:
		err = fmt.Errorf("%w: the history floor is %d", ErrHistoryGone, floor)
	default:
		p := past{at: at, id: id, state: &l.state, places: &l.places, reader: &l.reader, damages: &l.damages, gate: &l.gate,
			now: l.now}
		err = p.learn()
	}
	if err != nil {
		l.CloseScan(id)
		return ScanID{}, err
	}
	return id, nil
}

// past finds the superseded versions that a snapshot of the past sees. It belongs to one goroutine.
type past struct {
	at      uint64
	id      ScanID
	state   *state
	places  *places
	reader  *reader
	damages *damages
	gate    *gate
	now     func() time.Time
}

// learn gives the snapshot the locations of the versions that it sees and that are superseded. Versions that are
// superseded meanwhile are added by others.
func (p *past) learn() error {
	for range readTries {
		p.places.awaitSwap()
		views, shifts, ok := p.pinned()
		if !ok {
			continue
		}
		found, err := p.find(views)
		unpinAll(views)
		if err != nil {
			return err
		}
		if done, err := p.give(found, shifts); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("segments are replaced faster than they can be read")
}

// pinned pins all segments. It returns false while locations change. The result shifts tells later whether they have
// changed since.
func (p *past) pinned() (views []view, shifts uint64, ok bool) {
	p.state.mu.RLock()
	shifts, shifting := p.state.shifts, p.state.shifting
	p.state.mu.RUnlock()
	if shifting {
		return nil, 0, false
	}
	return p.reader.views(0, math.MaxUint64), shifts, true
}

// pastFound is what a walk over the places of versions has found.
type pastFound struct {
	// changed has each record that was written above the index. Its value is the location of the record's newest version
	// at or below the index, or 0 while none was found.
	changed map[int64]index.Loc
	missing int // number of records in changed whose value is 0
}

// find walks over the segments, newest first, and stops as soon as nothing is missing.
func (p *past) find(views []view) (*pastFound, error) {
	f := &pastFound{changed: make(map[int64]index.Loc)}
	for _, id := range p.damages.idsAbove(p.at) {
		f.changed[id] = 0
		f.missing++
	}
	applied := p.state.applied.Load()
	for i := len(views) - 1; i >= 0; i-- {
		v := views[i]
		if v.through <= p.at && f.missing == 0 {
			break
		}
		if err := cmp.Or(p.gate.usable(), p.damages.unknownAbove(v, p.at)); err != nil {
			return nil, err
		}
		rows, err := p.reader.rowsOf(v)
		if err != nil {
			return nil, err
		}
		through := min(v.through, applied)
		// The versions of a record are in the order of their indexes, and those of different records in any order.
		for j := len(rows.IDs) - 1; j >= 0; j-- {
			at := v.first + uint64(rows.Indexes[j])
			if at > through {
				continue
			}
			loc, changed := f.changed[rows.IDs[j]]
			switch {
			case at > p.at && !changed:
				f.changed[rows.IDs[j]] = 0
				f.missing++
			case at <= p.at && changed && loc == 0:
				f.changed[rows.IDs[j]] = index.Loc(rows.Places[j]).In(v.ordinal)
				f.missing--
			}
		}
		if len(f.changed) > p.state.placesMax {
			return nil, p.tooFar()
		}
	}
	return f, nil
}

// give hands the locations to the snapshot, unless locations have changed since they were pinned.
func (p *past) give(found *pastFound, shifts uint64) (done bool, err error) {
	held := make(map[int64]index.Loc, len(found.changed)-found.missing)
	bytes, tooFar := int64(0), false
	for id, loc := range found.changed {
		if loc != 0 && !loc.Tombstone() {
			held[id] = loc
			bytes += loc.LengthBound()
		}
	}
	err = p.state.useSnapshot(p.id, p.now(), func(s *snapshot) {
		if done = p.state.shifts == shifts && !p.state.shifting; !done {
			return
		}
		for id, loc := range s.held { // what was superseded since the snapshot was opened
			if _, known := held[id]; !known {
				held[id] = loc
				bytes += loc.LengthBound()
			}
		}
		places := len(held) - len(s.held)
		for _, other := range p.state.snapshots {
			places += len(other.held)
		}
		if places > p.state.placesMax {
			tooFar = true
			return
		}
		s.held, s.bytes = held, bytes
		s.limit = max(s.limit, bytes+snapshotHeldMin)
	})
	if err == nil && tooFar {
		err = p.tooFar()
	}
	return done, err
}

func (p *past) tooFar() error {
	return fmt.Errorf("%w: all snapshots of a group together may hold %d", ErrPastTooFar, p.state.placesMax)
}

// endPast ends the snapshots of the past that the history floor has overtaken. The caller holds mu.
func (st *state) endPast(floor uint64) {
	for _, s := range st.snapshots {
		if s.past && s.index < floor {
			s.gone, s.held = true, nil
		}
	}
}
