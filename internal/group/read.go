package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"sync"
	"syscall"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/segio"
	"sheaf.dev/sheaf/internal/index"
)

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
	r, err := l.newest(id, opts)
	switch {
	case opts.Index == 0 && err == nil && r.Deleted:
		return Record{}, ErrNotFound
	case opts.Index == 0:
		return r, err
	case err == nil && r.Index == opts.Index:
		return r, nil
	}
	return l.version(id, opts)
}

// Has tells whether the index has a record that is not deleted. Nothing is read.
func (l *Log) Has(id int64) bool {
	loc, ok := l.places.table.Get(id)
	return ok && !loc.Tombstone()
}

// newest reads the newest version. Deletes without doubt are not read: the Record then only says Deleted.
func (l *Log) newest(id int64, opts GetOptions) (Record, error) {
	for range readTries {
		loc, ok := l.places.table.Get(id)
		if !ok {
			return Record{}, l.damages.absent(id)
		}
		if loc.Tombstone() && opts.Index == 0 && !l.damages.any() {
			return Record{Deleted: true}, nil
		}
		s := l.places.pin(id, loc)
		if s == nil {
			continue
		}
		r, err := l.readRecord(s, loc, id, &opts)
		s.unpin()
		if err == nil && l.damages.any() {
			err = l.damages.newer(id, r.Index)
		}
		if err != nil {
			return Record{}, err
		}
		return r, nil
	}
	return Record{}, fmt.Errorf("group %s: record %d moves faster than it can be read", l.opts.Identity.Name, id)
}

// readRecord reads the frame at a place, which must be of the record. The caller has pinned the segment.
func (l *Log) readRecord(s *segment, loc index.Loc, id int64, opts *GetOptions) (Record, error) {
	if s.image != nil {
		return l.readImage(s, loc, id, opts)
	}
	if s.cold != nil {
		if frame, done, ok, err := s.cold.Read(loc); err != nil {
			return Record{}, l.readFailed(s, loc, id, err)
		} else if ok {
			defer done()
			return l.copyRecord(s, frame, loc, id, opts)
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
		return Record{}, l.readFailed(s, loc, id, err)
	}
	e, _, err := format.DecodeFrame(frame, s.id, loc.Offset())
	if err == nil && (e.ID != id || !e.Kind.IsVersion()) {
		err = errOtherEntry
	}
	if err != nil {
		return Record{}, l.badFrame(s, loc, id, err)
	}
	r := recordOf(s, loc, &e)
	if pooled != nil {
		r.Attributes = append([]byte(nil), e.Attributes...)
		if r.Blob == nil {
			r.Data = nil
		}
	}
	return r, r.finish(&e, opts.MetadataOnly)
}

// copyRecord checks a frame that was read past the page cache, and copies the record out of it.
func (l *Log) copyRecord(s *segment, frame []byte, loc index.Loc, id int64, opts *GetOptions) (Record, error) {
	e, _, err := format.DecodeFrame(frame, s.id, loc.Offset())
	if err == nil && (e.ID != id || !e.Kind.IsVersion()) {
		err = errOtherEntry
	}
	if err != nil {
		return Record{}, l.badFrame(s, loc, id, err)
	}
	size := int64(len(e.Data))
	copyContent(&e, opts)
	r := recordOf(s, loc, &e)
	r.Size = size
	return r, r.finish(&e, opts.MetadataOnly)
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
func (l *Log) readImage(s *segment, loc index.Loc, id int64, opts *GetOptions) (Record, error) {
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
		return Record{}, l.badFrame(s, loc, id, err)
	}
	e.Attributes = frame[format.FrameHeaderBytes : format.FrameHeaderBytes+attributes]
	e.Data = frame[format.FrameHeaderBytes+attributes : format.FrameHeaderBytes+attributes+data]
	copyContent(&e, opts)
	r := recordOf(s, loc, &e)
	r.Size = int64(data)
	return r, r.finish(&e, opts.MetadataOnly)
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
	if e.Kind == format.KindPut && e.Codec == format.CodecBlob {
		ref, err := format.DecodeBlobRef(e.Data)
		if err != nil {
			return fmt.Errorf("record %d, %s: %w", r.ID, r.Location, err)
		}
		r.Blob, r.Size, r.Data = &ref, ref.Size, nil
	}
	if metadataOnly || r.Deleted {
		r.Data = nil
	}
	return nil
}

// badFrame notes damage that a read has found, and is its error.
func (l *Log) badFrame(s *segment, loc index.Loc, id int64, err error) error {
	return l.damages.found(format.Damage{
		Group: l.opts.Identity.Name, File: format.SegmentName(s.number), Offset: loc.Offset(), Length: loc.LengthBound(),
		What: err.Error(), IDs: []int64{id},
	}, id)
}

// readFailed is the error of a read that the device refused: damage where it says so, else something that may pass.
func (l *Log) readFailed(s *segment, loc index.Loc, id int64, err error) error {
	if errors.Is(err, syscall.EIO) || errors.Is(err, iofs.ErrNotExist) {
		return l.badFrame(s, loc, id, err)
	}
	return fmt.Errorf("group %s: %w", l.opts.Identity.Name, err)
}

var headers = sync.Pool{New: func() any { return new([format.FrameHeaderBytes]byte) }}

// Head tells the index of the newest committed version and whether it is a delete. ErrNotFound where there is none;
// *DamageError where that cannot be known.
func (l *Log) Head(id int64) (at uint64, deleted bool, err error) {
	if err := l.enter(); err != nil {
		return 0, false, err
	}
	defer l.leave()
	for range readTries {
		loc, ok := l.places.table.Get(id)
		if !ok {
			return 0, false, l.damages.absent(id)
		}
		s := l.places.pin(id, loc)
		if s == nil {
			continue
		}
		at, err := l.indexAt(s, loc, id)
		s.unpin()
		if err == nil && l.damages.any() {
			err = l.damages.newer(id, at)
		}
		if err != nil {
			return 0, false, err
		}
		return at, loc.Tombstone(), nil
	}
	return 0, false, fmt.Errorf("group %s: record %d moves faster than it can be read", l.opts.Identity.Name, id)
}

// indexAt tells the index of the entry at a place: from memory where it is, else from the header of the frame.
func (l *Log) indexAt(s *segment, loc index.Loc, id int64) (uint64, error) {
	if s.image == nil {
		l.state.mu.RLock()
		if s.rows != nil {
			if i := s.rows.AtOffset(loc.Offset()); i >= 0 && s.rows.IDs[i] == id {
				defer l.state.mu.RUnlock()
				return s.first + uint64(s.rows.Indexes[i]), nil
			}
		}
		l.state.mu.RUnlock()
	}
	header := headers.Get().(*[format.FrameHeaderBytes]byte)
	defer headers.Put(header)
	frame, err := s.read(header[:], loc.Offset())
	if err != nil {
		return 0, l.readFailed(s, loc, id, err)
	}
	e, _, _, _, err := format.DecodeHeader(frame, s.id, loc.Offset())
	if err == nil && e.ID != id {
		err = errOtherEntry
	}
	if err != nil {
		return 0, l.badFrame(s, loc, id, err)
	}
	return e.Index, nil
}
