package reader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Framed is an entry together with its frame in the archive. Both checksums of the frame have been checked.
type Framed struct {
	Entry *format.Entry
	Frame []byte
}

// Entries yields the archived entries from index first to index last, in order, each entry once. If objects overlap,
// one of them may have a put or delete where another has only the request. In that case Entries yields the put or
// delete. An element is valid until the next one is requested. Entries holds one chunk and one frame in memory for
// each object that contains the current index, and one chunk for each of the next few objects, which it opens
// meanwhile. Unlike the other methods of Group, it may be called concurrently, and its results may be used
// concurrently. It ends after an error.
func (g *Group) Entries(ctx context.Context, first, last uint64) iter.Seq2[Framed, error] {
	return g.merge(ctx, g.sources, first, last)
}

// Bytes returns the size of the objects, and of the pieces of log objects, that may have entries up to an index. It may
// be called concurrently.
func (g *Group) Bytes(last uint64) (sum int64) {
	for _, s := range g.sources {
		switch {
		case s.Last == 0 || s.First > last:
		case s.log != nil:
			sum += s.length
		default:
			sum += s.bytes
		}
	}
	return sum
}

// merge is Entries for some of the group's sources.
func (g *Group) merge(ctx context.Context, sources []*source, first, last uint64) iter.Seq2[Framed, error] {
	return func(yield func(Framed, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		m := merger{ctx: ctx, cancel: cancel, folder: g.archive.folder, first: first, last: last}
		for _, s := range sources {
			if s.Last != 0 && s.Last >= first && s.First <= last {
				m.waiting = append(m.waiting, &upcoming{source: *s}) // copy the source, because a walk changes its Range
			}
		}
		slices.SortStableFunc(m.waiting, func(a, b *upcoming) int { return cmp.Compare(a.First, b.First) })
		defer m.close()
		for {
			f, err := m.next()
			if err != nil {
				yield(Framed{}, fmt.Errorf("%s: %w", g, err))
				return
			}
			if f == nil || !yield(*f, nil) {
				return
			}
		}
	}
}

// Blob reads the data of a put that refers to a blob. It behaves like Version.Open, and may be called concurrently.
func (g *Group) Blob(ctx context.Context, e *format.Entry) (io.ReadCloser, error) {
	ref, err := e.BlobRef()
	if err == nil && ref == nil {
		err = errNoBlob
	}
	if err != nil {
		return nil, fmt.Errorf("%s: record %d as of index %d: %w", g, e.ID, e.Index, err)
	}
	v := Version{Entry: *e, Size: ref.Size, blob: ref, group: g}
	return v.Open(ctx)
}

var errNoBlob = errors.New("the entry refers to no blob")

// merger merges the entries of sources that may overlap.
type merger struct {
	ctx         context.Context // a field, because an iterator has no context argument
	cancel      context.CancelFunc
	folder      *folder
	first, last uint64
	waiting     []*upcoming // sources that have not been started, ordered by first index
	walks       []*frameWalk
	at          uint64 // index of the entry that was returned last
}

// frameWalk iterates over the entries of one source. Its head is the next entry that has not been returned.
type frameWalk struct {
	head Framed
	pull func() (Framed, error, bool)
	stop func()
}

// next returns the next entry, or nil at the end. The entry is valid until the next call.
func (m *merger) next() (*Framed, error) {
	if err := m.advance(); err != nil {
		return nil, err
	}
	least := m.least()
	for len(m.waiting) > 0 && (least == nil || m.waiting[0].First <= least.Entry.Index) {
		if err := m.begin(); err != nil {
			return nil, err
		}
		least = m.least()
	}
	if least != nil {
		m.at = least.Entry.Index
	}
	return least, nil
}

// least returns the entry with the lowest index, or nil if all walks have ended. If several walks are at that index,
// it prefers an entry that is not a request.
func (m *merger) least() (least *Framed) {
	for _, w := range m.walks {
		e := w.head.Entry
		if least == nil || e.Index < least.Entry.Index ||
			e.Index == least.Entry.Index && least.Entry.Kind == format.KindRequest {
			least = &w.head
		}
	}
	return least
}

// advance moves each walk past the index that was returned last.
func (m *merger) advance() error {
	for i := 0; i < len(m.walks); i++ {
		w := m.walks[i]
		for w != nil && w.head.Entry.Index <= m.at {
			head, err, ok := w.pull()
			if err != nil {
				return err
			}
			if w.head = head; !ok {
				w.stop()
				m.walks = slices.Delete(m.walks, i, i+1)
				i, w = i-1, nil
			}
		}
	}
	return nil
}

// begin starts the walk over the first waiting source.
func (m *merger) begin() error {
	s := m.waiting[0]
	s.openAhead(m.ctx, m.folder) // so that the bucket is asked for it before it is asked for those behind it
	m.waiting = m.waiting[1:]
	m.openAhead()
	w := &frameWalk{}
	w.pull, w.stop = iter.Pull2(m.frames(s))
	head, err, ok := w.pull()
	if w.head = head; err != nil || !ok {
		w.stop()
		return err
	}
	m.walks = append(m.walks, w)
	return nil
}

// frames yields those requested entries of one source that have not been returned yet.
func (m *merger) frames(s *upcoming) iter.Seq2[Framed, error] {
	return func(yield func(Framed, error) bool) {
		open := func() (opened, error) { return s.wait(m.ctx, m.folder) }
		err := s.walkOpened(m.ctx, m.folder, open, func(e *format.Entry, frame []byte) error {
			switch {
			case e.Index < m.first || e.Index <= m.at:
				return nil
			case e.Index > m.last || !yield(Framed{Entry: e, Frame: frame}, nil):
				return errStop
			}
			return nil
		})
		if err != nil {
			yield(Framed{}, err)
		}
	}
}

func (m *merger) close() {
	for _, w := range m.walks {
		w.stop()
	}
	m.cancel()
	for _, s := range m.waiting {
		s.discard()
	}
}
