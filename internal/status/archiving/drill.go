package archiving

import (
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/base/units"
)

// These are the values of Drill.Result (docs/archive.md, "Drills").
const (
	DrillProven  = "proven"
	DrillDiffers = "differs"
	DrillFailed  = "failed"
)

// DifferencesMax is the maximum number of differences that a report lists.
const DifferencesMax = 3

// Drill tells of the newest drill of an archive, which restored a part of it to prove that this is possible.
type Drill struct {
	Time    time.Time `json:"time"`            // when it began
	Point   time.Time `json:"point,omitzero"`  // the time as of which it restored
	Result  string    `json:"result"`          // DrillProven, DrillDiffers or DrillFailed
	Error   string    `json:"error,omitempty"` // why it failed
	Groups  int       `json:"groups"`
	Records int64     `json:"records"`
	Bytes   int64     `json:"bytes"`
	Seconds int64     `json:"seconds"`
	// Differing is the number of differences, of which Differences has the first ones.
	Differing   int64    `json:"differing,omitempty"`
	Differences []string `json:"differences,omitempty"`
	// Proven is when the newest drill began that has proven the archive. It is nil if none has.
	Proven *time.Time `json:"proven,omitempty"`
	// ProvenSeconds is the age of Proven by the clock of the archiver. It is nil if Proven is nil.
	ProvenSeconds *float64 `json:"provenSeconds,omitempty"`
}

// Sentence describes the proof, as in "restore proven 22 h ago".
func (d *Drill) Sentence() string {
	proven := "restore never proven"
	if d.ProvenSeconds != nil {
		proven = "restore proven " + Ago(time.Duration(*d.ProvenSeconds*float64(time.Second)))
	}
	switch d.Result {
	case DrillDiffers:
		return fmt.Sprintf("%s, but the newest drill found %s", proven, units.Count(d.Differing, "difference", "differences"))
	case DrillFailed:
		return proven + ", and the newest drill did not find out"
	}
	return proven
}
