package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// errChanged means that bytes were changed in transit.
var errChanged = errors.New("the bytes that came are not those that were sent")

// fetchAnywhere calls fetch for one shard after another until one call succeeds. If all shards respond that they do
// not have the data, the error wraps fs.ErrNotExist.
func fetchAnywhere(shards []*shard, fetch func(*shard) error) error {
	var failed, absent error
	for _, sh := range shards {
		err := fetch(sh)
		switch status.Code(err) {
		case codes.OK:
			return nil
		case codes.ResourceExhausted: // the shard is busy; do not burden the disks of the other members instead
			return fmt.Errorf("shard %s: %w", sh.address, err)
		case codes.NotFound:
			absent = fmt.Errorf("shard %s: %w: %w", sh.address, fs.ErrNotExist, err)
		default:
			failed = fmt.Errorf("shard %s: %w", sh.address, err)
		}
	}
	if failed != nil {
		return failed
	}
	return absent
}

// Copy implements archiver.Source.
func (s *Source) Copy(ctx context.Context, group uuid.UUID) (archiver.GroupCopy, error) {
	shards, err := s.candidates(ctx, group)
	if err != nil {
		return nil, err
	}
	var out *groupCopy
	err = fetchAnywhere(shards, func(sh *shard) (err error) {
		out, err = s.copyFrom(ctx, sh, group)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", group, err)
	}
	return out, nil
}

// groupCopy implements archiver.GroupCopy with a FetchGroup call, which transfers one file at a time.
type groupCopy struct {
	stream archivev1.ArchiveService_FetchGroupClient
	cancel context.CancelFunc
	about  archiver.CopyDescription
	open   bool // whether a file is being received
	broken error
}

func (s *Source) copyFrom(ctx context.Context, sh *shard, group uuid.UUID) (_ *groupCopy, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	stream, err := sh.client.FetchGroup(ctx)
	if err != nil {
		return nil, err
	}
	start := &archivev1.FetchGroupStart{Header: s.header(), Group: group[:]}
	// if Send fails, Recv returns the reason
	_ = stream.Send(&archivev1.FetchGroupRequest{Part: &archivev1.FetchGroupRequest_Start{Start: start}})
	c := &groupCopy{stream: stream, cancel: cancel}
	for more := true; more; {
		in, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		part := in.GetDescription()
		if part == nil || len(c.about.Manifest)+len(part.GetManifest()) > format.ManifestBytesMax {
			return nil, fmt.Errorf("%w: the description of the group", errChanged)
		}
		c.about.Manifest = append(c.about.Manifest, part.GetManifest()...)
		c.about.Index, more = part.GetIndex(), part.GetMore()
	}
	m, _, err := format.DecodeManifest(c.about.Manifest)
	if err != nil {
		return nil, err
	}
	c.about.Floor, c.about.FloorKnown = m.HistoryFloor, m.HistoryKnown
	return c, nil
}

// Description implements archiver.GroupCopy.
func (c *groupCopy) Description() archiver.CopyDescription { return c.about }

// Close implements archiver.GroupCopy.
func (c *groupCopy) Close() error {
	c.cancel()
	return nil
}

// Open implements archiver.GroupCopy. Only one file may be open at a time. If a file is closed before its end, no
// other file can be opened.
func (c *groupCopy) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	if c.open {
		return nil, fmt.Errorf("file %s: another file is still open", name)
	}
	if c.broken != nil {
		return nil, c.broken
	}
	wanted := &peerv1.FetchGroupWanted{Files: []*peerv1.FileRange{{Name: name, OffsetBytes: offset}}}
	err := c.stream.Send(&archivev1.FetchGroupRequest{Part: &archivev1.FetchGroupRequest_Wanted{Wanted: wanted}})
	if errors.Is(err, io.EOF) { // the shard has ended the call, and Recv returns the reason
		_, err = c.stream.Recv()
	}
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", name, err)
	}
	c.open = true
	stop := context.AfterFunc(ctx, c.cancel)
	return &file{name: name, offset: offset,
		next: func() (*peerv1.FileChunk, error) {
			in, err := c.stream.Recv()
			return in.GetChunk(), err
		},
		close: func(whole bool) {
			stop()
			if c.open = false; !whole {
				c.broken = fmt.Errorf("file %s was closed before its end", name)
				c.cancel()
			}
		}}, nil
}

// Blob implements archiver.Source.
func (s *Source) Blob(ctx context.Context, group uuid.UUID, ref format.BlobRef) (io.ReadCloser, error) {
	shards, err := s.candidates(ctx, group)
	if err != nil {
		return nil, err
	}
	var out *file
	err = fetchAnywhere(shards, func(sh *shard) (err error) {
		out, err = s.blobFrom(ctx, sh, group, ref)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("blob %s of group %s: %w", ref.ID, group, err)
	}
	return &blob{Reader: format.BlobFileReader(ref, out), data: out}, nil
}

func (s *Source) blobFrom(ctx context.Context, sh *shard, group uuid.UUID, ref format.BlobRef) (*file, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := sh.client.FetchBlob(ctx, &archivev1.FetchBlobRequest{Header: s.header(), Group: group[:],
		Ref: ref.Encode()})
	if err != nil {
		cancel()
		return nil, err
	}
	f := &file{next: func() (*peerv1.FileChunk, error) {
		in, err := stream.Recv()
		return in.GetChunk(), err
	}, close: func(bool) { cancel() }}
	if f.err = f.fill(); f.err != nil && !errors.Is(f.err, io.EOF) { // the first response shows whether the blob exists
		cancel()
		return nil, f.err
	}
	return f, nil
}

// blob reads the file of a blob.
type blob struct {
	io.Reader
	data *file
}

// Close implements io.Closer.
func (b *blob) Close() error { return b.data.Close() }

// file reads a file that is received in chunks.
type file struct {
	name   string // empty for a blob
	offset int64  // offset of the next chunk
	ready  []byte
	next   func() (*peerv1.FileChunk, error)
	close  func(whole bool)
	err    error // io.EOF if the file has ended
}

// Read implements io.Reader.
func (f *file) Read(p []byte) (int, error) {
	for len(f.ready) == 0 && f.err == nil {
		f.err = f.fill()
	}
	if len(f.ready) == 0 {
		return 0, f.err
	}
	n := copy(p, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

// fill receives the next chunk. It returns io.EOF together with the last one.
func (f *file) fill() error {
	chunk, err := f.next()
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case chunk == nil, chunk.GetOffsetBytes() != f.offset, chunk.GetName() != "" && chunk.GetName() != f.name:
		return fmt.Errorf("%w: chunk of %q at %d, expected is %q at %d", errChanged, chunk.GetName(),
			chunk.GetOffsetBytes(), f.name, f.offset)
	case crc32c.Of(chunk.GetData()) != chunk.GetDataCrc32C():
		return fmt.Errorf("%w: the chunk of %q at %d", errChanged, f.name, f.offset)
	}
	f.ready = chunk.GetData()
	f.offset += int64(len(f.ready))
	if chunk.GetLast() {
		return io.EOF
	}
	return nil
}

// Close implements io.Closer.
func (f *file) Close() error {
	if f.close != nil {
		f.close(errors.Is(f.err, io.EOF))
		f.close = nil
	}
	return nil
}
