package archiver

import (
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
)

// limits bound an archiver. Sizes are in bytes. Tests have smaller ones.
type limits struct {
	pendingBytes int64 // how much news may wait in memory for the next log object
	atOnceBytes  int64 // from this size on, the news of one group become a segment object at once
	segmentBytes int64 // at this size a segment object ends
	looseBytes   int64 // how much of a group may be in log objects before it is rolled
	cacheBytes   int64 // bodies of log objects that are kept for rolling
	cachedBytes  int64 // the largest of these bodies
	pieces       int   // how many pieces one log object has, so that its header stays a few MiB
	// renewAfter is how many log objects a group's catalogue may be behind, so that neither readers nor a new archiver
	// read an endless log for the sake of a quiet group.
	renewAfter uint64
}

var standardLimits = limits{
	pendingBytes: 12 << 20, atOnceBytes: 8 << 20, segmentBytes: 32 << 20, looseBytes: 32 << 20, cacheBytes: 32 << 20,
	cachedBytes: 1 << 20, pieces: 8192, renewAfter: 2160,
}

// readTries is how often a damaged object is read again before it is left for later.
const readTries = 4

// Options of an Archiver.
type Options struct {
	Bucket bucket.Bucket // the URL of the archive; the folder of the store is in it
	Source Source

	Store   uuid.UUID
	Name    string // of the store
	Routing string // "hash" or "named"
	Groups  int    // with "hash": the number of groups; otherwise 0

	Key  object.Key  // encrypts; zero: not encrypted
	Keys object.Keys // with which existing objects can be read

	Interval time.Duration // between two log objects; 0: 10 s
	Idle     time.Duration // between two log objects, and between two pieces of a group, if nothing happens; 0: 10 min
	Roll     time.Duration // how long entries are only in log objects; 0: 1 h

	Log *slog.Logger // nil: slog.Default
}

func (o *Options) complete() error {
	if o.Bucket == nil || o.Source == nil || o.Store == uuid.Nil {
		return errors.New("an archiver needs a bucket, a source and the UUID of the store")
	}
	for d, standard := range map[*time.Duration]time.Duration{
		&o.Interval: 10 * time.Second, &o.Idle: 10 * time.Minute, &o.Roll: time.Hour,
	} {
		if *d == 0 {
			*d = standard
		}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if !o.Key.IsZero() {
		o.Keys = append(object.Keys{o.Key}, o.Keys...)
	}
	return nil
}
