package group

import (
	"errors"
	"slices"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/replay"
)

// doubtRange is the *DamageError for entries from lo to hi of a segment, where damage may hide what made them void: a
// walk that ends before the bad bytes does not see it.
func (l *Log) doubtRange(v view, lo, hi uint64) error {
	if l.damaged.Load() == 0 || !v.incomplete {
		return nil
	}
	return l.damageThat(0, func(d *format.Damage) bool {
		return d.File == format.SegmentName(v.number) && d.IndexFirst <= hi && lo <= d.IndexLast
	})
}

// damageThat is the *DamageError of the first damage that hits a record; nil: none does.
func (l *Log) damageThat(id int64, hits func(*format.Damage) bool) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if i := slices.IndexFunc(l.state.damages, hits); i >= 0 {
		return &format.DamageError{Damage: *l.state.damages[i], ID: id}
	}
	return nil
}

// addDamage remembers damage; the same place only once. The caller holds mu.
func (l *Log) addDamage(d *format.Damage) {
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
func (l *Log) noteDamage(d format.Damage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addDamage(&d)
}

// noteDamageOf is noteDamage where an error is a *DamageError.
func (l *Log) noteDamageOf(err error) {
	var damage *format.DamageError
	if errors.As(err, &damage) {
		l.noteDamage(damage.Damage)
	}
}

// forgetDamage forgets damage that was repaired.
func (l *Log) forgetDamage(repaired func(*format.Damage) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.damages = slices.DeleteFunc(l.state.damages, repaired)
	for id, d := range l.state.damagedIDs {
		if repaired(d.Damage) {
			delete(l.state.damagedIDs, id)
		}
	}
	l.damaged.Store(int32(len(l.state.damages)))
}

// addDamagedID remembers which entry of a record was hit. The caller holds mu.
func (l *Log) addDamagedID(d replay.DamagedID) {
	if old, ok := l.state.damagedIDs[d.ID]; !ok || old.Index < d.Index {
		l.state.damagedIDs[d.ID] = d
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
	d, ok := l.state.damagedIDs[id]
	l.mu.RUnlock()
	if ok && at < d.Index {
		return &format.DamageError{Damage: *d.Damage, ID: id}
	}
	return l.damageThat(id, func(d *format.Damage) bool { return d.IDsUnknown && at <= d.IndexLast }) // the same: it may be void
}

// doubtVersion is the *DamageError for a version that was not found, where damage may have hit it.
func (l *Log) doubtVersion(id int64, at uint64) error {
	return l.damageThat(id, func(d *format.Damage) bool {
		return mayHit(d, id) && (d.IndexFirst == 0 || at >= d.IndexFirst && at <= d.IndexLast)
	})
}

// doubtHistory is the *DamageError for a list of versions that damage may have left incomplete.
func (l *Log) doubtHistory(id int64) error {
	return l.damageThat(id, func(d *format.Damage) bool { return mayHit(d, id) })
}

// mayHit tells whether damage may have hit an entry of a record.
func mayHit(d *format.Damage, id int64) bool { return d.IDsUnknown || slices.Contains(d.IDs, id) }
