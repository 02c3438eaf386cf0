package group

import (
	"slices"
	"sync"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/storage/index"
)

// places is where the newest version of each record stands, and which frames of the segments are superseded. Safe for
// concurrent use. A place may mean another frame after a swap: whoever holds state.mu sees no swap.
type places struct {
	table *index.Table // id -> place of the newest applied entry
	// published are the segments by ordinal, nil where there is none; replaced as a whole. For readers without a lock.
	published  atomic.Pointer[[]*segment]
	superseded atomic.Int64 // bytes, estimated
	swapping   sync.RWMutex // held while places change from one segment to another. Taken before state.mu
}

// awaitSwap returns when the swap that is under way is done.
func (p *places) awaitSwap() {
	p.swapping.RLock()
	p.swapping.RUnlock() //nolint:staticcheck // whoever swaps holds it
}

// publish shows the segments to readers without a lock. Called with state.mu held.
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

// segment is the segment with an ordinal; nil where it is gone.
func (p *places) segment(ordinal uint32) *segment {
	table := *p.published.Load()
	if int(ordinal) >= len(table) {
		return nil
	}
	return table[ordinal]
}

// pin pins the segment of the place that the index has of a record; nil: the index has another one by now. An ordinal
// is used again: a reader that was held up between two looks would find another segment under it, so the index is asked
// once more while the segment is known to be in its place.
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

// isNewest tells whether the frame at a place of a segment is the newest version of a record; moved: the segment was
// swapped, so that places in it mean nothing any more. Called with state.mu held.
func (p *places) isNewest(s *segment, id int64, loc index.Loc) (newest, moved bool) {
	if s.moving || p.segment(s.ordinal) != s {
		return false, true
	}
	at, ok := p.table.Get(id)
	return ok && at == loc, false
}

// insert puts a place into the index; the later one of two stays, the other is superseded.
func (p *places) insert(id int64, loc index.Loc) error {
	old, won, err := p.table.Max(id, loc)
	switch {
	case err != nil:
		return err
	case won && old != 0:
		p.lose(old)
	case !won && old != loc:
		p.lose(loc)
	}
	return nil
}

// lose clears the used flag of the frame at a place, in whichever segment it is.
func (p *places) lose(loc index.Loc) { p.supersede(p.segment(loc.Ordinal()), loc) }

// supersede clears the used flag of a frame.
func (p *places) supersede(s *segment, loc index.Loc) {
	if s != nil && s.used.supersede(loc) {
		p.superseded.Add(loc.LengthBound())
	}
}

// supersedeKnown is supersede for a flag that the hint on disk has.
func (p *places) supersedeKnown(s *segment, loc index.Loc) {
	if s.used.supersede(loc) {
		p.superseded.Add(loc.LengthBound())
		s.used.written(1)
	}
}

// moved tells index and used flags what became of an applied version: it is at a new place, or dropped (to is 0).
func (p *places) moved(id int64, from, to index.Loc) {
	if to == 0 {
		p.table.CompareAndDelete(id, from)
	} else if !p.table.CompareAndSwap(id, from, to) {
		p.lose(to)
	}
}

// listed are the segments of the log, and those that take the place of others now. Called with state.mu held.
func (st *state) listed() []*segment { return append(slices.Clip(st.segments), st.incoming...) }
