package group

import (
	"math"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// heldAgeMin is how long a compaction keeps a version after it was superseded while a hold is in force. This gives a
// reader that has just read the history floor enough time to read the history above it.
const heldAgeMin = 10 * time.Minute

// everything is the value of a limit that keeps no history.
const everything = math.MaxUint64

// held describes the history that a compaction must keep, which is every version that was superseded by an entry above
// a certain index. The compaction computes it from the rows of all segments, up to the index that is applied at that
// time.
type held struct {
	// through is an index. A version may be dropped if the entry that superseded it is at or below through. If through has
	// the value everything, no superseded version is kept.
	through uint64
	// ageThrough is the value that through would have if only Retention.MinAge limited it. hold is the hold that was
	// taken into account in through. It is nil if no hold was set, or if the compaction ignores the hold.
	ageThrough uint64
	hold       *Hold
	// first is the location of the first version whose index is above through. beyond is the location of the first entry
	// that was not applied when the rows were read.
	first, beyond index.Loc
	// newest has an element for each record that has a version with an index above through and also a superseded version
	// at or below through. The newest of these older versions must be kept, and the map's value is its location. The
	// value is 0 until that location is known.
	newest map[int64]index.Loc
	found  int // number of records in newest whose location is known
	// bytes holds, by segment ordinal, the size of the superseded versions that are kept only because they are in held.
	// aged is the size of those among them that Retention.MinAge keeps as well.
	bytes bytesByOrdinal
	aged  int64
	// timeThrough is the limit that results from the age of the entries. It is the constant everything if no age limits
	// what may be dropped. The limit rises as time passes, but it rises only slightly before the time in the field until.
	timeThrough uint64
	until       time.Time
}

// keeps reports whether a superseded version must be kept. The argument newest is the current location of the record's
// newest version, which may have been written after the rows were read.
func (h *held) keeps(id int64, at uint64, loc, newest index.Loc) bool {
	if h.through == everything {
		return false
	}
	if at > h.through {
		return true // the entry that superseded this version has a greater index, which is therefore above through too
	}
	if kept, ok := h.newest[id]; ok {
		return kept == loc
	}
	// When the rows were read, the record had no version with an index above through. If the record was written again
	// after that, either that write or an earlier one may have superseded this version, so the version is kept.
	return !newest.Less(h.beyond)
}

// learnLimit determines which superseded versions must be kept.
func (c *compaction) learnLimit() error {
	h := &held{
		through: everything, ageThrough: everything, timeThrough: everything,
		beyond: math.MaxUint64, newest: map[int64]index.Loc{}, bytes: bytesByOrdinal{},
	}
	c.held = h
	age := c.retention.MinAge
	if age > 0 {
		aged, err := c.committedBefore(age)
		if err != nil {
			return err
		}
		h.ageThrough = aged.through
		h.limit(aged, c.now, age, c.state)
	}
	if c.opts.IgnoreHold || c.holdThrough == everything {
		return nil
	}
	h.hold = c.hold
	if c.hold != nil && age < heldAgeMin {
		young, err := c.committedBefore(heldAgeMin)
		if err != nil {
			return err
		}
		// A leader whose clock was wrong may have set commit times in the future. Therefore entries that, according to
		// the monotonic clock, were applied long ago are also old.
		young.through = max(young.through, c.state.ages.through(heldAgeMin))
		h.limit(young, c.now, heldAgeMin, c.state)
	}
	h.through = min(h.through, c.holdThrough)
	return nil
}

// committedBefore determines which entries were committed long enough ago, that is, at least age before now.
func (c *compaction) committedBefore(age time.Duration) (committed, error) {
	return c.reader.committedBy(c.now.Add(-age).UnixNano(), c.applied)
}

// limit applies a limit that results from an age, and that therefore rises as time passes. It sets the field until to
// the time at which about a quarter of the entries above the limit will be old enough to drop.
func (h *held) limit(by committed, now time.Time, age time.Duration, st *state) {
	h.through, h.timeThrough = min(h.through, by.through), by.through
	h.until = now.Add(age)
	if by.next == 0 {
		return
	}
	st.mu.RLock()
	last := st.lastCommit
	st.mu.RUnlock()
	if quarter := time.Unix(0, by.next+max(0, last-by.next)/4).Add(age); quarter.Before(h.until) {
		h.until = quarter
	}
}

// learnHold reads the hold. Each compaction calls it once.
func (c *compaction) learnHold(history *historyFloor) {
	c.hold, c.holdThrough = c.state.hold.Load(), everything
	switch {
	case c.hold != nil && c.hold.On:
		c.holdThrough = min(c.hold.Index, format.NumberMax)
	case c.hold == nil && history != nil: // the hold is not known yet, and an archive may need all remaining history
		c.holdThrough = history.floor
	}
}

// isOlder reports whether a superseded version may be older than a version that must be kept. This is possible if its
// record was written again at an index above through.
func (h *held) isOlder(at uint64, newest index.Loc) bool {
	return h.through != everything && at <= h.through && !newest.Less(h.first)
}

// isEmpty reports whether no superseded version has to be kept. This is the case if no version has an index above
// through, and newest has no records whose older versions the method note must find.
func (h *held) isEmpty() bool {
	return h.through == everything || len(h.newest) == 0 && h.first == h.beyond
}

// note must be called for the rows of all segments, from the newest row to the oldest. It reports whether the row's
// version must be kept if it is superseded.
func (h *held) note(r row) bool {
	if r.index > h.through {
		return true
	}
	if kept, ok := h.newest[r.id]; !ok || kept != 0 {
		return false
	}
	h.newest[r.id] = r.loc
	h.found++
	return true
}

// isKnown reports whether the method note no longer needs the rows of the segment v or of earlier segments.
func (h *held) isKnown(v view) bool {
	return h.through == everything || v.through <= h.through && h.found == len(h.newest)
}

// count adds the size of a superseded version that is kept only because it is in held.
func (h *held) count(r row) {
	h.bytes[r.loc.Ordinal()] += r.loc.LengthBound()
	if r.index > h.ageThrough {
		h.aged += r.loc.LengthBound()
	}
}

// firstAbove returns the location of the first applied version whose index is above at. It returns c.held.beyond if
// there is none.
func (c *compaction) firstAbove(at uint64) (index.Loc, error) {
	if at >= c.applied {
		return c.held.beyond, nil
	}
	views := c.reader.views(at+1, c.applied)
	defer unpinAll(views)
	for _, v := range views {
		var first index.Loc
		err := c.eachRow(v, func(r row) {
			if r.index > at && (first == 0 || r.loc.Less(first)) {
				first = r.loc
			}
		})
		if err != nil || first != 0 {
			return first, err
		}
	}
	return c.held.beyond, nil
}

// beyond returns the location after the last applied entry. All applied entries are before it, and all future entries
// will be written at or after it. The caller holds mu.
func (st *state) beyond() index.Loc {
	applied := st.applied.Load()
	for i := range st.tail.entries {
		if t := &st.tail.entries[i]; t.entry.Index > applied {
			return t.loc
		}
	}
	return index.MakeLoc(st.segments[len(st.segments)-1].ordinal, st.end, 0, false)
}

// heldBytes tells how many of a segment's superseded bytes must be kept because they are in held. Guarded by state.mu.
type heldBytes struct {
	bytes int64 // superseded bytes of the segment that were held when a compaction examined the segment
	at    int64 // superseded bytes of the segment at that time
}

// of returns how many of the superseded bytes are held. All bytes superseded after the examination count as held.
func (b heldBytes) of(superseded int64) int64 {
	return min(superseded, b.bytes+max(0, superseded-b.at))
}

// heldLook records how much history the last compaction had to keep. Its values are used until about a quarter of that
// history may be dropped. Guarded by state.mu.
type heldLook struct {
	on    bool // whether any history had to be kept
	hold  *Hold
	index uint64    // the values are used while the hold is below this index; 0 means that the hold does not matter
	until time.Time // the values are used before this time
	aged  int64     // bytes of entries that Retention.MinAge keeps
	only  bool      // whether the hold keeps more than Retention.MinAge does
	blobs int64     // size of the blobs to which held entries refer
}

// lookHeld returns the compaction's heldLook without setting its field blobs.
func (c *compaction) lookHeld() heldLook {
	h := c.held
	quarter := h.through + (max(c.applied, h.through)-h.through)/4
	k := heldLook{on: h.through != everything, hold: h.hold, aged: h.aged, only: h.through < h.ageThrough}
	if h.timeThrough <= quarter {
		k.until = h.until
	}
	if k.on && c.holdThrough < everything && !c.opts.IgnoreHold {
		k.index = quarter
	}
	return k
}

// counts reports whether the values may still be used.
func (k *heldLook) counts(now time.Time, hold *Hold) bool {
	switch {
	case !k.on:
		return false
	case k.index > 0 && (hold == nil) != (k.hold == nil), k.hold != nil && hold.On != k.hold.On:
		return false
	case now.Before(k.until):
		return true
	case hold == nil:
		return k.index > 0
	}
	return hold.On && hold.Index < k.index
}
