package reader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// State yields the group's records as of an index, in the order of their versions. It leaves out deleted records. A
// version holds its data unless the data is in a blob. The caller may keep the versions. State reads each object
// twice. It needs 24 bytes of memory for each record, in addition to one chunk and one entry. It ends after an error.
func (g *Group) State(ctx context.Context, index uint64) iter.Seq2[Version, error] {
	return g.StateOf(ctx, index, func(int64) bool { return true })
}

// StateOf is like State, but yields only the records for whose ids wanted returns true. It needs memory only for these
// records.
func (g *Group) StateOf(ctx context.Context, index uint64, wanted func(id int64) bool) iter.Seq2[Version, error] {
	return func(yield func(Version, error) bool) {
		if err := g.Check(ctx, index); err != nil {
			yield(Version{}, err)
			return
		}
		newest, err := g.newestUpTo(ctx, index, func(e *format.Entry) bool { return wanted(e.ID) })
		if err == nil {
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

// newestUpTo finds the newest version of each record at or below an index. It ignores the versions for which wanted
// returns false.
func (g *Group) newestUpTo(ctx context.Context, index uint64, wanted func(e *format.Entry) bool) (*table, error) {
	newest := &table{}
	err := g.versionsUpTo(ctx, index, func(e *format.Entry, _ *source) error {
		if wanted(e) {
			newest.add(e.ID, e.Index)
		}
		return nil
	})
	newest.done()
	return newest, err
}

// End describes a group at the end of its archive.
type End struct {
	Live       []Live // the records whose newest version is a put, in ascending order of their ids
	Term       uint64 // greatest term of a version; 0 if there is none
	CommitTime int64  // commit time of the last version; 0 if there is none
}

// Live is a record at the end of an archive.
type Live struct {
	ID       int64
	Index    uint64 // index of its newest version
	Checksum uint32 // entry CRC of that version
}

// End returns the end of the group's archive. Unlike State, it does not ask whether reads as of that index are exact,
// because it tells what the archive has, and not what the group had. It reads each object twice. It needs 48 bytes of
// memory for each record, in addition to one chunk and one entry.
func (g *Group) End(ctx context.Context) (end End, err error) {
	newest, err := g.newestUpTo(ctx, g.Through, func(e *format.Entry) bool {
		end.Term, end.CommitTime = max(end.Term, e.Term), max(end.CommitTime, e.CommitTime)
		return true
	})
	if err == nil {
		for _, s := range g.sources {
			err = errors.Join(err, s.walkFrames(ctx, g.archive.folder, func(e *format.Entry, frame []byte) error {
				if e.Kind == format.KindPut && e.Index <= g.Through && newest.take(e.ID, e.Index) {
					end.Live = append(end.Live, Live{ID: e.ID, Index: e.Index, Checksum: format.EntryChecksum(frame)})
				}
				return nil
			}))
			if err != nil {
				break
			}
		}
	}
	if err != nil {
		return End{}, fmt.Errorf("%s: %w", g, err)
	}
	slices.SortFunc(end.Live, func(a, b Live) int { return cmp.Compare(a.ID, b.ID) })
	return end, nil
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
