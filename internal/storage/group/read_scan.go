package group

import (
	"errors"
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/storage/index"
)

// GetInScan reads the version of a record that a snapshot contains, in the way in which Get reads the newest version.
// It returns ErrNotFound if the record did not exist at the snapshot's index, and ErrCursorExpired if the snapshot is
// gone. It ignores opts.Index. If a damaged entry may be a newer version of the record, GetInScan returns *DamageError,
// even if that entry may be above the snapshot's index.
func (l *Log) GetInScan(scan ScanID, id int64, opts GetOptions) (Record, error) {
	if err := l.enter(); err != nil {
		return Record{}, err
	}
	defer l.leave()
	opts.Index = 0
	for range readTries {
		at, err := l.state.inScan(scan, id, l.now())
		if err != nil {
			return Record{}, err
		}
		var r Record
		if at.held == 0 {
			r, err = l.records.notHeld(id, &opts)
		} else {
			s := l.places.pinAt(at.held)
			// Ordinals are reused, so the segment is the right one only if the location still counts after it was pinned.
			if now, _ := l.state.inScan(scan, id, l.now()); s == nil || now != at {
				if s != nil {
					s.unpin()
				}
				continue
			}
			r, err = l.records.read(s, at.held, id, &opts)
			s.unpin()
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return Record{}, err
		}
		// The newest version counts only if it was not superseded meanwhile.
		now, expired := l.state.inScan(scan, id, l.now())
		switch {
		case expired != nil:
			return Record{}, expired
		case now != at && at.held == 0:
			continue
		case err != nil || r.Deleted || r.Index > at.index:
			return Record{}, l.damages.absent(id)
		case l.damages.any():
			return r, l.damages.newer(id, r.Index)
		}
		return r, nil
	}
	return Record{}, fmt.Errorf("group %s: record %d moves faster than it can be read", l.opts.Identity.Name, id)
}

// scanPlace says where a snapshot has a record.
type scanPlace struct {
	index uint64    // index of the snapshot
	held  index.Loc // location of the record's version in the snapshot, or 0 if it is the newest one or does not exist
}

// inScan returns where a snapshot has a record, or ErrCursorExpired if the snapshot is gone.
func (st *state) inScan(scan ScanID, id int64, now time.Time) (at scanPlace, err error) {
	err = st.useSnapshot(scan, now, func(s *snapshot) { at = scanPlace{s.index, s.held[id]} })
	return at, err
}

// notHeld reads the newest version of a record that no snapshot holds. It reads no delete.
func (r *records) notHeld(id int64, opts *GetOptions) (Record, error) {
	s, loc, err := r.pin(id)
	if err != nil {
		return Record{}, err
	}
	defer s.unpin()
	if loc.Tombstone() {
		return Record{Deleted: true}, nil
	}
	return r.read(s, loc, id, opts)
}
