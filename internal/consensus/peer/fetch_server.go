package peer

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
)

const (
	chunkBytesMax = 1 << 20 // maximum length of FileChunk.data
	// chunkBytes is the size of one chunk. A chunk is small enough to remain in the CPU cache from one copy to the next,
	// and it does not make other senders wait long for the device or the rate limiter.
	chunkBytes       = 256 << 10
	nameBytesMax     = 256 // maximum length of FileChunk.name
	filesPerMessage  = 1024
	entriesBytesMax  = 1 << 20 // approximate maximum size of a FetchEntries message
	manifestBytesMax = 1 << 20 // maximum number of manifest bytes in one message
	smallBytesMax    = 4 << 20 // groups up to this size do not count towards exportsMax
)

// groupOf checks whether a call is allowed, and returns the group's id.
func (h *Hub) groupOf(ctx context.Context, header *peerv1.PeerHeader, group []byte) (uuid.UUID, error) {
	if err := h.admit(ctx, header); err != nil {
		return uuid.Nil, err
	}
	return ParseGroup(group)
}

// until returns a context that is also canceled when the hub is closed.
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
	group, err := h.groupOf(stream.Context(), first.GetStart().GetHeader(), first.GetStart().GetGroup())
	if err != nil {
		return err
	}
	ctx, cancel := h.until(stream.Context())
	defer cancel()
	return h.sender.Group(ctx, group, GroupStream{
		ServerStream: stream,
		Describe: func(part *peerv1.FetchGroupDescription) error {
			return stream.Send(&peerv1.FetchGroupResponse{Part: &peerv1.FetchGroupResponse_Description{Description: part}})
		},
		Wanted: func() (*peerv1.FetchGroupWanted, error) {
			in, err := stream.Recv()
			return in.GetWanted(), err
		},
	})
}

// FetchEntries implements PeerService.
func (h *Hub) FetchEntries(in *peerv1.FetchEntriesRequest, stream peerv1.PeerService_FetchEntriesServer) error {
	group, err := h.groupOf(stream.Context(), in.GetHeader(), in.GetGroup())
	if err != nil {
		return err
	}
	source, err := h.sender.source(group)
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
			h.sender.Count.FetchedBytes.Add(uint64(len(encoded)))
		}
		if err := stream.Send(out); err != nil || piece.Through >= last || piece.Through < first {
			return err
		}
		first = piece.Through + 1
	}
}

// FetchBlob implements PeerService.
func (h *Hub) FetchBlob(in *peerv1.FetchBlobRequest, stream peerv1.PeerService_FetchBlobServer) error {
	group, err := h.groupOf(stream.Context(), in.GetHeader(), in.GetGroup())
	if err != nil {
		return err
	}
	ctx, cancel := h.until(stream.Context())
	defer cancel()
	return h.sender.Blob(ctx, group, in.GetRef(), in.GetOffsetBytes(), stream)
}
