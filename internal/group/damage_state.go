package group

import (
	"errors"
	"slices"
)

// damagedID is a record whose entry with an index was hit.
type damagedID struct {
	id     int64
	index  uint64
	damage *Damage
}

// mayVoid tells whether damage may hide what made an entry void whose frame stands in a file at an offset.
func (d *Damage) mayVoid(file string, offset int64, at uint64) bool {
	return d.IDsUnknown && d.File == file && offset < d.Offset && d.IndexFirst <= at && at <= d.IndexLast
}

// doubtRange is the *DamageError for entries from lo to hi of a segment, where damage may hide what made them void: a walk that ends
// before the bad bytes does not see it.
func (l *Log) doubtRange(v view, lo, hi uint64) error {
	if l.damaged.Load() == 0 || !v.incomplete {
		return nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, d := range l.state.damages {
		if d.File == SegmentName(v.number) && d.IndexFirst <= hi && lo <= d.IndexLast {
			return &DamageError{Damage: *d}
		}
	}
	return nil
}

// addDamage remembers damage; the same place only once. The caller holds mu.
func (l *Log) addDamage(d *Damage) {
	for _, old := range l.state.damages {
		if old.File == d.File && old.Offset == d.Offset && (old.IDsUnknown || !d.IDsUnknown) {
			return
		}
	}
	l.logger.Error("stored bytes are bad", "damage", d.String())
	l.state.damages = append(l.state.damages, d)
	l.damaged.Store(int32(len(l.state.damages)))
}

// noteDamage remembers damage that a read has found.
func (l *Log) noteDamage(d Damage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addDamage(&d)
}

// noteDamageOf is noteDamage where an error is a *DamageError.
func (l *Log) noteDamageOf(err error) {
	var damage *DamageError
	if errors.As(err, &damage) {
		l.noteDamage(damage.Damage)
	}
}

// forgetDamage forgets damage that was repaired.
func (l *Log) forgetDamage(repaired func(*Damage) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.damages = slices.DeleteFunc(l.state.damages, repaired)
	for id, d := range l.state.damagedIDs {
		if repaired(d.damage) {
			delete(l.state.damagedIDs, id)
		}
	}
	l.damaged.Store(int32(len(l.state.damages)))
}

// addDamagedID remembers which entry of a record was hit. The caller holds mu.
func (l *Log) addDamagedID(d damagedID) {
	if old, ok := l.state.damagedIDs[d.id]; !ok || old.index < d.index {
		l.state.damagedIDs[d.id] = d
	}
}

// absent is the error for a record that the index does not know.
func (l *Log) absent(id int64) error {
	if l.damaged.Load() > 0 {
		if err := l.doubt(id, 0); err != nil {
			return err
		}
	}
	return ErrNotFound
}

// doubt is the *DamageError for a record whose newest known version has an index (0: there is none), where damage may
// have hit a newer one (rule 4).
func (l *Log) doubt(id int64, at uint64) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if d, ok := l.state.damagedIDs[id]; ok && at < d.index {
		return &DamageError{Damage: *d.damage, ID: id}
	}
	for _, d := range l.state.damages {
		if d.IDsUnknown && at <= d.IndexLast { // the same: it may be void
			return &DamageError{Damage: *d, ID: id}
		}
	}
	return nil
}

// doubtVersion is the *DamageError for a version that was not found, where damage may have hit it.
func (l *Log) doubtVersion(id int64, at uint64) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, d := range l.state.damages {
		if !d.IDsUnknown && !contains(d.IDs, id) {
			continue
		}
		if d.IndexFirst == 0 || at >= d.IndexFirst && at <= d.IndexLast {
			return &DamageError{Damage: *d, ID: id}
		}
	}
	return nil
}

// doubtHistory is the *DamageError for a list of versions that damage may have left incomplete.
func (l *Log) doubtHistory(id int64) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, d := range l.state.damages {
		if d.IDsUnknown || contains(d.IDs, id) {
			return &DamageError{Damage: *d, ID: id}
		}
	}
	return nil
}

func contains(ids []int64, id int64) bool {
	for _, other := range ids {
		if other == id {
			return true
		}
	}
	return false
}
