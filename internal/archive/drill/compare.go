package drill

import "fmt"

// sides are the same group as a drill has restored it, and as the living store has it.
type sides struct {
	restored, living []row // sorted by id
	// deletesFloor is the index up to which the store may have dropped deletes.
	deletesFloor uint64
	index        uint64 // index as of which the group was restored
}

// verdict is what the comparison of one record shows.
type verdict int

const (
	absent  verdict = iota // neither side had the record at the point in time
	equal                  // both sides have the same version
	changed                // the record was written or deleted since the point
	differs
)

// compare calls visit for each record of both sides, with what the comparison shows. If the record differs, what says
// how.
func (s *sides) compare(visit func(id int64, v verdict, what string)) {
	restored, living := s.restored, s.living
	for len(restored) > 0 || len(living) > 0 {
		var r, l *row
		if len(restored) > 0 && (len(living) == 0 || restored[0].id <= living[0].id) {
			r = &restored[0]
		}
		if len(living) > 0 && (len(restored) == 0 || living[0].id <= restored[0].id) {
			l = &living[0]
		}
		id := int64(0)
		if r != nil {
			id, restored = r.id, restored[1:]
		}
		if l != nil {
			id, living = l.id, living[1:]
		}
		v, what := s.judge(r, l)
		visit(id, v, what)
	}
}

// judge compares the two versions of one record. One of the arguments may be nil: r if the record was not restored, l
// if the store has neither the record nor its delete. Nothing is concluded from a version of the store that is younger
// than the point: the older one that it has replaced may be gone.
func (s *sides) judge(r, l *row) (verdict, string) {
	switch {
	case r == nil && (l.deleted || l.since):
		return absent, ""
	case r == nil:
		return differs, fmt.Sprintf("the store has it since index %d, and it was not restored", l.index)
	case l != nil && l.since:
		return changed, ""
	case l == nil && s.deletesFloor > s.index:
		return changed, "" // it was deleted, and the store does not know any more when
	case l == nil:
		return differs, fmt.Sprintf("index %d of it was restored, and the store has neither the record nor a delete of it",
			r.index)
	case l.deleted:
		return differs, fmt.Sprintf("index %d of it was restored, but it was deleted at index %d", r.index, l.index)
	case l.index != r.index:
		return differs, fmt.Sprintf("index %d of it was restored, but its newest one is %d", r.index, l.index)
	case l.crc != r.crc:
		return differs, fmt.Sprintf("index %d of it was restored with checksum %08x, and the store has it with %08x", r.index,
			r.crc, l.crc)
	}
	return equal, ""
}
