package archiver

import (
	"cmp"
	"context"
	"math"
	"slices"

	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// loss compares a copy with an archive that may have more than the copy, because the store has lost entries and a
// person has accepted that. The entries that the store has lost stay in the archive. A record then has an older version
// in the store than in the archive, or exists again. The archive gets this version once more, under a free index, so
// that it supersedes the lost one. So readers need no rule for losses.
//
// Only the newest version of each record in the copy counts, and void entries do not. The copy is therefore read again:
// the first time, only the void entries are found.
type loss struct {
	entries int      // number of entries of the copy
	voided  []voided // in the order of the copy
	// Of each record in end.Live, the newest version in the copy up to the floor.
	states  []standing
	indexes []uint64
	// Of the other records of the copy, the index of the newest version, if that is a put at or below after.
	others map[int64]uint64
	back   []reader.Live // versions of the copy that the archive needs once more, in the order of their indexes
}

// voided says which entries are void: those among the first ones, before the given number, whose index is at least
// from.
type voided struct {
	before int
	from   uint64
}

// standing says what the newest version of a record in a copy is.
type standing uint8

const (
	copiedNothing standing = iota // the copy has no version of the record
	copiedSame                    // it is also the newest version in the archive
	copiedPut
	copiedDelete
)

// isDeleted reports whether the record end.Live[i] does not exist in the copy, although no entry above after deletes
// it.
func (l *loss) isDeleted(i int, after uint64) bool {
	return l.states[i] == copiedNothing || l.states[i] == copiedDelete && l.indexes[i] <= after
}

// compare adds one entry of the copy that is not void. The entries must be added in the order of their indexes.
func (d *difference) compare(e *format.Entry, checksum uint32) {
	l := d.loss
	if !e.Kind.IsVersion() || e.Index > d.floor {
		return
	}
	i, ok := d.find(e.ID)
	if !ok {
		if delete(l.others, e.ID); e.Kind == format.KindPut && e.Index <= d.after {
			l.others[e.ID] = e.Index
		}
		return
	}
	switch at := d.end.Live[i]; {
	case e.Kind == format.KindDelete:
		l.states[i] = copiedDelete
	case e.Index == at.Index && checksum == at.Checksum:
		l.states[i] = copiedSame
	default:
		l.states[i] = copiedPut
	}
	l.indexes[i] = e.Index
}

// compareAll reads the copy again, and finds what the archive has otherwise.
func (c *copier) compareAll(ctx context.Context, segments []format.ManifestSegment) error {
	d := c.diff
	d.loss.begin(len(d.end.Live))
	err := c.again(ctx, segments, func(e *format.Entry, frame []byte) error {
		d.compare(e, format.EntryChecksum(frame))
		return nil
	})
	if err == nil {
		d.findBack()
	}
	return err
}

// begin prepares the comparison of an archive that has the given number of records.
func (l *loss) begin(records int) {
	l.states, l.indexes, l.others = make([]standing, records), make([]uint64, records), make(map[int64]uint64)
}

// findBack finds the versions that came back, once all entries of the copy have been compared.
func (d *difference) findBack() {
	l := d.loss
	for i := range d.end.Live {
		if l.states[i] == copiedPut && l.indexes[i] <= d.after {
			l.back = append(l.back, reader.Live{ID: d.end.Live[i].ID, Index: l.indexes[i]})
		}
	}
	for id, index := range l.others {
		l.back = append(l.back, reader.Live{ID: id, Index: index})
	}
	slices.SortFunc(l.back, func(a, b reader.Live) int { return cmp.Compare(a.Index, b.Index) })
}

// again calls visit for each entry of the copy that is not void, after all has found the void ones.
func (c *copier) again(ctx context.Context, segments []format.ManifestSegment,
	visit func(e *format.Entry, frame []byte) error) error {
	voids := newVoids(c.diff.loss.voided)
	for i := range segments {
		err := c.read(ctx, &segments[i], func(e *format.Entry, frame []byte) error {
			if voids.next(e.Index) {
				return nil
			}
			return visit(e, frame)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// voids tells which entries of a copy are void.
type voids struct {
	left    []voided
	entries int // number of entries so far
}

func newVoids(of []voided) *voids {
	v := &voids{left: slices.Clone(of)}
	least := uint64(math.MaxUint64)
	for i, one := range slices.Backward(v.left) {
		least = min(least, one.from)
		v.left[i].from = least // what makes an entry void may stand anywhere behind it
	}
	return v
}

// next reports whether the next entry of the copy is void.
func (v *voids) next(index uint64) bool {
	v.entries++
	for len(v.left) > 0 && v.left[0].before < v.entries {
		v.left = v.left[1:]
	}
	return len(v.left) > 0 && v.left[0].from <= index
}

// addBack archives the versions that came back.
func (c *copier) addBack(ctx context.Context, segments []format.ManifestSegment) error {
	if c.diff.loss == nil || len(c.diff.loss.back) == 0 {
		return nil
	}
	left := c.diff.loss.back
	return c.again(ctx, segments, func(e *format.Entry, _ []byte) error {
		if len(left) == 0 || e.Index != left[0].Index {
			return nil
		}
		left = left[1:]
		put := *e
		c.diff.place(&put)
		ref, err := put.BlobRef()
		if err != nil {
			return sourceError{err}
		}
		if err := c.append(ctx, &put); err != nil {
			return err
		}
		if ref != nil {
			c.blobs = append(c.blobs, blobAt{index: put.Index, ref: *ref})
		}
		return nil
	})
}
