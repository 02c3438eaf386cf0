// Package archiving is what an archiver reports of itself, and whether that archive is current. The archiver serves a
// Report at Path of its HTTP port, and the operator reads it there. The package reads no file and makes no call.
package archiving

import (
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/base/units"
)

// Path is the path at which an archiver serves its Report as JSON.
const Path = "/status"

// State is what an archiver does.
type State string

// The states.
const (
	Starting  State = "starting"  // it reads in the bucket how far each group is archived
	Archiving State = "archiving" // it archives; Trouble says if it does not get on
	Waiting   State = "waiting"   // it could not begin, or had to stop, and tries again; Trouble says why
	Ended     State = "ended"     // it must not go on; Trouble says why
)

// Reasons of a Trouble, besides those of package bucket.
const (
	ReasonStoreSilent   = "StoreSilent"   // a gateway or a shard of the store does not answer
	ReasonTakenOver     = "TakenOver"     // another archiver writes the archive
	ReasonForeign       = "Foreign"       // the archive is one of another store, or of another shape
	ReasonNewerFormat   = "NewerFormat"   // a later version of Sheaf wrote the archive
	ReasonWrongKey      = "WrongKey"      // the archive is encrypted with a key that the archiver does not have
	ReasonDamaged       = "Damaged"       // objects of the archive are damaged or missing
	ReasonNotCreateOnce = "NotCreateOnce" // the bucket replaces objects, or reads other bytes than were written
)

// Trouble is why an archiver does not get on.
type Trouble struct {
	Reason  string    `json:"reason"` // in CamelCase, as in conditions
	Message string    `json:"message"`
	At      time.Time `json:"at"` // when it was seen last
}

// Report is what an archiver has done and what it waits for. Times and LagSeconds are by the clock of the archiver.
type Report struct {
	Version string `json:"version"`
	Store   string `json:"store,omitempty"` // UUID; empty: the store has not answered yet
	State   State  `json:"state"`
	// IntervalSeconds is the time between two log objects.
	IntervalSeconds float64 `json:"intervalSeconds"`
	Writer          string  `json:"writer,omitempty"` // UUID of the writer; empty: it has not begun to write
	Epoch           uint64  `json:"epoch,omitempty"`
	LogObject       uint64  `json:"logObject,omitempty"` // the number of the last log object

	// ArchivedThrough is a time before which everything acknowledged, in all groups, is archived. Nil: not known yet.
	ArchivedThrough *time.Time `json:"archivedThrough,omitempty"`
	// LagSeconds is how long ago that is. Nil: not known yet.
	LagSeconds *float64 `json:"lagSeconds,omitempty"`

	Groups       int   `json:"groups"`        // groups that are archived
	Waiting      int   `json:"waitingGroups"` // groups whose first copy is not complete
	Holes        int   `json:"holes"`         // in the history of all groups
	PendingBytes int64 `json:"pendingBytes"`  // news in memory
	LooseBytes   int64 `json:"looseBytes"`    // entries that are in log objects alone

	// Objects, Bytes, Errors and BucketErrors count from the start of the process.
	Objects      int64            `json:"objects"`                // that the bucket has acknowledged
	Bytes        int64            `json:"bytes"`                  // of these objects
	Errors       map[string]int64 `json:"errors,omitempty"`       // by what the archiver did
	BucketErrors map[string]int64 `json:"bucketErrors,omitempty"` // by the reason that the bucket gave
	// LastObject is when the bucket acknowledged an object last. Nil: it has acknowledged none.
	LastObject *time.Time `json:"lastObject,omitempty"`

	// Trouble is why it does not get on. Nil: it does, as far as it knows.
	Trouble *Trouble `json:"trouble,omitempty"`
}

// patience is how far an archive may be behind before it is not current.
const patience = time.Minute

// Allowed is how far the archive may be behind before it is not current: a minute, or six intervals if that is longer.
func Allowed(interval time.Duration) time.Duration { return max(patience, 6*interval) }

// Currency says whether an archive is current.
type Currency int

// The values of Currency.
const (
	Unknown Currency = iota // nobody knows yet how far it is
	Current
	Behind
)

// Current returns whether the archive is current: whether everything acknowledged up to a short time ago is in objects
// that the bucket has acknowledged. Nothing else counts, neither that a process runs nor that it reports no trouble.
func (r *Report) Current() Currency {
	switch {
	case r.LagSeconds == nil && r.Waiting > 0:
		return Behind
	case r.LagSeconds == nil:
		return Unknown
	case *r.LagSeconds > Allowed(time.Duration(r.IntervalSeconds*float64(time.Second))).Seconds():
		return Behind
	}
	return Current
}

// Sentence says how far the archive is, such as "archived 4 s ago".
func (r *Report) Sentence() string {
	holes := ""
	if r.Holes > 0 {
		holes = ", with " + units.Count(int64(r.Holes), "hole", "holes") + " in its history"
	}
	switch {
	case r.LagSeconds == nil && r.Waiting > 0:
		return fmt.Sprintf("the first copy of %s is not complete", units.Count(int64(r.Waiting), "group", "groups")) + holes
	case r.LagSeconds == nil:
		return "not known yet"
	}
	return "archived " + Ago(time.Duration(*r.LagSeconds*float64(time.Second))) + holes
}

// Ago returns words for a time in the past, such as "4 s ago", "7 min ago" or "3 h ago".
func Ago(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s ago", int64(max(d, 0)/time.Second))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", int64(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int64(d/time.Hour))
	}
	return fmt.Sprintf("%d days ago", int64(d/(24*time.Hour)))
}
