package reader

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Version is a version of a record: a put or a delete.
type Version struct {
	// Entry is the entry as it was committed. Its data is nil if the data must be read with Open, which is also the case
	// if the data is in a blob.
	Entry format.Entry
	// Size is the length of the record's data in bytes; 0 for a delete.
	Size int64

	blob   *format.BlobRef
	source *source
	group  *Group
}

// Deleted reports whether the version is a delete.
func (v *Version) Deleted() bool { return v.Entry.Kind == format.KindDelete }

// version converts an entry to a Version. It copies the entry's data only if data is true.
func (g *Group) version(e *format.Entry, s *source, data bool) (Version, error) {
	v := Version{Entry: *e, Size: int64(len(e.Data)), source: s, group: g}
	v.Entry.Attributes = bytes.Clone(e.Attributes)
	blob, err := e.BlobRef()
	if err != nil {
		return v, fmt.Errorf("object %s: %w: index %d: %w", s.name, object.ErrCorrupt, e.Index, err)
	}
	if v.blob = blob; blob != nil {
		v.Size = blob.Size
	}
	v.Entry.Data = nil
	if data && blob == nil {
		v.Entry.Data = append([]byte{}, e.Data...)
	}
	return v, nil
}

// Record returns a record's version as of an index. It returns false if the record did not exist, because it had
// never been put or had been deleted. It returns a *RefusedError if the archive has no exact answer.
func (g *Group) Record(ctx context.Context, id int64, index uint64) (v Version, ok bool, err error) {
	if err := g.Check(ctx, index); err != nil {
		return v, false, err
	}
	// Search the newest source first. Once a version is found, search an earlier source only if it ends at a greater
	// index than that version, which is possible because sources may overlap.
	for i := len(g.sources) - 1; i >= 0; i-- {
		s := g.sources[i]
		if s.First > index || ok && s.Last <= v.Entry.Index {
			continue
		}
		err := s.walk(ctx, g.archive.folder, func(e *format.Entry) (err error) {
			switch {
			case e.Index > index:
				return errStop
			case e.ID == id && e.Kind.IsVersion() && (!ok || e.Index > v.Entry.Index):
				ok = true
				v, err = g.version(e, s, true)
			}
			return err
		})
		if err != nil {
			return v, false, fmt.Errorf("%s: %w", g, err)
		}
	}
	return v, ok && !v.Deleted(), nil
}

// Versions returns the archived versions of a record, oldest first. Versions below the floor and in holes may be
// missing.
func (g *Group) Versions(ctx context.Context, id int64) (versions []Version, err error) {
	for _, s := range g.sources {
		err := s.walk(ctx, g.archive.folder, func(e *format.Entry) error {
			if e.ID != id || !e.Kind.IsVersion() {
				return nil
			}
			v, err := g.version(e, s, false)
			versions = append(versions, v)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g, err)
		}
	}
	slices.SortFunc(versions, func(a, b Version) int { return cmp.Compare(a.Entry.Index, b.Entry.Index) })
	return slices.CompactFunc(versions, func(a, b Version) bool { return a.Entry.Index == b.Entry.Index }), nil
}

// Open reads the data of a version. The data is correct only if the reader returns io.EOF. If a blob's checksum is
// wrong, the reader returns an error in place of the last chunk. For a version that State has yielded, Open is safe for
// concurrent use, even while the group is being read.
func (v *Version) Open(ctx context.Context) (io.ReadCloser, error) {
	switch {
	case v.Deleted():
		return nil, fmt.Errorf("%s: record %d is deleted as of index %d", v.group, v.Entry.ID, v.Entry.Index)
	case v.blob != nil:
		return v.openBlob(ctx)
	case v.Entry.Data != nil:
		return io.NopCloser(bytes.NewReader(v.Entry.Data)), nil
	}
	var data []byte
	err := v.source.walk(ctx, v.group.archive.folder, func(e *format.Entry) error {
		if e.Index == v.Entry.Index {
			data = append([]byte{}, e.Data...)
			return errStop
		}
		return nil
	})
	if err == nil && data == nil {
		err = fmt.Errorf("object %s: %w: it had index %d before", v.source.name, object.ErrCorrupt, v.Entry.Index)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.group, err)
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (v *Version) openBlob(ctx context.Context) (io.ReadCloser, error) {
	f := v.group.archive.folder
	c, err := f.openBlob(ctx, v.group, v.blob)
	if err != nil {
		return nil, fmt.Errorf("%s: record %d as of index %d: %w", v.group, v.Entry.ID, v.Entry.Index, err)
	}
	e := c.chunks.Envelope()
	data := c.part(ctx, e.HeaderBytes, e.ContentBytes)
	return &blobReader{part: data, want: v.blob.CRC32C, seen: e.HeaderBytes}, nil
}

// openBlob opens a blob object.
func (f *folder) openBlob(ctx context.Context, g *Group, ref *format.BlobRef) (*content, error) {
	name := object.BlobName(g.UUID, ref.ID)
	info, err := f.stat(ctx, name)
	if err != nil {
		return nil, err
	}
	var h object.Blob
	return f.openContent(ctx, name, object.KindBlob, info.Bytes, &h, func() error {
		if h.Group != g.UUID || h.Size != ref.Size {
			return fmt.Errorf("%w: it has %d bytes of group %s, and the entry refers to %d bytes", object.ErrForeign, h.Size,
				h.Group, ref.Size)
		}
		return nil
	})
}

// blobReader reads the data of a blob. It returns the last part of the data only after it has verified the checksum
// of the whole.
type blobReader struct {
	*part
	want uint32
	crc  uint32
	seen int64 // offset in the content up to which crc covers the data
}

// Read implements io.Reader.
func (r *blobReader) Read(b []byte) (int, error) {
	if r.offset < r.end && len(b) > 0 && r.offset >= r.seen {
		data, err := r.content.at(r.ctx, r.offset)
		if err != nil {
			return 0, r.content.named(err)
		}
		r.crc = crc32.Update(r.crc, crc32c.Table, data)
		r.seen = r.offset + int64(len(data))
	}
	if r.seen >= r.end && r.crc != r.want {
		return 0, r.content.named(fmt.Errorf("%w: the checksum of the data is not that of the entry", object.ErrForeign))
	}
	n, err := r.part.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.content.named(err)
	}
	return n, err
}

// Close implements io.Closer.
func (r *blobReader) Close() error {
	r.content.close()
	return nil
}

// IsMissing reports whether an error means that an object of an archive does not exist.
func IsMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
