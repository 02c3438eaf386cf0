package shard

import (
	"errors"
	"hash/crc32"
	"io"
	"sync"

	recordv1 "sheaf.dev/sheaf/api/record/v1"
	"sheaf.dev/sheaf/internal/group"
)

// chunkBuffers hold one chunk of a download each.
var chunkBuffers = sync.Pool{New: func() any {
	b := make([]byte, group.BlobChunkBytes)
	return &b
}}

// Download implements RecordService.
func (s *recordServer) Download(in *recordv1.DownloadRequest, stream recordv1.RecordService_DownloadServer) error {
	var (
		r read
		v violations
	)
	g, sv, err := s.find(in.GetKey(), in.GetRoutingEpoch(), &v, "key")
	r.options.Index = parsePin(&v, in.GetVersion())
	if in.GetOffsetBytes() < 0 {
		v.add("offset_bytes", "is negative: %d", in.GetOffsetBytes())
	}
	if in.LengthBytes != nil && in.GetLengthBytes() < 0 {
		v.add("length_bytes", "is negative: %d", in.GetLengthBytes())
	}
	if invalid := v.err(); invalid != nil {
		return invalid
	}
	if err != nil {
		return err
	}
	r.served, r.where = sv, where{group: g.name, id: in.GetKey().GetId()}
	if err := s.barrier(stream.Context(), sv); err != nil {
		return answerError(err, r.where)
	}
	if err := s.bytes.take(group.BlobChunkBytes); err != nil {
		return err
	}
	defer s.bytes.give(group.BlobChunkBytes)
	rec, err := sv.log.Get(r.where.id, r.options)
	if err != nil {
		return answerError(err, r.where)
	}
	if in.GetOffsetBytes() > rec.Size {
		return rangeError(r.where, in.GetOffsetBytes(), rec.Size)
	}
	end := rec.Size
	if in.LengthBytes != nil && in.GetLengthBytes() < end-in.GetOffsetBytes() {
		end = in.GetOffsetBytes() + in.GetLengthBytes()
	}
	head := &recordv1.Record{}
	if err := fillRecord(head, r.where, &rec, nil); err != nil {
		return err
	}
	if rec.Blob == nil {
		return sendSlice(stream, head, rec.Data[in.GetOffsetBytes():end])
	}
	blob, err := sv.log.OpenBlob(*rec.Blob)
	if err != nil {
		return answerError(err, r.where)
	}
	err = sendBlob(stream, head, blob, in.GetOffsetBytes(), end)
	return answerError(errors.Join(err, blob.Close()), r.where)
}

func sendHead(stream recordv1.RecordService_DownloadServer, head *recordv1.Record) error {
	return stream.Send(&recordv1.DownloadResponse{Part: &recordv1.DownloadResponse_Record{Record: head}})
}

func sendChunk(stream recordv1.RecordService_DownloadServer, data []byte) error {
	return stream.Send(&recordv1.DownloadResponse{Part: &recordv1.DownloadResponse_Chunk{
		Chunk: &recordv1.DownloadChunk{Data: data, DataCrc32C: crc32.Checksum(data, castagnoli)},
	}})
}

// sendSlice sends data of at most one chunk.
func sendSlice(stream recordv1.RecordService_DownloadServer, head *recordv1.Record, data []byte) error {
	if err := sendHead(stream, head); err != nil || len(data) == 0 {
		return err
	}
	return sendChunk(stream, data)
}

// sendBlob sends the bytes in [offset, end). Reads follow the blob's own chunks, so that each is checked once.
func sendBlob(stream recordv1.RecordService_DownloadServer, head *recordv1.Record, blob io.ReaderAt, offset, end int64) error {
	if err := sendHead(stream, head); err != nil {
		return err
	}
	buffer := chunkBuffers.Get().(*[]byte)
	defer chunkBuffers.Put(buffer)
	for offset < end {
		next := min(end, (offset/group.BlobChunkBytes+1)*group.BlobChunkBytes)
		data := (*buffer)[:next-offset]
		if n, err := blob.ReadAt(data, offset); n < len(data) {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if err := sendChunk(stream, data); err != nil {
			return err
		}
		offset = next
	}
	return nil
}
