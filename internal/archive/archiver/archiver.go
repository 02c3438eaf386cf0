package archiver

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
)

// Archiver keeps the archive of one store. Only the goroutine that calls Run uses its fields, except board, begun,
// copies, covers and names, which other goroutines use as well.
type Archiver struct {
	opts    Options
	limits  limits
	objects *objects
	board   board
	chain   chain
	groups  map[uuid.UUID]*group
	// damaged maps each group whose catalogues were all damaged when the archiver started to the number of its newest
	// catalogue.
	damaged map[uuid.UUID]uint64
	// unlisted holds groups that have pieces, although no listing had a catalogue of them when the archiver started.
	unlisted map[uuid.UUID]bool
	copies   copies
	runner   copyRunner // makes the copies
	spare    *spare
	buffers  buffers                              // the memory of new entries that were archived
	cache    cache                                // bodies of small log objects, kept until their pieces become segments
	pending  int64                                // size in bytes of the new entries in memory, for all groups together
	names    atomic.Pointer[map[uuid.UUID]string] // names of all groups, replaced as a whole by publish
	begun    chan struct{}                        // closed when start has returned
	covers   covers
	serving  []chan struct{} // the calls of Cover that are being served
}

// New returns an archiver. It does nothing until Run is called.
func New(opts Options) (*Archiver, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	return newArchiver(opts, standardLimits), nil
}

func newArchiver(opts Options, limits limits) *Archiver {
	a := &Archiver{opts: opts, limits: limits, groups: make(map[uuid.UUID]*group), damaged: make(map[uuid.UUID]uint64),
		unlisted: make(map[uuid.UUID]bool), begun: make(chan struct{})}
	a.cache.bytesMax, a.buffers.bytesMax = limits.cacheBytes, limits.pendingBytes
	a.objects = &objects{
		bucket: bucket.Under(opts.Bucket, opts.Store.String()), store: opts.Store, key: opts.Key, keys: opts.Keys,
		board: &a.board, log: opts.Log,
	}
	a.chain.objects, a.chain.writer = a.objects, uuid.New()
	a.copies.signal, a.covers.signal = make(chan struct{}, 1), make(chan struct{}, 1)
	a.spare = &spare{kept: make(chan []byte, 1), bytesMax: limits.segmentBytes + frameBytesMax}
	a.runner = copyRunner{
		copies: &a.copies, source: opts.Source, objects: a.objects, archive: opts.Bucket, limits: limits,
		catalogue: a.firstCatalogue, uploading: make(chan struct{}, 1), spare: a.spare,
	}
	return a
}

// Status returns what the archiver has done so far. It is safe for concurrent use.
func (a *Archiver) Status() Status { return a.board.read() }

// GroupName returns the name that an archived group had in the last round, or when the archiver started. It returns
// "" if the group is not known. It is safe for concurrent use.
func (a *Archiver) GroupName(group uuid.UUID) string {
	if names := a.names.Load(); names != nil {
		return (*names)[group]
	}
	return ""
}

// Run archives until ctx ends, and then returns the cause. It returns earlier only if it must not continue. The error
// is a *TakenOverError if another archiver writes this archive. It wraps object.ErrForeign, object.ErrVersion or
// object.ErrKey if this process must not write the archive, and object.ErrCorrupt if archive.json is damaged, so that
// the archive cannot be identified. Run must be called only once.
func (a *Archiver) Run(ctx context.Context) error {
	if err := a.start(ctx); err != nil {
		return err
	}
	close(a.begun)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.runner.run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	for {
		next := time.Now().Add(a.opts.Interval)
		if err := a.round(ctx); err != nil {
			return err
		}
		if err := a.rollDue(ctx, time.Now().Add(a.opts.Interval/2)); err != nil {
			return err
		}
		a.publish()
		if !a.pause(ctx, max(time.Until(next), time.Millisecond)) {
			return context.Cause(ctx)
		}
	}
}

// publish updates the status and the names of the groups.
func (a *Archiver) publish() {
	var through time.Time
	var holes, groups int
	var looseBytes int64
	names := make(map[uuid.UUID]string, len(a.groups))
	for id, g := range a.groups {
		names[id] = g.name
		looseBytes += g.looseBytes()
		holes += len(g.holes)
		if g.gone {
			continue
		}
		if groups++; groups == 1 || g.readAt.Before(through) {
			through = g.readAt
		}
	}
	a.names.Store(&names)
	waiting := a.copies.waiting()
	a.board.update(func(s *Status) {
		s.Writer, s.Epoch, s.Number = a.chain.writer, a.chain.epoch, a.chain.number.Load()
		s.ArchivedThrough, s.Groups, s.Holes = through, groups, holes
		s.Waiting, s.PendingBytes, s.LooseBytes = waiting, a.pending, looseBytes
	})
}
