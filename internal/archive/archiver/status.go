package archiver

import (
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Reason classifies the errors of an archiver.
type Reason string

// These are the values of Reason. After each error, the archiver tries again.
const (
	ReasonCreate Reason = "create" // an object could not be created, or the response was lost
	ReasonRead   Reason = "read"   // an object could not be read or listed
	ReasonDamage Reason = "damage" // an object was read, but is not valid
	ReasonSource Reason = "source" // the store did not respond, or its response was invalid
	ReasonGap    Reason = "gap"    // objects of a group are missing from the archive
)

// Status describes what an archiver has done, and what remains to be done. Counters start at 0 in each process.
type Status struct {
	Writer uuid.UUID
	Epoch  uint64
	Number uint64 // number of the last log object
	// ArchivedThrough is a time such that all writes acknowledged before it, in all archived groups, are archived. It is
	// zero if that time is not known yet, or if no group is archived.
	ArchivedThrough time.Time
	Groups          int   // number of archived groups
	Waiting         int   // number of groups that wait for the end of a copy
	Holes           int   // number of holes in the history of all groups
	PendingBytes    int64 // size of the new entries in memory
	LooseBytes      int64 // size of the entries that are only in log objects

	Objects int64 // number of objects that this process created
	Bytes   int64 // total size of these objects
	Errors  map[Reason]int64
	// LastError is the most recent error. It becomes "" when an object has been created after the error.
	LastError   string
	LastErrorAt time.Time
}

// board guards the Status, which several goroutines update.
type board struct {
	mu     sync.Mutex
	status Status // guarded by mu
}

func (b *board) read() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	s.Errors = maps.Clone(s.Errors)
	return s
}

func (b *board) update(change func(s *Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.status)
}

func (b *board) failed(reason Reason, err error) {
	b.update(func(s *Status) {
		if s.Errors == nil {
			s.Errors = make(map[Reason]int64)
		}
		s.Errors[reason]++
		s.LastError, s.LastErrorAt = string(reason)+": "+err.Error(), time.Now()
	})
}

func (b *board) created(bytes int64) {
	b.update(func(s *Status) {
		s.Objects++
		s.Bytes += bytes
		s.LastError = ""
	})
}
