// Package archive serves the archiver of a store. It implements ArchiveService, which reports what is new in the
// groups that this shard leads, and sends the files of replicas. It uses the shard through the interfaces Groups,
// Group and Holds. A slow archiver holds no resources of the shard except those of its own streams.
package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/storage/group"
)

// Groups gives access to the groups of a shard. It is safe for concurrent use.
type Groups interface {
	// Led returns the groups that this shard leads now, as far as it knows, in no particular order.
	Led() []Group
	// All returns the groups that this shard has, in no particular order. A group that is not served is in Unserved.
	All() (served []Group, unserved []Named)
	// Silent returns the groups for which this shard should answer but cannot, each with the reason. An example is a
	// group that this shard leads according to etcd, but that is still loading.
	Silent() iter.Seq2[Named, error]
	// Deleted reports whether etcd lists the group as deleted. It returns false if that is not known. A group that is
	// merely not on this shard was not deleted.
	Deleted(ctx context.Context, group Named) bool
}

// Named identifies a group. The UUID is needed because a new group may later get the same name.
type Named struct {
	Name string
	UUID uuid.UUID
}

// Group is a group that this shard serves.
type Group interface {
	Named() Named
	// Barrier returns when the applied entries include every write that was acknowledged before the call. It waits only
	// for a limited time.
	Barrier(ctx context.Context) error
	// Applied returns the applied index.
	Applied() uint64
	// Read returns entries as group.(*Log).ReadRange does.
	Read(r group.IndexRange, maxBytes uint64) (group.RangeAnswer, error)
	// HistoryFloor returns the floor as group.(*Log).HistoryFloor does.
	HistoryFloor() (floor uint64, known bool)
	// DeletesFloor returns the index up to which deletes may be missing, as group.(*Log).DeletesFloor does.
	DeletesFloor() uint64
	// Archived records that an archiver has archived the group up to an index, which becomes the group's hold: later
	// history is kept for the archive. The value of call identifies the archiver. Begins records that an archiver is
	// about to make its first copy of the group, as of an index.
	Archived(call any, index uint64)
	Begins(index uint64)
	// End ends the hold of the group, because nobody archives the store any more. It reports whether there was a hold.
	// If the hold may still be in force, it returns an error, which wraps ErrFollowed if an archiver follows the group.
	End(ctx context.Context) (ended bool, err error)
}

// ErrFollowed means that a hold cannot end because an archiver follows the group.
var ErrFollowed = errors.New("an archiver follows it")

// Holds lets the server release what a call has passed to Group.Archived, when that call ends.
type Holds interface {
	Leave(call any)
}

// Options configure a Server. All are required.
type Options struct {
	Shard  string // name of this shard
	Store  uuid.UUID
	Groups Groups
	Holds  Holds
	// Sender sends the files of groups. It is separate from the Sender that serves other shards, so that moves of groups
	// and archives do not wait for each other.
	Sender *peer.Sender
	// Stopping reports whether the shard is stopping. If it is, no further round begins.
	Stopping func() bool
	// IdleMax is how long FetchGroup keeps a group's files while the caller does not request any of them.
	IdleMax time.Duration
}

// These are the limits of Server.
const (
	// GroupsMax is how many groups may be sent to archivers at the same time. Small groups do not count.
	GroupsMax = 1
	// IdleMax is the usual value of Options.IdleMax. It is long because an archiver writes the fetched data to a bucket,
	// which may be unavailable for minutes.
	IdleMax = 10 * time.Minute
)

// Server implements ArchiveService. Safe for concurrent use.
type Server struct {
	archivev1.UnimplementedArchiveServiceServer
	opts Options
	// following is the number of open Follow calls. An archiver has one on each shard, also while it makes first copies,
	// and before it reports a position of a group that this shard leads.
	following atomic.Int64
	through   atomic.Int64 // see ArchivedThrough; Unix ns, 0 if no archiver has told it
}

// New makes a Server.
func New(opts Options) *Server { return &Server{opts: opts} }

// ArchivedThrough returns the time that an archiver told last: everything that was acknowledged before it, in all
// groups of the store, is archived. It returns false if no archiver has told it since the process started.
func (s *Server) ArchivedThrough() (unixNanos int64, known bool) {
	unixNanos = s.through.Load()
	return unixNanos, unixNanos != 0
}

// admit refuses calls that are meant for another store or shard.
func (s *Server) admit(header *archivev1.Header) error {
	switch {
	case header == nil:
		return status.Error(codes.InvalidArgument, "the header is required in the first message")
	case !bytes.Equal(header.GetStore(), s.opts.Store[:]):
		return status.Errorf(codes.FailedPrecondition, "this shard is of store %s, the call is for store %x", s.opts.Store,
			header.GetStore())
	case header.GetToShard() != "" && header.GetToShard() != s.opts.Shard:
		return status.Errorf(codes.FailedPrecondition,
			"this is shard %s, the call is for shard %q: its address is used again", s.opts.Shard, header.GetToShard())
	}
	return nil
}

// FetchGroup implements ArchiveService.
func (s *Server) FetchGroup(stream archivev1.ArchiveService_FetchGroupServer) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.admit(first.GetStart().GetHeader()); err != nil {
		return err
	}
	id, err := peer.ParseGroup(first.GetStart().GetGroup())
	if err != nil {
		return err
	}
	return s.opts.Sender.Group(ctx, id, peer.GroupStream{
		ServerStream: stream,
		Describe: func(part *peerv1.FetchGroupDescription) error {
			return stream.Send(
				&archivev1.FetchGroupResponse{Part: &archivev1.FetchGroupResponse_Description{Description: part}})
		},
		Wanted: func() (*peerv1.FetchGroupWanted, error) {
			defer s.endIdle(ctx)()
			in, err := stream.Recv()
			return in.GetWanted(), err
		},
	})
}

// endIdle aborts a call if the returned function is not called within Options.IdleMax, because the files that the
// call has pinned take up disk space.
func (s *Server) endIdle(ctx context.Context) (wanted func()) {
	timer := time.AfterFunc(s.opts.IdleMax, func() {
		if abort := message.AbortOf(ctx); abort != nil {
			abort(status.Errorf(codes.DeadlineExceeded,
				"no file was wanted for %v: fetch the group again, from the offsets that are missing", s.opts.IdleMax))
		}
	})
	return func() { timer.Stop() }
}

// EndHistory implements ArchiveService.
func (s *Server) EndHistory(ctx context.Context, in *archivev1.EndHistoryRequest) (*archivev1.EndHistoryResponse,
	error) {
	if err := s.admit(in.GetHeader()); err != nil {
		return nil, err
	}
	if s.following.Load() > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "an archiver follows shard %s: stop the archiver first",
			s.opts.Shard)
	}
	out := &archivev1.EndHistoryResponse{}
	waits := func(g Named, why error) {
		out.Waiting++
		out.Reason = fmt.Sprintf("group %s: %v", g.Name, why)
	}
	served, unserved := s.opts.Groups.All()
	for _, g := range served {
		ended, err := g.End(ctx)
		switch {
		case errors.Is(err, ErrFollowed):
			return nil, status.Errorf(codes.FailedPrecondition, "group %s: %v", g.Named().Name, err)
		case err != nil:
			waits(g.Named(), err)
		case ended:
			out.Ended++
		}
	}
	for _, g := range unserved {
		waits(g, errors.New("this shard does not serve it at present"))
	}
	return out, nil
}

// FetchBlob implements ArchiveService.
func (s *Server) FetchBlob(in *archivev1.FetchBlobRequest, stream archivev1.ArchiveService_FetchBlobServer) error {
	if err := s.admit(in.GetHeader()); err != nil {
		return err
	}
	id, err := peer.ParseGroup(in.GetGroup())
	if err != nil {
		return err
	}
	return s.opts.Sender.Blob(stream.Context(), id, in.GetRef(), in.GetOffsetBytes(), stream)
}
