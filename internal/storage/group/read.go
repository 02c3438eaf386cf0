package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"sync"
	"syscall"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// records reads the versions of single records: it looks a place up in the index or in the history of the segments, and
// reads the frame there. It touches neither the files' list nor the end of the log; what it finds to be bad it notes.
// Safe for concurrent use while the log is open: its callers have entered the gate.
type records struct {
	group   string
	state   *state
	places  *places
	reader  *reader
	damages *damages
}

// readTries bounds how often a read looks again because compaction moved the entry between the look and the read.
const readTries = 1000

// Get reads a committed version. Everything returned is a copy, in opts.Buffer where that has room for the whole frame.
// The entry CRC is checked on every read that touches the data (on load for resident images). Errors: ErrNotFound (also
// for a deleted newest version), ErrVersionNotFound, *DamageError.
func (l *Log) Get(id int64, opts GetOptions) (Record, error) {
	if err := l.enter(); err != nil {
		return Record{}, err
	}
	defer l.leave()
	r, err := l.records.newest(id, &opts)
	switch {
	case opts.Index == 0 && err == nil && r.Deleted:
		return Record{}, ErrNotFound
	case opts.Index == 0:
		return r, err
	case err == nil && r.Index == opts.Index:
		return r, nil
	}
	return l.records.version(id, &opts)
}

// Has tells whether the index has a record that is not deleted. Nothing is read.
func (l *Log) Has(id int64) bool {
	loc, ok := l.places.table.Get(id)
	return ok && !loc.Tombstone()
}

// Head tells the index of the newest committed version and whether it is a delete. ErrNotFound where there is none;
// *DamageError where that cannot be known.
func (l *Log) Head(id int64) (at uint64, deleted bool, err error) {
	if err := l.enter(); err != nil {
		return 0, false, err
	}
	defer l.leave()
	return l.records.head(id)
}

// Versions lists committed versions with an index below before (0: no bound), newest first, at most n, without data.
// ErrNotFound where there is none at all.
func (l *Log) Versions(id int64, before uint64, n int) ([]Record, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	return l.records.list(id, before, n)
}

// pin pins the segment in which the newest version of a record stands, and tells its place there. ErrNotFound where
// there is none, *DamageError where that cannot be known.
func (r *records) pin(id int64) (*segment, index.Loc, error) {
	for range readTries {
		loc, ok := r.places.table.Get(id)
		if !ok {
			return nil, 0, r.damages.absent(id)
		}
		if s := r.places.pin(id, loc); s != nil {
			return s, loc, nil
		}
	}
	return nil, 0, fmt.Errorf("group %s: record %d moves faster than it can be read", r.group, id)
}

// newest reads the newest version. Deletes without doubt are not read: the Record then only says Deleted.
func (r *records) newest(id int64, opts *GetOptions) (Record, error) {
	s, loc, err := r.pin(id)
	if err != nil {
		return Record{}, err
	}
	if loc.Tombstone() && opts.Index == 0 && !r.damages.any() {
		s.unpin()
		return Record{Deleted: true}, nil
	}
	rec, err := r.read(s, loc, id, opts)
	s.unpin()
	if err == nil && r.damages.any() {
		err = r.damages.newer(id, rec.Index)
	}
	if err != nil {
		return Record{}, err
	}
	return rec, nil
}

// version reads a version that is not the newest, or not known to be.
func (r *records) version(id int64, opts *GetOptions) (rec Record, err error) {
	found := false
	if opts.Index <= r.state.applied.Load() {
		err = r.reader.history(id, opts.Index, opts.Index, func(v view, _ uint64, loc index.Loc) (bool, error) {
			var err error
			rec, err = r.read(v.segment, loc, id, opts)
			found = err == nil
			return false, err
		})
	}
	if err == nil && !found {
		if err = r.damages.version(id, opts.Index); err == nil {
			err = ErrVersionNotFound
		}
	}
	if err != nil {
		return Record{}, err
	}
	return rec, nil
}

// list is Versions.
func (r *records) list(id int64, before uint64, n int) ([]Record, error) {
	if _, ok := r.places.table.Get(id); !ok {
		return nil, r.damages.absent(id)
	}
	if r.damages.any() {
		if err := r.damages.history(id); err != nil {
			return nil, err
		}
	}
	hi := r.state.applied.Load()
	if before > 0 {
		hi = min(hi, before-1)
	}
	var out []Record
	err := r.reader.history(id, 0, hi, func(v view, _ uint64, loc index.Loc) (bool, error) {
		if len(out) >= n {
			return false, nil
		}
		rec, err := r.read(v.segment, loc, id, &GetOptions{MetadataOnly: true})
		if err != nil {
			return false, err
		}
		out = append(out, rec)
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// read reads the frame at a place, which must be of the record. The caller has pinned the segment.
func (r *records) read(s *segment, loc index.Loc, id int64, opts *GetOptions) (Record, error) {
	if s.image != nil {
		return r.readImage(s, loc, id, opts)
	}
	if s.cold != nil {
		if frame, done, ok, err := s.cold.Read(loc); err != nil {
			return Record{}, r.readFailed(s, loc, id, err)
		} else if ok {
			defer done()
			return r.copyRecord(s, frame, loc, id, opts)
		}
	}
	bound := loc.LengthBound()
	buf := opts.Buffer
	var pooled *[]byte
	switch {
	case int64(cap(buf)) >= bound:
		buf = buf[:bound]
	case opts.MetadataOnly:
		pooled = segio.FrameBuffers.Get().(*[]byte)
		defer segio.FrameBuffers.Put(pooled)
		buf = (*pooled)[:bound]
	default:
		buf = make([]byte, bound)
	}
	frame, err := s.read(buf, loc.Offset())
	if err != nil {
		return Record{}, r.readFailed(s, loc, id, err)
	}
	e, err := r.decode(s, frame, loc, id)
	if err != nil {
		return Record{}, err
	}
	rec := recordOf(s, loc, &e)
	if pooled != nil {
		rec.Attributes = append([]byte(nil), e.Attributes...)
		if rec.Blob == nil {
			rec.Data = nil
		}
	}
	return rec, rec.finish(&e, opts.MetadataOnly)
}

// decode takes apart a frame that was read from a place, and checks all of it.
func (r *records) decode(s *segment, frame []byte, loc index.Loc, id int64) (format.Entry, error) {
	e, _, err := format.DecodeFrame(frame, s.id, loc.Offset())
	if err == nil && (e.ID != id || !e.Kind.IsVersion()) {
		err = errOtherEntry
	}
	if err != nil {
		return format.Entry{}, r.badFrame(s, loc, id, err)
	}
	return e, nil
}

// copyRecord checks a frame that was read past the page cache, and copies the record out of it.
func (r *records) copyRecord(s *segment, frame []byte, loc index.Loc, id int64, opts *GetOptions) (Record, error) {
	e, err := r.decode(s, frame, loc, id)
	if err != nil {
		return Record{}, err
	}
	size := int64(len(e.Data))
	copyContent(&e, opts)
	rec := recordOf(s, loc, &e)
	rec.Size = size
	return rec, rec.finish(&e, opts.MetadataOnly)
}

// copyContent copies attributes and data, as far as they are wanted, into the buffer of the options or into new memory.
func copyContent(e *format.Entry, opts *GetOptions) {
	data := e.Data
	if opts.MetadataOnly && e.Codec != format.CodecBlob {
		data = nil
	}
	attributes := len(e.Attributes)
	own := opts.Buffer[:0]
	if cap(own) < attributes+len(data) {
		own = make([]byte, 0, attributes+len(data))
	}
	own = append(append(own, e.Attributes...), data...)
	e.Attributes, e.Data = nil, own[attributes:]
	if attributes > 0 {
		e.Attributes = own[:attributes:attributes]
	}
}

var errOtherEntry = errors.New("the entry is of another record")

// readImage copies a frame out of memory. Its entry CRC was checked when the image was loaded, or it was made here.
func (r *records) readImage(s *segment, loc index.Loc, id int64, opts *GetOptions) (Record, error) {
	offset := loc.Offset()
	frame := s.image[min(offset, int64(len(s.image))):min(offset+loc.LengthBound(), int64(len(s.image)))]
	e, attributes, data, n, err := format.DecodeHeader(frame, s.id, offset)
	if err == nil && (e.ID != id || !e.Kind.IsVersion()) {
		err = errOtherEntry
	}
	if err == nil && n > int64(len(frame)) {
		err = format.ErrFrameContent
	}
	if err != nil {
		return Record{}, r.badFrame(s, loc, id, err)
	}
	e.Attributes = frame[format.FrameHeaderBytes : format.FrameHeaderBytes+attributes]
	e.Data = frame[format.FrameHeaderBytes+attributes : format.FrameHeaderBytes+attributes+data]
	copyContent(&e, opts)
	rec := recordOf(s, loc, &e)
	rec.Size = int64(data)
	return rec, rec.finish(&e, opts.MetadataOnly)
}

// recordOf is the record of an entry, which it aliases.
func recordOf(s *segment, loc index.Loc, e *format.Entry) Record {
	return Record{
		ID: e.ID, Index: e.Index, CommitTime: e.CommitTime, Timestamp: e.Timestamp,
		Attributes: e.Attributes, Data: e.Data, Size: int64(len(e.Data)), Deleted: e.Kind == format.KindDelete,
		Location: Location{Segment: s.number, Offset: loc.Offset()},
	}
}

// finish takes the reference to a blob out of the data, and the data away where it is not wanted.
func (r *Record) finish(e *format.Entry, metadataOnly bool) error {
	ref, err := e.BlobRef()
	if err != nil {
		return fmt.Errorf("record %d, %s: %w", r.ID, r.Location, err)
	}
	if ref != nil {
		r.Blob, r.Size, r.Data = ref, ref.Size, nil
	}
	if metadataOnly || r.Deleted {
		r.Data = nil
	}
	return nil
}

// badFrame notes damage that a read has found, and is its error.
func (r *records) badFrame(s *segment, loc index.Loc, id int64, err error) error {
	return r.damages.found(format.Damage{
		Group: r.group, File: format.SegmentName(s.number), Offset: loc.Offset(), Length: loc.LengthBound(),
		What: err.Error(), IDs: []int64{id},
	}, id)
}

// readFailed is the error of a read that the device refused: damage where it says so, else something that may pass.
func (r *records) readFailed(s *segment, loc index.Loc, id int64, err error) error {
	if errors.Is(err, syscall.EIO) || errors.Is(err, iofs.ErrNotExist) {
		return r.badFrame(s, loc, id, err)
	}
	return fmt.Errorf("group %s: %w", r.group, err)
}

var headers = sync.Pool{New: func() any { return new([format.FrameHeaderBytes]byte) }}

// head is Head.
func (r *records) head(id int64) (at uint64, deleted bool, err error) {
	s, loc, err := r.pin(id)
	if err != nil {
		return 0, false, err
	}
	defer s.unpin()
	at, err = r.indexAt(s, loc, id)
	if err == nil && r.damages.any() {
		err = r.damages.newer(id, at)
	}
	if err != nil {
		return 0, false, err
	}
	return at, loc.Tombstone(), nil
}

// indexAt tells the index of the entry at a place: from memory where it is, else from the header of the frame.
func (r *records) indexAt(s *segment, loc index.Loc, id int64) (uint64, error) {
	if s.image == nil {
		r.state.mu.RLock()
		if s.rows != nil {
			if i := s.rows.AtOffset(loc.Offset()); i >= 0 && s.rows.IDs[i] == id {
				defer r.state.mu.RUnlock()
				return s.first + uint64(s.rows.Indexes[i]), nil
			}
		}
		r.state.mu.RUnlock()
	}
	header := headers.Get().(*[format.FrameHeaderBytes]byte)
	defer headers.Put(header)
	frame, err := s.read(header[:], loc.Offset())
	if err != nil {
		return 0, r.readFailed(s, loc, id, err)
	}
	e, _, _, _, err := format.DecodeHeader(frame, s.id, loc.Offset())
	if err == nil && e.ID != id {
		err = errOtherEntry
	}
	if err != nil {
		return 0, r.badFrame(s, loc, id, err)
	}
	return e.Index, nil
}
