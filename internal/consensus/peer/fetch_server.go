package peer

import (
	"context"
	"errors"
	"io"

	"github.com/google/uuid"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/base/crc32c"
)

const (
	chunkBytesMax = 1 << 20 // maximum length of FileChunk.data
	// chunkBytes is the size of one chunk. It is small enough to remain in the processor's cache from one copy to the
	// next, and to keep others from waiting long for the device or the byte rate.
	chunkBytes       = 256 << 10
	nameBytesMax     = 256 // maximum length of FileChunk.name
	filesPerMessage  = 1024
	entriesBytesMax  = 1 << 20 // approximate maximum size of a message of FetchEntries
	manifestBytesMax = 1 << 20 // maximum length of the part of a manifest in one message
	smallBytesMax    = 4 << 20 // groups up to this size do not count towards the limit of exports
)

// sourceOf checks whether a call is allowed, and returns the source and the id of the group.
func (h *Hub) sourceOf(ctx context.Context, header *peerv1.PeerHeader, group []byte) (Source, uuid.UUID, error) {
	if err := h.admit(ctx, header); err != nil {
		return nil, uuid.Nil, err
	}
	id, err := uuid.FromBytes(group)
	if err != nil {
		return nil, uuid.Nil, status.Errorf(codes.InvalidArgument, "group: %v", err)
	}
	if h.opts.Source == nil {
		return nil, uuid.Nil, status.Errorf(codes.NotFound, "group %s: %v", id, ErrNotHere)
	}
	return h.opts.Source, id, nil
}

// answer converts an error of the source to a gRPC status.
func answer(group uuid.UUID, err error) error {
	switch {
	case errors.Is(err, ErrNotHere):
		return status.Errorf(codes.NotFound, "group %s: %v", group, err)
	case errors.Is(err, context.Canceled):
		return status.FromContextError(err).Err()
	}
	if st, ok := status.FromError(err); ok {
		return st.Err()
	}
	return status.Errorf(codes.Internal, "group %s: %v", group, err)
}

// until returns a context that also ends when the hub is closed.
func (h *Hub) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	release := context.AfterFunc(h.ctx, cancel)
	return ctx, func() { release(); cancel() }
}

// FetchGroup implements PeerService.
func (h *Hub) FetchGroup(stream peerv1.PeerService_FetchGroupServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	source, group, err := h.sourceOf(stream.Context(), first.GetStart().GetHeader(), first.GetStart().GetGroup())
	if err != nil {
		return err
	}
	ctx, cancel := h.until(stream.Context())
	defer cancel()
	export, err := source.Export(ctx, group)
	if err != nil {
		return answer(group, err)
	}
	defer func() {
		if err := export.Close(); err != nil {
			h.logger.Warn("letting go of what was sent", "group", group, "error", err)
		}
	}()
	if export.Describe().Bytes > smallBytesMax { // small groups finish quickly
		defer h.count.ExportsUnderWay.Add(-1)
		if h.count.ExportsUnderWay.Add(1) > int64(h.opts.exportsMax) {
			h.count.ExportsRefused.Add(1)
			return status.Errorf(codes.ResourceExhausted, "%v (%d): try again", ErrBusy, h.opts.exportsMax)
		}
	}
	if err := sendDescription(stream, export.Describe()); err != nil {
		return err
	}
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil // the peer has everything, or does not want more
		}
		if err != nil {
			return err
		}
		if n := len(in.GetWanted().GetFiles()); n < 1 || n > filesPerMessage {
			return status.Errorf(codes.InvalidArgument, "%d files are wanted at once: 1 to %d may be", n, filesPerMessage)
		}
		for _, r := range in.GetWanted().GetFiles() {
			if err := h.sendFile(ctx, stream, export, r); err != nil {
				return answer(group, err)
			}
		}
	}
}

func (h *Hub) sendFile(ctx context.Context, stream grpc.ServerStream, export Export, r *peerv1.FileRange) error {
	first := &peerv1.FileChunk{Name: r.GetName(), OffsetBytes: r.GetOffsetBytes()}
	if r.GetOffsetBytes() < 0 {
		return status.Errorf(codes.InvalidArgument, "file %q is wanted from %d", r.GetName(), r.GetOffsetBytes())
	}
	file, err := export.Open(r.GetName(), r.GetOffsetBytes())
	if err != nil {
		return err
	}
	return errors.Join(h.sendChunks(ctx, stream, chunkOfGroup, first, file, h.limiter), file.Close())
}

// sendDescription sends the description of a replica in messages of bounded size.
func sendDescription(stream peerv1.PeerService_FetchGroupServer, d Description) error {
	for manifest := d.Manifest; ; {
		part := &peerv1.FetchGroupDescription{}
		n := min(len(manifest), manifestBytesMax)
		part.Manifest, manifest = manifest[:n], manifest[n:]
		if part.More = len(manifest) > 0; !part.GetMore() {
			part.Index, part.Term, part.TotalBytes = d.Index, d.Term, d.Bytes
		}
		if err := stream.Send(
			&peerv1.FetchGroupResponse{Part: &peerv1.FetchGroupResponse_Description{Description: part}}); err != nil {
			return err
		}
		if !part.GetMore() {
			return nil
		}
	}
}

// sendChunks sends the rest of a file as chunks, in messages of which the given field holds the chunk. The argument
// first is the first chunk, still without data. The last chunk may be empty. limiter may be nil.
func (h *Hub) sendChunks(ctx context.Context, stream grpc.ServerStream, field protowire.Number,
	first *peerv1.FileChunk, file io.Reader, limiter *rate.Limiter) error {
	for chunk := first; ; {
		buffer := message.Pool.Get(chunkBytes)
		n, err := io.ReadFull(file, *buffer)
		chunk.Last = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if chunk.GetLast() {
			err = nil
		}
		if err == nil && limiter != nil && n > 0 {
			err = limiter.WaitN(ctx, n)
		}
		if err != nil {
			message.Pool.Put(buffer)
			return err
		}
		*buffer = (*buffer)[:n]
		chunk.DataCrc32C = crc32c.Of(*buffer)
		if err := stream.SendMsg(&sentChunk{field: field, chunk: chunk, buffer: buffer}); err != nil {
			return err
		}
		h.count.FetchedBytes.Add(uint64(n))
		if chunk.GetLast() {
			return nil
		}
		chunk = &peerv1.FileChunk{OffsetBytes: chunk.GetOffsetBytes() + int64(n)}
	}
}

// FetchEntries implements PeerService.
func (h *Hub) FetchEntries(in *peerv1.FetchEntriesRequest, stream peerv1.PeerService_FetchEntriesServer) error {
	source, group, err := h.sourceOf(stream.Context(), in.GetHeader(), in.GetGroup())
	if err != nil {
		return err
	}
	first, last := in.GetIndexFirst(), in.GetIndexLast()
	if first < 1 || last < first {
		return status.Errorf(codes.InvalidArgument, "entries %d to %d are no range", first, last)
	}
	ctx, cancel := h.until(stream.Context())
	defer cancel()
	for {
		piece, err := source.Entries(ctx, group, first, last, entriesBytesMax)
		if err != nil {
			return answer(group, err)
		}
		out := &peerv1.FetchEntriesResponse{Through: piece.Through, Applied: piece.Applied}
		for _, e := range piece.Entries {
			encoded, err := proto.Marshal(e)
			if err != nil {
				return answer(group, err)
			}
			out.Entries = append(out.Entries, encoded)
			h.count.FetchedBytes.Add(uint64(len(encoded)))
		}
		if err := stream.Send(out); err != nil || piece.Through >= last || piece.Through < first {
			return err
		}
		first = piece.Through + 1
	}
}

// FetchBlob implements PeerService.
func (h *Hub) FetchBlob(in *peerv1.FetchBlobRequest, stream peerv1.PeerService_FetchBlobServer) error {
	source, group, err := h.sourceOf(stream.Context(), in.GetHeader(), in.GetGroup())
	if err != nil {
		return err
	}
	ctx, cancel := h.until(stream.Context())
	defer cancel()
	file, size, err := source.Blob(ctx, group, in.GetRef())
	if err != nil {
		return answer(group, err)
	}
	if in.GetOffsetBytes() < 0 || in.GetOffsetBytes() > size {
		err = status.Errorf(codes.OutOfRange, "the blob has %d bytes, it is wanted from %d", size, in.GetOffsetBytes())
	} else {
		rest := io.NewSectionReader(file, in.GetOffsetBytes(), size-in.GetOffsetBytes())
		first := &peerv1.FileChunk{OffsetBytes: in.GetOffsetBytes()}
		err = h.sendChunks(ctx, stream, chunkOfBlob, first, rest, nil)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return answer(group, err)
	}
	return nil
}
