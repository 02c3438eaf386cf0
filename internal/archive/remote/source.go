// Package remote implements the Source of an archive. It fetches the new entries from all shards of the store over
// gRPC. A Source holds one message in memory for each of a few shards. It does not hold the history of groups.
package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/internal/archive/archiver"
)

// Options configures a Source.
type Options struct {
	Store uuid.UUID
	// Shards returns the addresses (host:port) of the store's shards that are currently known.
	Shards func(ctx context.Context) ([]string, error)
	// Dial holds the options for connections to shards. The credentials must accept only shards of the store.
	Dial []grpc.DialOption
	// Name returns the name of an archived group, or "" if it is unknown. The Source calls it for groups of which it has
	// received nothing yet. If Name is nil, no names are known.
	Name func(group uuid.UUID) string
	// Through returns a time such that everything acknowledged before it, in all groups, is archived, or the zero time if
	// that is not known. The Source tells it to all shards in each round, for their status. It may be nil.
	Through func() time.Time
}

const (
	// shardsAtOnce is the number of shards that are asked at the same time. Each of them needs memory for one message.
	shardsAtOnce = 4
	// messageBytesMax is the maximum size of a message. A message has at most 1 MiB of entries, or a single entry with
	// its attributes.
	messageBytesMax = 8 << 20
	// silenceMax is how long a shard may take to send its next message.
	silenceMax = time.Minute
	// quietRounds is the number of rounds without updates of a group. After that, the shards are asked whether the group
	// has been deleted.
	quietRounds = 3
	// positionsPerMessage is the maximum number of positions in a request.
	positionsPerMessage = 16 << 10
)

// Source implements archiver.Source. The caller must call Close.
type Source struct {
	opts Options

	mu     sync.Mutex
	shards map[string]*shard          // by address; guarded by mu
	groups map[uuid.UUID]*groupReport // guarded by mu
	closed bool                       // guarded by mu
}

var _ archiver.Source = (*Source)(nil)

// groupReport holds what the shards have reported about a group.
type groupReport struct {
	name  string
	shard string // address of the shard that last sent an update; empty if none has
	quiet int    // number of rounds since the last update
}

// shard is a connection to one shard of the store.
type shard struct {
	address string
	conn    *grpc.ClientConn
	client  archivev1.ArchiveServiceClient

	// call is the open Follow call, which is kept between rounds, or nil if there is none. Only one round at a time
	// uses it.
	call *call
}

// call is an open Follow call.
type call struct {
	stream archivev1.ArchiveService_FollowClient
	cancel context.CancelFunc
	begun  bool // whether the header was sent
}

// New returns a Source. It does not connect to shards yet.
func New(opts Options) *Source {
	opts.Dial = append(slices.Clone(opts.Dial), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)))
	return &Source{opts: opts, shards: map[string]*shard{}, groups: map[uuid.UUID]*groupReport{}}
}

// Close closes all connections. No other method may be running, or be called afterwards.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	errs := make([]error, 0, len(s.shards))
	for _, sh := range s.shards {
		errs = append(errs, sh.close())
	}
	return errors.Join(errs...)
}

func (sh *shard) close() error {
	sh.end()
	return sh.conn.Close()
}

// end ends the call of Follow, if there is one.
func (sh *shard) end() {
	if sh.call != nil {
		sh.call.cancel()
		sh.call = nil
	}
}

func (s *Source) header() *archivev1.Header { return &archivev1.Header{Store: s.opts.Store[:]} }

// connect returns the shards with the given addresses, sorted by address, and closes the connections to all others.
// If a connection cannot be established, the calls on it fail later.
func (s *Source) connect(addresses []string) (all []*shard, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the source is closed")
	}
	for address, sh := range s.shards {
		if !slices.Contains(addresses, address) {
			_ = sh.close() // nothing more is sent on this connection
			delete(s.shards, address)
		}
	}
	var errs []error
	for _, address := range slices.Compact(slices.Sorted(slices.Values(addresses))) {
		sh := s.shards[address]
		if sh == nil {
			conn, err := grpc.NewClient("passthrough:///"+address, append(slices.Clone(s.opts.Dial), grpc.WithNoProxy())...)
			if err != nil {
				errs = append(errs, fmt.Errorf("shard %s: %w", address, err))
				continue
			}
			sh = &shard{address: address, conn: conn, client: archivev1.NewArchiveServiceClient(conn)}
			s.shards[address] = sh
		}
		all = append(all, sh)
	}
	return all, errors.Join(errs...)
}

// candidates returns the shards that may have a group's files, starting with the shard that last sent an update of the
// group.
func (s *Source) candidates(ctx context.Context, group uuid.UUID) ([]*shard, error) {
	addresses, err := s.opts.Shards(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.connect(addresses)
	if len(all) == 0 {
		return nil, errors.Join(errors.New("no shard is known"), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[group]; g != nil {
		if i := slices.IndexFunc(all, func(sh *shard) bool { return sh.address == g.shard }); i > 0 {
			all[0], all[i] = all[i], all[0]
		}
	}
	return all, nil
}

// requests returns the messages that start a round.
func (s *Source) requests(positions map[uuid.UUID]uint64) (all []*archivev1.FollowRequest) {
	var through int64
	if s.opts.Through != nil {
		if at := s.opts.Through(); !at.IsZero() {
			through = at.UnixNano()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.groups {
		if _, archived := positions[id]; !archived && s.groups[id].quiet > quietRounds {
			delete(s.groups, id) // the group is not archived, and no shard reports it any more
		}
	}
	next := &archivev1.FollowRequest{ArchivedThroughUnixNs: through}
	for id, after := range positions {
		if len(next.GetPositions()) == positionsPerMessage {
			next.More = true
			all, next = append(all, next), &archivev1.FollowRequest{}
		}
		p := &archivev1.Position{Group: bytes.Clone(id[:]), After: after}
		g := s.groups[id]
		if g == nil {
			g = &groupReport{}
			s.groups[id] = g
		}
		if g.name == "" && s.opts.Name != nil {
			g.name = s.opts.Name(id)
		}
		if g.quiet++; g.quiet > quietRounds {
			p.DeletedName = g.name
		}
		next.Positions = append(next.Positions, p)
	}
	return append(all, next)
}

// hear records that a shard has sent an update of a group.
func (s *Source) hear(group uuid.UUID, name, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[group]
	if g == nil {
		g = &groupReport{}
		s.groups[group] = g
	}
	g.name, g.shard, g.quiet = name, address, 0
}
