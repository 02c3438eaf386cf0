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

// records reads versions of single records. It looks up a version's location in the index or in the history of the
// segments, and reads the frame at that location. It needs neither the list of files nor the end of the log. It
// records any damage that it finds. It is safe for concurrent use. Its callers must have entered the gate.
type records struct {
	group   string
	state   *state
	places  *places
	reader  *reader
	damages *damages
}

// readTries is the maximum number of times that one read looks up an entry's location. The read fails if compaction
// has moved the entry each time before it could be read.
const readTries = 1000

// Get reads a committed version. The returned data is always a copy. It is in opts.Buffer if the whole frame fits
// into that buffer. Every read that uses the data verifies the entry CRC, except in Resident residency, in which the
// load has verified it. Get returns ErrNotFound if there is no such record or its newest version is a delete, and
// ErrVersionNotFound if there is no such version. It returns *DamageError if the version is damaged, or if damage may
// have destroyed a newer version.
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

// Has reports whether the record exists according to the index. It reads no file.
func (l *Log) Has(id int64) bool {
	loc, ok := l.places.table.Get(id)
	return ok && !loc.Tombstone()
}

// LengthBound returns the size of a buffer into which Get reads the whole record, unless the record is replaced in
// between. It returns 0 if the index has no such record. It reads no file.
func (l *Log) LengthBound(id int64) int64 {
	loc, _ := l.places.table.Get(id)
	return loc.LengthBound()
}

// Head returns the index of the newest committed version, and whether that version is a delete. It returns ErrNotFound
// if there is no version, and *DamageError if damage makes the result uncertain.
func (l *Log) Head(id int64) (at uint64, deleted bool, err error) {
	if err := l.enter(); err != nil {
		return 0, false, err
	}
	defer l.leave()
	s, loc, err := l.records.pin(id)
	if err != nil {
		return 0, false, err
	}
	defer s.unpin()
	at, err = l.records.indexAt(s, loc, id)
	if err == nil && l.damages.any() {
		err = l.damages.newer(id, at)
	}
	if err != nil {
		return 0, false, err
	}
	return at, loc.Tombstone(), nil
}

// Versions lists at most n committed versions of a record, newest first, without data. If before is not 0, only
// versions with an index below before are listed. Versions returns ErrNotFound if the record has no version.
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
	err := l.reader.history(id, 0, hi, func(v view, _ uint64, loc index.Loc) (bool, error) {
		if len(out) >= n {
			return false, nil
		}
		rec, err := l.records.read(v.segment, loc, id, &GetOptions{MetadataOnly: true})
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

// pin pins the segment that holds a record's newest version, and returns the version's location. It returns ErrNotFound
// if there is no version, and *DamageError if damage makes the result uncertain.
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

// newest reads the newest version. If that version is certainly a delete, newest does not read it, and only sets
// Deleted in the Record.
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

// version reads a version of a record by its index. The version may or may not be the newest one.
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

// read reads the frame at a location, and checks that the frame belongs to the record. The caller has pinned the
// segment.
func (r *records) read(s *segment, loc index.Loc, id int64, opts *GetOptions) (Record, error) {
	if s.image != nil {
		return r.readImage(s, loc, id, opts)
	}
	if s.cold != nil {
		if frame, done, ok, err := s.cold.Read(loc); err != nil {
			return Record{}, r.readFailed(s, loc, id, err)
		} else if ok {
			defer done()
			e, err := r.decode(s, frame, loc, id)
			if err != nil {
				return Record{}, err
			}
			return copyRecord(s, loc, &e, opts)
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

// decode decodes and verifies a whole frame that was read from a location.
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

// copyRecord returns an entry's record. It copies the requested parts of attributes and data into the buffer in opts or
// into new memory, because the entry aliases memory that others use.
func copyRecord(s *segment, loc index.Loc, e *format.Entry, opts *GetOptions) (Record, error) {
	rec, data := recordOf(s, loc, e), e.Data
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
	rec.Attributes, rec.Data = e.Attributes, e.Data
	return rec, rec.finish(e, opts.MetadataOnly)
}

var errOtherEntry = errors.New("the entry is of another record")

// readImage copies a frame from memory. It does not check the entry CRC, because the CRC was checked when the image was
// loaded, or this process created the frame.
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
	return copyRecord(s, loc, &e, opts)
}

// recordOf returns an entry's record, which aliases the entry.
func recordOf(s *segment, loc index.Loc, e *format.Entry) Record {
	return Record{
		ID: e.ID, Index: e.Index, CommitTime: e.CommitTime, Timestamp: e.Timestamp,
		Attributes: e.Attributes, Data: e.Data, Size: int64(len(e.Data)), Deleted: e.Kind == format.KindDelete,
		Location: Location{Segment: s.number, Offset: loc.Offset()},
	}
}

// finish moves the reference to a blob from Data to Blob. It also drops the data of a delete, and any data if
// metadataOnly is true.
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

// badFrame records damage that a read has found, and returns the error for it.
func (r *records) badFrame(s *segment, loc index.Loc, id int64, err error) error {
	return r.damages.found(format.Damage{
		Group: r.group, File: format.SegmentName(s.number), Offset: loc.Offset(), Length: loc.LengthBound(),
		What: err.Error(), IDs: []int64{id},
	}, id)
}

// readFailed returns the error for a failed read. The failure counts as damage if the device reports an I/O error or
// the file is missing. Any other error may be temporary.
func (r *records) readFailed(s *segment, loc index.Loc, id int64, err error) error {
	if errors.Is(err, syscall.EIO) || errors.Is(err, iofs.ErrNotExist) {
		return r.badFrame(s, loc, id, err)
	}
	return fmt.Errorf("group %s: %w", r.group, err)
}

var headers = sync.Pool{New: func() any { return new([format.FrameHeaderBytes]byte) }}

// indexAt returns the index of the entry at a location. If the index is not known in memory, indexAt reads the frame's
// header.
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
