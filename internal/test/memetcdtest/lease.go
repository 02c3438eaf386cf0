package memetcdtest

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// These constants limit the duration of a lease in seconds. An etcd of internal/placement/etcd has the same limits.
const (
	leaseSecondsMin = 1
	leaseSecondsMax = 9_000_000_000
)

// lease is a granted lease. Server.mu guards it.
type lease struct {
	id      int64
	ttl     int64 // in seconds
	keys    map[string]struct{}
	expires time.Time
	timer   *time.Timer // revokes the lease when it expires
}

// renew resets a lease to its full duration. The caller holds s.mu.
func (s *Server) renew(l *lease) {
	if l.timer != nil {
		l.timer.Stop()
	}
	whole := time.Duration(l.ttl) * time.Second
	expires := time.Now().Add(whole)
	l.expires = expires
	l.timer = time.AfterFunc(whole, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.data.leases[l.id] == l && l.expires.Equal(expires) {
			s.revoke(l)
		}
	})
}

// revoke revokes a lease, and deletes its keys in order at a single revision. The caller holds s.mu.
func (s *Server) revoke(l *lease) {
	l.timer.Stop()
	s.write(func(t *transaction) {
		for _, key := range slices.Sorted(maps.Keys(l.keys)) {
			t.delete(&pb.DeleteRangeRequest{Key: []byte(key)})
		}
	})
	delete(s.data.leases, l.id)
}

// LeaseGrant implements pb.LeaseServer.
func (s service) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.TTL > leaseSecondsMax:
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	case s.data.leases[r.ID] != nil:
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	l := &lease{id: r.ID, ttl: max(r.TTL, leaseSecondsMin), keys: map[string]struct{}{}}
	for l.id == 0 || s.data.leases[l.id] != nil {
		s.data.granted++
		l.id = s.data.granted
	}
	s.data.leases[l.id] = l
	s.renew(l)
	return &pb.LeaseGrantResponse{Header: s.data.header(s.data.revision), ID: l.id, TTL: l.ttl}, nil
}

// LeaseRevoke implements pb.LeaseServer.
func (s service) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.data.leases[r.ID]
	if l == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	s.revoke(l)
	return &pb.LeaseRevokeResponse{Header: s.data.header(s.data.revision)}, nil
}

// LeaseKeepAlive implements pb.LeaseServer. For a lease that does not exist, the response has a TTL of 0.
func (s service) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		answer := &pb.LeaseKeepAliveResponse{Header: s.data.header(s.data.revision), ID: r.ID}
		if l := s.data.leases[r.ID]; l != nil {
			s.renew(l)
			answer.TTL = l.ttl
		}
		s.mu.Unlock()
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// LeaseTimeToLive implements pb.LeaseServer. For a lease that does not exist, the response has a TTL of -1.
func (s service) LeaseTimeToLive(_ context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &pb.LeaseTimeToLiveResponse{Header: s.data.header(s.data.revision), ID: r.ID, TTL: -1}
	l := s.data.leases[r.ID]
	if l == nil {
		return answer, nil
	}
	answer.TTL, answer.GrantedTTL = int64(time.Until(l.expires).Seconds()), l.ttl
	if r.Keys {
		for _, key := range slices.Sorted(maps.Keys(l.keys)) {
			answer.Keys = append(answer.Keys, []byte(key))
		}
	}
	return answer, nil
}

// LeaseLeases implements pb.LeaseServer. The leases that expire first are listed first.
func (s service) LeaseLeases(context.Context, *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &pb.LeaseLeasesResponse{Header: s.data.header(s.data.revision)}
	for _, l := range slices.SortedFunc(maps.Values(s.data.leases), func(a, b *lease) int {
		return a.expires.Compare(b.expires)
	}) {
		answer.Leases = append(answer.Leases, &pb.LeaseStatus{ID: l.id})
	}
	return answer, nil
}
