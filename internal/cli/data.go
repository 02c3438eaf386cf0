package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// patience is for how long a call is repeated that the server asks to repeat.
const patience = 10 * time.Second

// PutOptions of Conn.Put.
type PutOptions struct {
	Key        *recordv1.RecordKey
	Condition  *recordv1.WriteCondition
	Timestamp  *int64 // Unix ns; nil: the commit time
	Attributes map[string][]byte
	RequestID  []byte // 16 bytes; nil: a random one
	SizeBytes  *int64 // where known; a longer or shorter source is an error
	Upload     bool   // by Upload although it is small
}

// Put stores what data gives as one record: by Put up to 1 MiB, by Upload above. Needs memory for 1 MiB. What the server
// stored is compared with what was sent by CRC32C.
func (c *Conn) Put(ctx context.Context, opts PutOptions, data io.Reader) (*recordv1.PutResponse, int64, error) {
	if opts.RequestID == nil {
		opts.RequestID = NewRequestID()
	}
	head := make([]byte, dataBytesMax+1)
	n, err := io.ReadFull(data, head)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		head = head[:n]
	case err != nil:
		return nil, 0, fmt.Errorf("reading the data: %w", err)
	}
	if n > dataBytesMax || opts.Upload {
		return c.upload(ctx, opts, io.MultiReader(bytes.NewReader(head), data))
	}
	if opts.SizeBytes != nil && *opts.SizeBytes != int64(n) {
		return nil, 0, fmt.Errorf("the data has %d bytes, %d were announced: did it change?", n, *opts.SizeBytes)
	}
	crc := crc32.Checksum(head, castagnoli)
	request := &recordv1.PutRequest{
		Key: opts.Key, RequestId: opts.RequestID, Condition: opts.Condition, TimestampUnixNs: opts.Timestamp,
		Attributes: opts.Attributes, DataCrc32C: &crc, Data: head,
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var response *recordv1.PutResponse
	err = c.retry(ctx, func() error {
		var err error
		response, err = c.Records.Put(ctx, request)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return response, int64(n), checkStored(response, crc)
}

// checkStored compares CRCs. A repeated put answers with what was stored first, which is the same data.
func checkStored(response *recordv1.PutResponse, crc uint32) error {
	if response.GetDataCrc32C() == crc {
		return nil
	}
	return fmt.Errorf("the server stored bytes with CRC32C %08x, sent were %08x: delete version %s and put again",
		response.GetDataCrc32C(), crc, response.GetVersion())
}

// upload streams a record of any size. It is not retried: the source can be read only once.
func (c *Conn) upload(ctx context.Context, opts PutOptions, data io.Reader) (*recordv1.PutResponse, int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an upload left half-way must not be closed politely: nothing may be stored
	stream, err := c.Records.Upload(ctx)
	if err != nil {
		return nil, 0, err
	}
	header := &recordv1.UploadHeader{
		Key: opts.Key, RequestId: opts.RequestID, Condition: opts.Condition, TimestampUnixNs: opts.Timestamp,
		Attributes: opts.Attributes, SizeBytes: opts.SizeBytes,
	}
	err = stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: header}})
	var sent int64
	var crc uint32
	for err == nil {
		chunk := make([]byte, chunkBytes) // a new one each time: the stream may still hold the last one
		n, readErr := io.ReadFull(data, chunk)
		if n > 0 {
			crc = crc32.Update(crc, castagnoli, chunk[:n])
			sent += int64(n)
			err = stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: chunk[:n]}})
		}
		if errors.Is(readErr, io.EOF) || errors.Is(readErr, io.ErrUnexpectedEOF) {
			break
		}
		if readErr != nil {
			return nil, 0, fmt.Errorf("reading the data: %w", readErr)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: the server's status comes with the answer
		return nil, 0, err
	}
	response, err := stream.CloseAndRecv()
	if err != nil {
		return nil, 0, err
	}
	if response.GetSizeBytes() != sent {
		return nil, 0, fmt.Errorf("the server stored %d bytes, sent were %d", response.GetSizeBytes(), sent)
	}
	return response.GetPut(), sent, checkStored(response.GetPut(), crc)
}

// Get reads a record: by Get, and where that is refused because of the size, by Download. The data is written to w
// piece by piece, after each piece's CRC32C was checked.
func (c *Conn) Get(ctx context.Context, request *recordv1.GetRequest, w io.Writer) (*recordv1.Record, error) {
	short, cancel := c.bounded(ctx)
	defer cancel()
	var response *recordv1.GetResponse
	err := c.retry(short, func() error {
		var err error
		response, err = c.Records.Get(short, request)
		return err
	})
	if Reason(err) == "USE_DOWNLOAD" {
		return c.Download(ctx, &recordv1.DownloadRequest{Key: request.GetKey(), Version: request.GetVersion()}, w)
	}
	if err != nil {
		return nil, err
	}
	record := response.GetRecord()
	if request.GetMetadataOnly() {
		return record, nil
	}
	if err := CheckData(record); err != nil {
		return nil, err
	}
	if _, err := w.Write(record.GetData()); err != nil {
		return nil, fmt.Errorf("writing the data: %w", err)
	}
	return record, nil
}

// CheckData compares a record's data with its size and CRC32C.
func CheckData(r *recordv1.Record) error {
	if int64(len(r.GetData())) != r.GetSizeBytes() {
		return fmt.Errorf("record %d: %d bytes came of %d", r.GetKey().GetId(), len(r.GetData()), r.GetSizeBytes())
	}
	if r.DataCrc32C != nil && r.GetDataCrc32C() != crc32.Checksum(r.GetData(), castagnoli) {
		return fmt.Errorf("record %d: the data was changed on the way: its CRC32C is wrong", r.GetKey().GetId())
	}
	return nil
}

// Download reads a record of any size, or a slice of it, into w.
func (c *Conn) Download(ctx context.Context, request *recordv1.DownloadRequest, w io.Writer) (*recordv1.Record, error) {
	d, err := c.OpenDownload(ctx, request)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if _, err := io.Copy(w, d); err != nil {
		return nil, err
	}
	return d.Record, nil
}

// Downloading is a download under way: an io.Reader of the data.
type Downloading struct {
	Record *recordv1.Record // without data
	want   int64            // bytes that must come
	came   int64
	chunk  []byte
	stream interface {
		Recv() (*recordv1.DownloadResponse, error)
	}
	cancel context.CancelFunc
}

// OpenDownload begins a download and returns when its first message, the record, is there.
func (c *Conn) OpenDownload(ctx context.Context, request *recordv1.DownloadRequest) (*Downloading, error) {
	ctx, cancel := context.WithCancel(ctx)
	var first *recordv1.DownloadResponse
	d := &Downloading{cancel: cancel}
	err := c.retry(ctx, func() error {
		stream, err := c.Records.Download(ctx, request)
		if err != nil {
			return err
		}
		d.stream = stream
		first, err = stream.Recv()
		return err
	})
	if err != nil {
		cancel()
		return nil, err
	}
	if d.Record = first.GetRecord(); d.Record == nil {
		cancel()
		return nil, status.Error(codes.Internal, "a download began without its record")
	}
	d.want = d.Record.GetSizeBytes() - request.GetOffsetBytes()
	if request.LengthBytes != nil {
		d.want = min(d.want, request.GetLengthBytes())
	}
	return d, nil
}

// Read implements io.Reader. io.EOF comes only after every byte came.
func (d *Downloading) Read(p []byte) (int, error) {
	for len(d.chunk) == 0 {
		m, err := d.stream.Recv()
		if errors.Is(err, io.EOF) {
			if d.came != d.want {
				return 0, fmt.Errorf("the download ended after %d bytes of %d", d.came, d.want)
			}
			return 0, io.EOF
		}
		if err != nil {
			return 0, err
		}
		data := m.GetChunk().GetData()
		if m.GetChunk().GetDataCrc32C() != crc32.Checksum(data, castagnoli) {
			return 0, errors.New("a chunk of the download was changed on the way: its CRC32C is wrong")
		}
		d.came += int64(len(data))
		d.chunk = data
	}
	n := copy(p, d.chunk)
	d.chunk = d.chunk[n:]
	return n, nil
}

// Close ends the download, also one that is not read to its end.
func (d *Downloading) Close() { d.cancel() }
