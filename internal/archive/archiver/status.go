package archiver

import (
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Reason groups the errors of an archiver.
type Reason string

// The reasons. Each is counted, and the archiver tries again.
const (
	ReasonCreate Reason = "create" // an object could not be created, or the answer was lost
	ReasonRead   Reason = "read"   // an object could not be read or listed
	ReasonDamage Reason = "damage" // an object was read, but is not valid
	ReasonSource Reason = "source" // the store did not answer, or its answer made no sense
	ReasonGap    Reason = "gap"    // objects of a group are missing from the archive
)

// Status is what an archiver has done and what it waits for. Counters begin at 0 in each process.
type Status struct {
	Writer uuid.UUID
	Epoch  uint64
	Number uint64 // of the last log object
	// ArchivedThrough is a time before which everything acknowledged, in all groups that are archived, is archived.
	// Zero: not known yet, or no group is archived.
	ArchivedThrough time.Time
	Groups          int   // groups that are archived
	Waiting         int   // groups whose first copy is not complete
	Holes           int   // in the history of all groups
	PendingBytes    int64 // news in memory
	LooseBytes      int64 // entries that are only in log objects

	Objects int64 // that this process created
	Bytes   int64 // of these objects
	Errors  map[Reason]int64
	// LastError is what went wrong last; "" once an object was created since.
	LastError   string
	LastErrorAt time.Time
}

// board is the Status that several goroutines write.
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
