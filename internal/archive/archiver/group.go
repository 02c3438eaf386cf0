package archiver

import (
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
)

// group is the state of one archived group. Except for the new entries in memory, all of it can be read back from the
// bucket.
//
// Three indexes tell how far the group has got, in this order: catalogue.Through, marked and next. Entries up to
// catalogue.Through are in segments. Entries up to marked are in segments or in existing log objects. Entries up to
// next may also be in fresh segments or in memory (news).
type group struct {
	id        uuid.UUID
	name      string
	catalogue object.Catalogue
	number    uint64        // number of the catalogue; 0 if there is none yet
	holes     []object.Hole // holes that a log object or a catalogue records
	loose     []loose       // pieces that are only in log objects, in log order
	rollAfter time.Time     // when to try again to read loose pieces that could not be read

	// marked is the index that is reported to leaders: the group is durably archived up to it. It advances only after
	// the creation of a log object was confirmed.
	marked   uint64
	isMarked bool      // false if the first copy is complete but no log object records it yet
	notedAt  time.Time // when the group's last piece was created
	readAt   time.Time // all writes acknowledged before this time have an index of at most next
	// readNoted is the latest readAt that an object records. If it is zero, no object records one, so readers do not
	// know up to which time the group is archived.
	readNoted time.Time

	// No log object records the following fields yet.
	next         uint64              // the group is complete up to this index
	news         *pieces.Builder     // new entries, which no log object holds yet; nil if there are none
	newHoles     []object.Hole       // holes that no log object records yet
	isVague      bool                // the history floor was not known when the entries up to next were read
	fresh        []object.SegmentRef // segment objects that no catalogue lists yet
	freshThrough uint64              // with the fresh segments, the group is complete up to this index
	gone         bool
	goneNoted    bool // a piece or a catalogue records that the group is gone

	cover     covering // for calls of Cover
	catchUp   catchUp
	copyAfter time.Time // when to try again to copy the group after a failure

	skipped  bool  // ignored for the rest of the round, because its new entries were invalid, forgotten or not available
	gap      error // why pieces were missing when the group was read from the bucket; the pieces after them were ignored
	isBroken bool  // objects are missing or damaged, so a new catalogue is needed soon
}

// isKnown reports whether the group has a catalogue that can be used.
func (g *group) isKnown() bool { return g.catalogue.Group == g.id }

// loose is a piece of a log object whose entries are not in a segment yet.
type loose struct {
	object.Range
	log    uint64          // number of the log object
	object object.Envelope // envelope of the log object
	offset int64           // offset of the piece in the object's content, in bytes
	bytes  int64
	at     time.Time // when the log object was created
}

// covered returns the index up to which readers find the group in the archive.
func (g *group) covered() uint64 { return max(g.marked, g.catalogue.Through) }

// newsBytes returns the size of the group's new entries in memory.
func (g *group) newsBytes() int64 {
	if g.news == nil {
		return 0
	}
	return g.news.Bytes()
}

func (g *group) looseBytes() (sum int64) {
	for i := range g.loose {
		sum += g.loose[i].bytes
	}
	return sum
}

// isUrgent reports whether the group has anything that a log object must record soon. If the group has fresh
// segments, a catalogue must list them first.
func (g *group) isUrgent() bool {
	isTimeless := g.readNoted.IsZero() && !g.readAt.IsZero() && !g.gone
	return len(g.fresh) == 0 && (!g.isMarked || g.news != nil || g.next != g.marked || len(g.newHoles) > 0 ||
		g.gone && !g.goneNoted || isTimeless)
}

// takeFloor records the hole that the history floor of new entries tells of.
//
// If the floor is not known, versions are missing that were superseded up to the replica's applied index, which may be
// above Through. So if the entries before these came without a floor, too, reads as of their end are not exact either,
// and the hole includes it.
func (g *group) takeFloor(news *News) {
	after, to := g.next, news.Floor
	if !news.FloorKnown {
		to = news.Through
	}
	endsHere := func(h object.Hole) bool { return h.To == g.next }
	if g.next > 0 && (g.isVague || !news.FloorKnown && (slices.ContainsFunc(g.holes, endsHere) ||
		slices.ContainsFunc(g.newHoles, endsHere))) {
		after--
	}
	g.isVague = !news.FloorKnown
	g.addHole(after, to)
}

// addHole records that versions above the index after may be missing if an entry up to the index to has superseded
// them. Reads as of the index after are exact, so the hole begins behind it. A version directly behind it can only have
// been superseded by a later entry, so there is no hole if to is not later either.
func (g *group) addHole(after, to uint64) {
	if after+1 < to {
		g.newHoles = mergeHole(g.newHoles, object.Hole{From: after + 1, To: to})
	}
}

// forget drops the new entries in memory, so that the next round requests them from the source again. The rest of this
// round must not add any entry, because those before it would be missing.
func (g *group) forget() {
	g.news, g.skipped, g.cover = nil, true, coverUnread
	g.next, g.readAt = max(g.covered(), g.freshThrough), time.Time{}
}

// mergeHole adds a hole to a list. The holes in the list are ordered by index, and neither overlap nor touch.
func mergeHole(holes []object.Hole, h object.Hole) []object.Hole {
	var merged []object.Hole
	for _, other := range holes {
		if other.To < h.From || other.From > h.To {
			merged = append(merged, other)
			continue
		}
		h.From, h.To = min(h.From, other.From), max(h.To, other.To)
	}
	merged = append(merged, h)
	slices.SortFunc(merged, func(a, b object.Hole) int { return cmp.Compare(a.From, b.From) })
	return merged
}
