// Package archiving defines the report of an archiver about itself, and decides whether its archive is current. The
// archiver serves a Report at Path on its HTTP port, where the operator reads it. The package reads no file and makes
// no call.
package archiving

import (
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/base/units"
)

// Path is the path at which an archiver serves its Report as JSON.
const Path = "/status"

// State tells what an archiver is doing.
type State string

// These are the values of State.
const (
	Starting  State = "starting"  // the archiver reads from the bucket how far each group is archived
	Archiving State = "archiving" // the archiver is running; if it makes no progress, Trouble has the reason
	Waiting   State = "waiting"   // the archiver could not begin or had to stop, and will retry; Trouble has the reason
	Ended     State = "ended"     // the archiver has stopped for good; Trouble has the reason
)

// These are values of Trouble.Reason. Package bucket defines further ones.
const (
	ReasonStoreSilent   = "StoreSilent"   // a gateway or a shard of the store does not answer
	ReasonTakenOver     = "TakenOver"     // another archiver writes the archive
	ReasonForeign       = "Foreign"       // the archive belongs to another store, or has an object of the wrong kind
	ReasonNewerFormat   = "NewerFormat"   // a later version of Sheaf wrote the archive
	ReasonWrongKey      = "WrongKey"      // the archive is encrypted with a key that the archiver does not have
	ReasonDamaged       = "Damaged"       // objects of the archive are damaged or missing
	ReasonNotCreateOnce = "NotCreateOnce" // the bucket replaces objects, or returns other bytes than were written
)

// Trouble describes what keeps an archiver from making progress.
type Trouble struct {
	Reason  string    `json:"reason"` // in CamelCase, like the reasons of Kubernetes conditions
	Message string    `json:"message"`
	At      time.Time `json:"at"` // when it last occurred
}

// Report describes what an archiver has done, and what it waits for. All times, and LagSeconds, are measured with the
// archiver's clock.
type Report struct {
	Version string `json:"version"`
	Store   string `json:"store,omitempty"` // UUID; empty until the store has responded
	State   State  `json:"state"`
	// IntervalSeconds is the time between two log objects.
	IntervalSeconds float64 `json:"intervalSeconds"`
	Writer          string  `json:"writer,omitempty"` // UUID of the writer; empty until it begins to write
	Epoch           uint64  `json:"epoch,omitempty"`
	LogObject       uint64  `json:"logObject,omitempty"` // the number of the last log object

	// ArchivedThrough is a point in time. Everything that was acknowledged before it, in all groups, is archived. It is
	// nil if the time is not known yet.
	ArchivedThrough *time.Time `json:"archivedThrough,omitempty"`
	// LagSeconds is the number of seconds since ArchivedThrough. It is nil if ArchivedThrough is nil.
	LagSeconds *float64 `json:"lagSeconds,omitempty"`

	Groups       int   `json:"groups"`        // groups that are archived
	Waiting      int   `json:"waitingGroups"` // groups whose first copy is not complete yet
	Holes        int   `json:"holes"`         // number of gaps in the archived history of all groups
	PendingBytes int64 `json:"pendingBytes"`  // size of changes in memory that are not archived yet
	LooseBytes   int64 `json:"looseBytes"`    // size of the entries that are stored only in log objects

	// Objects, Bytes, Errors and BucketErrors count from the start of the process.
	Objects      int64            `json:"objects"`                // number of objects that the bucket has acknowledged
	Bytes        int64            `json:"bytes"`                  // size of these objects
	Errors       map[string]int64 `json:"errors,omitempty"`       // number of errors, by kind
	BucketErrors map[string]int64 `json:"bucketErrors,omitempty"` // number of errors, by the bucket's reason
	// LastObject is the time when the bucket last acknowledged an object. It is nil if the bucket has not acknowledged
	// any.
	LastObject *time.Time `json:"lastObject,omitempty"`

	// Drill tells of the newest drill. It is nil if there is none, or if the archiver has not looked yet.
	Drill *Drill `json:"drill,omitempty"`

	// Trouble describes what keeps the archiver from making progress. It is nil if the archiver knows of nothing.
	Trouble *Trouble `json:"trouble,omitempty"`

	// Upkeep describes the points and the pruning. It is nil if the archiver was told to do neither.
	Upkeep *Upkeep `json:"upkeep,omitempty"`
}

// patience is how far behind an archive with a short interval may be and still count as current (see Allowed).
const patience = time.Minute

// Allowed returns how far an archive may be behind and still count as current. This is one minute or six intervals,
// whichever is longer.
func Allowed(interval time.Duration) time.Duration { return max(patience, 6*interval) }

// Currency tells whether an archive is current.
type Currency int

// These are the values of Currency.
const (
	Unknown Currency = iota // it is not known yet how far the archive is behind
	Current
	Behind
)

// Current returns whether the archive is current. An archive is current if everything that was acknowledged up to a
// short time ago is in objects that the bucket has acknowledged. Nothing else matters: not whether a process runs,
// and not whether it reports trouble.
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

// Sentence describes how far the archive is behind, and when it was proven that it can be restored, as in "archived 4 s
// ago, restore proven 22 h ago".
func (r *Report) Sentence() string {
	if r.Drill != nil {
		return r.archived() + ", " + r.Drill.Sentence()
	}
	return r.archived()
}

// archived describes how far the archive is behind.
func (r *Report) archived() string {
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
