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

// damages holds a log's known damage that has neither been repaired nor been accepted as lost. It is safe for
// concurrent use. Its lock is held only for operations in memory, and no other lock is taken while it is held.
type damages struct {
	logger *slog.Logger
	// count is the length of all. Readers look at the other fields only if it is not 0.
	count atomic.Int32

	mu  sync.RWMutex
	all []*format.Damage
	ids map[int64]replay.DamagedID // for each record, its newest damaged entry
}

// any reports whether any damage is known. It is cheap.
func (d *damages) any() bool { return d.count.Load() > 0 }

// list returns all known damage.
func (d *damages) list() []*format.Damage {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Clone(d.all)
}

// first returns a *DamageError for the damage that was found first, or nil if no damage is known.
func (d *damages) first() error { return d.that(0, func(*format.Damage) bool { return true }) }

// files returns the names of the damaged files, each once.
func (d *damages) files() []string {
	all := d.list()
	out := make([]string, len(all))
	for i, one := range all {
		out[i] = one.File
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// note records damage, unless damage to the same bytes is already recorded.
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

// found records damage to a record, and returns the error for it.
func (d *damages) found(damage format.Damage, id int64) error {
	d.note(damage)
	return &format.DamageError{Damage: damage, ID: id}
}

// noteOf records the damage that an error describes, provided that the error is a *DamageError.
func (d *damages) noteOf(err error) {
	if damage, ok := errors.AsType[*format.DamageError](err); ok {
		d.note(damage.Damage)
	}
}

// noteID records which entry of a record is damaged.
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

// forget removes damage that was repaired.
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

// that returns a *DamageError for the first known damage for which the function hits returns true. It returns nil if
// there is no such damage.
func (d *damages) that(id int64, hits func(*format.Damage) bool) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if i := slices.IndexFunc(d.all, hits); i >= 0 {
		return &format.DamageError{Damage: *d.all[i], ID: id}
	}
	return nil
}

// inRange returns a *DamageError if bad bytes in the segment of v may hold a later entry that replaced entries with
// indexes from lo to hi, as entries of a new leader do. A scan that stops before the bad bytes does not find it.
func (d *damages) inRange(v view, lo, hi uint64) error {
	if !d.any() || !v.incomplete {
		return nil
	}
	return d.that(0, func(d *format.Damage) bool {
		return d.File == format.SegmentName(v.number) && d.IndexFirst <= hi && lo <= d.IndexLast
	})
}

// idsAbove returns the records that have a damaged version above an index. The versions before these may look like the
// newest ones, or like versions that nothing sees.
func (d *damages) idsAbove(at uint64) (ids []int64) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for id, hit := range d.ids {
		if hit.Index > at {
			ids = append(ids, id)
		}
	}
	return ids
}

// unknownAbove returns a *DamageError if the segment of v may have lost versions above an index, and it is not known of
// which records.
func (d *damages) unknownAbove(v view, at uint64) error {
	if !d.any() || !v.incomplete {
		return nil
	}
	return d.that(0, func(d *format.Damage) bool {
		return d.File == format.SegmentName(v.number) && d.IDsUnknown && at < d.IndexLast
	})
}

// absent returns the error for a record that is not in the index. It returns a *DamageError if damage may have hit the
// record, and ErrNotFound otherwise.
func (d *damages) absent(id int64) error {
	if d.any() {
		if err := d.newer(id, 0); err != nil {
			return err
		}
	}
	return ErrNotFound
}

// newer returns a *DamageError if damage may have destroyed a version of the record that is newer than the newest
// known one (rule 4). The argument at is the index of the newest known version, or 0 if none is known.
func (d *damages) newer(id int64, at uint64) error {
	d.mu.RLock()
	hit, ok := d.ids[id]
	d.mu.RUnlock()
	if ok && at < hit.Index {
		return &format.DamageError{Damage: *hit.Damage, ID: id}
	}
	// A damaged entry with an index up to IndexLast may also have replaced this version.
	return d.that(id, func(d *format.Damage) bool { return d.IDsUnknown && at <= d.IndexLast })
}

// version returns a *DamageError if damage may have hit a version that was not found. Otherwise it returns nil.
func (d *damages) version(id int64, at uint64) error {
	return d.that(id, func(d *format.Damage) bool {
		return mayHit(d, id) && (d.IndexFirst == 0 || at >= d.IndexFirst && at <= d.IndexLast)
	})
}

// history returns a *DamageError if damage may have removed some of a record's versions, and nil otherwise.
func (d *damages) history(id int64) error {
	return d.that(id, func(d *format.Damage) bool { return mayHit(d, id) })
}

// mayHit reports whether damage may have hit one of a record's entries.
func mayHit(d *format.Damage, id int64) bool { return d.IDsUnknown || slices.Contains(d.IDs, id) }
