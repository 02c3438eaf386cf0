package serve

import (
	"context"
	"errors"
	"hash/crc32"
	"io"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// upload is the state of one Upload call. Data of up to group.DataBytesMax is collected in memory. Larger data goes to
// a blob file.
type upload struct {
	server *Server
	write  write
	size   *int64  // size that the header announces
	want   *uint32 // CRC32C that the header announces

	data []byte
	blob format.BlobWriter // nil while data is collected in memory
	sum  uint32
	n    int64 // bytes received

	tenant *quota.Tenant
	stores int64 // bytes reserved from the tenant's quota
}

// Upload implements RecordService. Nothing is visible until the last chunk was received and checked.
func (s *recordServer) Upload(stream recordv1.RecordService_UploadServer) error {
	first, err := s.receivePart(stream)
	if errors.Is(err, io.EOF) {
		return answer.Invalid("header", "is required in the first message")
	}
	if err != nil {
		return err
	}
	u := &upload{server: s.Server}
	defer u.discard()
	if err := u.begin(stream.Context(), first.GetHeader()); err != nil {
		return err
	}
	for {
		in, err := s.receivePart(stream)
		if errors.Is(err, io.EOF) {
			break // after the half-close, everything was received
		}
		if err != nil {
			return err
		}
		chunk, ok := in.GetPart().(*recordv1.UploadRequest_Chunk)
		if !ok {
			return answer.Invalid("chunk", "is required in every message behind the first")
		}
		if err := u.take(stream.Context(), chunk.Chunk); err != nil {
			return err
		}
		if s.isStopping() {
			return answer.Stopping()
		}
	}
	if err := u.check(); err != nil {
		return err
	}
	if err := u.commit(); err != nil {
		return answer.Of(err, u.write.where)
	}
	result, err := u.put(stream.Context())
	if err != nil {
		return err
	}
	out := &recordv1.UploadResponse{Put: &recordv1.PutResponse{}, SizeBytes: u.n}
	s.metrics.method(recordv1.RecordService_Upload_FullMethodName).moved(1, u.n)
	u.write.crc = u.sum
	u.write.putResponse(out.Put, result)
	return stream.SendAndClose(out)
}

// receivePart receives one message.
func (s *recordServer) receivePart(stream recordv1.RecordService_UploadServer) (*recordv1.UploadRequest, error) {
	in := &recordv1.UploadRequest{}
	bounded := s.bounded(in)
	if err := stream.RecvMsg(bounded); err != nil {
		return nil, err
	}
	if bounded.TooLarge() {
		return nil, answer.PartTooLarge(bounded, "chunk", smallerChunks)
	}
	return in, nil
}

// begin checks the header.
func (u *upload) begin(ctx context.Context, in *recordv1.UploadHeader) error {
	if in == nil {
		return answer.Invalid("header", "is required in the first message")
	}
	var v answer.Violations
	w := &u.write
	w.common(&v, "header.", in.GetRequestId(), in.GetCondition(), in.TimestampUnixNs)
	w.attributes(&v, "header.", in.GetAttributes())
	if in.SizeBytes != nil && in.GetSizeBytes() < 0 {
		v.Add("header.size_bytes", "is negative: %d", in.GetSizeBytes())
	}
	sv, err := u.server.find(ctx, access.Put, in.GetKey(), in.GetRoutingEpoch(), &v, "header.key")
	if err := v.Or(err); err != nil {
		return err
	}
	w.served, w.where = sv, answer.Where{Group: sv.Name(), ID: in.GetKey().GetId()}
	if err := sv.MayWrite(); err != nil {
		return answer.Of(err, w.where)
	}
	w.replica.ID = in.GetKey().GetId()
	u.size, u.want = in.SizeBytes, in.DataCrc32C
	if u.tenant, err = enter(ctx, sv.Tenant(), w.where, 0); err != nil {
		return err
	}
	if err := u.reserve(ctx, in.GetSizeBytes()); err != nil {
		return err
	}
	// If there is no space for the data, it is refused before the caller sends it.
	return answer.Of(u.server.shard.WithSpace(ctx, func() error {
		return u.server.shard.Admit(in.GetSizeBytes())
	}), w.where)
}

// take processes one chunk.
func (u *upload) take(ctx context.Context, chunk []byte) error {
	if len(chunk) > format.BlobChunkBytes {
		return answer.Invalid("chunk", "has %d bytes: give at most %d", len(chunk), format.BlobChunkBytes)
	}
	u.n += int64(len(chunk))
	if u.size != nil && u.n > *u.size {
		return answer.Invalid("header.size_bytes", "is %d, but %d bytes came", *u.size, u.n)
	}
	if err := u.reserve(ctx, u.n); err != nil {
		return err
	}
	if err := pass(ctx, u.tenant, int64(len(chunk)), u.write.bytes+int64(len(chunk))); err != nil {
		return err
	}
	u.sum = crc32.Update(u.sum, crc32c.Table, chunk)
	if u.blob == nil && len(u.data)+len(chunk) <= format.DataBytesMax {
		if err := u.server.bytes.Take(int64(len(chunk)), 0); err != nil {
			return err
		}
		u.write.bytes += int64(len(chunk))
		u.data = append(u.data, chunk...)
		return nil
	}
	if u.blob == nil {
		blob, err := u.write.served.Log().CreateBlob()
		if err != nil {
			return answer.Of(answer.Storing(err), u.write.where)
		}
		u.blob = blob
		if err := u.store(ctx, u.data); err != nil {
			return err
		}
		u.release()
		u.data = nil
	}
	return u.store(ctx, chunk)
}

// reserve reserves quota of the tenant for an upload with this total number of bytes, or returns an error if a quota
// is used up.
func (u *upload) reserve(ctx context.Context, bytes int64) error {
	more := quota.Amount{Bytes: bytes - u.stores}
	if u.tenant == nil || more.Bytes <= 0 && u.write.reserved != (quota.Reserved{}) {
		return nil
	}
	if u.write.reserved == (quota.Reserved{}) {
		more.Bytes += format.FrameBytes(len(u.write.replica.Attributes), 0)
		if !u.write.served.Log().Has(u.write.where.ID) {
			more.Records = 1
		}
	}
	reservation, err := u.tenant.Store(ctx, more, false)
	if err != nil {
		return answer.Of(err, u.write.where)
	}
	u.write.reserved.Add(reservation)
	u.stores = bytes
	return nil
}

func (u *upload) store(ctx context.Context, data []byte) error {
	if err := u.server.shard.WithSpace(ctx, func() error {
		return u.server.shard.AdmitFile(int64(len(data)))
	}); err != nil {
		return answer.Of(err, u.write.where)
	}
	_, err := u.blob.Write(data)
	return answer.Of(answer.Storing(err), u.write.where)
}

// check compares the received data with the announced size and checksum, after everything was received.
func (u *upload) check() error {
	var v answer.Violations
	if u.size != nil && u.n != *u.size {
		v.Add("header.size_bytes", "is %d, but %d bytes came: nothing is stored", *u.size, u.n)
	}
	if u.want != nil && u.sum != *u.want {
		v.Add("header.data_crc32c", "is %08x, the data that came have %08x: nothing is stored", *u.want, u.sum)
	}
	return v.Err()
}

// commit syncs the blob to disk. The put that refers to it must come afterwards.
func (u *upload) commit() error {
	if u.blob == nil {
		u.write.replica.Data = u.data
		u.release() // dispatch will reserve the same bytes
		u.write.bytes = int64(len(u.data))
		return nil
	}
	ref, err := u.blob.Commit()
	if err != nil {
		return answer.Storing(err)
	}
	u.write.replica.Blob = &ref
	return nil
}

// put writes the entry. It then removes the blob if no entry will refer to it, either because the put was certainly
// refused, or because an earlier put with the same request id was applied.
func (u *upload) put(ctx context.Context) (result replica.Result, err error) {
	err = u.server.dispatch(ctx, &u.write)
	proposed := err == nil
	if proposed {
		result, err = u.server.finish(ctx, &u.write)
	}
	ref := u.write.replica.Blob
	if ref != nil && (!proposed || result.Repeated || answer.SurelyNotApplied(err) || err != nil &&
		!u.server.opts.Off.Keeps(rules.Upload)) {
		u.write.served.Log().DiscardBlob(*ref)
	}
	return result, err
}

func (u *upload) release() {
	u.server.bytes.Add(-u.write.bytes)
	u.write.bytes = 0
}

// discard removes the blob of the upload unless it was committed. It also releases the upload's reservations, unless
// its write was proposed.
func (u *upload) discard() {
	leave(u.tenant, 0)
	if u.write.pending == nil {
		u.release()
		u.write.reserved.Done(true)
	}
	if u.blob == nil {
		return
	}
	if err := u.blob.Close(); err != nil {
		u.server.opts.Logger.Warn("removing what is left of an upload", "group", u.write.where.Group, "error", err)
	}
}
