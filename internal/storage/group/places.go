package group

import (
	"slices"
	"sync"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/storage/index"
)

// places maps each record to the location of its newest version, and records which frames in the segments are
// superseded. It is safe for concurrent use. A swap of segments can put a different frame at the same location. No
// swap happens while state.mu is held.
type places struct {
	table *index.Table // location of each record's newest applied entry, by id
	// published holds the segments by ordinal. The element of an unused ordinal is nil. The slice is replaced as a whole,
	// so that readers need no lock.
	published  atomic.Pointer[[]*segment]
	superseded atomic.Int64 // bytes of superseded frames, estimated
	swapping   sync.RWMutex // held while frames are moved from one segment to another; locked before state.mu
}

// awaitSwap waits until no swap is in progress.
func (p *places) awaitSwap() {
	p.swapping.RLock()
	p.swapping.RUnlock() //nolint:staticcheck // a swap holds the lock, so acquiring it waits for the swap
}

// publish makes the segments visible to readers that hold no lock. The caller holds state.mu.
func (p *places) publish(segments []*segment) {
	var top uint32
	for _, s := range segments {
		top = max(top, s.ordinal)
	}
	table := make([]*segment, top+1)
	for _, s := range segments {
		table[s.ordinal] = s
	}
	p.published.Store(&table)
}

// segment returns the segment with the given ordinal, or nil if there is none.
func (p *places) segment(ordinal uint32) *segment {
	table := *p.published.Load()
	if int(ordinal) >= len(table) {
		return nil
	}
	return table[ordinal]
}

// pin pins the segment in which the index locates a record. It returns nil if the index now has a location other than
// loc. Ordinals are reused, so a reader that was delayed after it read the index could find a different segment with
// the same ordinal. Therefore pin reads the index again after it has pinned the segment.
func (p *places) pin(id int64, loc index.Loc) *segment {
	s := p.segment(loc.Ordinal())
	if s == nil || !s.pin() {
		return nil
	}
	if now, ok := p.table.Get(id); ok && now == loc && p.segment(loc.Ordinal()) == s {
		return s
	}
	s.unpin()
	return nil
}

// pinAt pins the segment that has the ordinal of a location now. It returns nil if there is none.
func (p *places) pinAt(loc index.Loc) *segment {
	if s := p.segment(loc.Ordinal()); s != nil && s.pin() {
		return s
	}
	return nil
}

// isNewest reports whether the frame at a location in a segment is a record's newest version. The result moved says
// that the segment was swapped, so that locations in it are no longer valid. The caller holds state.mu.
func (p *places) isNewest(s *segment, id int64, loc index.Loc) (newest, moved bool) {
	if s.moving || p.segment(s.ordinal) != s {
		return false, true
	}
	at, ok := p.table.Get(id)
	return ok && at == loc, false
}

// insert adds a location to the index. If the index already has a location for the record, the later one of the two
// remains, and the other is superseded.
func (p *places) insert(id int64, loc index.Loc) error {
	old, won, err := p.table.Max(id, loc)
	switch {
	case err != nil:
		return err
	case won && old != 0:
		p.clearUsed(old)
	case !won && old != loc:
		p.clearUsed(loc)
	}
	return nil
}

// clearUsed clears the used flag of the frame at a location. The ordinal in the location determines the segment.
func (p *places) clearUsed(loc index.Loc) { p.supersede(p.segment(loc.Ordinal()), loc) }

// supersede clears the used flag of the frame at a location in a segment.
func (p *places) supersede(s *segment, loc index.Loc) {
	if s != nil && s.used.supersede(loc) {
		p.superseded.Add(loc.LengthBound())
	}
}

// supersedeKnown is like supersede, for a flag that is already cleared in the hint on disk.
func (p *places) supersedeKnown(s *segment, loc index.Loc) {
	if s.used.supersede(loc) {
		p.superseded.Add(loc.LengthBound())
		s.used.unknown.Add(-1)
	}
}

// moved updates the index and the used flags after an applied version was moved from one location to another, or was
// dropped. If the version was dropped, the argument `to` is 0.
func (p *places) moved(id int64, from, to index.Loc) {
	if to == 0 {
		p.table.CompareAndDelete(id, from)
	} else if !p.table.CompareAndSwap(id, from, to) {
		p.clearUsed(to)
	}
}

// listed returns the log's segments, and the new segments of a swap in progress. The caller holds state.mu.
func (st *state) listed() []*segment { return append(slices.Clip(st.segments), st.incoming...) }
