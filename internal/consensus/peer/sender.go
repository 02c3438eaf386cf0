package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/google/uuid"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/base/crc32c"
)

// Sender sends the files of this shard's replicas to one kind of caller: either other shards or archivers. Each kind
// has a separate Sender with a separate limit, so that neither kind has to wait for the other. A Sender is safe for
// concurrent use.
type Sender struct {
	Source Source // if nil, nothing can be fetched
	// ExportsMax is the number of groups that are sent at the same time, not counting small ones.
	ExportsMax int
	Limiter    *rate.Limiter // limits the byte rate of Group; nil means no limit
	Logger     *slog.Logger

	Count FetchCounters
}

// FetchCounters count the work of a Sender.
type FetchCounters struct {
	FetchedBytes    atomic.Uint64 // bytes of files that were sent
	ExportsUnderWay atomic.Int64
	ExportsRefused  atomic.Uint64
}

// NewLimiter returns the limiter of a Sender for a byte rate, or nil if the rate is 0, which means no limit.
func NewLimiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), chunkBytesMax)
}

// GroupStream is a call that fetches a group, after the call's first message was received. A chunk is sent as field 2
// of a message.
type GroupStream struct {
	grpc.ServerStream
	// Describe sends a part of the description.
	Describe func(*peerv1.FetchGroupDescription) error
	// Wanted receives the next request for files. It returns io.EOF if the caller wants no more.
	Wanted func() (*peerv1.FetchGroupWanted, error)
}

// ParseGroup returns the UUID of a group from a request.
func ParseGroup(group []byte) (uuid.UUID, error) {
	id, err := uuid.FromBytes(group)
	if err != nil {
		return uuid.Nil, status.Errorf(codes.InvalidArgument, "group: %v", err)
	}
	return id, nil
}

// source returns the source of a group's data, or an error if the Sender has none.
func (s *Sender) source(group uuid.UUID) (Source, error) {
	if s.Source == nil {
		return nil, status.Errorf(codes.NotFound, "group %s: %v", group, ErrNotHere)
	}
	return s.Source, nil
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

// Group sends a replica's files. The files do not change until Group returns. Its errors are gRPC statuses.
func (s *Sender) Group(ctx context.Context, group uuid.UUID, stream GroupStream) error {
	source, err := s.source(group)
	if err != nil {
		return err
	}
	export, err := source.Export(ctx, group)
	if err != nil {
		return answer(group, err)
	}
	defer func() {
		if err := export.Close(); err != nil {
			s.Logger.Warn("letting go of what was sent", "group", group, "error", err)
		}
	}()
	if export.Describe().Bytes > smallBytesMax { // small groups finish quickly
		defer s.Count.ExportsUnderWay.Add(-1)
		if s.Count.ExportsUnderWay.Add(1) > int64(s.ExportsMax) {
			s.Count.ExportsRefused.Add(1)
			return status.Errorf(codes.ResourceExhausted, "%v (%d): try again", ErrBusy, s.ExportsMax)
		}
	}
	if err := describe(stream, export.Describe()); err != nil {
		return err
	}
	for {
		in, err := stream.Wanted()
		if errors.Is(err, io.EOF) {
			return nil // the caller has everything, or does not want more
		}
		if err != nil {
			return err
		}
		if n := len(in.GetFiles()); n < 1 || n > filesPerMessage {
			return status.Errorf(codes.InvalidArgument, "%d files are wanted at once: 1 to %d may be", n, filesPerMessage)
		}
		for _, r := range in.GetFiles() {
			if err := s.file(ctx, stream, export, r); err != nil {
				return answer(group, err)
			}
		}
	}
}

// file sends a file, starting at an offset.
func (s *Sender) file(ctx context.Context, stream grpc.ServerStream, export Export, r *peerv1.FileRange) error {
	first := &peerv1.FileChunk{Name: r.GetName(), OffsetBytes: r.GetOffsetBytes()}
	if r.GetOffsetBytes() < 0 {
		return status.Errorf(codes.InvalidArgument, "file %q is wanted from %d", r.GetName(), r.GetOffsetBytes())
	}
	file, err := export.Open(r.GetName(), r.GetOffsetBytes())
	if err != nil {
		return err
	}
	return errors.Join(s.chunks(ctx, stream, chunkOfGroup, first, file, s.Limiter), file.Close())
}

// describe sends a replica's description in messages of bounded size.
func describe(stream GroupStream, d Description) error {
	for manifest := d.Manifest; ; {
		part := &peerv1.FetchGroupDescription{}
		n := min(len(manifest), manifestBytesMax)
		part.Manifest, manifest = manifest[:n], manifest[n:]
		if part.More = len(manifest) > 0; !part.GetMore() {
			part.Index, part.Term, part.TotalBytes = d.Index, d.Term, d.Bytes
		}
		if err := stream.Describe(part); err != nil || !part.GetMore() {
			return err
		}
	}
}

// chunks sends the rest of a file, one chunk per message. The argument field is the number of the message field that
// holds the chunk, and first is the first chunk, still without data. The last chunk may be empty. The limiter may be
// nil.
func (s *Sender) chunks(ctx context.Context, stream grpc.ServerStream, field protowire.Number,
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
		s.Count.FetchedBytes.Add(uint64(n))
		if chunk.GetLast() {
			return nil
		}
		chunk = &peerv1.FileChunk{OffsetBytes: chunk.GetOffsetBytes() + int64(n)}
	}
}

// Blob sends a blob, starting at an offset. Each chunk is field 1 of a message. The argument ref is the reference to
// the blob. Errors are gRPC statuses.
func (s *Sender) Blob(ctx context.Context, group uuid.UUID, ref []byte, offset int64, stream grpc.ServerStream) error {
	source, err := s.source(group)
	if err != nil {
		return err
	}
	file, size, err := source.Blob(ctx, group, ref)
	if err != nil {
		return answer(group, err)
	}
	if offset < 0 || offset > size {
		err = status.Errorf(codes.OutOfRange, "the blob has %d bytes, it is wanted from %d", size, offset)
	} else {
		rest := io.NewSectionReader(file, offset, size-offset)
		err = s.chunks(ctx, stream, chunkOfBlob, &peerv1.FileChunk{OffsetBytes: offset}, rest, nil)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return answer(group, err)
	}
	return nil
}
