package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
)

// folder is the archive of one store in a bucket.
type folder struct {
	bucket bucket.Bucket // the store's folder in the bucket
	store  uuid.UUID
	keys   object.Keys
	saw    func(name string, e object.Envelope) // called for each envelope that was read, also concurrently; may be nil
}

// content reads the content of one object in ranges, and checks every byte. It holds one chunk in memory. It repeats
// each failed read once, because a connection may have broken or a byte may have been flipped in transit. Errors
// contain the object's name. It is not safe for concurrent use.
type content struct {
	folder *folder
	name   string
	kind   object.Kind
	bytes  int64 // size of the object, according to a listing, a catalogue or a stat

	chunks *object.Chunks
	whole  bool          // the caller reads the whole object, so one request asks for all of it
	src    io.ReadCloser // positioned at the beginning of chunk next; nil if not open
	left   int64         // number of bytes that src still has
	next   int64
	until  int64  // src ends before the chunk with this number
	limit  int64  // the caller reads the content only up to this offset
	buffer []byte // holds one chunk with its check
	number int64  // number of the chunk in data
	data   []byte // content of that chunk; nil if no chunk is loaded
}

// openContent opens an object and decodes its header. The function check compares the header with what the caller
// knows about the object. It is nil if the caller knows nothing.
func (f *folder) openContent(ctx context.Context, name string, kind object.Kind, bytes int64, to object.Header,
	check func() error) (*content, error) {
	return f.openIn(ctx, &content{folder: f, name: name, kind: kind, bytes: bytes}, to, check)
}

// openWhole is like openContent, for a caller that then reads the whole object.
func (f *folder) openWhole(ctx context.Context, name string, kind object.Kind, bytes int64, to object.Header,
	check func() error) (*content, error) {
	return f.openIn(ctx, &content{folder: f, name: name, kind: kind, bytes: bytes, whole: true}, to, check)
}

func (f *folder) openIn(ctx context.Context, c *content, to object.Header, check func() error) (*content, error) {
	err := c.begin(ctx, to, check)
	if mayHelp(ctx, err) {
		c.close()
		c.chunks, c.data = nil, nil
		err = c.begin(ctx, to, check)
	}
	if err != nil {
		c.close()
		return nil, c.named(err)
	}
	return c, nil
}

// mayHelp reports whether repeating an operation that failed with err may help.
func mayHelp(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, object.ErrVersion) &&
		!errors.Is(err, object.ErrKey)
}

func (c *content) named(err error) error { return named(c.name, err) }

// named adds the name of an object to an error.
func named(object string, err error) error { return fmt.Errorf("object %s: %w", object, err) }

// begin reads the envelope and the header. It reads whole chunks, so it may read more than the header. Unless the
// caller reads the whole object, it asks only for the first chunk.
func (c *content) begin(ctx context.Context, to object.Header, check func() error) error {
	if c.bytes < object.EnvelopeBytes {
		return fmt.Errorf("%w: it has %d bytes", object.ErrCorrupt, c.bytes)
	}
	length, until := min(c.bytes, object.EnvelopeBytes+object.ChunkBytes+firstCheckBytes), int64(1)
	if c.whole {
		length, until = c.bytes, math.MaxInt64
	}
	err := c.open(ctx, 0, length)
	if err != nil {
		return err
	}
	c.next, c.until = 0, until
	envelope := make([]byte, object.EnvelopeBytes)
	if err := c.read(envelope); err != nil {
		return err
	}
	c.chunks, err = object.NewChunks(envelope, c.folder.store, c.kind, c.folder.keys)
	if err != nil {
		return err
	}
	e := c.chunks.Envelope()
	if c.folder.saw != nil {
		c.folder.saw(c.name, e)
	}
	if e.ObjectBytes() != c.bytes {
		return fmt.Errorf("%w: it has %d bytes, and its envelope says %d", object.ErrCorrupt, c.bytes, e.ObjectBytes())
	}
	header := make([]byte, 0, min(e.HeaderBytes, object.ChunkBytes))
	for int64(len(header)) < e.HeaderBytes {
		at := int64(len(header))
		data, err := c.at(ctx, at)
		if err != nil {
			return err
		}
		header = append(header, data[:min(int64(len(data)), e.HeaderBytes-at)]...)
	}
	if err := c.chunks.Header(header, to); err != nil {
		return err
	}
	if check == nil {
		return nil
	}
	return check()
}

// firstCheckBytes is the length of the longest check. The first read includes this many bytes more, so that it always
// contains the whole first chunk.
const firstCheckBytes = 20

// open asks the bucket for a range of the object.
func (c *content) open(ctx context.Context, offset, length int64) error {
	src, err := c.folder.bucket.Open(ctx, c.name, offset, length)
	if err != nil {
		return err
	}
	c.src, c.left = src, length
	return nil
}

// read fills b with the next bytes of src.
func (c *content) read(b []byte) error {
	n, err := io.ReadFull(c.src, b)
	c.left -= int64(n)
	return cut(err)
}

// cut converts an unexpected end of the data to an error that says that the bucket returned too few bytes. It returns
// other errors unchanged.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: the bucket returned fewer bytes than the object has", object.ErrCorrupt)
	}
	return err
}

// at returns the content from an offset to the end of the chunk that contains the offset. The result is never empty.
// It is valid until the next call.
func (c *content) at(ctx context.Context, offset int64) ([]byte, error) {
	number := offset / object.ChunkBytes
	if c.data == nil || c.number != number {
		err := c.load(ctx, number)
		if mayHelp(ctx, err) {
			c.close()
			err = c.load(ctx, number)
		}
		if err != nil {
			return nil, err
		}
	}
	return c.data[offset-number*object.ChunkBytes:], nil
}

// load reads one chunk. It continues to read from src if that chunk comes next.
func (c *content) load(ctx context.Context, number int64) error {
	c.data = nil
	offset, length := c.chunks.Place(number)
	if length == 0 {
		return fmt.Errorf("%w: it has no chunk %d", object.ErrCorrupt, number)
	}
	if c.src == nil || c.next != number || c.next >= c.until {
		c.close()
		last := max(number, (c.limit-1)/object.ChunkBytes)
		end, lastBytes := c.chunks.Place(last)
		if err := c.open(ctx, offset, end+lastBytes-offset); err != nil {
			return err
		}
		c.next, c.until = number, last+1
	}
	if c.buffer == nil {
		e := c.chunks.Envelope()
		c.buffer = make([]byte, min(object.ChunkBytes, e.ContentBytes)+firstCheckBytes)
	}
	stored := c.buffer[:length]
	if err := c.read(stored); err != nil {
		return err
	}
	data, err := c.chunks.Open(stored, number)
	if err != nil {
		return err
	}
	c.number, c.data = number, data
	c.next++
	return nil
}

// close closes the connection. The content can still be read afterwards. A client of HTTP uses a connection again only
// if it has received the whole answer, so close first reads the few bytes that the first request may have asked for
// beyond the first chunk.
func (c *content) close() {
	if c.src != nil {
		if c.left <= firstCheckBytes {
			_, _ = io.Copy(io.Discard, io.LimitReader(c.src, firstCheckBytes+1)) // these bytes are not needed
		}
		_ = c.src.Close() // the object was only read, and every byte has a checksum, so an error does not matter
		c.src = nil
	}
}

// part returns a reader of the content between two offsets. Only one part may be read at a time. The caller must
// close the content.
func (c *content) part(ctx context.Context, from, to int64) *part {
	c.limit = to
	return &part{ctx: ctx, content: c, offset: from, end: to}
}

// part is an io.Reader for a range of an object's content. Its errors do not contain the object's name.
type part struct {
	ctx     context.Context // a field, because Read has no context argument
	content *content
	offset  int64
	end     int64
}

// Read implements io.Reader.
func (p *part) Read(b []byte) (int, error) {
	if p.offset >= p.end {
		return 0, io.EOF
	}
	if len(b) == 0 {
		return 0, nil
	}
	data, err := p.content.at(p.ctx, p.offset)
	if err != nil {
		return 0, err
	}
	n := copy(b, data[:min(int64(len(data)), p.end-p.offset)])
	p.offset += int64(n)
	return n, nil
}
