package object

import (
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Header is the JSON object at the beginning of an object's content. There is one Header type for each kind of
// object.
type Header interface {
	kind() Kind
	// check returns an error if the header is invalid for an object whose body has the given length.
	check(bodyBytes int64) error
}

// Archive is the header of archive.json. That object has no body.
type Archive struct {
	Store   string `json:"store"`   // name of the store
	Created int64  `json:"created"` // Unix ns
	Routing string `json:"routing"` // "hash" or "named"
	Groups  int    `json:"groups"`  // with "hash": the number of groups; otherwise 0
	Lanes   int    `json:"lanes"`   // always 1
}

// Hole is a range of indexes. Versions that were superseded by an entry in the range may be missing.
type Hole struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// Range describes the entries of a group in one object.
type Range struct {
	Group       uuid.UUID `json:"group"`
	Name        string    `json:"name"`
	First       uint64    `json:"first"`       // index of the first entry; 0 if there are none
	Last        uint64    `json:"last"`        // index of the last entry; 0 if there are none
	Floor       uint64    `json:"floor"`       // history floor: reads at or above this index are exact, except in holes
	FirstCommit int64     `json:"firstCommit"` // commit time of the first put or delete, in Unix ns; 0 if there are none
	LastCommit  int64     `json:"lastCommit"`  // commit time of the last put or delete, in Unix ns; 0 if there are none
	Records     int64     `json:"records"`     // number of puts and deletes
}

// Piece describes the part of a log object that holds new entries of one group.
type Piece struct {
	Range
	Bytes   int64  `json:"bytes"`   // length of the piece in the body; 0 if it has no entries
	After   uint64 `json:"after"`   // the piece continues from this index; earlier objects hold the group up to it
	Through uint64 `json:"through"` // with this piece, the group is archived up to this index
	ReadAt  int64  `json:"readAt"`  // Unix ns; all writes acknowledged before this time have an index of at most Through
	Gone    bool   `json:"gone,omitempty"`
	Holes   []Hole `json:"holes,omitempty"`
}

// Log is the header of a log object. The body holds the pieces one after another. Each piece is encoded as a segment
// of docs/format.md.
type Log struct {
	Writer   uuid.UUID `json:"writer"`   // identifies the archiver's process
	Epoch    uint64    `json:"epoch"`    // incremented each time that another process takes over
	Previous uint32    `json:"previous"` // CRC of the envelope of the preceding log object; 0 for the first log object
	Time     int64     `json:"time"`     // Unix ns
	Pieces   []Piece   `json:"pieces"`
}

// These are the values of Segment.Made.
const (
	MadeByCopy = "copy" // created from the files of a group's first copy
	MadeByRoll = "roll" // created from pieces of log objects
)

// Segment is the header of a segment object. The body is one segment as described in docs/format.md.
type Segment struct {
	Range
	Made string `json:"made"`
}

// Blob is the header of a blob object. The body is the record's data.
type Blob struct {
	Group uuid.UUID `json:"group"`
	Size  int64     `json:"size"`
}

// SegmentRef identifies a segment object of a group.
type SegmentRef struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	ID    string `json:"id"`    // id of the segment, 16 hexadecimal digits
	Bytes int64  `json:"bytes"` // size of the segment object
}

// Catalogue is the header of a catalogue. A catalogue has no body.
type Catalogue struct {
	Group    uuid.UUID    `json:"group"`
	Name     string       `json:"name"`
	Segments []SegmentRef `json:"segments"` // in log order
	Through  uint64       `json:"through"`
	Floor    uint64       `json:"floor"`
	Log      uint64       `json:"log"` // number of the last log object whose pieces of this group are also in segments
	Holes    []Hole       `json:"holes,omitempty"`
	Gone     bool         `json:"gone,omitempty"`
	// Covered is the time, in Unix ns, up to which a deleted group could be read before pruning removed its history. It
	// is 0 in all other catalogues, and if that time is not known.
	Covered int64 `json:"covered,omitempty"`
}

var (
	errRange = fmt.Errorf("a number is below 0 or above %d", int64(format.NumberMax))
	errOrder = errors.New("first is above last")
	errBody  = errors.New("the length of the body is not what the header says")
)

// inRange reports whether all numbers are valid as indexes, sizes or times.
func inRange(numbers ...int64) bool {
	for _, n := range numbers {
		if n < 0 || n > format.NumberMax {
			return false
		}
	}
	return true
}

// index converts an index to an argument of inRange.
func index(n uint64) int64 {
	if n > math.MaxInt64 {
		return -1
	}
	return int64(n)
}

func checkHoles(holes []Hole) error {
	for _, h := range holes {
		if !inRange(index(h.From), index(h.To)) {
			return errRange
		}
		if h.From > h.To {
			return errOrder
		}
	}
	return nil
}

func (*Archive) kind() Kind   { return KindArchive }
func (*Log) kind() Kind       { return KindLog }
func (*Segment) kind() Kind   { return KindSegment }
func (*Blob) kind() Kind      { return KindBlob }
func (*Catalogue) kind() Kind { return KindCatalogue }

func (a *Archive) check(bodyBytes int64) error {
	switch {
	case bodyBytes != 0:
		return errBody
	case a.Lanes != 1:
		return fmt.Errorf("%d lanes, this program knows 1", a.Lanes)
	case a.Routing != "hash" && a.Routing != "named":
		return fmt.Errorf("routing %q", a.Routing)
	case a.Groups < 0 || (a.Groups == 0) == (a.Routing == "hash"):
		return fmt.Errorf("%d groups with routing %q", a.Groups, a.Routing)
	case !inRange(a.Created):
		return errRange
	}
	return nil
}

func (r *Range) check() error {
	if !inRange(index(r.First), index(r.Last), index(r.Floor), r.FirstCommit, r.LastCommit, r.Records) {
		return errRange
	}
	if r.First > r.Last || r.FirstCommit > r.LastCommit {
		return errOrder
	}
	return nil
}

func (l *Log) check(bodyBytes int64) error {
	if !inRange(index(l.Epoch), l.Time) {
		return errRange
	}
	seen := make(map[uuid.UUID]bool, len(l.Pieces))
	for i := range l.Pieces {
		p := &l.Pieces[i]
		err := errors.Join(p.check(), checkHoles(p.Holes))
		switch {
		case err != nil:
		case !inRange(p.Bytes, index(p.After), index(p.Through), p.ReadAt):
			err = errRange
		case (p.Bytes == 0) != (p.Last == 0):
			err = errors.New("bytes without entries, or entries without bytes")
		case p.Last > p.Through:
			err = errors.New("last is above through")
		case p.After > p.Through || p.Last != 0 && p.First <= p.After:
			err = errors.New("the piece begins below the index that it continues from")
		case p.Bytes > bodyBytes:
			err = errBody
		case seen[p.Group]:
			err = errors.New("a second piece of its group")
		}
		if err != nil {
			return fmt.Errorf("piece %d, group %s: %w", i, p.Name, err)
		}
		seen[p.Group] = true
		bodyBytes -= p.Bytes
	}
	if bodyBytes != 0 {
		return errBody
	}
	return nil
}

func (s *Segment) check(bodyBytes int64) error {
	switch {
	case bodyBytes == 0:
		return errBody
	case s.Made != MadeByCopy && s.Made != MadeByRoll:
		return fmt.Errorf("made by %q", s.Made)
	}
	return s.Range.check()
}

func (b *Blob) check(bodyBytes int64) error {
	if b.Size != bodyBytes {
		return errBody
	}
	return nil
}

func (c *Catalogue) check(bodyBytes int64) error {
	if bodyBytes != 0 {
		return errBody
	}
	if !inRange(index(c.Through), index(c.Floor), index(c.Log), c.Covered) {
		return errRange
	}
	return errors.Join(checkSegments(c.Segments), checkHoles(c.Holes))
}

func checkSegments(segments []SegmentRef) error {
	for i, s := range segments {
		var err error
		switch {
		case !inRange(index(s.First), index(s.Last), s.Bytes):
			err = errRange
		case s.First > s.Last || i > 0 && s.First < segments[i-1].First:
			err = errOrder
		default:
			_, err = ParseSegmentID(s.ID)
		}
		if err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
	}
	return nil
}
