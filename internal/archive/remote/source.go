// Package remote is a store as the source of an archive: it asks all shards of the store over gRPC. A Source holds one
// message of a few shards at a time, and nothing of a group's history.
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

// Options of a Source.
type Options struct {
	Store uuid.UUID
	// Shards returns the addresses (host:port) of the shards of the store, as far as they are known now.
	Shards func(ctx context.Context) ([]string, error)
	// Dial are the options of connections to shards. Their credentials must accept only shards of the store.
	Dial []grpc.DialOption
	// Name returns the name of an archived group; empty: it is not known. It is asked for groups from which this Source
	// has heard nothing yet. nil: no name is known.
	Name func(group uuid.UUID) string
}

const (
	// shardsAtOnce is the number of shards that are asked at a time, each with one message in memory.
	shardsAtOnce = 4
	// messageBytesMax bounds a message. A message has 1 MiB of entries, or one entry with its attributes.
	messageBytesMax = 8 << 20
	// silenceMax is how long a shard may take for its next message.
	silenceMax = time.Minute
	// quietRounds is the number of rounds without news of a group after which the shards are asked whether the group was
	// deleted.
	quietRounds = 3
	// positionsPerMessage is the number of positions in a request.
	positionsPerMessage = 16 << 10
)

// Source implements archiver.Source. The caller must call Close.
type Source struct {
	opts Options

	mu     sync.Mutex
	shards map[string]*shard    // by address. Guarded by mu
	groups map[uuid.UUID]*heard // Guarded by mu
	closed bool                 // Guarded by mu
}

var _ archiver.Source = (*Source)(nil)

// heard is what was heard of a group.
type heard struct {
	name  string
	shard string // address of the shard that answered last; empty: none did
	quiet int    // rounds without news
}

// shard is a shard of the store.
type shard struct {
	address string
	conn    *grpc.ClientConn
	client  archivev1.ArchiveServiceClient

	// call is the call of Follow between two rounds; nil: none. It is used by one round at a time.
	call *call
}

// call is a call of Follow.
type call struct {
	stream archivev1.ArchiveService_FollowClient
	cancel context.CancelFunc
	begun  bool // the header was sent
}

// New makes a Source. It connects to no shard yet.
func New(opts Options) *Source {
	opts.Dial = append(slices.Clone(opts.Dial), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)))
	return &Source{opts: opts, shards: map[string]*shard{}, groups: map[uuid.UUID]*heard{}}
}

// Close ends all connections. No other method may run or be called afterwards.
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

// end ends the call of Follow.
func (sh *shard) end() {
	if sh.call != nil {
		sh.call.cancel()
		sh.call = nil
	}
}

func (s *Source) header() *archivev1.Header { return &archivev1.Header{Store: s.opts.Store[:]} }

// connect returns the shards with these addresses, sorted by address, and ends the connections to others. A connection
// that cannot be made is an error of its calls.
func (s *Source) connect(addresses []string) (all []*shard, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the source is closed")
	}
	for address, sh := range s.shards {
		if !slices.Contains(addresses, address) {
			_ = sh.close() // nothing is sent over it any more
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

// candidates returns the shards that may have files of a group: first the one that answered for the group last.
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

// requests returns the messages that begin a round.
func (s *Source) requests(positions map[uuid.UUID]uint64) (all []*archivev1.FollowRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.groups {
		if _, archived := positions[id]; !archived && s.groups[id].quiet > quietRounds {
			delete(s.groups, id) // it is neither archived nor heard of
		}
	}
	next := &archivev1.FollowRequest{}
	for id, after := range positions {
		if len(next.GetPositions()) == positionsPerMessage {
			next.More = true
			all, next = append(all, next), &archivev1.FollowRequest{}
		}
		p := &archivev1.Position{Group: bytes.Clone(id[:]), After: after}
		g := s.groups[id]
		if g == nil {
			g = &heard{}
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

// hear notes that a shard has news of a group.
func (s *Source) hear(group uuid.UUID, name, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[group]
	if g == nil {
		g = &heard{}
		s.groups[group] = g
	}
	g.name, g.shard, g.quiet = name, address, 0
}
