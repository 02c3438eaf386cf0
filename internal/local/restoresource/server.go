// Package restoresource serves the groups of a restore to the shards of the new store, and the list of these groups to
// its gateways. For shards, it implements FetchGroup of PeerService, in the same way as a member of the group. See
// docs/archive.md, "Restore".
package restoresource

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/consensus/peer"
)

// Options configure a Server.
type Options struct {
	Restore *restore.Restore
	// SpeaksFor reports whether a call comes from the shard that its header names. If it is nil, the header is trusted.
	SpeaksFor func(ctx context.Context, shard string) bool
	// Limiter bounds the bytes per second that are sent. If it is nil, there is no limit.
	Limiter *rate.Limiter
	// IdleMax limits how long a call may last without a request for a file, because other groups may wait for the memory
	// of its group. 0 means the constant IdleMax.
	IdleMax time.Duration
	Logger  *slog.Logger
}

// IdleMax is the default of Options.IdleMax.
const IdleMax = time.Minute

// Server implements PeerService for the groups of a restore. It is safe for concurrent use.
type Server struct {
	peerv1.UnimplementedPeerServiceServer
	opts Options

	mu   sync.Mutex
	sent map[uuid.UUID]bool // groups that a shard has received completely; guarded by mu
}

// New creates a Server.
func New(opts Options) *Server {
	if opts.IdleMax == 0 {
		opts.IdleMax = IdleMax
	}
	return &Server{opts: opts, sent: map[uuid.UUID]bool{}}
}

// admit refuses a call if it is meant for another store or for a shard, or if it does not come from the shard that its
// header names.
func (s *Server) admit(ctx context.Context, header *peerv1.PeerHeader) error {
	store := s.opts.Restore.Store()
	switch {
	case header == nil:
		return status.Error(codes.InvalidArgument, "the header is required in the first message")
	case s.opts.SpeaksFor != nil && !s.opts.SpeaksFor(ctx, header.GetFromShard()):
		return status.Errorf(codes.PermissionDenied,
			"the call is said to come from shard %q, and the caller's certificate names another process", header.GetFromShard())
	case !bytes.Equal(header.GetStore(), store[:]):
		return status.Errorf(codes.FailedPrecondition, "this source restores into store %s, the call is for store %x", store,
			header.GetStore())
	case header.GetToShard() != "":
		return status.Errorf(codes.FailedPrecondition,
			"this is the source of a restore, the call is for shard %q: its address is used again", header.GetToShard())
	case header.GetFromShard() == "":
		return status.Error(codes.InvalidArgument, "the header names no shard that asks")
	}
	return nil
}

// FetchGroup implements PeerService.
func (s *Server) FetchGroup(stream peerv1.PeerService_FetchGroupServer) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.admit(ctx, first.GetStart().GetHeader()); err != nil {
		return err
	}
	id, err := peer.ParseGroup(first.GetStart().GetGroup())
	if err != nil {
		return err
	}
	if first.GetStart().GetFounder() == 0 {
		return status.Error(codes.InvalidArgument, "founder: the Raft id of the replica that installs is missing")
	}
	// Each call has a Sender without a limit of its own, because the Restore limits how many groups are sent at the same
	// time.
	from := &source{restore: s.opts.Restore, ctx: ctx, founder: first.GetStart().GetFounder()}
	sender := &peer.Sender{Source: from, ExportsMax: math.MaxInt, Limiter: s.opts.Limiter, Logger: s.opts.Logger}
	shard := first.GetStart().GetHeader().GetFromShard()
	err = sender.Group(ctx, id, peer.GroupStream{
		ServerStream: stream,
		Describe: func(part *peerv1.FetchGroupDescription) error {
			return stream.Send(&peerv1.FetchGroupResponse{Part: &peerv1.FetchGroupResponse_Description{Description: part}})
		},
		Wanted: func() (*peerv1.FetchGroupWanted, error) { return s.wanted(stream) },
	})
	if from.failed != nil {
		err = s.coded(ctx, from.failed)
	}
	s.note(id, shard, sender.Count.FetchedBytes.Load(), err)
	return err
}

// wanted receives the next request for files. It waits for at most Options.IdleMax. If it returns an error, the call
// ends, which also ends the goroutine below.
func (s *Server) wanted(stream peerv1.PeerService_FetchGroupServer) (*peerv1.FetchGroupWanted, error) {
	type received struct {
		in  *peerv1.FetchGroupRequest
		err error
	}
	come := make(chan received, 1)
	go func() {
		in, err := stream.Recv()
		come <- received{in, err}
	}()
	timer := time.NewTimer(s.opts.IdleMax)
	defer timer.Stop()
	select {
	case r := <-come:
		return r.in.GetWanted(), r.err
	case <-timer.C:
		return nil, status.Errorf(codes.DeadlineExceeded,
			"no file was wanted for %v: fetch the group again, from the offsets that are missing", s.opts.IdleMax)
	}
}

// note logs how a call ended. It does not log calls that were refused only because they must wait for others.
func (s *Server) note(group uuid.UUID, shard string, sent uint64, err error) {
	log := s.opts.Logger.With("group", group, "shard", shard, "bytes", sent)
	switch status.Code(err) {
	case codes.OK:
		s.mu.Lock()
		s.sent[group] = true
		n := len(s.sent)
		s.mu.Unlock()
		log.Info("a shard has received a group", "groups", n, "of", len(s.opts.Restore.Groups()))
	case codes.ResourceExhausted:
	default:
		log.Warn("a group was not sent whole", "error", err)
	}
}

// source implements peer.Source for one call. Only one goroutine uses it.
type source struct {
	restore *restore.Restore
	ctx     context.Context // the context of the call, during which files are read
	founder uint64
	failed  error // why the archive could not be read; nil if there was no such error
}

var _ peer.Source = (*source)(nil)

// Export implements peer.Source.
func (s *source) Export(ctx context.Context, group uuid.UUID) (peer.Export, error) {
	i, err := s.restore.Image(ctx, group, s.founder)
	if err != nil {
		s.failed = err
		return nil, err
	}
	return &export{image: i, source: s}, nil
}

// Entries implements peer.Source. It returns no entries, because a shard fetches the entries of a restored group from
// the group's members.
func (*source) Entries(context.Context, uuid.UUID, uint64, uint64, int) (peer.Entries, error) {
	return peer.Entries{}, peer.ErrNotHere
}

// Blob implements peer.Source. It returns no blobs, because the blobs of a restored group are among its files.
func (*source) Blob(context.Context, uuid.UUID, []byte) (peer.File, int64, error) {
	return nil, 0, peer.ErrNotHere
}

// export implements peer.Export for an image of a restored group.
type export struct {
	image  *restore.Image
	source *source
}

func (e *export) Describe() peer.Description {
	index, term := e.image.Position()
	return peer.Description{Manifest: e.image.Manifest(), Index: index, Term: term, Bytes: e.image.Bytes()}
}

func (e *export) Open(name string, offset int64) (io.ReadCloser, error) {
	r, err := e.image.Open(e.source.ctx, name, offset)
	if err != nil {
		e.source.failed = err
		return nil, err
	}
	return file{ReadCloser: r, source: e.source}, nil
}

func (e *export) Close() error { return e.image.Close() }

// file reads a file of the image, and records a read error in source.
type file struct {
	io.ReadCloser
	source *source
}

func (f file) Read(b []byte) (int, error) {
	n, err := f.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		f.source.failed = err
	}
	return n, err
}

// answerTime is the time within which a bucket answers that is not away.
const answerTime = 10 * time.Second

// coded adds a gRPC code to an error, which tells the shard how to go on:
//
//   - DATA_LOSS if the archive lacks something that the group held, because another attempt would not help;
//   - ABORTED if the bucket does not let the source read an object, but answers otherwise. Other groups may be
//     readable;
//   - UNAVAILABLE if the bucket does not answer at all, or answers no request. This concerns all groups, as if there
//     were no source, for which gRPC itself uses this code.
func (s *Server) coded(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, restore.ErrBusy):
		return status.Errorf(codes.ResourceExhausted, "%v: try again", err)
	case errors.Is(err, restore.ErrUnknown):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, restore.ErrNoFile):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, reader.ErrRefused), reader.IsBroken(err):
		return status.Errorf(codes.DataLoss, "the group cannot be restored: %v", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	soon, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if away := s.opts.Restore.Answers(soon); away != nil && ctx.Err() == nil {
		return status.Errorf(codes.Unavailable, "the bucket does not answer: %v", err)
	}
	return status.Errorf(codes.Aborted, "the archive cannot be read now: %v", err)
}
