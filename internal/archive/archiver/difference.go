package archiver

import (
	"cmp"
	"slices"

	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// difference finds the deletes that a group's archive has missed. It compares the archive with a copy of the group. A
// record that exists at the end of the archive, and of which the copy has no version at or below the floor, was deleted
// between the two indexes, by an entry that the copy does not have either. Its index is free in the copy, so there are
// at least as many free indexes as such records. Which of them a delete gets does not matter, because reads as of any
// of these indexes are refused: they are in a hole.
type difference struct {
	after uint64 // the archive has the group up to this index
	floor uint64 // the copy gives exact answers from this index on
	end   reader.End
	first []uint64 // for each record in end.Live, the lowest index of its versions in the copy; 0 if there is none
	seen  uint64   // the last index of the copy so far
	last  uint64   // the greater one of seen and after
	gaps  []gap    // free indexes above after and up to floor, in order; not more than needed
	free  uint64   // number of indexes in gaps
}

// gap is a range of indexes that no entry of the copy has.
type gap struct {
	first, last uint64
	commit      int64 // commit time of the version before the gap
}

func newDifference(end reader.End, after, floor uint64) *difference {
	return &difference{after: after, floor: floor, end: end, first: make([]uint64, len(end.Live)), last: after}
}

// add must be called for each entry of the copy. The argument commit is the commit time of the copy's last version
// before the entry, or 0 if there is none above after.
func (d *difference) add(e *format.Entry, commit int64) {
	if e.Kind.IsVersion() {
		if i, ok := slices.BinarySearch(d.end.Live, e.ID); ok && d.first[i] == 0 {
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
	if through <= d.last || d.free >= uint64(len(d.end.Live)) {
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

// deletes returns the missing deletes, in the order of their indexes. It must be called when all entries have been
// added. The argument commit is the commit time of the copy's last version, as for add. The result is not complete if
// ok is false, because there are fewer free indexes than missing deletes; then the copy is not one of this group's.
func (d *difference) deletes(commit int64) (missing []format.Entry, ok bool) {
	d.open(d.floor, commit)
	gaps := d.gaps
	for i, id := range d.end.Live {
		if d.first[i] != 0 && d.first[i] <= d.floor {
			continue
		}
		if len(gaps) == 0 {
			return nil, false
		}
		missing = append(missing, format.Entry{
			Kind: format.KindDelete, ID: id, Index: gaps[0].first, Term: cmp.Or(d.end.Term, 1), CommitTime: gaps[0].commit,
			Timestamp: gaps[0].commit,
		})
		if gaps[0].first++; gaps[0].first > gaps[0].last {
			gaps = gaps[1:]
		}
	}
	return missing, true
}
