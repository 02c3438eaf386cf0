package group

import (
	"math"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// history holds facts about the versions of records that a compaction needs in addition to the used flags. It covers
// only records with tombstones and, if more than one version is kept, records with superseded versions.
type history struct {
	// recent holds the superseded versions that are among the newest Retention.Versions versions of their record.
	recent map[index.Loc]struct{}
	// tombstones holds, by record id, each delete that is its record's newest version and has no older version stored.
	tombstones map[int64]row
	// floor is the index up to which tombstones may be dropped. If a delete at or below floor is its record's newest
	// version, no older version of the record is stored.
	floor uint64
	// tombstoneBytes holds, for each segment's ordinal, the size of the segment's tombstones that can be dropped.
	tombstoneBytes bytesByOrdinal
	// blocked is the total size of the deletes that are their record's newest version but still have an older version
	// stored. blockedThrough is the greatest index of these deletes.
	blocked        int64
	blockedThrough uint64
}

// row is a version, as described by the rows of a segment.
type row struct {
	id    int64
	index uint64
	loc   index.Loc
}

// mayGo reports whether a delete is its record's newest version, is at or below the floor, and has no older version
// stored.
func (h *history) mayGo(e *format.Entry) bool {
	r, ok := h.tombstones[e.ID]
	return ok && r.index == e.Index && r.index <= h.floor
}

// learnHistory reads the rows of the given segments, which must be all segments that are sealed and applied. Puts and
// deletes that run at the same time cannot make the result wrong, because all they do is supersede more versions. See
// held.keeps for how c.held takes them into account.
func (c *compaction) learnHistory(views []view) (*history, error) {
	h := &history{tombstones: map[int64]row{}, tombstoneBytes: bytesByOrdinal{}}
	versions := max(1, c.retention.Versions)
	ranks := map[int64]int{} // for each record, the number of newer versions seen so far
	for _, v := range views {
		err := c.eachRow(v, func(r row) {
			newest, _ := c.places.table.Get(r.id)
			switch {
			case newest == r.loc:
				if r.loc.Tombstone() {
					h.tombstones[r.id] = r
				}
				return
			case versions > 1:
				ranks[r.id] = 0
			}
			if c.held.isOlder(r.index, newest) {
				c.held.newest[r.id] = 0
			}
		})
		if err != nil {
			return nil, err
		}
		h.floor = max(h.floor, v.through)
	}
	h.floor = min(h.floor, c.tombstoneMax())
	if len(ranks) == 0 && len(h.tombstones) == 0 && c.held.isEmpty() {
		return h, nil
	}
	h.recent = make(map[index.Loc]struct{})
	all := c.reader.views(0, math.MaxUint64)
	defer unpinAll(all)
	for i := len(all) - 1; i >= 0; i-- {
		if len(ranks) == 0 && len(h.tombstones) == 0 && c.held.isKnown(all[i]) {
			break
		}
		err := c.eachRow(all[i], func(r row) {
			recent := false
			if rank, ok := ranks[r.id]; ok {
				if recent = rank < versions; recent {
					h.recent[r.loc] = struct{}{}
				}
				ranks[r.id]++
			}
			if c.held.note(r) && !recent {
				newest, _ := c.places.table.Get(r.id)
				if _, scanned := c.scanned[r.loc]; newest != r.loc && !scanned {
					c.held.count(r)
				}
			}
			if tombstone, ok := h.tombstones[r.id]; ok && r.index < tombstone.index {
				h.floor = min(h.floor, tombstone.index-1)
				h.blocked += tombstone.loc.LengthBound()
				h.blockedThrough = max(h.blockedThrough, tombstone.index)
				delete(h.tombstones, r.id)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

// tombstoneMax returns the greatest tombstone floor that the members and the hold allow. The hold limits the floor,
// because a reader that has read the log up to the hold may have seen an older version of a record. Such a reader must
// still learn that the record was deleted.
func (c *compaction) tombstoneMax() uint64 {
	c.state.mu.RLock()
	defer c.state.mu.RUnlock()
	if c.opts.SpaceLow && c.opts.IgnoreHold {
		return c.state.tombstoneMax()
	}
	return min(c.state.tombstoneMax(), c.holdThrough)
}

// countTombstones adds up the sizes of the tombstones that can be dropped. The floor must be durable before it is
// called.
func (h *history) countTombstones() {
	for _, r := range h.tombstones {
		if r.index <= h.floor {
			h.tombstoneBytes[r.loc.Ordinal()] += r.loc.LengthBound()
		}
	}
}

// waitingTombstones returns the size of the tombstones that are kept, and their greatest index. Some may be kept
// because a repeated request may refer to them.
func (h *history) waitingTombstones(forgotten uint64) (bytes int64, through uint64) {
	for _, r := range h.tombstones {
		if r.index > min(h.floor, forgotten) {
			bytes += r.loc.LengthBound()
			through = max(through, r.index)
		}
	}
	return bytes, through
}

// eachRow calls fn for each version in a segment that is applied and not void. For each record, it visits the newest
// version first.
func (c *compaction) eachRow(v view, fn func(row)) error {
	if err := c.stopped(); err != nil {
		return err
	}
	rows, err := c.reader.rowsOf(v)
	if err != nil {
		return err
	}
	through := min(v.through, c.applied)
	for i := len(rows.IDs) - 1; i >= 0; i-- {
		if at := v.first + uint64(rows.Indexes[i]); at <= through {
			fn(row{rows.IDs[i], at, index.Loc(rows.Places[i]).In(v.ordinal)})
		}
	}
	return nil
}

// validOffsets returns a function that reports whether the frame at an offset is a version that is not void. The
// function uses a bitmap with one bit for each 8 bytes of the segment, because at most one frame begins in 8 bytes.
func (c *compaction) validOffsets(v view) (func(offset int64) bool, error) {
	bits := make([]uint64, v.end/8/64+1)
	err := c.eachRow(v, func(r row) { bits[r.loc.Offset()/8/64] |= 1 << (r.loc.Offset() / 8 % 64) })
	return func(offset int64) bool { return bits[offset/8/64]>>(offset/8%64)&1 != 0 }, err
}
