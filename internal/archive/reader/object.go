package reader

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"iter"

	"sheaf.dev/sheaf/internal/archive/object"
)

// Object holds the envelope and the header of one object.
type Object struct {
	Envelope object.Envelope
	Header   object.Header
}

// Object reads a whole object, given its name in the store's folder, and checks its bytes. It returns fs.ErrInvalid
// if the name is not that of an object of an archive, or if this program does not read objects of that kind.
func (a *Archive) Object(ctx context.Context, name string) (Object, error) {
	kind, ok := KindOf(name)
	var to object.Header
	switch kind {
	case object.KindArchive:
		to = &object.Archive{}
	case object.KindLog:
		to = &object.Log{}
	case object.KindSegment:
		to = &object.Segment{}
	case object.KindBlob:
		to = &object.Blob{}
	case object.KindCatalogue:
		to = &object.Catalogue{}
	case object.KindBase:
		to = &object.Base{}
	case object.KindPoint:
		to = &object.Point{}
	case object.KindUse:
		to = &object.Use{}
	case object.KindDrop:
		to = &object.Drop{}
	case object.KindDrill:
		to = &object.Drill{}
	}
	if !ok || to == nil {
		return Object{}, fmt.Errorf("%q is not the name of an object of a store's folder that this program reads: %w", name,
			fs.ErrInvalid)
	}
	info, err := a.folder.stat(ctx, name)
	if err != nil {
		return Object{}, err
	}
	c, err := a.folder.openContent(ctx, name, kind, info.Bytes, to, nil)
	if err != nil {
		return Object{}, err
	}
	defer c.close()
	e := c.chunks.Envelope()
	if _, err := io.Copy(io.Discard, c.part(ctx, 0, e.ContentBytes)); err != nil {
		return Object{}, c.named(err)
	}
	return Object{Envelope: e, Header: to}, nil
}

// Source is a segment object, or a piece of a log object, that contains a part of a group's history.
type Source struct {
	object.Range
	Object string // name of the object
	Bytes  int64  // size of the object
}

// Sources yields the sources of the group's history, in log order. It leaves out pieces without entries. It reads the
// header of each segment. It ends after an error.
func (g *Group) Sources(ctx context.Context) iter.Seq2[Source, error] {
	return func(yield func(Source, error) bool) {
		for _, s := range g.sources {
			if s.Last == 0 {
				continue
			}
			if err := s.describe(ctx, g.archive.folder); err != nil {
				yield(Source{}, err)
				return
			}
			if !yield(Source{Range: s.Range, Object: s.name, Bytes: s.bytes}, nil) {
				return
			}
		}
	}
}
