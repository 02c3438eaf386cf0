package drill

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// row is the newest version of one record, in 24 bytes.
type row struct {
	id      int64
	index   uint64
	crc     uint32 // checksum of the entry
	deleted bool
	since   bool // whether the version was committed after the point in time of the drill
}

// files are the segments of a group, and a way to read them: those of a copy of the living store, or those that a drill
// has restored.
type files struct {
	manifest *format.Manifest
	index    uint64 // entries with a greater index do not count
	open     func(ctx context.Context, name string) (io.ReadCloser, error)
}

// newest reads all segments, and returns the newest version of each record, sorted by id. It checks both checksums of
// each frame. It needs 24 bytes of memory for each version.
func (f *files) newest(ctx context.Context, point time.Time) (rows []row, err error) {
	w := walk{point: point.UnixNano()}
	for i := range f.manifest.Segments {
		if err := f.segment(ctx, &f.manifest.Segments[i], &w); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(w.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(b.index, a.index))
	})
	return slices.CompactFunc(w.rows, func(a, b row) bool { return a.id == b.id }), nil
}

func (f *files) segment(ctx context.Context, s *format.ManifestSegment, w *walk) (err error) {
	src, err := f.open(ctx, format.SegmentName(s.Number))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	r := pieces.NewFileReader(src, f.manifest.Identity, *s)
	for r.Next() {
		if e := r.Entry(); e.Kind != format.KindState && e.Index <= f.index {
			w.add(e, r.Frame())
		}
	}
	return r.Err()
}

// walk collects the versions of a group in the order of the log.
type walk struct {
	point int64 // Unix ns
	rows  []row // indexes rise from row to row
}

// add adds an entry. A replica's file may have entries that a later leader has replaced: an entry makes those before it
// void that have the same or a greater index.
func (w *walk) add(e *format.Entry, frame []byte) {
	for n := len(w.rows); n > 0 && w.rows[n-1].index >= e.Index; n-- {
		w.rows = w.rows[:n-1]
	}
	if e.Kind.IsVersion() {
		w.rows = append(w.rows, row{id: e.ID, index: e.Index, deleted: e.Kind == format.KindDelete,
			since: e.CommitTime > w.point, crc: binary.LittleEndian.Uint32(frame[format.AtEntryCRC:])})
	}
}
