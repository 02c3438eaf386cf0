package archiving

import (
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/base/units"
)

// Upkeep describes what an archiver does beside archiving: it makes points of a schedule, and prunes.
type Upkeep struct {
	// Schedule is the one of the points, in UTC; empty if no points are made.
	Schedule string `json:"schedule,omitempty"`
	// Points is the number of points that are kept. It is nil until the points of the archive have been read.
	Points *int `json:"points,omitempty"`
	// NewestPoint is the name of the point with the latest time; empty if there is none.
	NewestPoint     string     `json:"newestPoint,omitempty"`
	NewestPointTime *time.Time `json:"newestPointTime,omitempty"`
	NextPoint       *time.Time `json:"nextPoint,omitempty"` // when the next point of the schedule is made
	// PointTrouble says why the last attempt to make a point failed. It is nil if that succeeded.
	PointTrouble *Trouble `json:"pointTrouble,omitempty"`

	// Named says what has become of the points that others want.
	Named []NamedPoint `json:"named,omitempty"`
	// WantedError says why what others want could not be read or fulfilled. It is empty if it was.
	WantedError string `json:"wantedError,omitempty"`

	Prunes bool `json:"prunes"` // whether the archiver deletes anything
	// LastPrune is when the process last completed a prune. It is nil if it has completed none.
	LastPrune      *time.Time `json:"lastPrune,omitempty"`
	DeletedObjects int64      `json:"deletedObjects"` // since the start of the process
	DeletedBytes   int64      `json:"deletedBytes"`
	// InUse says who reads the archive, so that it was not pruned.
	InUse string `json:"inUse,omitempty"`
	// PruneTrouble says why the last attempt to prune failed. It is nil if that succeeded.
	PruneTrouble *Trouble `json:"pruneTrouble,omitempty"`

	Errors map[string]int64 `json:"errors,omitempty"` // number of errors: "point", "named", "prune"
}

// NamedPoint is a point that somebody wants to be made or dropped.
type NamedPoint struct {
	Name    string     `json:"name"`
	Time    *time.Time `json:"time,omitempty"`    // nil if there is no such point
	Dropped bool       `json:"dropped,omitempty"` // whether there is no such point any more
	Error   string     `json:"error,omitempty"`   // why the last attempt failed
}

// These are values of Trouble.Reason.
const (
	ReasonPointFailed = "PointFailed" // a point could not be made
	ReasonPruneFailed = "PruneFailed" // the archive could not be pruned
)

// Sentence describes what keeps the archive from having its points or from being pruned. It is empty if nothing does.
func (u *Upkeep) Sentence() string {
	switch {
	case u.PointTrouble != nil:
		return fmt.Sprintf("a point could not be made: %s", u.PointTrouble.Message)
	case u.PruneTrouble != nil:
		return fmt.Sprintf("the archive could not be pruned: %s", u.PruneTrouble.Message)
	case u.InUse != "":
		return fmt.Sprintf("the archive is not pruned while it is read by %s", u.InUse)
	}
	return ""
}

// PointsSentence describes the points, as in "2 points, the newest 4 h ago". It is empty if they are not known.
func (u *Upkeep) PointsSentence(now time.Time) string {
	switch {
	case u.Points == nil:
		return ""
	case *u.Points == 0 || u.NewestPointTime == nil:
		return "no points"
	}
	return fmt.Sprintf("%s, the newest %s", units.Count(int64(*u.Points), "point", "points"),
		Ago(now.Sub(*u.NewestPointTime)))
}
