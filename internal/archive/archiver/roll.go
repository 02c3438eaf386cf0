package archiver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// segmentsAtOnce writes the new entries of each group that has many of them directly to a segment object. No
// catalogue lists these segments yet.
func (a *Archiver) segmentsAtOnce(ctx context.Context) error {
	for _, g := range a.sorted() {
		if g.newsBytes() < a.limits.atOnceBytes {
			continue
		}
		ref, err := a.objects.segment(ctx, g.name, g.catalogue.Floor, object.MadeByRoll, g.news)
		var source sourceError
		switch {
		case errors.Is(err, object.ErrCorrupt) || errors.As(err, &source): // the entries were damaged in memory
			a.board.failed(ReasonDamage, err)
			g.forget()
			continue
		case err != nil:
			return err
		}
		a.buffers.give(g.news)
		g.fresh, g.freshThrough, g.news = append(g.fresh, ref), g.next, nil
	}
	a.count()
	return nil
}

// rollDue moves pieces from log objects to segments, for the groups that have too many such pieces, or have had them
// for too long. It stops when the given time has passed.
func (a *Archiver) rollDue(ctx context.Context, until time.Time) error {
	for _, g := range a.sorted() {
		if !a.isDue(g) {
			continue
		}
		if err := a.writeCatalogue(ctx, g, pace(until)); err != nil {
			return err
		}
		if time.Now().After(until) {
			return nil // the next round continues with the remaining groups
		}
	}
	return nil
}

func (a *Archiver) isDue(g *group) bool {
	switch {
	case time.Now().Before(g.rollAfter):
		return false
	case g.gone:
		return g.goneNoted && !g.catalogue.Gone
	case g.isBroken || a.awaitsOwnCatalogue(g):
		return true
	case len(g.loose) > 0 && (time.Since(g.loose[0].at) >= a.opts.Roll || g.looseBytes() >= a.limits.looseBytes):
		return true
	}
	return g.isMarked && a.chain.number.Load() >= g.catalogue.Log+a.limits.renewAfter
}

// writeCatalogue moves the pieces that are only in log objects to segments, and creates a catalogue that lists these
// segments and the fresh ones. If a log object cannot be read, it changes nothing, and tries again later. If a
// predecessor has created a catalogue of this number meanwhile, writeCatalogue adopts that one instead. The pacer may
// be nil.
func (a *Archiver) writeCatalogue(ctx context.Context, g *group, work *pacer) error {
	rolled, err := a.roll(ctx, g, work)
	var source sourceError
	if errors.Is(err, object.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) || errors.As(err, &source) {
		a.board.failed(ReasonGap, err)
		a.opts.Log.Error("the pieces of a group cannot become segments", "group", g.name, "error", err)
		g.rollAfter = time.Now().Add(a.opts.Roll)
		return nil
	}
	if err != nil {
		return err
	}
	c := object.Catalogue{
		Group: g.id, Name: g.name, Segments: slices.Concat(g.catalogue.Segments, rolled, g.fresh),
		Through: max(g.catalogue.Through, g.marked, g.freshThrough), Floor: g.catalogue.Floor,
		Log: a.chain.number.Load(), Holes: g.holes, Gone: g.gone && g.goneNoted,
	}
	slices.SortStableFunc(c.Segments, func(a, b object.SegmentRef) int { return cmp.Compare(a.First, b.First) })
	if err := a.claimCatalogue(ctx, g.number+1, &c); err != nil {
		return a.adoptCatalogue(ctx, g, err)
	}
	g.number, g.catalogue, g.loose, g.fresh, g.isBroken = g.number+1, c, nil, nil, false
	return nil
}

func (a *Archiver) claimCatalogue(ctx context.Context, number uint64, c *object.Catalogue) error {
	content, err := a.objects.encode(c, nil, 0, nil)
	if err != nil {
		return fmt.Errorf("catalogue of group %s: %w", c.Name, err)
	}
	if err := a.objects.claim(ctx, object.CatalogueName(c.Group, number), content); err != nil {
		return a.chain.named(ctx, err)
	}
	return nil
}

// roll creates segments from all of a group's loose pieces.
func (a *Archiver) roll(ctx context.Context, g *group, work *pacer) (refs []object.SegmentRef, err error) {
	var b *pieces.Builder
	left := g.looseBytes() // of the pieces that are in no segment yet
	begin := func() {
		b = pieces.NewBuilder(a.opts.Store, g.id, time.Now())
		b.UseBuffer(a.spare.take(min(format.SegmentHeaderBytes+left, a.limits.segmentBytes+frameBytesMax)))
	}
	flush := func() error {
		if b == nil || b.Empty() {
			return nil
		}
		ref, err := a.objects.segment(ctx, g.name, g.catalogue.Floor, object.MadeByRoll, b)
		if err != nil {
			return err
		}
		left = max(0, left-b.Bytes())
		a.spare.give(b)
		refs, b = append(refs, ref), nil
		return nil
	}
	last := g.catalogue.Through // entries up to this index are in segments already
	add := func(r *pieces.Reader) error {
		if r.Entry().Index <= last {
			return nil
		}
		if b != nil && b.Bytes() >= a.limits.segmentBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		if b == nil {
			begin()
		}
		err := b.Copy(r.Entry(), r.Frame())
		if errors.Is(err, pieces.ErrSpan) {
			if err := flush(); err != nil {
				return err
			}
			begin()
			err = b.Copy(r.Entry(), r.Frame())
		}
		if err != nil {
			return sourceError{err}
		}
		last = r.Entry().Index
		return nil
	}
	for i := range g.loose {
		if err := a.readLoose(ctx, &g.loose[i], add); err != nil {
			return nil, err
		}
		work.rest(ctx)
	}
	return refs, flush()
}

// readLoose reads the entries of a piece from its log object, and passes them to a function. If a read fails,
// readLoose repeats it, and passes the entries to the function again, beginning with the first one.
func (a *Archiver) readLoose(ctx context.Context, l *loose, each func(*pieces.Reader) error) error {
	want := pieces.Want{Store: a.opts.Store, Range: l.Range, Bytes: l.bytes}
	read := func(src io.Reader) error {
		r := pieces.NewReader(src, want)
		for r.Next() {
			if err := each(r); err != nil {
				return err
			}
		}
		return r.Err()
	}
	if body := a.cache.get(l.log); body != nil {
		from := l.offset - l.object.HeaderBytes
		return read(bytes.NewReader(body[from : from+l.bytes]))
	}
	name := object.LogName(l.log)
	return a.objects.again(ctx, ReasonRead, "read "+name, func() (err error) {
		from := l.offset
		if l.object.ContentBytes-l.object.HeaderBytes <= a.limits.cachedBytes {
			from = l.object.HeaderBytes // read the whole body, because other groups need it as well
		}
		var closer io.Closer
		d, err := object.NewRangeDecoder(l.object, a.opts.Keys, from, func(at int64) (io.Reader, error) {
			end := l.object.EndOfRange(l.offset + l.bytes)
			if from != l.offset {
				end = l.object.ObjectBytes()
			}
			r, err := a.objects.bucket.Open(ctx, name, at, end-at)
			closer = r
			return r, err
		})
		if closer != nil {
			defer func() { err = errors.Join(err, closer.Close()) }()
		}
		if err != nil {
			return err
		}
		if from == l.offset {
			return read(d)
		}
		body, err := io.ReadAll(d)
		if err != nil {
			return err
		}
		a.cache.add(l.log, body)
		return read(bytes.NewReader(body[l.offset-from : l.offset-from+l.bytes]))
	})
}

// cache holds bodies of log objects. When it is full, it drops the oldest ones. bytesMax must be set.
type cache struct {
	bytesMax int64
	bodies   map[uint64][]byte
	order    []uint64
	bytes    int64
}

func (c *cache) get(number uint64) []byte { return c.bodies[number] }

// add keeps the body of a log object. It ignores empty bodies.
func (c *cache) add(number uint64, body []byte) {
	if len(body) == 0 || c.bodies[number] != nil {
		return
	}
	if c.bodies == nil {
		c.bodies = make(map[uint64][]byte)
	}
	c.bodies[number], c.bytes = body, c.bytes+int64(len(body))
	for c.order = append(c.order, number); c.bytes > c.bytesMax; c.order = c.order[1:] {
		c.bytes -= int64(len(c.bodies[c.order[0]]))
		delete(c.bodies, c.order[0])
	}
}
