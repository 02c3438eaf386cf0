package reader

import (
	"context"
	"errors"
	"fmt"
	"io"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// group checks one group: its catalogues, the segments of the newest catalogue with their blobs, and the indexes in
// its pieces.
func (v *verifier) group(ctx context.Context, g *Group) {
	v.catalogues(ctx, g)
	if g.Missing != "" {
		v.problem(g, errors.New(g.Missing))
	}
	for _, o := range v.a.logs.loaded {
		if p, _ := o.piece(g.UUID); p != nil && o.number <= g.catalogue.Log && p.Through > g.catalogue.Through {
			v.problem(g, fmt.Errorf("object %s: its piece goes through index %d, and the catalogue %s, which names a later "+
				"log object, through index %d", o.name, p.Through, object.CatalogueName(g.UUID, g.number), g.catalogue.Through))
		}
	}
	w := &groupWalk{v: v, g: g, next: max(g.Floor, 1), blobs: map[string]bool{}}
	for _, s := range g.sources {
		if s.log == nil {
			w.segment(ctx, s)
		}
	}
	v.walks[g.UUID] = w
}

// catalogues reads all catalogues of a group. The objects that an older catalogue lists may be missing, but the
// catalogue itself must be valid.
func (v *verifier) catalogues(ctx context.Context, g *Group) {
	before := object.Catalogue{}
	for number := uint64(1); number <= g.number; number++ {
		name := object.CatalogueName(g.UUID, number)
		bytes, ok := v.names[name]
		if !ok {
			continue // deleted because nothing needed it
		}
		v.report.Catalogues++
		v.used[name] = true
		v.report.Bytes += bytes
		var c object.Catalogue
		opened, err := v.a.folder.openContent(ctx, name, object.KindCatalogue, bytes, &c, nil)
		if err != nil {
			v.problem(g, err)
			continue
		}
		opened.close()
		switch {
		case c.Group != g.UUID:
			v.problem(g, fmt.Errorf("object %s: %w: it is of group %s", name, object.ErrForeign, c.Group))
		case c.Through < before.Through || c.Log < before.Log:
			v.problem(g, fmt.Errorf("object %s: it goes through index %d and log object %d, an older one through %d and %d",
				name, c.Through, c.Log, before.Through, before.Log))
		case c.Log > v.a.logs.last:
			v.problem(g, fmt.Errorf("object %s: it names log object %d, and the last one is %d", name, c.Log, v.a.logs.last))
		}
		before = c
	}
}

// groupWalk walks over the entries of a group in log order.
type groupWalk struct {
	v      *verifier
	g      *Group
	next   uint64 // the index that must come next, unless there is a gap
	commit int64  // commit time of the previous version
	blobs  map[string]bool
}

// segment checks that a segment object exists and has the size that the catalogue gives. If the object is in the
// sample, segment also checks all of its entries.
func (w *groupWalk) segment(ctx context.Context, s *source) {
	v := w.v
	v.report.Segments++
	v.used[s.name] = true
	defer func() { w.next = max(w.next, s.Last+1) }()
	switch bytes, ok := v.names[s.name]; {
	case !ok:
		v.problem(w.g, fmt.Errorf("object %s is missing: the catalogue %s lists it", s.name,
			object.CatalogueName(w.g.UUID, w.g.number)))
		return
	case bytes != s.bytes:
		v.problem(w.g, fmt.Errorf("object %s: it has %d bytes, and the catalogue says %d", s.name, bytes, s.bytes))
		return
	}
	if !v.picked(s.name, s.bytes) {
		return
	}
	err := s.walk(ctx, v.a.folder, func(e *format.Entry) error {
		v.count(e)
		return w.entry(ctx, s.name, e)
	})
	if err != nil {
		v.problem(w.g, err)
	}
}

// entry checks an entry of the named object against the entries before it, and checks the entry's blob.
func (w *groupWalk) entry(ctx context.Context, name string, e *format.Entry) error {
	if e.Index > w.next && !w.told(e.Index) {
		w.v.report.Gaps++
	}
	if e.Kind.IsVersion() {
		if e.Index >= w.next && e.CommitTime < w.commit {
			return fmt.Errorf("object %s: %w: index %d was committed before an entry with a lower index", name,
				object.ErrCorrupt, e.Index)
		}
		w.commit = max(w.commit, e.CommitTime)
	}
	w.next = max(w.next, e.Index+1)
	ref, err := e.BlobRef()
	if err != nil {
		return fmt.Errorf("object %s: %w: index %d: %w", name, object.ErrCorrupt, e.Index, err)
	}
	if ref != nil {
		w.blob(ctx, e, ref)
	}
	return nil
}

// told reports whether the archive records a hole that explains why the entries before an index are missing.
func (w *groupWalk) told(index uint64) bool {
	for _, h := range w.g.Holes {
		if h.From <= w.next && index <= h.To {
			return true
		}
	}
	return false
}

// blob checks that an entry's blob exists. If the blob is in the sample, it also checks that the blob has the entry's
// data.
func (w *groupWalk) blob(ctx context.Context, e *format.Entry, ref *format.BlobRef) {
	name := object.BlobName(w.g.UUID, ref.ID)
	if w.blobs[name] {
		return
	}
	w.blobs[name] = true
	w.v.used[name] = true
	w.v.report.Blobs++
	bytes, ok := w.v.names[name]
	if !ok {
		w.v.problem(w.g, fmt.Errorf("object %s is missing: record %d refers to it as of index %d", name, e.ID, e.Index))
		return
	}
	if !w.v.picked(name, bytes) {
		return
	}
	version := Version{Entry: *e, blob: ref, group: w.g}
	src, err := version.Open(ctx)
	if err == nil {
		_, err = io.Copy(io.Discard, src)
		err = errors.Join(err, src.Close())
	}
	if err != nil {
		w.v.problem(w.g, err)
	}
}
