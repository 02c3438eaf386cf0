package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// File is one file of an Image.
type File struct {
	Name  string
	Bytes int64
}

// Image holds the files of one restored group, in the form of an export by a replica. If two processes create the
// same segment, their files are identical. Except for Close, the methods may be called concurrently.
type Image struct {
	plan     *plan
	manifest []byte
	release  func() // releases the image; nil after Close
}

// newImage creates the image for a plan. The founder is the Raft id of the replica that installs the image, which
// becomes the group's only member.
func newImage(p *plan, founder uint64, release func()) (*Image, error) {
	m := &format.Manifest{
		Identity: p.identity, Sequence: 1, Segments: slices.Clone(p.segments), NextSegment: uint64(len(p.segments)) + 1,
		// All entries were written before the restore, so the Raft log of the new group is empty. It begins after p.next,
		// far above the indexes of these entries.
		CompactedThrough: p.next, CompactedTerm: p.term, TombstoneFloor: p.next,
		Conf: &raftpb.ConfState{Voters: []uint64{founder}}, ConfIndex: p.next,
		HardState: format.StateRecord{Term: p.term, Commit: p.next},
	}
	encoded, err := m.Encode()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.group, err)
	}
	return &Image{plan: p, manifest: encoded, release: release}, nil
}

// Manifest returns the encoded manifest. As in an export, all segments are sealed.
func (i *Image) Manifest() []byte { return i.manifest }

// Position returns the commit index and the term in the manifest.
func (i *Image) Position() (index, term uint64) { return i.plan.next, i.plan.term }

// AsOf returns the index in the source group up to which entries are restored.
func (i *Image) AsOf() uint64 { return i.plan.index }

// Records returns the number of restored records.
func (i *Image) Records() (n int64) {
	i.plan.newest.each(func(r row) {
		if r.units != 0 {
			n++
		}
	})
	return n
}

// Files returns all files, first the segments and then the blobs.
func (i *Image) Files() []File {
	files := make([]File, 0, len(i.plan.segments)+len(i.plan.names))
	for _, s := range i.plan.segments {
		files = append(files, File{Name: format.SegmentName(s.Number), Bytes: s.Bytes})
	}
	for _, name := range i.plan.names {
		e := i.plan.blobs[name]
		if ref, err := e.BlobRef(); err == nil { // cannot fail, because addBlobs has checked the reference
			files = append(files, File{Name: name, Bytes: format.BlobFileBytes(ref.Size)})
		}
	}
	return files
}

// Bytes returns the total size of the files.
func (i *Image) Bytes() (sum int64) {
	for _, f := range i.Files() {
		sum += f.Bytes
	}
	return sum
}

// Close releases the image. Open readers can still be used.
func (i *Image) Close() error {
	if i.release != nil {
		i.release()
		i.release = nil
	}
	return nil
}

// Open reads a file from an offset to its end. It makes the file from its beginning, and discards the data before the
// offset. A segment comes from memory if the plan has kept it, and otherwise from the bucket, as each blob does. The
// context also applies to the reads that follow. If a file cannot be read completely and correctly, the reader returns
// an error, but never io.EOF.
func (i *Image) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	r, bytes, err := i.open(ctx, name)
	if err != nil {
		return nil, err
	}
	if offset < 0 || offset > bytes {
		err = fmt.Errorf("%s: %w: %s has %d bytes, asked was offset %d", i.plan.group, ErrNoFile, name, bytes, offset)
	} else if _, err = io.CopyN(io.Discard, r, offset); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (i *Image) open(ctx context.Context, name string) (r io.ReadCloser, bytes int64, err error) {
	if number, ok := format.ParseSegmentName(name); ok && number >= 1 && number <= uint64(len(i.plan.segments)) {
		s := i.plan.segments[number-1]
		return newSegmentReader(ctx, i.plan, s), s.Bytes, nil
	}
	e, ok := i.plan.blobs[name]
	if !ok {
		return nil, 0, fmt.Errorf("%s: %w: %q", i.plan.group, ErrNoFile, name)
	}
	ref, err := e.BlobRef()
	if err != nil {
		return nil, 0, err
	}
	data, err := i.plan.group.Blob(ctx, &e)
	if err != nil {
		return nil, 0, err
	}
	file := format.BlobFileReader(*ref, data)
	return blobReader{file: file, Closer: data, group: i.plan.group}, format.BlobFileBytes(ref.Size), nil
}

// blobReader reads a blob's file. Its errors contain the group's name.
type blobReader struct {
	file io.Reader
	io.Closer
	group *reader.Group
}

// Read implements io.Reader.
func (r blobReader) Read(b []byte) (int, error) {
	n, err := r.file.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: %w", r.group, err)
	}
	return n, err
}

// segmentReader creates a segment's file while the file is being read. It holds one frame in memory.
type segmentReader struct {
	plan    *plan
	segment format.ManifestSegment
	pull    func() (reader.Framed, error, bool) // nil if the plan has kept the frames
	stop    func()
	row     int    // position of the next frame that was kept
	at      int64  // number of bytes created so far
	buf     []byte // reused for all frames that are not created where the caller of Read wants them
	frame   []byte // the last frame
	ready   []byte // the bytes that Read returns next
	err     error
}

func newSegmentReader(ctx context.Context, p *plan, s format.ManifestSegment) *segmentReader {
	r := &segmentReader{plan: p, segment: s}
	if p.kept != nil {
		r.row = p.kept.from(s.FirstIndex)
	} else {
		r.pull, r.stop = iter.Pull2(p.group.Entries(ctx, s.FirstIndex, s.LastIndex))
	}
	header := format.SegmentHeader{
		Store: p.identity.Store, Group: p.identity.Group, ID: s.ID, FirstIndex: s.FirstIndex, Created: p.created,
	}
	r.ready = header.Encode()
	r.at = int64(len(r.ready))
	return r
}

// Read implements io.Reader. A frame that fits into b is created there, so that it is not copied once more.
func (r *segmentReader) Read(b []byte) (n int, _ error) {
	for n < len(b) {
		if len(r.ready) == 0 && r.err == nil {
			var inPlace bool
			if inPlace, r.err = r.fill(b[n:]); inPlace && r.err == nil {
				n += len(r.frame)
				continue
			}
			if r.err == nil {
				r.ready = r.frame
			}
		}
		if len(r.ready) == 0 {
			break
		}
		done := copy(b[n:], r.ready)
		n, r.ready = n+done, r.ready[done:]
	}
	if n == 0 && len(b) > 0 {
		return 0, r.err
	}
	return n, nil
}

// fill creates the next frame: at the beginning of b if it fits there, and otherwise in buf. The frame keeps its
// entry's checksum, which package reader has verified.
func (r *segmentReader) fill(b []byte) (inPlace bool, _ error) {
	again, err := r.next(b)
	switch {
	case err != nil:
		return false, err
	case !again && r.at != r.segment.Bytes:
		return false, fmt.Errorf("%s: %w: the objects of segment %d had %d bytes of records, and have %d", r.plan.group,
			format.ErrCorrupt, r.segment.Number, r.segment.Bytes, r.at)
	case !again:
		return false, io.EOF
	case r.at+int64(len(r.frame)) > r.segment.Bytes:
		return false, fmt.Errorf("%s: %w: the objects of segment %d had %d bytes of records, and have more", r.plan.group,
			format.ErrCorrupt, r.segment.Number, r.segment.Bytes)
	}
	format.MoveFrame(r.frame, r.segment.ID, r.at, true)
	r.at += int64(len(r.frame))
	return &r.frame[0] == &b[0], nil
}

// place returns empty memory for a frame of the given length: that of b if the frame fits there, and otherwise buf.
func (r *segmentReader) place(b []byte, length int64) []byte {
	if length <= int64(len(b)) {
		return b[:0]
	}
	r.buf = slices.Grow(r.buf[:0], int(length))
	return r.buf
}

// next reads the next frame that belongs to the segment, for fill. It returns false at the end.
func (r *segmentReader) next(b []byte) (bool, error) {
	for r.pull != nil {
		f, err, ok := r.pull()
		if err != nil || !ok {
			return false, err
		}
		if f.Entry.Kind == format.KindPut && r.plan.newest.has(f.Entry.ID, f.Entry.Index) {
			r.frame = append(r.place(b, int64(len(f.Frame))), f.Frame...)
			return true, nil
		}
	}
	for k := r.plan.kept; r.row < len(k.rows) && k.rows[r.row].index <= r.segment.LastIndex; {
		row := r.row
		r.row++
		if r.plan.newest.has(k.rows[row].id, k.rows[row].index) {
			r.frame = k.appendFrame(r.place(b, k.length(row)), row)
			return true, nil
		}
	}
	return false, nil
}

// Close implements io.Closer.
func (r *segmentReader) Close() error {
	if r.stop != nil {
		r.stop()
	}
	return nil
}
