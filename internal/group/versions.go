package group

import (
	"sheaf.dev/sheaf/internal/index"
)

// Versions lists committed versions with an index below before (0: no bound), newest first, at most n, without data.
// ErrNotFound where there is none at all.
func (l *Log) Versions(id int64, before uint64, n int) ([]Record, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	if _, ok := l.places.table.Get(id); !ok {
		return nil, l.damages.absent(id)
	}
	if l.damages.any() {
		if err := l.damages.history(id); err != nil {
			return nil, err
		}
	}
	hi := l.state.applied.Load()
	if before > 0 {
		hi = min(hi, before-1)
	}
	var out []Record
	err := l.reader.history(id, 0, hi, func(v view, at uint64, loc index.Loc) (bool, error) {
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
	if opts.Index <= l.state.applied.Load() {
		err = l.reader.history(id, opts.Index, opts.Index, func(v view, at uint64, loc index.Loc) (bool, error) {
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
	if err := l.damages.version(id, opts.Index); err != nil {
		return Record{}, err
	}
	return Record{}, ErrVersionNotFound
}
