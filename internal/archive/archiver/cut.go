package archiver

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"maps"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// cut archives all new entries in memory. It creates no log object if there is nothing to record and the last log
// object is younger than Options.Idle.
func (a *Archiver) cut(ctx context.Context) error {
	if err := a.segmentsAtOnce(ctx); err != nil {
		return err
	}
	if err := a.noteHoles(ctx); err != nil {
		return err
	}
	for _, g := range a.sorted() {
		if len(g.fresh) == 0 || time.Now().Before(g.rollAfter) {
			continue
		}
		if err := a.writeCatalogue(ctx, g, nil); err != nil {
			return err
		}
	}
	for {
		noted, more := a.toNote(time.Now())
		if len(noted) == 0 && time.Since(a.chain.at) < a.opts.Idle {
			return nil
		}
		if err := a.writeLog(ctx, noted); err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
}

// noteHoles creates log objects that record the new holes of all groups with fresh segments. A log object must record
// a hole before a catalogue lists it. Otherwise, an archiver that was superseded could list false holes: it sees
// holes where its successor has archived everything, and it learns that it was superseded only when it tries to
// create a log object.
func (a *Archiver) noteHoles(ctx context.Context) error {
	with := slices.DeleteFunc(a.sorted(), func(g *group) bool { return len(g.fresh) == 0 || len(g.newHoles) == 0 })
	for part := range slices.Chunk(with, a.limits.pieces) {
		if err := a.writeLog(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// toNote returns the groups that get a piece in the next log object, ordered by id. These are all groups with new
// entries and those for which Cover waits, together with groups that have had no piece for a long time. The result more
// is true if some of the former remain for another log object. If there are none of them, and the last log object is
// recent, toNote returns none.
func (a *Archiver) toNote(now time.Time) (noted []*group, more bool) {
	var quiet []*group
	for _, g := range a.groups {
		switch {
		case g.isUrgent(), g.cover == coverRead && len(g.fresh) == 0 && !g.gone:
			noted = append(noted, g)
		case len(g.fresh) == 0 && !g.gone && now.Sub(g.notedAt) >= a.opts.Idle && g.readAt.After(g.notedAt):
			quiet = append(quiet, g)
		}
	}
	if len(noted) == 0 && now.Sub(a.chain.at) < a.opts.Idle {
		return nil, false
	}
	slices.SortFunc(noted, byID)
	slices.SortFunc(quiet, func(a, b *group) int { return cmp.Or(a.notedAt.Compare(b.notedAt), byID(a, b)) })
	if len(noted) > a.limits.pieces {
		return noted[:a.limits.pieces], true
	}
	noted = append(noted, quiet[:min(len(quiet), a.limits.pieces-len(noted))]...)
	slices.SortFunc(noted, byID)
	return noted, false
}

func byID(a, b *group) int { return bytes.Compare(a.id[:], b.id[:]) }

// sorted returns the groups ordered by id, so that the same new entries always result in the same objects.
func (a *Archiver) sorted() []*group { return slices.SortedFunc(maps.Values(a.groups), byID) }

// writeLog creates a log object with one piece for each of the groups. Once the object exists, it advances the
// groups' marks.
func (a *Archiver) writeLog(ctx context.Context, noted []*group) error {
	list := make([]object.Piece, 0, len(noted))
	var bodies []io.Reader
	var kept []*group
	for _, g := range noted {
		p, body, err := g.piece()
		if err != nil { // the entries were damaged in memory, so request them from the store again
			a.board.failed(ReasonDamage, err)
			a.opts.Log.Error("news were damaged in memory, and are read again", "group", g.name, "error", err)
			g.forget()
			continue
		}
		list, kept = append(list, p), append(kept, g)
		bodies = append(bodies, bytes.NewReader(body))
	}
	number, e, err := a.chain.add(ctx, list, io.MultiReader(bodies...))
	if err != nil {
		return err
	}
	var body []byte
	offset := e.HeaderBytes
	if e.ContentBytes-e.HeaderBytes <= a.limits.cachedBytes {
		body = make([]byte, 0, e.ContentBytes-e.HeaderBytes)
	}
	for i, g := range kept {
		if body != nil && list[i].Bytes > 0 {
			segment, err := g.news.Finish()
			if body = append(body, segment...); err != nil {
				body = nil // the memory was damaged after the object was created, so use the object in the bucket
			}
		}
		news := g.news
		g.noted(&list[i], loose{Range: list[i].Range, log: number, object: e, offset: offset, bytes: list[i].Bytes,
			at: a.chain.at})
		if g.news == nil {
			a.buffers.give(news)
		}
		offset += list[i].Bytes
	}
	a.cache.add(number, body)
	a.count()
	return nil
}

// piece returns the next piece of the group and the piece's bytes, which are nil if it has no entries. If the group
// has fresh segments, the piece has only holes, because later entries must wait until a catalogue lists those
// segments.
func (g *group) piece() (object.Piece, []byte, error) {
	p := object.Piece{
		Range: object.Range{Group: g.id}, After: g.covered(), Through: g.next, ReadAt: unixNano(g.readAt), Gone: g.gone,
		Holes: g.newHoles,
	}
	var body []byte
	switch {
	case len(g.fresh) > 0:
		p.Through, p.ReadAt, p.Gone = p.After, 0, false // these describe later entries, which are not in this piece
	case g.news != nil:
		var err error
		if body, err = g.news.Finish(); err != nil {
			return p, nil, err
		}
		p.Range, p.Bytes = g.news.Range(), int64(len(body))
	}
	p.Name, p.Floor = g.name, g.catalogue.Floor
	return p, body, nil
}

// noted updates the group once a log object that contains the piece p exists.
func (g *group) noted(p *object.Piece, l loose) {
	if p.Bytes > 0 {
		g.loose = append(g.loose, l)
	}
	for _, h := range g.newHoles {
		g.holes = mergeHole(g.holes, h)
	}
	g.marked, g.isMarked, g.notedAt, g.newHoles = p.Through, true, l.at, nil
	if p.ReadAt != 0 {
		g.readNoted = time.Unix(0, p.ReadAt)
		if g.cover == coverRead {
			g.cover = coverNoted
		}
	}
	if len(g.fresh) == 0 {
		g.news, g.goneNoted = nil, p.Gone
	}
}

// unixNano returns a time in the format of the objects, in which 0 means unknown.
func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return min(max(0, t.UnixNano()), format.NumberMax)
}

// count updates pending, the size of the new entries in memory.
func (a *Archiver) count() {
	a.pending = 0
	for _, g := range a.groups {
		a.pending += g.newsBytes()
	}
}
