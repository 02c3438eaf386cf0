package group

import (
	"sort"
	"sync"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/index"
)

// Versions lists committed versions with an index below before (0: no bound), newest first, at most n, without data.
// ErrNotFound where there is none at all.
func (l *Log) Versions(id int64, before uint64, n int) ([]Record, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	if _, ok := l.table.Get(id); !ok {
		return nil, l.absent(id)
	}
	if l.damaged.Load() > 0 {
		if err := l.doubtHistory(id); err != nil {
			return nil, err
		}
	}
	hi := l.applied.Load()
	if before > 0 {
		hi = min(hi, before-1)
	}
	var out []Record
	err := l.history(id, 0, hi, func(v view, at uint64, loc index.Loc) (bool, error) {
		if len(out) >= n {
			return false, nil
		}
		r, err := l.readRecord(v.segment, loc, id, &GetOptions{MetadataOnly: true})
		if err != nil {
			return false, err
		}
		out = append(out, r)
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// version reads a version that is not the newest, or not known to be.
func (l *Log) version(id int64, opts GetOptions) (Record, error) {
	var out Record
	found := false
	var err error
	if opts.Index <= l.applied.Load() {
		err = l.history(id, opts.Index, opts.Index, func(v view, at uint64, loc index.Loc) (bool, error) {
			var err error
			out, err = l.readRecord(v.segment, loc, id, &opts)
			found = err == nil
			return false, err
		})
	}
	switch {
	case err != nil:
		return Record{}, err
	case found:
		return out, nil
	}
	if err := l.doubtVersion(id, opts.Index); err != nil {
		return Record{}, err
	}
	return Record{}, ErrVersionNotFound
}

// history gives the places of a record's versions with an index from lo to hi, newest first, until fn answers false.
func (l *Log) history(id int64, lo, hi uint64, fn func(v view, at uint64, loc index.Loc) (bool, error)) error {
	views := l.views(lo, hi)
	defer unpinAll(views)
	for i := len(views) - 1; i >= 0; i-- {
		v := views[i]
		rows, err := l.rowsOf(v, id)
		if err != nil {
			return err
		}
		for j := len(rows) - 1; j >= 0; j-- {
			r := rows[j]
			if r.index < lo || r.index > min(hi, v.through) {
				continue
			}
			more, err := fn(v, r.index, r.loc)
			if err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// versionRow is one version in a segment.
type versionRow struct {
	index uint64
	loc   index.Loc
}

// rowsOf finds the versions of a record in a segment, oldest first.
func (l *Log) rowsOf(v view, id int64) ([]versionRow, error) {
	var out []versionRow
	ordinal := uint64(v.ordinal) << 44
	if v.rows != nil {
		for i, other := range v.rows.IDs {
			if other == id {
				out = append(out, versionRow{v.first + uint64(v.rows.Indexes[i]), index.Loc(v.rows.Places[i] | ordinal)})
			}
		}
		return out, nil
	}
	h, err := l.hintOf(v)
	if err != nil {
		return nil, err
	}
	hash := index.Hash(id)
	from := sort.Search(len(h.IDs), func(i int) bool { return index.Hash(h.IDs[i]) >= hash })
	for i := from; i < len(h.IDs) && index.Hash(h.IDs[i]) == hash; i++ {
		if h.IDs[i] == id {
			out = append(out, versionRow{h.FirstIndex + uint64(h.Indexes[i]), index.Loc(h.Places[i] | ordinal)})
		}
	}
	return out, nil
}

// hintCache keeps the hints that were used last: history is asked for seldom, but then for many records.
type hintCache struct {
	mu    sync.Mutex
	hints []*format.Hint // the last used one last
}

const hintCacheBytesMax = 64 << 20

// hintOf is the hint of a sealed segment: from memory, from disk, or made by reading the segment.
func (l *Log) hintOf(v view) (*format.Hint, error) {
	c := &l.hintCache
	c.mu.Lock()
	for i, h := range c.hints {
		if h.Segment == v.id {
			c.hints = append(append(c.hints[:i:i], c.hints[i+1:]...), h)
			c.mu.Unlock()
			return h, nil
		}
	}
	c.mu.Unlock()
	h, err := format.ReadHint(l.fs, l.dir, v.m)
	if err != nil {
		w, err := l.walkFile(v.segment, v.end, true)
		if err != nil {
			return nil, err
		}
		h = w.Rows.Hint(v.m, w.Terms)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hints = append(c.hints, h)
	bytes := int64(0)
	for i := len(c.hints) - 1; i >= 0; i-- {
		if bytes += hintBytes(c.hints[i]); bytes > hintCacheBytesMax && i < len(c.hints)-1 {
			c.hints = append([]*format.Hint(nil), c.hints[i+1:]...)
			break
		}
	}
	return h, nil
}

// hintBytes is what a hint takes on disk and in memory.
func hintBytes(h *format.Hint) int64 {
	return format.HintBytes(int64(len(h.IDs)), int64(len(h.Terms)), int64(len(h.Blobs)))
}
