package serve

import (
	"errors"
	"io"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Download implements RecordService.
func (s *recordServer) Download(in *recordv1.DownloadRequest, stream recordv1.RecordService_DownloadServer) error {
	var (
		r read
		v answer.Violations
	)
	err := s.prepareRead(stream.Context(), in, &v, &r)
	if in.GetOffsetBytes() < 0 {
		v.Add("offset_bytes", "is negative: %d", in.GetOffsetBytes())
	}
	if in.LengthBytes != nil && in.GetLengthBytes() < 0 {
		v.Add("length_bytes", "is negative: %d", in.GetLengthBytes())
	}
	if err := v.Or(err); err != nil {
		return err
	}
	sv := r.served
	tenant, err := enter(stream.Context(), sv.Tenant(), r.where, 0)
	if err != nil {
		return err
	}
	defer leave(tenant, 0)
	if err := sv.Barrier(stream.Context()); err != nil {
		return answer.Of(err, r.where)
	}
	held := message.HeldOf(stream.Context())
	if err := held.Ask(format.BlobChunkBytes); err != nil {
		return err
	}
	rec, err := sv.Log().Get(r.where.ID, r.options)
	if err != nil {
		return answer.Of(err, r.where)
	}
	if in.GetOffsetBytes() > rec.Size {
		return answer.RangeError(r.where, in.GetOffsetBytes(), rec.Size)
	}
	end := rec.Size
	if in.LengthBytes != nil && in.GetLengthBytes() < end-in.GetOffsetBytes() {
		end = in.GetOffsetBytes() + in.GetLengthBytes()
	}
	head := &recordv1.Record{}
	if err := fillRecord(head, r.where, &rec, nil); err != nil {
		return err
	}
	method := s.metrics.method(recordv1.RecordService_Download_FullMethodName)
	if rec.Blob == nil {
		if err := pass(stream.Context(), tenant, end-in.GetOffsetBytes(), int64(len(rec.Data))); err != nil {
			return err
		}
		err := sendSlice(stream, head, rec.Data[in.GetOffsetBytes():end])
		if err == nil {
			method.moved(1, end-in.GetOffsetBytes())
		}
		return err
	}
	// The call holds the last chunk that was read, one chunk that waits to be sent, and one chunk in the transport.
	if err := held.Ask(format.BlobChunkBytes + 2*min(format.BlobChunkBytes,
		message.RoundUp(end-in.GetOffsetBytes()))); err != nil {
		return err
	}
	blob, err := sv.Log().OpenBlob(*rec.Blob)
	if err != nil {
		return answer.Of(err, r.where)
	}
	if err = sendBlob(stream, tenant, head, blob, in.GetOffsetBytes(), end); err == nil {
		method.moved(1, end-in.GetOffsetBytes())
	}
	return answer.Of(errors.Join(err, blob.Close()), r.where)
}

func sendHead(stream recordv1.RecordService_DownloadServer, head *recordv1.Record) error {
	return stream.Send(&recordv1.DownloadResponse{Part: &recordv1.DownloadResponse_Record{Record: head}})
}

// chunk is a message that holds one chunk. Its data is not copied when it is encoded.
type chunk struct{ data mem.Buffer }

// Encode implements message.Encoder. The data is released with the message.
func (c chunk) Encode() (mem.BufferSlice, error) {
	n := c.data.Len()
	inner := protowire.SizeTag(1) + protowire.SizeBytes(n) + protowire.SizeTag(2) + protowire.SizeFixed32()
	front := make([]byte, 0, 32)
	front = protowire.AppendVarint(protowire.AppendTag(front, 2, protowire.BytesType), uint64(inner))
	front = protowire.AppendVarint(protowire.AppendTag(front, 1, protowire.BytesType), uint64(n))
	behind := protowire.AppendTag(make([]byte, 0, 16), 2, protowire.Fixed32Type)
	behind = protowire.AppendFixed32(behind, crc32c.Of(c.data.ReadOnlyData()))
	return mem.BufferSlice{mem.SliceBuffer(front), c.data, mem.SliceBuffer(behind)}, nil
}

// sendSlice sends data of at most one chunk. The caller must not use the data afterwards.
func sendSlice(stream recordv1.RecordService_DownloadServer, head *recordv1.Record, data []byte) error {
	if err := sendHead(stream, head); err != nil || len(data) == 0 {
		return err
	}
	return stream.SendMsg(chunk{mem.SliceBuffer(data)})
}

// sendBlob sends the bytes in [offset, end). It divides them at the boundaries of the blob's own chunks, so that the
// checksum of each chunk is computed only once.
func sendBlob(stream recordv1.RecordService_DownloadServer, tenant *quota.Tenant, head *recordv1.Record,
	blob io.ReaderAt, offset, end int64) error {
	if err := sendHead(stream, head); err != nil {
		return err
	}
	for offset < end {
		next := min(end, (offset/format.BlobChunkBytes+1)*format.BlobChunkBytes)
		if err := pass(stream.Context(), tenant, next-offset, format.BlobChunkBytes); err != nil {
			return err
		}
		buffer := message.Pool.Get(int(next - offset))
		if n, err := blob.ReadAt(*buffer, offset); n < len(*buffer) {
			message.Pool.Put(buffer)
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if err := stream.SendMsg(chunk{mem.NewBuffer(buffer, message.Pool)}); err != nil {
			return err
		}
		offset = next
	}
	return nil
}
