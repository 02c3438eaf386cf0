package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
)

// chunkBytes is the size of a chunk of an upload.
const chunkBytes = 512 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, chunkBytes); return &b }}

func invalid(op, message string) *Error {
	return &Error{Op: op, Code: codes.InvalidArgument, Message: message}
}

func (c *Client) putLarge(ctx context.Context, key Key, data []byte, o PutOptions) (PutResult, error) {
	u := &uploading{client: c, what: call{op: "put", key: &key, write: true}, options: o, from: bytes.NewReader(data),
		sum: new(crc32.Checksum(data, castagnoli))}
	return u.run(ctx)
}

// Upload stores one version of a record of any size from a reader, with bounded memory. If the reader is an io.Seeker,
// Upload sends the size first, so that a full disk refuses the upload immediately, and retries the upload when that is
// safe. Otherwise it retries the upload only if nothing was read yet. If the reader fails, nothing is stored, and the
// error wraps the reader's error.
func (c *Client) Upload(ctx context.Context, key Key, from io.Reader, options *PutOptions) (PutResult, error) {
	u := &uploading{client: c, what: call{op: "upload", key: &key, write: true}, options: orZero(options), from: from}
	return u.run(ctx)
}

// uploading holds the state of an upload and its attempts.
type uploading struct {
	client  *Client
	what    call
	options PutOptions
	from    io.Reader
	sum     *uint32 // checksum of the data, or nil if it is not known in advance
	size    *int64  // size of the data, or nil if it is not known in advance
	read    int64
	readErr error
}

func (u *uploading) run(ctx context.Context) (PutResult, error) {
	if err := u.options.check(&u.what); err != nil {
		return PutResult{}, err
	}
	u.options.RequestID = u.options.requestID() // all attempts use the same request id
	seeker, _ := u.from.(io.Seeker)
	start, err := u.measure(seeker)
	if err != nil {
		return PutResult{}, &Error{
			Op: u.what.name(), Code: codes.Internal, Message: "measure the data: " + err.Error(), err: err,
		}
	}
	a := u.client.attempts(u.what)
	for {
		to, err := u.client.target(a.what, a.N())
		if err != nil {
			return PutResult{}, a.newError(err)
		}
		var at peer.Peer
		result, err := u.once(ctx, to, &at)
		if err == nil {
			return result, nil
		}
		if _, ok := errors.AsType[*Error](err); ok {
			return result, err
		}
		if u.readErr != nil {
			return PutResult{}, u.unreadable(a.Doubtful(routing.Verdict{}))
		}
		if again := a.failed(ctx, to, err, at.Addr != nil); again != nil {
			return PutResult{}, again
		}
		if u.read == 0 {
			continue
		}
		if seeker == nil {
			return PutResult{}, a.newError(err)
		}
		if _, err := seeker.Seek(start, io.SeekStart); err != nil {
			return PutResult{}, a.newError(fmt.Errorf("go back to the begin of the data: %w", err))
		}
		u.read = 0
	}
}

// unreadable returns the error for an upload whose data cannot be read. The argument doubtful means that an earlier
// attempt sent all data, so its data may have been stored.
func (u *uploading) unreadable(doubtful bool) *Error {
	message := "nothing was stored, the data cannot be read: "
	if doubtful {
		message = "an earlier attempt may have been stored, and the data cannot be read again: "
	}
	return &Error{
		Op: u.what.name(), Code: codes.Aborted, Message: message + u.readErr.Error(), doubtful: doubtful, err: u.readErr,
	}
}

// measure determines the reader's current offset, where the data begins, and the size of the data.
func (u *uploading) measure(seeker io.Seeker) (start int64, err error) {
	if seeker == nil {
		return 0, nil
	}
	if start, err = seeker.Seek(0, io.SeekCurrent); err != nil {
		return 0, err
	}
	end, err := seeker.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	u.size = new(end - start)
	_, err = seeker.Seek(start, io.SeekStart)
	return start, err
}

// once makes a single attempt to upload the data.
func (u *uploading) once(ctx context.Context, to target, at *peer.Peer) (PutResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // aborts the stream unless it has finished; the server stores nothing from a stream that is aborted
	stream, err := recordv1.NewRecordServiceClient(to.conn).Upload(ctx, grpc.Peer(at))
	if err != nil {
		return PutResult{}, err
	}
	o := &u.options
	sum, size, err := u.send(stream, &recordv1.UploadHeader{
		Key: u.what.key.proto(), RoutingEpoch: to.epoch, RequestId: o.RequestID, Condition: o.condition(),
		TimestampUnixNs: timestamp(o.Timestamp), Attributes: o.Attributes, DataCrc32C: u.sum, SizeBytes: u.size,
	})
	if err != nil && !errors.Is(err, io.EOF) {
		return PutResult{}, err
	}
	answer, err := stream.CloseAndRecv()
	if err != nil {
		return PutResult{}, err
	}
	if answer.GetSizeBytes() != size {
		return PutResult{}, &Error{
			Op: u.what.name(), Code: codes.DataLoss, Reason: reasonChecksum,
			Message: "stored " + strconv.FormatInt(answer.GetSizeBytes(), 10) + " bytes of " + strconv.FormatInt(size, 10),
		}
	}
	return toPutResult(&u.what, answer.GetPut(), sum, size)
}

// send sends the header and all data. It returns io.EOF if the server has already sent its response.
func (u *uploading) send(stream recordv1.RecordService_UploadClient, header *recordv1.UploadHeader) (sum uint32,
	size int64, err error) {
	if err := stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: header}}); err != nil {
		return 0, 0, err
	}
	buf, _ := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	message := &recordv1.UploadRequest{}
	for {
		n, err := io.ReadFull(u.from, *buf)
		u.read += int64(n)
		if n > 0 {
			sum = crc32.Update(sum, castagnoli, (*buf)[:n])
			size += int64(n)
			message.Part = &recordv1.UploadRequest_Chunk{Chunk: (*buf)[:n]}
			if err := stream.Send(message); err != nil {
				return sum, size, err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return sum, size, nil
		case err != nil:
			u.readErr = err
			return sum, size, err
		}
	}
}

// DownloadOptions are the options of Open and Download.
type DownloadOptions struct {
	// Version is the version to read. The default is the newest version.
	Version string
	// Offset is the offset of the first byte, from 0 to the size.
	Offset int64
	// Length is the length in bytes. The default is everything up to the end. If fewer bytes exist, only these are
	// read.
	Length int64
}

// Download writes a record of any size, or a range of it, to a writer, with bounded memory.
func (c *Client) Download(ctx context.Context, key Key, to io.Writer, options *DownloadOptions) (Record, error) {
	r, err := c.Open(ctx, key, options)
	if err != nil {
		return Record{}, err
	}
	defer func() { _ = r.Close() }() // Close never returns an error
	_, err = r.WriteTo(to)
	return r.Record(), err
}

// Open starts to read a record of any size. Each chunk is checked by its CRC. A broken stream resumes at its offset in
// the same version. The caller must close the reader.
func (c *Client) Open(ctx context.Context, key Key, options *DownloadOptions) (*Reader, error) {
	r := &Reader{client: c}
	r.ctx, r.cancel = context.WithCancel(ctx)
	o := orZero(options)
	r.version, r.offset, r.left, r.limited = o.Version, o.Offset, o.Length, o.Length != 0
	r.attempts = c.attempts(call{op: "download", key: &key})
	if err := r.connect(); err != nil {
		r.cancel()
		return nil, err
	}
	return r, nil
}

// Reader reads the data of one version. Several goroutines must not use a Reader concurrently.
type Reader struct {
	client   *Client
	ctx      context.Context //nolint:containedctx // the context of the stream that the Reader reads
	cancel   context.CancelFunc
	attempts attempts
	version  string
	offset   int64 // offset of the next byte
	end      int64 // offset after the last byte; known once the first message has arrived
	left     int64 // number of bytes still to read; used only if limited
	limited  bool
	record   Record
	stream   recordv1.RecordService_DownloadClient
	to       target
	chunk    []byte
	err      error
}

// Record returns the record without its data.
func (r *Reader) Record() Record { return r.record }

// connect opens the stream at offset and receives its first message. It retries until the deadline.
func (r *Reader) connect() error {
	for {
		err := r.connectOnce()
		if err == nil {
			return nil
		}
		if err := r.attempts.failed(r.ctx, r.to, err, true); err != nil {
			return err
		}
	}
}

func (r *Reader) connectOnce() (err error) {
	if r.to, err = r.client.target(r.attempts.what, r.attempts.N()); err != nil {
		return err
	}
	request := &recordv1.DownloadRequest{
		Key: r.attempts.what.key.proto(), RoutingEpoch: r.to.epoch, Version: r.version, OffsetBytes: r.offset,
	}
	if r.limited {
		request.LengthBytes = &r.left
	}
	if r.stream, err = recordv1.NewRecordServiceClient(r.to.conn).Download(r.ctx, request); err != nil {
		return err
	}
	first, err := r.stream.Recv()
	if err != nil {
		return err
	}
	if first.GetRecord() == nil {
		return &Error{Op: r.attempts.what.name(), Code: codes.Internal, Message: "the server's first message holds no record"}
	}
	r.record = toRecord(first.GetRecord())
	r.version = r.record.Version // if the stream breaks, the resumed one must read the same version
	if r.end = r.record.Size; r.limited {
		r.end = r.offset + min(r.left, r.end-r.offset)
	}
	return nil
}

// next receives the next chunk. It returns io.EOF after the last one.
func (r *Reader) next() error {
	for {
		message, err := r.stream.Recv()
		if err == nil {
			data := message.GetChunk().GetData()
			if got := crc32.Checksum(data, castagnoli); got != message.GetChunk().GetDataCrc32C() {
				return checksumError(r.attempts.what.name(), got, message.GetChunk().GetDataCrc32C())
			}
			if len(data) == 0 {
				continue
			}
			r.attempts.Progress()
			r.chunk = data
			r.offset += int64(len(data))
			r.left -= int64(len(data))
			return nil
		}
		if errors.Is(err, io.EOF) && r.offset >= r.end || r.limited && r.left == 0 {
			return io.EOF
		}
		if err := r.attempts.failed(r.ctx, r.to, notEOF(err), true); err != nil {
			return err
		}
		if err := r.connect(); err != nil {
			return err
		}
	}
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.chunk) == 0 {
		if r.err == nil {
			r.err = r.next()
		}
		if r.err != nil {
			return 0, r.err
		}
	}
	n := copy(p, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}

// WriteTo implements io.WriterTo.
func (r *Reader) WriteTo(w io.Writer) (n int64, err error) {
	for {
		if len(r.chunk) > 0 {
			m, err := w.Write(r.chunk)
			n += int64(m)
			r.chunk = r.chunk[m:]
			if err != nil {
				return n, err
			}
		}
		if r.err == nil {
			r.err = r.next()
		}
		if errors.Is(r.err, io.EOF) {
			return n, nil
		}
		if r.err != nil {
			return n, r.err
		}
	}
}

// Close ends the stream.
func (r *Reader) Close() error {
	r.cancel()
	if r.err == nil {
		r.err = ErrClosed
	}
	r.chunk = nil
	return nil
}

// getLarge downloads a record that is too large for the Get RPC.
func (c *Client) getLarge(ctx context.Context, op string, key Key, o GetOptions) (Record, error) {
	limit := cmp.Or(o.BytesMax, getBytesMax)
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	r, err := c.Open(ctx, key, &DownloadOptions{Version: o.Version})
	if err != nil {
		return Record{}, err
	}
	defer func() { _ = r.Close() }() // Close never returns an error
	if r.record.Size > limit {
		return Record{}, &Error{
			Op: op, Code: codes.FailedPrecondition, Reason: reason.UseDownload,
			Message: fmt.Sprintf("the record has %d bytes, more than BytesMax %d: use Download", r.record.Size, limit),
		}
	}
	data := make([]byte, r.record.Size)
	if _, err := io.ReadFull(r, data); err != nil {
		return Record{}, newError(op, err, false)
	}
	record := r.Record()
	record.Data, record.HasData = data, true
	return record, nil
}
