package archiver

import (
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
)

// limits bounds the resources of an archiver. Sizes are in bytes. Tests use smaller limits.
type limits struct {
	pendingBytes int64 // maximum size of the new entries that wait in memory for the next log object
	atOnceBytes  int64 // if a group's new entries reach this size, they become a segment object immediately
	segmentBytes int64 // a segment object that reaches this size ends
	looseBytes   int64 // maximum size of a group's pieces in log objects before they are moved to segments
	cacheBytes   int64 // maximum total size of the cached bodies of log objects
	cachedBytes  int64 // maximum size of one cached body
	pieces       int   // maximum number of pieces in a log object, which keeps its header at a few MiB
	// renewAfter is the number of new log objects after which a group gets a new catalogue, even if nothing was written
	// in the group. Otherwise readers and new archivers would have to read an ever longer log for that group.
	renewAfter uint64
}

// SegmentBytes is the size at which an archiver ends a segment object, the kind of object that has most bytes of an
// archive.
const SegmentBytes = 32 << 20

var standardLimits = limits{
	pendingBytes: 12 << 20, atOnceBytes: 8 << 20, segmentBytes: SegmentBytes, looseBytes: 32 << 20, cacheBytes: 32 << 20,
	cachedBytes: 1 << 20, pieces: 8192, renewAfter: 2160,
}

// readTries is the number of times that a damaged object is read before the archiver gives up for the moment.
const readTries = 4

// Options configures an Archiver.
type Options struct {
	Bucket bucket.Bucket // the bucket at the archive's URL, which contains the store's folder
	Source Source

	Store   uuid.UUID
	Name    string // name of the store
	Routing string // "hash" or "named"
	Groups  int    // with "hash": the number of groups; otherwise 0

	Key  object.Key  // key that encrypts new objects; if zero, they are not encrypted
	Keys object.Keys // keys with which existing objects can be decrypted

	Interval time.Duration // time between two log objects; 0 means 10 s
	Idle     time.Duration // time between log objects of an idle store, or pieces of an idle group; 0 means 10 min
	Roll     time.Duration // how long entries stay only in log objects; 0 means 1 h

	Log *slog.Logger // nil means slog.Default()
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
