package object

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// These are the values of Drill.Result and DrillGroup.Result.
const (
	DrillProven  = "proven"  // what was restored is right
	DrillDiffers = "differs" // the archive is damaged, or does not hold what the store held
	DrillFailed  = "failed"  // the drill did not find out
	DrillRefused = "refused" // of a group alone: the archive says that it cannot be read as of the point
)

const (
	// DrillDifferencesMax is the maximum number of differences that a drill lists.
	DrillDifferencesMax = 100
	// DrillGroupsMax is the maximum number of groups in a drill.
	DrillGroupsMax = 1000
)

// Drill is the header of a drill. A drill has no body.
type Drill struct {
	Time        int64             `json:"time"` // Unix ns, when the drill began
	Seconds     int64             `json:"seconds"`
	Point       int64             `json:"point"` // Unix ns, the time as of which the groups were restored
	Result      string            `json:"result"`
	Error       string            `json:"error,omitempty"` // why the drill did not find out; empty unless it failed
	Groups      []DrillGroup      `json:"groups"`
	Records     int64             `json:"records"`
	Bytes       int64             `json:"bytes"`
	Differing   int64             `json:"differing"` // number of differences, of which only the first are listed
	Differences []DrillDifference `json:"differences,omitempty"`
}

// DrillGroup is a group that a drill has tried to restore.
type DrillGroup struct {
	Group       uuid.UUID `json:"group"`
	Name        string    `json:"name"`
	Index       uint64    `json:"index"` // index that the point stands for; 0 if it was not found
	Result      string    `json:"result"`
	Records     int64     `json:"records"` // restored records
	Bytes       int64     `json:"bytes"`   // size of the restored files
	Compared    int64     `json:"compared"`
	Changed     int64     `json:"changed"`               // records that changed since, and were not compared
	NotCompared string    `json:"notCompared,omitempty"` // why no record was compared; empty if one could be
	Error       string    `json:"error,omitempty"`       // why the group was refused or has failed
}

// DrillDifference is something that the archive does not hold as the store held it.
type DrillDifference struct {
	Group uuid.UUID `json:"group"`
	Name  string    `json:"name"`
	ID    string    `json:"id,omitempty"` // id of the record, in decimal; empty if the whole group is concerned
	What  string    `json:"what"`
}

// String names the difference in one line.
func (d DrillDifference) String() string {
	name := d.Name
	if name == "" {
		name = d.Group.String()
	}
	if d.ID != "" {
		return fmt.Sprintf("group %s, record %s: %s", name, d.ID, d.What)
	}
	return fmt.Sprintf("group %s: %s", name, d.What)
}

func (*Drill) kind() Kind { return KindDrill }

func (d *Drill) check(bodyBytes int64) error {
	switch {
	case bodyBytes != 0:
		return errBody
	case d.Time == 0 || !inRange(d.Time, d.Seconds, d.Point, d.Records, d.Bytes, d.Differing):
		return errRange
	case d.Result != DrillProven && d.Result != DrillDiffers && d.Result != DrillFailed:
		return fmt.Errorf("result %q", d.Result)
	case (d.Differing > 0) != (d.Result == DrillDiffers):
		return fmt.Errorf("%d differences with the result %s", d.Differing, d.Result)
	case len(d.Differences) > DrillDifferencesMax, len(d.Groups) > DrillGroupsMax:
		return fmt.Errorf("it lists %d groups and %d differences, at most %d and %d are allowed", len(d.Groups),
			len(d.Differences), DrillGroupsMax, DrillDifferencesMax)
	}
	seen := make(map[uuid.UUID]bool, len(d.Groups))
	for i := range d.Groups {
		g := &d.Groups[i]
		if err := g.check(); err != nil {
			return fmt.Errorf("group %s: %w", g.Group, err)
		}
		if seen[g.Group] {
			return fmt.Errorf("group %s is there twice", g.Group)
		}
		seen[g.Group] = true
	}
	for _, difference := range d.Differences {
		if difference.What == "" {
			return errors.New("a difference without words")
		}
	}
	return nil
}

func (g *DrillGroup) check() error {
	if !inRange(index(g.Index), g.Records, g.Bytes, g.Compared, g.Changed) {
		return errRange
	}
	switch g.Result {
	case DrillProven, DrillDiffers, DrillFailed, DrillRefused:
		return nil
	}
	return fmt.Errorf("result %q", g.Result)
}
