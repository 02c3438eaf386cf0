package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

const (
	// rewritePart determines which segments are rewritten. These are the segments in which superseded entries and
	// droppable tombstones take at least the segment's size divided by rewritePart. CompactOptions.All also rewrites
	// segments with less to drop.
	rewritePart = 4
	// paceBytes is the number of bytes that are read between two waits for the rate limit.
	paceBytes = 1 << 20
)

// These errors mean that a segment is not rewritten, and give the reason.
var (
	errNothingToDrop = errors.New("nothing to drop")
	errHoldLowered   = errors.New("holds history that is needed since the compaction has begun")
	errConfAhead     = errors.New("holds a membership change that the manifest does not know yet")
)

// sealed holds the components of the log that are needed to rewrite sealed segments.
type sealed struct {
	group   string // name of the group
	state   *state
	places  *places
	reader  *reader
	damages *damages
	blobs   *blobSet
	editor  *editor
}

// compaction is one run of Compact.
type compaction struct {
	sealed
	ctx          context.Context
	opts         CompactOptions
	retention    Retention
	segmentBytes int64

	history *history
	held    *held
	// scanned contains the superseded versions that open snapshots see. closedScans is the number of snapshots that had
	// been closed when scanned was computed.
	scanned     map[index.Loc]struct{}
	closedScans uint64
	// hold is the hold that applies to this compaction, or nil if no hold was ever set. The compaction keeps the history
	// above the index holdThrough. If that is the constant everything, it keeps no history.
	hold        *Hold
	holdThrough uint64
	applied     uint64
	// forgotten is an index. Entries above it that have a request id are kept, because a replica that restarts may need
	// them to recognise a repeated write (docs/format.md, request ids).
	forgotten uint64
	now       time.Time
	pace      pace
	report    CompactReport
	kept      bytesByOrdinal // superseded bytes that must be kept
	garbage   bytesByOrdinal // bytes of superseded entries' blobs
}

// Compact rewrites sealed segments whose entries are committed and applied. It drops the versions that retention and
// open snapshots no longer need, merges small neighbouring segments, and removes empty segments from the manifest. It
// first checks the free space (ErrNoSpace). Only one Compact of a Log runs at a time, but reads and writes are possible
// during a Compact. If the group has damage, Compact returns *DamageError and changes nothing. After any other error,
// segments that were rewritten before the error remain rewritten, and the report includes them.
//
// A superseded version is kept if it is among the newest Retention.Versions of its record, if it was superseded less
// than Retention.MinAge ago or above the hold, or if an open snapshot sees it. While a hold is in force, a version is
// also kept for ten minutes after it was superseded. A dropped version leaves a small entry if a repeated write may
// still use its request id. Before a version is dropped, the history floor is raised durably (HistoryFloor).
//
// A tombstone is dropped if no older version of its record is stored and no repeated delete can refer to the tombstone.
// The first condition becomes true one Compact after the older versions were dropped.
func (l *Log) Compact(ctx context.Context, opts CompactOptions) (CompactReport, error) {
	l.compacting.Lock() // Close cancels l.ctx before it waits for this lock
	defer l.compacting.Unlock()
	if err := l.usable(); err != nil {
		return CompactReport{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(format.ErrClosed) })()
	c := l.newCompaction(ctx, opts)
	err := c.run()
	l.memory.release()
	if err != nil {
		return c.report, fmt.Errorf("group %s: compact: %w", l.opts.Identity.Name, err)
	}
	return c.report, nil
}

func (l *Log) newCompaction(ctx context.Context, opts CompactOptions) *compaction {
	c := &compaction{
		sealed: l.sealed(), ctx: ctx, opts: opts, retention: l.opts.Retention, segmentBytes: l.opts.SegmentBytes,
		forgotten: l.state.forgotten(format.DefaultRequestWindow), now: l.now(),
	}
	if !l.opts.Off.Keeps(rules.Tombstones) {
		c.forgotten = math.MaxUint64
	}
	c.pace = pace{bytesPerSecond: opts.RateBytesPerSecond, began: time.Now()}
	return c
}

func (l *Log) sealed() sealed {
	return sealed{l.opts.Identity.Name, &l.state, &l.places, &l.reader, &l.damages, &l.blobs, &l.editor}
}

// stopped returns why the compaction must stop, or nil if it may continue.
func (c *compaction) stopped() error { return context.Cause(c.ctx) }

func (c *compaction) run() error {
	c.state.mu.Lock()
	c.state.expireSnapshots(c.now)
	c.state.mu.Unlock()
	if err := c.damages.first(); err != nil {
		return fmt.Errorf("repair the group or accept the loss first: %w", err)
	}
	views, err := c.learn()
	defer func() { unpinAll(views) }()
	if err != nil {
		return err
	}
	if !c.opts.LookOnly {
		floor := c.history.floor
		if len(c.history.tombstones) == 0 {
			floor = 0
		}
		if c.history.floor, err = c.editor.raiseTombstones(floor); err != nil {
			return err
		}
	}
	c.history.countTombstones()
	if err := c.look(views); err != nil || c.opts.LookOnly {
		return err
	}
	own := views
	views = nil
	if err = c.rewriteRuns(own); err == nil {
		c.noteUnfreed()
	}
	if c.opts.SpaceLow {
		c.editor.awaitHints()
	}
	return err
}

// learn determines which data must be kept, and returns the segments that may be rewritten.
func (c *compaction) learn() (views []view, err error) {
	if !c.opts.LookOnly {
		if err := c.editor.beginHistory(); err != nil {
			return nil, err
		}
	}
	c.learnHold(c.editor.folder.history.Load())
	c.applied = c.state.applied.Load()
	if err := c.learnLimit(); err != nil {
		return nil, err
	}
	if err := c.sealEarly(); err != nil {
		return nil, err
	}
	c.state.mu.Lock()
	c.applied, c.held.beyond = c.state.applied.Load(), c.state.beyond()
	c.scanned = c.state.scanned()
	c.closedScans = c.state.closedSnapshots(c.now)
	c.state.mu.Unlock()
	if c.held.first, err = c.firstAbove(c.held.through); err != nil {
		return nil, err
	}
	views = c.compactable()
	c.history, err = c.learnHistory(views)
	return views, err
}

// rewriteRuns rewrites the runs for which worth returns true, and unpins the views. If there is not enough space to
// rewrite a run, it still tries the other runs, which may free some space.
func (c *compaction) rewriteRuns(views []view) (failed error) {
	defer func() { unpinAll(views) }()
	for _, run := range c.runs(views) {
		err := c.stopped()
		if err == nil && c.worth(run) {
			if err = c.compactRun(run); errors.Is(err, format.ErrNoSpace) && len(run) > 1 {
				err = errors.Join(err, c.compactAlone(run))
			}
		}
		unpinAll(run) // unpins the segments before the next run, which needs the space of their files
		views = views[len(run):]
		switch {
		case errors.Is(err, errNothingToDrop):
		case errors.Is(err, errConfAhead), errors.Is(err, errHoldLowered):
			// The later runs are not compacted either: Raft's floor must not pass a membership change that the manifest does
			// not contain, and the next compaction obeys the new hold.
			c.editor.folder.logger.Debug("segment is compacted later", "segment", run[0].number, "why", err)
			return failed
		case errors.Is(err, format.ErrNoSpace):
			failed = err
		case err != nil:
			return err
		}
	}
	return failed
}

// compactAlone compacts a run's segments one by one, as far as there is space.
func (c *compaction) compactAlone(run []view) error {
	for i := range run {
		alone := run[i : i+1]
		if !c.worth(alone) {
			continue
		}
		if err := c.compactRun(alone); err != nil && !errors.Is(err, errNothingToDrop) && !errors.Is(err, format.ErrNoSpace) {
			return err
		}
	}
	return nil
}

// compactable pins the segments that are sealed and completely applied, which are all segments except the last ones. It
// leaves out an empty segment whose first index is not applied, because such a segment may still be removed when the
// log is truncated.
func (c *compaction) compactable() []view {
	views := c.reader.views(0, c.applied)
	through := c.applied
	if c.opts.Through > 0 {
		through = min(through, c.opts.Through)
	}
	for i, v := range views {
		if v.active || v.through > through || v.first > through {
			unpinAll(views[i:])
			return views[:i:i]
		}
	}
	return views
}

// compactRun replaces a run's segments with one segment, or with none if no entry remains. If it fails, nothing has
// changed.
func (c *compaction) compactRun(run []view) error {
	var bytes, superseded, rows int64
	for _, v := range run {
		drop := max(0, v.used.bytes.Load()-c.kept[v.ordinal])
		bytes, superseded, rows = bytes+v.end, superseded+drop, rows+v.rowCount.Load()
	}
	if err := c.editor.checkSpace(max(0, bytes-superseded)+hintBytesFor(rows), int(rows), bytes); err != nil {
		return err
	}
	through := run[len(run)-1].through
	c.state.mu.RLock()
	term, err := c.state.term(through)
	c.state.mu.RUnlock()
	if err != nil { // another compaction has already raised Raft's floor above the entries of this run
		term = 0
	}
	r, err := c.rewrite(run)
	if err != nil {
		return err
	}
	if err := c.editor.swap(r.rewrite, through, term); err != nil {
		return err
	}
	c.report.SegmentsRewritten += len(run)
	c.report.EntriesDropped += r.dropped
	c.report.BytesBefore += bytes
	if r.next != nil {
		c.report.BytesAfter += r.next.bytes
	}
	return c.dropBlobs(r.blobs)
}

// dropBlobs removes the blobs of dropped entries, unless another entry refers to them. If an unreadable entry may refer
// to one of them, it keeps all of them, as garbage that a later load removes.
func (c *compaction) dropBlobs(dropped map[uuid.UUID]bool) error {
	if len(dropped) == 0 || c.damages.any() {
		return nil
	}
	views := c.reader.views(0, ^uint64(0))
	defer unpinAll(views)
	for _, v := range views {
		rows, err := c.reader.rowsOf(v)
		if err != nil {
			return err // the blobs remain as garbage that the next load removes
		}
		for _, b := range rows.Blobs {
			delete(dropped, b.Ref.ID)
		}
	}
	before := c.blobs.stored.Load()
	for id := range dropped {
		c.blobs.drop(id)
	}
	// The compaction also frees the bytes of the dropped blobs.
	c.report.BytesBefore += max(0, before-c.blobs.stored.Load())
	return nil
}

// pace limits a rate of bytes. It uses the real clock, because Options.Now may stand still in tests.
type pace struct {
	bytesPerSecond int64 // no limit if 0
	began          time.Time
	bytes          int64
}

// wait adds a number of bytes to the total, and waits until the rate allows them or the context is done.
func (p *pace) wait(ctx context.Context, bytes int64) error {
	p.bytes += bytes
	if p.bytesPerSecond <= 0 {
		return context.Cause(ctx)
	}
	due := time.Duration(float64(p.bytes) / float64(p.bytesPerSecond) * float64(time.Second))
	t := time.NewTimer(time.Until(p.began.Add(due)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
