package group

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
)

// damages is what is known to be bad of a log, and neither repaired nor accepted as lost. Safe for concurrent use; its
// lock is held for memory operations only, and nothing else is locked meanwhile.
type damages struct {
	logger *slog.Logger
	// count of all: readers look no further while it is 0.
	count atomic.Int32

	mu  sync.RWMutex
	all []*format.Damage
	ids map[int64]replay.DamagedID // of the newest entry that was hit, by record
}

// any tells, at no cost, whether there is damage.
func (d *damages) any() bool { return d.count.Load() > 0 }

// list gives all of it.
func (d *damages) list() []*format.Damage {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Clone(d.all)
}

// first is the *DamageError of the damage that was found first; nil: there is none.
func (d *damages) first() error { return d.that(0, func(*format.Damage) bool { return true }) }

// files gives the names of the files with damage, each once.
func (d *damages) files() []string {
	all := d.list()
	out := make([]string, len(all))
	for i, one := range all {
		out[i] = one.File
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// note remembers damage; the same place only once.
func (d *damages) note(found format.Damage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, old := range d.all {
		if old.File == found.File && old.Offset == found.Offset && (old.IDsUnknown || !found.IDsUnknown) {
			return
		}
	}
	d.logger.Error("stored bytes are bad", "damage", found.String())
	d.all = append(d.all, &found)
	d.count.Store(int32(len(d.all)))
}

// found is note, and the error of it.
func (d *damages) found(damage format.Damage, id int64) error {
	d.note(damage)
	return &format.DamageError{Damage: damage, ID: id}
}

// noteOf is note where an error is a *DamageError.
func (d *damages) noteOf(err error) {
	if damage, ok := errors.AsType[*format.DamageError](err); ok {
		d.note(damage.Damage)
	}
}

// noteID remembers which entry of a record was hit.
func (d *damages) noteID(hit replay.DamagedID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ids == nil {
		d.ids = make(map[int64]replay.DamagedID)
	}
	if old, ok := d.ids[hit.ID]; !ok || old.Index < hit.Index {
		d.ids[hit.ID] = hit
	}
}

// forget forgets damage that was repaired.
func (d *damages) forget(repaired func(*format.Damage) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = slices.DeleteFunc(d.all, repaired)
	for id, hit := range d.ids {
		if repaired(hit.Damage) {
			delete(d.ids, id)
		}
	}
	d.count.Store(int32(len(d.all)))
}

// that is the *DamageError of the first damage that hits a record; nil: none does.
func (d *damages) that(id int64, hits func(*format.Damage) bool) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if i := slices.IndexFunc(d.all, hits); i >= 0 {
		return &format.DamageError{Damage: *d.all[i], ID: id}
	}
	return nil
}

// inRange is the *DamageError for entries from lo to hi of a segment, where damage may hide what made them void: a walk
// that ends before the bad bytes does not see it.
func (d *damages) inRange(v view, lo, hi uint64) error {
	if !d.any() || !v.incomplete {
		return nil
	}
	return d.that(0, func(d *format.Damage) bool {
		return d.File == format.SegmentName(v.number) && d.IndexFirst <= hi && lo <= d.IndexLast
	})
}

// absent is the error for a record that the index does not know.
func (d *damages) absent(id int64) error {
	if d.any() {
		if err := d.newer(id, 0); err != nil {
			return err
		}
	}
	return ErrNotFound
}

// newer is the *DamageError for a record whose newest known version has an index (0: there is none), where damage may
// have hit a newer one (rule 4).
func (d *damages) newer(id int64, at uint64) error {
	d.mu.RLock()
	hit, ok := d.ids[id]
	d.mu.RUnlock()
	if ok && at < hit.Index {
		return &format.DamageError{Damage: *hit.Damage, ID: id}
	}
	return d.that(id, func(d *format.Damage) bool { return d.IDsUnknown && at <= d.IndexLast }) // the same: it may be void
}

// version is the *DamageError for a version that was not found, where damage may have hit it.
func (d *damages) version(id int64, at uint64) error {
	return d.that(id, func(d *format.Damage) bool {
		return mayHit(d, id) && (d.IndexFirst == 0 || at >= d.IndexFirst && at <= d.IndexLast)
	})
}

// history is the *DamageError for a list of versions that damage may have left incomplete.
func (d *damages) history(id int64) error {
	return d.that(id, func(d *format.Damage) bool { return mayHit(d, id) })
}

// mayHit tells whether damage may have hit an entry of a record.
func mayHit(d *format.Damage, id int64) bool { return d.IDsUnknown || slices.Contains(d.IDs, id) }
