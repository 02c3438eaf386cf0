package archiver

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/archive/bucket"
)

// Archiver keeps the archive of one store. One goroutine (Run) owns everything but the board and the copies.
type Archiver struct {
	opts    Options
	limits  limits
	objects *objects
	board   board
	chain   chain
	groups  map[uuid.UUID]*group
	damaged map[uuid.UUID]uint64 // groups all of whose catalogues are damaged, with the number of the newest; of the start
	copies  copies
	cache   cache                                // bodies of small log objects, for rolling
	pending int64                                // bytes of the news in memory, of all groups
	names   atomic.Pointer[map[uuid.UUID]string] // of all groups; replaced by publish
}

// New returns an archiver that has not begun.
func New(opts Options) (*Archiver, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	return newArchiver(opts, standardLimits), nil
}

func newArchiver(opts Options, limits limits) *Archiver {
	a := &Archiver{opts: opts, limits: limits, groups: make(map[uuid.UUID]*group), damaged: make(map[uuid.UUID]uint64)}
	a.cache.bytesMax = limits.cacheBytes
	a.objects = &objects{
		bucket: bucket.Under(opts.Bucket, opts.Store.String()), store: opts.Store, key: opts.Key, keys: opts.Keys,
		board: &a.board, log: opts.Log,
	}
	a.chain.objects, a.chain.writer = a.objects, uuid.New()
	a.copies.signal = make(chan struct{}, 1)
	return a
}

// Status returns what the archiver has done. It is safe for concurrent use.
func (a *Archiver) Status() Status { return a.board.read() }

// GroupName returns the name of a group that is archived, as of the last round or the start; empty: the group is not
// known. It is safe for concurrent use.
func (a *Archiver) GroupName(group uuid.UUID) string {
	if names := a.names.Load(); names != nil {
		return (*names)[group]
	}
	return ""
}

// Run archives until ctx ends, and returns the cause of that. It returns earlier only if it must not go on: a
// *TakenOverError if another archiver writes this archive, and an error that wraps object.ErrForeign, object.ErrVersion
// or object.ErrKey if the archive is not one that this process may write, or object.ErrCorrupt if archive.json does not
// say which one it is. It is called once.
func (a *Archiver) Run(ctx context.Context) error {
	if err := a.start(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.copyGroups(ctx)
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
		if !backoff.Sleep(ctx, max(time.Until(next), time.Millisecond)) {
			return context.Cause(ctx)
		}
	}
}

// publish writes the status.
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
