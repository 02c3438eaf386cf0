package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/keys"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/upkeep"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// attempts defines the pauses between attempts to archive. Each attempt reads the credentials again, so new credentials
// take effect within the longest pause.
var attempts = backoff.Doubling{First: time.Second, Most: 20 * time.Second}

// worked is the minimum duration of an attempt that counts as a success. After such an attempt, the pauses start again
// with the shortest one.
const worked = time.Minute

// process holds what the process of `sheaf-archive run` knows about its attempts to archive. Safe for concurrent use.
type process struct {
	version  string
	interval time.Duration
	upkeep   *upkeep.Upkeep // nil if the process makes no points and does not prune

	mu       sync.Mutex
	archiver *archiver.Archiver // the archiver of the current attempt; nil if there is none
	began    time.Time          // when the current attempt began
	state    archiving.State    // valid while no attempt is running
	trouble  *archiving.Trouble // why the last attempt ended; nil while an attempt is running
	store    uuid.UUID
	// through is the latest known time up to which the acknowledged writes of all groups are archived.
	through time.Time
	// objects, bytes and errors are the totals of the attempts that have ended.
	objects, bytes int64
	errors         map[string]int64
	bucketErrors   map[string]int64
	bucketTrouble  archiving.Trouble // the last failed call to the bucket
	lastObject     time.Time
	drill          *archiving.Drill // the newest drill, without the age of the proof; nil if none is known
}

func newProcess(version string, interval time.Duration) *process {
	return &process{version: version, interval: interval, state: archiving.Starting, errors: map[string]int64{},
		bucketErrors: map[string]int64{}}
}

// begin notes that an archiver was started.
func (p *process) begin(store uuid.UUID, a *archiver.Archiver) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.store, p.archiver, p.began, p.trouble = store, a, time.Now(), nil
}

// end adds the counts of an archiver that has ended to the totals.
func (p *process) end() {
	r := p.report()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.objects, p.bytes, p.errors, p.archiver = r.Objects, r.Bytes, r.Errors, nil
}

// fail notes why an attempt has ended, and returns whether another one may follow.
func (p *process) fail(err error) (again bool) {
	reason := reasonOf(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trouble = &archiving.Trouble{Reason: reason, Message: err.Error(), At: time.Now()}
	if reason == archiving.ReasonTakenOver {
		p.state = archiving.Ended // otherwise, the two archivers would take over from each other forever
		return false
	}
	p.state = archiving.Waiting
	return true
}

// stay repeats attempt until ctx ends. If an attempt fails because another archiver has taken over, stay makes no
// further attempt, and only waits for ctx to end.
func (p *process) stay(ctx context.Context, log *slog.Logger, attempt func(context.Context) error) {
	tries := backoff.Tries{Doubling: attempts}
	for {
		began := time.Now()
		err := attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if !p.fail(err) {
			log.Error("another archiver writes this archive: this process waits to be stopped", "error", err)
			<-ctx.Done()
			return
		}
		log.Error("the store is not archived; this is tried again", "reason", reasonOf(err), "error", err)
		if time.Since(began) > worked {
			tries.Again()
		}
		if !tries.Wait(ctx) {
			return
		}
	}
}

// reasonOf returns the reason to report for the error that ended an attempt.
func reasonOf(err error) string {
	var taken *archiver.TakenOverError
	switch {
	case errors.As(err, &taken):
		return archiving.ReasonTakenOver
	case errors.As(err, new(silentError)):
		return archiving.ReasonStoreSilent
	case errors.Is(err, bucket.ErrReplaces), errors.Is(err, bucket.ErrReadsOther):
		return archiving.ReasonNotCreateOnce
	case errors.Is(err, object.ErrForeign):
		return archiving.ReasonForeign
	case errors.Is(err, object.ErrVersion):
		return archiving.ReasonNewerFormat
	case errors.Is(err, object.ErrKey), errors.Is(err, keys.ErrInvalid):
		return archiving.ReasonWrongKey
	case errors.Is(err, object.ErrCorrupt):
		return archiving.ReasonDamaged
	}
	if reason := bucket.ReasonOf(err); reason != "" {
		return string(reason)
	}
	return string(bucket.NoBucket) // something that the bucket needs does not exist, such as its parent folder
}

// heard records the result of a call to the bucket.
func (p *process) heard(err error) {
	reason := bucket.ReasonOf(err)
	if reason == "" || errors.Is(err, context.Canceled) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bucketErrors[string(reason)]++
	p.bucketTrouble = archiving.Trouble{Reason: string(reason), Message: err.Error(), At: time.Now()}
}

// created notes that the bucket has acknowledged an object.
func (p *process) created() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastObject = time.Now()
}

// report returns what the process has done so far and what it is waiting for.
func (p *process) report() archiving.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	r := archiving.Report{Version: p.version, State: p.state, IntervalSeconds: p.interval.Seconds(),
		Objects: p.objects, Bytes: p.bytes, Errors: maps.Clone(p.errors), BucketErrors: maps.Clone(p.bucketErrors)}
	if p.store != uuid.Nil {
		r.Store = p.store.String()
	}
	if !p.lastObject.IsZero() {
		r.LastObject = new(p.lastObject)
	}
	var s archiver.Status
	if p.archiver != nil {
		s = p.archiver.Status()
		p.add(&r, &s)
	}
	if !p.through.IsZero() {
		lag := max(now.Sub(p.through), 0).Seconds()
		r.ArchivedThrough, r.LagSeconds = new(p.through), &lag
	}
	r.Drill = p.drilled(now)
	r.Trouble = p.troubled(&s)
	if p.upkeep != nil {
		r.Upkeep = upkeepReport(p.upkeep)
	}
	return r
}

// archivedThrough returns the time up to which all groups are archived, or the zero time if it is not known.
func (p *process) archivedThrough() time.Time {
	if r := p.report(); r.ArchivedThrough != nil {
		return *r.ArchivedThrough
	}
	return time.Time{}
}

// add adds the status of the archiver to a report.
func (p *process) add(r *archiving.Report, s *archiver.Status) {
	r.State = archiving.Starting
	if s.Writer != uuid.Nil {
		r.State, r.Writer = archiving.Archiving, s.Writer.String()
	}
	r.Epoch, r.LogObject, r.Groups, r.Waiting, r.Holes = s.Epoch, s.Number, s.Groups, s.Waiting, s.Holes
	r.PendingBytes, r.LooseBytes = s.PendingBytes, s.LooseBytes
	r.Objects, r.Bytes = r.Objects+s.Objects, r.Bytes+s.Bytes
	for reason, n := range s.Errors {
		r.Errors[string(reason)] += n
	}
	// The time covers all groups only if none of them waits for its first copy, and if the store was asked since the
	// attempt began. Without asking, the archiver would not know about groups that were created in the meantime.
	if s.Waiting == 0 && s.Groups > 0 && s.ArchivedThrough.After(p.began) && s.ArchivedThrough.After(p.through) {
		p.through = s.ArchivedThrough
	}
}

// troubled returns the problem that keeps the archive from making progress. That is the last error, unless everything
// that was acknowledged before the error is archived by now.
func (p *process) troubled(s *archiver.Status) *archiving.Trouble {
	if p.archiver == nil {
		return p.trouble
	}
	if s.LastError == "" || !s.LastErrorAt.After(s.ArchivedThrough) {
		return nil
	}
	what, _, _ := strings.Cut(s.LastError, ":")
	t := &archiving.Trouble{Reason: archiving.ReasonDamaged, Message: s.LastError, At: s.LastErrorAt}
	switch archiver.Reason(what) {
	case archiver.ReasonSource:
		t.Reason = archiving.ReasonStoreSilent
	case archiver.ReasonCreate, archiver.ReasonRead:
		t.Reason = string(bucket.Other)
		if p.bucketTrouble.Reason != "" {
			t.Reason = p.bucketTrouble.Reason
		}
	case archiver.ReasonDamage, archiver.ReasonGap:
	}
	return t
}
