package archiver

import (
	"cmp"
	"iter"
	"slices"

	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// difference finds what a group's archive has missed. It compares the archive with a copy of the group.
//
// A record that exists at the end of the archive, and of which the copy has no version at or below the floor, was
// deleted between the two indexes, by an entry that the copy does not have either. Its index is free in the copy, so
// there are at least as many free indexes as such records. Which of them a delete gets does not matter, because reads
// as of any of these indexes are refused: they are in a hole.
//
// After an accepted loss, the copy may also have less than the archive (loss). The log then jumps, so there are more
// than enough free indexes.
type difference struct {
	after uint64 // the archive has the group up to this index
	floor uint64 // the copy gives exact answers from this index on
	end   reader.End
	first []uint64 // for each record in end.Live, the lowest index of its versions in the copy; 0 if there is none
	seen  uint64   // the last index of the copy so far
	last  uint64   // the greater one of seen and after
	gaps  []gap    // free indexes above after and up to floor, in order; not more than needed
	free  uint64   // number of indexes in gaps
	loss  *loss    // nil if no loss was accepted above after
}

// gap is a range of indexes that no entry of the copy has.
type gap struct {
	first, last uint64
	commit      int64 // commit time of the version before the gap
}

func newDifference(end reader.End, after, floor uint64, isLoss bool) *difference {
	d := &difference{after: after, floor: floor, end: end, first: make([]uint64, len(end.Live)), last: after}
	if isLoss {
		d.loss = &loss{}
	}
	return d
}

// find returns the place of a record in end.Live.
func (d *difference) find(id int64) (int, bool) {
	return slices.BinarySearchFunc(d.end.Live, id, func(l reader.Live, id int64) int { return cmp.Compare(l.ID, id) })
}

// add must be called for each entry of the copy. The argument commit is the commit time of the copy's last version
// before the entry, or 0 if there is none above after.
func (d *difference) add(e *format.Entry, commit int64) {
	if d.loss != nil {
		d.loss.entries++
	}
	if e.Kind.IsVersion() {
		if i, ok := d.find(e.ID); ok && d.first[i] == 0 {
			d.first[i] = e.Index
		}
	}
	d.seen = e.Index
	if e.Index > d.last {
		d.open(e.Index-1, commit)
		d.last = e.Index
	}
}

// open adds the gap between the last entry and an index.
func (d *difference) open(through uint64, commit int64) {
	through = min(through, d.floor)
	if through <= d.last || d.loss == nil && d.free >= uint64(len(d.end.Live)) {
		return
	}
	d.gaps = append(d.gaps, gap{first: d.last + 1, last: through, commit: max(commit, d.end.CommitTime)})
	d.free += through - d.last
}

// truncate discards what the difference has learned from entries at the index from and above. The caller must call it
// when the leader has replaced these entries.
func (d *difference) truncate(from uint64) {
	if from > d.seen {
		return
	}
	if d.loss != nil {
		d.loss.voided = append(d.loss.voided, voided{before: d.loss.entries, from: from})
	}
	for n := len(d.gaps); n > 0 && d.gaps[n-1].last >= from; n = len(d.gaps) {
		last := &d.gaps[n-1]
		d.free -= last.last - max(last.first, from) + 1
		if last.last = from - 1; last.last < last.first {
			d.gaps = d.gaps[:n-1]
		}
	}
	for i, at := range d.first {
		if at >= from {
			d.first[i] = 0
		}
	}
	d.seen = from - min(from, 1)
	d.last = max(d.after, d.seen)
}

// close ends the comparison. It must be called once, when all entries have been added and, after a loss, compared, and
// before deletes. The argument commit is the commit time of the copy's last version, as for add. The result last is the
// index of the last entry that is missing in the archive, or 0 if there is none. The result ok is false if there are
// fewer free indexes than missing entries; then the copy is not one of this group's.
func (d *difference) close(commit int64) (last uint64, ok bool) {
	d.open(d.floor, commit)
	missing := uint64(0)
	for i := range d.end.Live {
		if d.isMissing(i) {
			missing++
		}
	}
	if d.loss != nil {
		missing += uint64(len(d.loss.back))
	}
	if missing > d.free {
		return 0, false
	}
	for _, g := range d.gaps {
		if missing == 0 {
			break
		}
		n := min(missing, g.last-g.first+1)
		last, missing = g.first+n-1, missing-n
	}
	return last, true
}

// isMissing reports whether the delete of the record end.Live[i] is missing.
func (d *difference) isMissing(i int) bool {
	if d.loss != nil {
		return d.loss.isDeleted(i, d.after)
	}
	return d.first[i] == 0 || d.first[i] > d.floor
}

// deletes yields the missing deletes, in the order of their indexes. There may be as many as the archive has records,
// so they are never in memory all at once. It must be called only if the result ok of close was true.
func (d *difference) deletes() iter.Seq[*format.Entry] {
	return func(yield func(*format.Entry) bool) {
		for i := range d.end.Live {
			if !d.isMissing(i) {
				continue
			}
			e := format.Entry{Kind: format.KindDelete, ID: d.end.Live[i].ID}
			d.place(&e)
			e.Timestamp = e.CommitTime
			if !yield(&e) {
				return
			}
		}
	}
}

// place gives a missing entry the next free index, and the term and the commit time that fit there. It has no request
// id.
func (d *difference) place(e *format.Entry) {
	g := &d.gaps[0]
	e.Index, e.Term, e.CommitTime, e.RequestID = g.first, cmp.Or(d.end.Term, 1), g.commit, [16]byte{}
	if g.first++; g.first > g.last {
		d.gaps = d.gaps[1:]
	}
}
