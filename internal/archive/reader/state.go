package reader

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// State yields the group's records as of an index, in the order of their versions. It leaves out deleted records. A
// version holds its data unless the data is in a blob. The caller may keep the versions. State reads each object
// twice. It needs 24 bytes of memory for each record, in addition to one chunk and one entry. It ends after an error.
func (g *Group) State(ctx context.Context, index uint64) iter.Seq2[Version, error] {
	return g.StateOf(ctx, index, func(int64) bool { return true })
}

// StateOf is like State, but only for the records for whose ids wanted returns true. It needs memory only for these
// records.
func (g *Group) StateOf(ctx context.Context, index uint64, wanted func(id int64) bool) iter.Seq2[Version, error] {
	return func(yield func(Version, error) bool) {
		if err := g.Check(ctx, index); err != nil {
			yield(Version{}, err)
			return
		}
		newest := &table{}
		err := g.versionsUpTo(ctx, index, func(e *format.Entry, _ *source) error {
			if wanted(e.ID) {
				newest.add(e.ID, e.Index)
			}
			return nil
		})
		if err == nil {
			newest.done()
			err = g.versionsUpTo(ctx, index, func(e *format.Entry, s *source) error {
				if e.Kind == format.KindDelete || !newest.take(e.ID, e.Index) {
					return nil
				}
				v, err := g.version(e, s, true)
				if err == nil && !yield(v, nil) {
					return errEnough
				}
				return err
			})
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(Version{}, fmt.Errorf("%s: %w", g, err))
		}
	}
}

// errEnough ends an iteration because the caller wants no more elements.
var errEnough = errors.New("enough")

// versionsUpTo calls visit for each put and delete up to an index, source by source.
func (g *Group) versionsUpTo(ctx context.Context, index uint64, visit func(e *format.Entry, s *source) error) error {
	for _, s := range g.sources {
		if s.First > index {
			continue
		}
		err := s.walk(ctx, g.archive.folder, func(e *format.Entry) error {
			switch {
			case e.Index > index:
				return errStop
			case !e.Kind.IsVersion():
				return nil
			}
			return visit(e, s)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
