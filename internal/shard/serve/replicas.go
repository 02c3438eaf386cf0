package serve

import (
	"context"
	"strconv"

	"github.com/google/uuid"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/shard/status"
	"sheaf.dev/sheaf/internal/storage/group"
)

// Replicas is what calls ask of the shard. Safe for concurrent use.
type Replicas interface {
	// Address that others reach the shard by.
	Address() string
	// Routing of the store.
	Routing() placement.Routing
	// Group is the group of a valid name where it is served here, else the error that says where to go: ctx bounds the
	// time to find that out. epoch is that of the routing that the caller knows; 0: of none.
	Group(ctx context.Context, name string, epoch uint64) (Group, error)
	// GroupOf is Group by number, for Hash routing.
	GroupOf(ctx context.Context, number int, epoch uint64) (Group, error)
	// Groups are the names of all groups that the shard answers for, sorted. Not known: it has not heard of etcd yet.
	Groups() (names []string, known bool)
	// IsJoining tells whether the replica of a group has no data yet.
	IsJoining(name string) bool
	// Known is the name of a group that the shard answers for, served or not; empty: of none.
	Known(name string) string

	// Admit is asked for a write before it is begun.
	Admit(bytes int64) error
	// AdmitFile is asked for what goes to a file at once, and not into memory.
	AdmitFile(bytes int64) error
	// WithRoom tries something that needs room on the volume, and tries it again as long as room is being made for it.
	WithRoom(ctx context.Context, try func() error) error

	// WasSlow notes a call that took longer than Options.SlowCallMin.
	WasSlow(status.SlowCall)
}

// Group is a group that a shard serves, until it is stopped or replaced.
type Group interface {
	Name() string
	UUID() uuid.UUID
	Log() *group.Log
	Replica() *replica.Replica
	// Barrier returns when reads see every write acknowledged before. Of a group with several members only the leader
	// reads.
	Barrier(ctx context.Context) error
	// ReadHere is Barrier for any member: it asks the leader.
	ReadHere(ctx context.Context) error
	// MayWrite says early where a write must go; nil: here, or that is not known.
	MayWrite() error
	// Elsewhere is the error of a call that only the leader of a group can answer, with the leader's address where that
	// is known; other errors stay.
	Elsewhere(err error) error
	// Tenant is whose quotas hold in the group; nil: none do, or it is led elsewhere.
	Tenant() *quota.Tenant
	// IsServed tells whether this still is what the shard serves of the group.
	IsServed() bool
}

// find is the group of a key where this shard serves it, else the error that says where to go. What is wrong with the
// key goes into v and makes the group nil. Whether the caller may use the verb there is decided before anything is
// looked up.
func (s *Server) find(ctx context.Context, verb access.Verb, key *recordv1.RecordKey, epoch uint64,
	v *answer.Violations, field string) (Group, error) {
	if key == nil {
		v.Add(field, "is required")
		return nil, nil
	}
	routing := s.shard.Routing()
	if routing.Mode == placement.Hash {
		n := routing.GroupOf(key.GetId())
		if name := key.GetGroup(); name != "" && name != strconv.Itoa(n) {
			v.Add(field+".group", "the store is routed by Hash: leave the group empty; id %d is in group %d, not %.40q",
				key.GetId(), n, name)
			return nil, nil
		}
		if err := access.MayRecord(ctx, verb, placement.GroupName(n), key.GetId()); err != nil {
			return nil, err
		}
		return s.shard.GroupOf(ctx, n, epoch)
	}
	if err := placement.ValidateGroupName(key.GetGroup()); err != nil {
		v.Add(field+".group", "%v", err)
		return nil, nil
	}
	if err := access.MayRecord(ctx, verb, key.GetGroup(), key.GetId()); err != nil {
		return nil, err
	}
	return s.shard.Group(ctx, key.GetGroup(), epoch)
}

// Asked is the group of a name that a person or a scan gave, in either routing. Whether the caller may use the verb
// there is decided as by find.
func (s *Server) Asked(ctx context.Context, verb access.Verb, name, field string) (Group, error) {
	if err := s.validGroup(name, field); err != nil {
		return nil, err
	}
	if err := access.May(ctx, verb, name); err != nil {
		return nil, err
	}
	return s.shard.Group(ctx, name, 0)
}

// validGroup checks the name of a group that is asked for by name, in either routing.
func (s *Server) validGroup(name, field string) error {
	var v answer.Violations
	if routing := s.shard.Routing(); routing.Mode == placement.Hash {
		n, err := strconv.Atoi(name)
		if err != nil || n < 0 || n >= routing.Groups || strconv.Itoa(n) != name {
			v.Add(field, "%.40q is no group: the store is routed by Hash, groups are 0 to %d", name, routing.Groups-1)
		}
		return v.Err()
	}
	if err := placement.ValidateGroupName(name); err != nil {
		v.Add(field, "%v", err)
	}
	return v.Err()
}
