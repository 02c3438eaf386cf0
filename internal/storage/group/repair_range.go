package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// These are the errors of RepairRange and Load.
var (
	// ErrRepairLater means that the caller has to try again when this log has applied more entries.
	ErrRepairLater = errors.New("the entries around the damage, or those that supersede them, are not applied here yet")
	// ErrRepairByInstall means that the peer has compacted away entries that may have deleted records. This log still
	// stores these records, so the caller has to install an export instead.
	ErrRepairByInstall = errors.New("the damage cannot be repaired by entries: install the group from a peer")
	// ErrTailDamaged is returned by Load if entries above the commit, or a vote, are bad in a group with several voters.
	// This replica may have acknowledged these entries as part of a quorum, but can no longer pass them to Raft. The
	// caller must install an export that ends after them, or let the replica join again.
	ErrTailDamaged = errors.New(
		"entries above the commit, or the vote, are damaged: install an export, or join again as another replica")
)

// IndexRange is the range of indexes from First to Last, both included.
type IndexRange struct{ First, Last uint64 }

// Repair lists the data that the repair of one damaged file needs.
type Repair struct {
	File string
	// Ranges holds, for a segment, the indexes of the entries that a peer's Log.ReadRange must supply. It is empty if no
	// entry was hit.
	Ranges []IndexRange
	Blob   *format.BlobRef // for a blob, the reference to it; Log.BlobWriter must receive the whole blob
}

// Repairs reads the damaged files and returns the data that the repair of each file needs. RepairRange repairs a
// segment, and BlobWriter repairs a blob. If the active segment is damaged, Repairs seals it. Repairs returns nil if
// there is no damage.
func (l *Log) Repairs(ctx context.Context) (out []Repair, err error) {
	defer l.addNames("repair", &err)
	l.compacting.Lock()
	defer l.compacting.Unlock()
	files := l.damages.files()
	if len(files) == 0 {
		return nil, l.usable()
	}
	if err := l.editor.sealDamaged(files); err != nil {
		return nil, err
	}
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	views := l.reader.views(0, math.MaxUint64)
	defer unpinAll(views)
	for _, file := range files {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		r, found, err := l.reader.repairOf(file, views)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		case found:
			out = append(out, r)
		default: // the log no longer uses the file, for example because a repair replaced it
			l.damages.forget(func(d *format.Damage) bool { return d.File == file })
		}
	}
	return out, nil
}

// sealDamaged begins a new active segment if the current one is damaged.
func (e *editor) sealDamaged(files []string) error {
	return e.w.whileOpen(func() error {
		active := e.w.active
		if !slices.Contains(files, format.SegmentName(active.number)) {
			return nil
		}
		if err := e.w.seal(); err != nil || e.w.active != active {
			return err
		}
		return e.w.replaceSegments(e.state.last+1, 0) // seal did nothing, because the segment has only a header
	})
}

// repairOf returns the Repair for a damaged file. It returns false if the file does not belong to the log.
func (r *reader) repairOf(file string, views []view) (Repair, bool, error) {
	if id, ok := format.ParseBlobName(file); ok {
		ref, found, err := r.findBlob(id, views)
		return Repair{File: file, Blob: &ref}, found, err
	}
	for _, v := range views {
		if format.SegmentName(v.number) == file {
			s, err := r.survey(v)
			if err != nil {
				return Repair{}, true, err
			}
			return Repair{File: file, Ranges: s.lost}, true, nil
		}
	}
	return Repair{}, false, nil
}

// findBlob finds the reference to a blob.
func (r *reader) findBlob(id uuid.UUID, views []view) (format.BlobRef, bool, error) {
	for _, v := range views {
		rows, err := r.rowsOf(v)
		if err != nil {
			return format.BlobRef{}, false, err
		}
		for _, b := range rows.Blobs {
			if b.Ref.ID == id {
				return b.Ref, true, nil
			}
		}
	}
	return format.BlobRef{}, false, nil
}

// RangeAnswer is the part of a requested range of entries that a peer has.
type RangeAnswer struct {
	Entries []*raftpb.Entry // the peer's entries with an index from First to Through
	// Through is the index up to which Entries is complete: every valid entry from First to Through is in Entries.
	Through uint64
	Applied uint64 // the peer's applied index when it read the entries
}

// ReadRange is the peer's side of a repair. It returns the applied entries of a range, with at most maxBytes bytes of
// data, but at least one entry. The caller has to request the rest of the range from Through + 1 on. Through is below
// First if no entry of the range is applied. ReadRange returns *DamageError if the peer's own bytes are bad.
func (l *Log) ReadRange(r IndexRange, maxBytes uint64) (RangeAnswer, error) {
	if err := l.enter(); err != nil {
		return RangeAnswer{}, err
	}
	defer l.leave()
	a := RangeAnswer{Applied: l.state.applied.Load()}
	a.Through = min(r.Last, a.Applied)
	if r.First == 0 || a.Through < r.First {
		a.Through = r.First - min(r.First, 1)
		return a, nil
	}
	views := l.reader.views(r.First, a.Through)
	defer unpinAll(views)
	for _, v := range views {
		more, err := l.reader.readRange(v, r.First, &a, &maxBytes)
		if err != nil {
			l.damages.noteOf(err)
			return RangeAnswer{}, fmt.Errorf("group %s: entries from index %d: %w", l.opts.Identity.Name, r.First, err)
		}
		if !more {
			break
		}
	}
	return a, nil
}

// readRange adds a view's entries to the answer. It returns false if no more entries fit.
func (r *reader) readRange(v view, from uint64, a *RangeAnswer, budget *uint64) (more bool, err error) {
	through := min(a.Through, v.through)
	if err := r.damages.inRange(v, from, through); err != nil {
		return false, err
	}
	more = true
	next := from
	var damage error
	err = v.frames(r.startOf(v, from), func(step *segio.FrameStep) bool {
		e := &step.Entry
		switch {
		case step.Status == segio.FrameZeros && v.active && step.Offset+step.Bytes >= v.end:
			return true // unwritten space; if frames follow these zeros, the zeros are damage
		case step.Status != segio.FrameWhole:
			damage = &format.DamageError{Damage: v.damage(r.group, step)}
			return false
		case e.Kind == format.KindState || e.Index < next || e.Index > through || !r.isValid(e):
			return true
		}
		next = e.Index + 1
		r := raftEntry(e)
		if more = take(budget, r, len(a.Entries) == 0); !more {
			a.Through = e.Index - 1
			return false
		}
		a.Entries = append(a.Entries, r)
		return e.Index < through
	})
	return more, errors.Join(damage, err)
}

// SetTombstoneLimit sets the index up to which every member of the group has applied the log. Tombstones above it are
// kept. Before the first call, all tombstones are kept. In a group with only one member, the limit has no effect.
func (l *Log) SetTombstoneLimit(through uint64) { l.state.tombstoneLimit.Store(through) }

// RepairSource is another member that supplies data for a repair.
type RepairSource interface {
	// Entries returns all entries of a range, which the source gets piece by piece from ReadRange. Through is below Last
	// if the source has not applied the whole range.
	Entries(ctx context.Context, r IndexRange) (RangeAnswer, error)
	// FetchBlob receives a blob and writes it to the log's BlobWriter. It returns ErrVersionNotFound if the source does
	// not have the blob.
	FetchBlob(ctx context.Context, ref format.BlobRef) error
}

// RepairFrom repairs a damaged file with data from another member. The argument r is a result of Repairs. It returns
// the errors of RepairRange and of the source.
func (l *Log) RepairFrom(ctx context.Context, r Repair, from RepairSource) error {
	if r.Blob != nil {
		err := from.FetchBlob(ctx, *r.Blob)
		if errors.Is(err, ErrVersionNotFound) {
			// The source no longer has the blob, because compaction has dropped it together with its entry. This log still has
			// the entry, because a log with damage is not compacted. Only an install can resolve this difference.
			err = ErrRepairByInstall
		}
		return err
	}
	var (
		entries []*raftpb.Entry
		applied uint64
	)
	for _, span := range r.Ranges {
		got, err := from.Entries(ctx, span)
		if err != nil {
			return err
		}
		if got.Through < span.Last {
			return ErrRepairLater
		}
		entries, applied = append(entries, got.Entries...), max(applied, got.Applied)
	}
	// A blob may be missing, because Load removes blobs to which no whole entry refers.
	missing, err := l.MissingBlobs(entries)
	if err != nil {
		return err
	}
	for _, ref := range missing {
		err := from.FetchBlob(ctx, ref)
		if errors.Is(err, ErrVersionNotFound) {
			err = ErrRepairLater // the source has compacted the blob away after it sent the entries
		}
		if err != nil {
			return err
		}
	}
	return l.RepairRange(ctx, r, entries, applied)
}
