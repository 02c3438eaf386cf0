package object

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Base is the header of a base. A base has no body.
type Base struct {
	Group    uuid.UUID    `json:"group"`
	Name     string       `json:"name"`
	Replaces []SegmentRef `json:"replaces"` // segments of the catalogue that the base replaces, in log order
	Segments []SegmentRef `json:"segments"` // in log order
	Floor    uint64       `json:"floor"`
	Holes    []Hole       `json:"holes,omitempty"`
	Blobs    []uuid.UUID  `json:"blobs,omitempty"` // blobs to which no remaining entry refers
}

// These are the values of Point.Made.
const (
	MadeByHand     = "hand"
	MadeBySchedule = "schedule"
)

// Point is the header of a point. A point has no body.
type Point struct {
	Name    string       `json:"name"`
	Time    int64        `json:"time"`    // Unix ns
	Created int64        `json:"created"` // Unix ns
	Made    string       `json:"made"`
	Until   int64        `json:"until"` // Unix ns; 0 means that the point is kept until it is dropped
	Groups  []PointGroup `json:"groups"`
	Facts   []Fact       `json:"facts,omitempty"`
}

// PointGroup is a group in a point. The point holds the state of the group as of Index.
type PointGroup struct {
	Group uuid.UUID `json:"group"`
	Name  string    `json:"name"`
	Index uint64    `json:"index"`
}

// Fact is a Kubernetes object that described the store, without secrets.
type Fact struct {
	Name string `json:"name"` // for example RecordStore/quotes
	YAML string `json:"yaml"`
}

// UseMax is the longest time for which a use may be valid.
const UseMax = 7 * 24 * time.Hour

// Use is the header of a use. A use has no body.
type Use struct {
	Created int64  `json:"created"` // Unix ns
	Until   int64  `json:"until"`   // Unix ns
	What    string `json:"what"`
}

// DropObjectsMax is the maximum number of objects in a drop.
const DropObjectsMax = 50_000

// Drop is the header of a drop. A drop has no body.
type Drop struct {
	Time    int64    `json:"time"` // Unix ns
	Objects []string `json:"objects"`
}

func (*Base) kind() Kind  { return KindBase }
func (*Point) kind() Kind { return KindPoint }
func (*Use) kind() Kind   { return KindUse }
func (*Drop) kind() Kind  { return KindDrop }

func (b *Base) check(bodyBytes int64) error {
	switch {
	case bodyBytes != 0:
		return errBody
	case !inRange(index(b.Floor)):
		return errRange
	case len(b.Replaces) == 0:
		return errors.New("it replaces nothing")
	}
	last := uint64(0)
	for _, s := range b.Replaces {
		last = max(last, s.Last)
	}
	for _, s := range b.Segments {
		if s.Last > last {
			return errors.New("a segment goes beyond those that it replaces")
		}
	}
	return errors.Join(checkSegments(b.Replaces), checkSegments(b.Segments), checkHoles(b.Holes))
}

func (p *Point) check(bodyBytes int64) error {
	if err := CheckPointName(p.Name); err != nil {
		return err
	}
	switch {
	case bodyBytes != 0:
		return errBody
	case p.Made != MadeByHand && p.Made != MadeBySchedule:
		return fmt.Errorf("made by %q", p.Made)
	case p.Time == 0 || !inRange(p.Time, p.Created, p.Until):
		return errRange
	}
	seen := make(map[uuid.UUID]bool, len(p.Groups))
	for _, g := range p.Groups {
		if !inRange(index(g.Index)) {
			return errRange
		}
		if seen[g.Group] {
			return fmt.Errorf("group %s is there twice", g.Group)
		}
		seen[g.Group] = true
	}
	return nil
}

func (u *Use) check(bodyBytes int64) error {
	switch {
	case bodyBytes != 0:
		return errBody
	case !inRange(u.Created, u.Until):
		return errRange
	case u.Until-u.Created > int64(UseMax):
		return fmt.Errorf("it counts for more than %v", UseMax)
	}
	return nil
}

func (d *Drop) check(bodyBytes int64) error {
	switch {
	case bodyBytes != 0:
		return errBody
	case !inRange(d.Time):
		return errRange
	case len(d.Objects) > DropObjectsMax:
		return fmt.Errorf("it lists %d objects, at most %d are allowed", len(d.Objects), DropObjectsMax)
	}
	return nil
}
