package archiver

import (
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
)

// group is what the archiver knows of one group that is archived. Everything in it but the news is in the bucket, too.
//
// The indexes are in this order: catalogue.Through, marked, next. Up to catalogue.Through the entries are in segments;
// up to marked they are in segments or in log objects that exist; up to next they are there, in fresh segments or in
// news.
type group struct {
	id        uuid.UUID
	name      string
	catalogue object.Catalogue
	number    uint64        // of the catalogue; 0: there is none yet
	holes     []object.Hole // those that a log object or a catalogue has
	loose     []loose       // what is only in log objects, in their order
	rollAfter time.Time     // they could not be read: not before this time again

	// marked is the index that leaders hear: the group is archived durably up to it. It is raised behind an answered
	// creation of a log object, and nowhere else.
	marked   uint64
	isMarked bool      // false: the first copy is complete, but no log object says so yet
	notedAt  time.Time // when the last piece of the group was made
	readAt   time.Time // what was acknowledged before is at or below next
	// readNoted is the readAt that an object has. Zero: none has any, so readers do not know until when the group is
	// archived.
	readNoted time.Time

	// These are what no log object has yet.
	next         uint64              // the group is complete up to here
	news         *pieces.Builder     // nil: none
	newHoles     []object.Hole       // those that are in no log object yet
	fresh        []object.SegmentRef // segment objects that no catalogue has yet
	freshThrough uint64              // the group is complete up to here with them
	gone         bool
	goneNoted    bool // a piece or a catalogue says so

	skipped  bool // for the rest of the round: its news made no sense, or cannot be had
	hasGap   bool // at the start: pieces are missing, and those behind the gap do not count
	isBroken bool // objects are missing or damaged, so a new catalogue is wanted soon
}

// loose is a piece in a log object that is in no segment yet.
type loose struct {
	object.Range
	log    uint64          // number of the log object
	object object.Envelope // of the log object
	offset int64           // of the piece in the content of the object, in bytes
	bytes  int64
	at     time.Time // when the log object was made
}

// covered returns the index up to which the group is in objects that exist and that readers find.
func (g *group) covered() uint64 { return max(g.marked, g.catalogue.Through) }

// newsBytes returns the size of the news in memory.
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

// isUrgent reports whether the group has anything that a log object must say soon. Fresh segments are said by a
// catalogue first.
func (g *group) isUrgent() bool {
	isTimeless := g.readNoted.IsZero() && !g.readAt.IsZero() && !g.gone
	return len(g.fresh) == 0 && (!g.isMarked || g.news != nil || g.next != g.marked || len(g.newHoles) > 0 ||
		g.gone && !g.goneNoted || isTimeless)
}

// addHole notes that versions which entries between two indexes superseded may be missing.
func (g *group) addHole(from, to uint64) {
	g.newHoles = mergeHole(g.newHoles, object.Hole{From: from, To: to})
}

// forget drops what no log object has, so that the source is asked for it again.
func (g *group) forget() {
	g.news = nil
	g.next, g.readAt = max(g.covered(), g.freshThrough), time.Time{}
}

// mergeHole adds a hole to a list in the order of indexes, in which no two touch each other.
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
