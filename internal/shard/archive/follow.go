package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

const (
	// barriersMax is how many groups of one call may wait for their read barriers at the same time. A group that waits
	// holds no entries in memory.
	barriersMax = 64
	// entriesBytesMax bounds the total size of the entries in one message. A single entry may be larger.
	entriesBytesMax = 1 << 20
	// positionsPerMessage bounds the positions in one request message. positionsMax and deletedMax bound the positions,
	// and the questions about deleted groups, in one round of requests and responses.
	positionsPerMessage = 16 << 10
	positionsMax        = 1 << 20
	deletedMax          = 64
	// positionBytes is the approximate memory that one position takes.
	positionBytes = 64
	// pieceBytes is the memory that one message takes while it is built and sent. It covers the entries three times: as
	// they are read, as they are encoded, and in the encoded message. A single entry may be larger than entriesBytesMax.
	pieceBytes = 3 * (entriesBytesMax + format.DataBytesMax + format.AttributesBytesMax)
	// memoryWait is how long a call waits before it asks again for memory that other calls hold at the moment.
	memoryWait = 50 * time.Millisecond
	// reasonBytesMax bounds FollowResponse.left_out.
	reasonBytesMax = 1 << 10
)

// Follow implements ArchiveService.
func (s *Server) Follow(stream archivev1.ArchiveService_FollowServer) error {
	f := &follow{server: s, stream: stream, held: message.HeldOf(stream.Context())}
	defer func() {
		s.opts.Holds.Leave(f)
		if f.admitted {
			s.following.Add(-1)
		}
	}()
	for {
		err := f.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && s.opts.Stopping() {
			err = answer.Stopping()
		}
		if err == nil {
			err = f.round(stream.Context())
		}
		if err != nil {
			return err
		}
	}
}

// follow is one call of the method Follow. Its address identifies the call in Group.Archived.
type follow struct {
	server   *Server
	stream   archivev1.ArchiveService_FollowServer
	held     *message.Held
	admitted bool

	// positions and asked hold what the caller has sent for the current round. The goroutines that wait for read
	// barriers may read both, but must not change them.
	positions map[uuid.UUID]uint64
	asked     []Named // groups for which the caller asks whether they were deleted
}

// receive receives the caller's positions for the next round. It returns io.EOF if the caller ends the call.
func (f *follow) receive() error {
	f.positions, f.asked = map[uuid.UUID]uint64{}, nil
	_ = f.held.Ask(0) // releases all memory; Ask never refuses to reduce an amount
	for {
		in, err := f.stream.Recv()
		if err != nil {
			return err
		}
		if !f.admitted {
			if err := f.server.admit(in.GetHeader()); err != nil {
				return err
			}
			f.admitted = true
			f.server.following.Add(1)
		}
		if at := in.GetArchivedThroughUnixNs(); at > 0 {
			f.server.through.Store(at)
		}
		if n := len(in.GetPositions()); n > positionsPerMessage || len(f.positions)+n > positionsMax {
			return status.Errorf(codes.InvalidArgument,
				"positions: %d after %d of this round: send at most %d in a message, and %d in a round", n, len(f.positions),
				positionsPerMessage, positionsMax)
		}
		if err := f.held.More(int64(len(in.GetPositions())) * positionBytes); err != nil {
			return err
		}
		for _, p := range in.GetPositions() {
			if err := f.take(p); err != nil {
				return err
			}
		}
		if !in.GetMore() {
			return nil
		}
	}
}

func (f *follow) take(p *archivev1.Position) error {
	id, err := peer.ParseGroup(p.GetGroup())
	if err != nil {
		return err
	}
	if _, twice := f.positions[id]; twice {
		return status.Errorf(codes.InvalidArgument, "positions: group %s comes twice in a round", id)
	}
	if p.GetAfter() > format.NumberMax {
		return status.Errorf(codes.InvalidArgument, "positions: no group has the index %d", p.GetAfter())
	}
	f.positions[id] = p.GetAfter()
	name := p.GetDeletedName()
	if name == "" {
		return nil
	}
	if err := placement.ValidateGroupName(name); err != nil {
		return status.Errorf(codes.InvalidArgument, "positions: deleted_name: %v", err)
	}
	if len(f.asked) < deletedMax {
		f.asked = append(f.asked, Named{Name: name, UUID: id})
	}
	return nil
}

// fresh is a group that has passed its read barrier in the current round.
type fresh struct {
	Group
	after   uint64    // position up to which the caller has archived the group
	unknown bool      // the caller gave no position
	readAt  time.Time // time before the barrier was begun
	through uint64    // applied index after the barrier
	err     error     // why nothing can be reported about the group in this round
}

// round reports to the caller what is new in each group, and then tells it that the round has ended.
func (f *follow) round(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	ready := make(chan fresh)
	var passing sync.WaitGroup
	defer passing.Wait()
	defer cancel()
	passing.Go(func() { f.pass(ctx, ready) })
	for one := range ready {
		if err := f.send(ctx, &one); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	for named, why := range f.server.opts.Groups.Silent() {
		if err := f.leaveOut(named, why); err != nil {
			return err
		}
	}
	for _, named := range f.asked {
		if !f.server.opts.Groups.Deleted(ctx, named) {
			continue
		}
		if err := f.stream.Send(&archivev1.FollowResponse{Group: named.UUID[:], Name: named.Name, Gone: true}); err != nil {
			return err
		}
	}
	_ = f.held.Ask(int64(len(f.positions)) * positionBytes)
	return f.stream.Send(&archivev1.FollowResponse{RoundEnds: true})
}

// pass waits for the read barriers of all groups that this shard leads, several at a time. It sends each group to
// ready when its barrier is passed, and closes ready at the end.
func (f *follow) pass(ctx context.Context, ready chan<- fresh) {
	defer close(ready)
	turns := make(chan struct{}, barriersMax)
	var all sync.WaitGroup
	defer all.Wait()
	for _, g := range f.server.opts.Groups.Led() {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		all.Go(func() {
			defer func() { <-turns }()
			select {
			case ready <- f.barrier(ctx, g):
			case <-ctx.Done():
			}
		})
	}
}

// barrier waits for a group's read barrier, and then makes the caller's position the hold of the group.
func (f *follow) barrier(ctx context.Context, g Group) (one fresh) {
	one.Group = g
	after, known := f.positions[g.Named().UUID]
	one.after, one.unknown = after, !known
	// The time must be taken before the barrier. If another member has become leader by then, a write that it
	// acknowledges during the barrier may have an index above the one that is read below. The archive must not claim to
	// contain that write.
	one.readAt = time.Now()
	if one.err = g.Barrier(ctx); one.err != nil {
		return one
	}
	one.through = g.Applied()
	switch {
	case one.unknown:
		g.Begins(one.through)
	case after > one.through:
		one.err = fmt.Errorf("it is archived up to index %d, but has only %d: the archive is not that of this group, or "+
			"the group was set back", after, one.through)
	default:
		g.Archived(f, after)
	}
	return one
}

// send reports what is new in a group. It reads the entries of a message only after the caller has taken the previous
// message, so a slow caller holds the memory of one message and no part of the log. If send returns an error, the
// call ends.
func (f *follow) send(ctx context.Context, one *fresh) error {
	switch {
	case one.err != nil && ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case one.err != nil:
		return f.leaveOut(one.Named(), one.err)
	case one.unknown:
		return f.stream.Send(&archivev1.FollowResponse{Group: bytesOf(one.Named().UUID), Name: one.Named().Name,
			Unknown: true})
	}
	for at := one.after; ; {
		out := &archivev1.FollowResponse{Group: bytesOf(one.Named().UUID), Name: one.Named().Name}
		after := at
		if at < one.through {
			if err := f.askMemory(ctx); err != nil {
				return err
			}
			piece, err := one.Read(group.IndexRange{First: at + 1, Last: one.through}, entriesBytesMax)
			if err == nil && piece.Through <= at {
				err = fmt.Errorf("no entry above index %d can be read", at)
			}
			if err == nil {
				out.Entries, err = encode(piece)
			}
			if err != nil {
				return f.leaveOut(one.Named(), err)
			}
			at = piece.Through
		}
		out.Through, out.More = at, at < one.through
		// Both floors are read after the entries. If a compaction dropped some of the entries before they were read, it has
		// raised the floors by now.
		if floor := one.DeletesFloor(); floor > after {
			return f.copyAgain(one.Named(), after, floor)
		}
		out.HistoryFloor, out.FloorKnown = one.HistoryFloor()
		if !out.GetMore() {
			out.ReadAtUnixNs = one.readAt.UnixNano()
		}
		if err := f.stream.Send(out); err != nil || !out.GetMore() {
			return err
		}
	}
}

// askMemory waits until there is enough memory to build one message.
func (f *follow) askMemory(ctx context.Context) error {
	for f.held.Ask(int64(len(f.positions))*positionBytes+pieceBytes) != nil {
		select {
		case <-time.After(memoryWait):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

func encode(piece group.RangeAnswer) (entries [][]byte, err error) {
	entries = make([][]byte, len(piece.Entries))
	for i, e := range piece.Entries {
		if entries[i], err = proto.Marshal(e); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// leaveOut tells the caller why this round reports nothing more about a group.
func (f *follow) leaveOut(g Named, why error) error {
	reason := []rune(why.Error())
	return f.stream.Send(&archivev1.FollowResponse{Group: bytesOf(g.UUID), Name: g.Name,
		LeftOut: string(reason[:min(len(reason), reasonBytesMax)])})
}

// copyAgain tells the caller that it must copy a group again, because deletes above the index after may be missing.
func (f *follow) copyAgain(g Named, after, floor uint64) error {
	why := fmt.Sprintf("deletes above index %d, up to which it is archived, and up to index %d may be missing here: copy "+
		"the group again, with an archiver that can do this", after, floor)
	return f.stream.Send(&archivev1.FollowResponse{Group: bytesOf(g.UUID), Name: g.Name, CopyAgain: true, LeftOut: why})
}

func bytesOf(id uuid.UUID) []byte { return id[:] }
