package archiver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// round requests the new entries of all groups from the source once, and archives them. It returns an error only if
// the archiver must end.
func (a *Archiver) round(ctx context.Context) error {
	a.beginCover()
	marks := make(map[uuid.UUID]uint64, len(a.groups))
	for id, g := range a.groups {
		g.skipped = false
		if !g.gone && g.isMarked {
			marks[id] = g.marked
		}
	}
	began := time.Now()
	work := pace(began.Add(a.opts.Interval))
	for news, err := range a.opts.Source.Round(ctx, marks) {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			a.skip(news.Group, err)
			continue
		}
		if err := a.take(ctx, &news); err != nil {
			return err
		}
		if now := time.Now(); now.Sub(began) >= a.opts.Interval && now.Sub(a.chain.at) >= a.opts.Interval {
			if err := a.cut(ctx); err != nil {
				return err
			}
		}
		if len(news.Entries) > 0 && len(a.serving) == 0 {
			work.rest(ctx)
		}
	}
	if err := a.adopt(); err != nil {
		return err
	}
	if err := a.cut(ctx); err != nil {
		return err
	}
	a.endCover()
	a.wantAgain(time.Now())
	return nil
}

// skip records an error from the source, and ignores the group for the rest of the round.
func (a *Archiver) skip(id uuid.UUID, err error) {
	a.board.failed(ReasonSource, err)
	a.opts.Log.Warn("the store's news are incomplete", "group", id, "error", err)
	if g := a.groups[id]; g != nil {
		g.skipped = true
	}
}

// take processes one News. It adds the new entries to those that wait in memory for the next log object.
func (a *Archiver) take(ctx context.Context, news *News) error {
	g := a.groups[news.Group]
	switch {
	case news.Unknown:
		if g == nil {
			a.copies.want(wanted{id: news.Group})
		}
		return nil
	case g == nil || g.gone || g.skipped || !g.isMarked:
		return nil
	case news.Gone:
		g.gone = true
		return nil
	case g.catchUp == catchUpRuns:
		return nil
	case news.CopyAgain:
		g.catchUp = catchUpDue
		return nil
	}
	g.name, g.catchUp = news.Name, catchUpNone
	if err := a.takeEntries(ctx, g, news); err != nil {
		var source sourceError
		if !errors.As(err, &source) {
			return err
		}
		a.skip(g.id, fmt.Errorf("group %s: %w", g.name, err))
		return nil
	}
	if !news.More && news.Through <= g.next && !news.ReadAt.Before(g.readAt) {
		g.readAt = news.ReadAt
		if len(a.serving) > 0 && g.cover == coverUnread {
			g.cover = coverRead
		}
	}
	return nil
}

// takeEntries adds those entries of a News that are not archived yet. It returns a sourceError if the entries are
// invalid, or if a blob is not available. The entries that it added before the error remain.
func (a *Archiver) takeEntries(ctx context.Context, g *group, news *News) error {
	if news.Through > format.NumberMax || news.Floor > format.NumberMax {
		return sourceError{fmt.Errorf("index %d or floor %d is absurd", news.Through, news.Floor)}
	}
	for i := range news.Entries {
		if err := a.takeBlob(ctx, g, &news.Entries[i]); err != nil {
			return err
		}
	}
	g.takeFloor(news)
	for i := range news.Entries {
		e := &news.Entries[i]
		if e.Index <= g.next {
			continue // the leader changed during the round, so this entry came twice
		}
		if e.Index > news.Through {
			return sourceError{fmt.Errorf("index %d is above %d, up to which its news are", e.Index, news.Through)}
		}
		if err := a.takeEntry(ctx, g, e); err != nil {
			return err
		}
	}
	g.next = max(g.next, news.Through)
	return nil
}

func (a *Archiver) takeBlob(ctx context.Context, g *group, e *format.Entry) error {
	ref, err := e.BlobRef()
	if err != nil {
		return sourceError{err}
	}
	if ref == nil || e.Index <= g.next {
		return nil
	}
	return a.objects.blob(ctx, g.id, *ref, func() (io.ReadCloser, error) { return a.opts.Source.Blob(ctx, g.id, *ref) })
}

// errNoRoom means that no further entries of a group can be taken for now. The earlier ones must stay in memory until
// the group's pieces in log objects can be read.
var errNoRoom = sourceError{errors.New("its news wait until its pieces in log objects can be read")}

// errForgotten means that the entries of a group that were in memory were dropped in the middle of a round.
var errForgotten = sourceError{errors.New("its news are requested again in the next round")}

// takeEntry adds one entry. If the memory limit is reached, it first makes room.
func (a *Archiver) takeEntry(ctx context.Context, g *group, e *format.Entry) error {
	bytes := format.FrameBytes(len(e.Attributes), len(e.Data))
	if a.pending+bytes+format.SegmentHeaderBytes > a.limits.pendingBytes {
		if err := a.makeRoom(ctx); err != nil {
			return err
		}
		if g.skipped {
			return errForgotten
		}
		if a.pending+bytes+format.SegmentHeaderBytes > a.limits.pendingBytes {
			return errNoRoom
		}
	}
	err := a.append(g, e)
	if errors.Is(err, pieces.ErrSpan) { // first archive the entries in memory, so that this one begins a new segment
		if err := a.cut(ctx); err != nil {
			return err
		}
		if g.skipped {
			return errForgotten
		}
		if g.news != nil {
			return errNoRoom
		}
		err = a.append(g, e)
	}
	if err != nil {
		return sourceError{err}
	}
	return nil
}

func (a *Archiver) append(g *group, e *format.Entry) error {
	news, bytes := g.news, g.newsBytes()
	if news == nil {
		news = pieces.NewBuilder(a.opts.Store, g.id, time.Now())
		a.buffers.take(news)
	}
	if err := news.Append(e); err != nil {
		return err
	}
	a.pending += news.Bytes() - bytes
	g.news, g.next = news, e.Index
	return nil
}

// makeRoom frees memory. It writes large amounts of new entries to segments and, if that does not free enough, the
// rest to a log object.
func (a *Archiver) makeRoom(ctx context.Context) error {
	if err := a.segmentsAtOnce(ctx); err != nil {
		return err
	}
	if a.pending > a.limits.pendingBytes-a.limits.atOnceBytes {
		return a.cut(ctx)
	}
	return nil
}
