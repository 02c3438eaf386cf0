package serve

import (
	"context"
	"strconv"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group"
)

// Replicas is the part of the shard that calls need. A Replicas is safe for concurrent use.
type Replicas interface {
	// Address returns the address under which others reach the shard.
	Address() string
	// Routing returns the store's routing.
	Routing() placement.Routing
	// Group returns the group with a valid name if this shard serves it, and otherwise an error that names the shard
	// to call, if it is known. ctx bounds the search. epoch is the epoch of the caller's routing, or 0 if the caller
	// has none.
	Group(ctx context.Context, name string, epoch uint64) (Group, error)
	// GroupOf does the same as Group, for the number of a group with Hash routing.
	GroupOf(ctx context.Context, number int, epoch uint64) (Group, error)
	// Groups returns the sorted names of all groups that the shard is responsible for. known is false until the shard
	// has received a view of etcd.
	Groups() (names []string, known bool)
	// IsJoining reports whether a group's replica has no data yet.
	IsJoining(name string) bool
	// Known returns name if the shard is responsible for the group with this name, served or not, and an empty string
	// otherwise.
	Known(name string) string

	// View returns the index at which a view reads one of its groups, and the group's UUID. Its errors are for callers.
	View(ctx context.Context, id uuid.UUID, group string) (index uint64, of uuid.UUID, err error)

	// Admit is called before a write begins. It returns an error if the shard has no space for the write.
	Admit(bytes int64) error
	// AdmitFile is called for data that is written directly to a file. It does not count the data as memory.
	AdmitFile(bytes int64) error
	// WithSpace calls try, which needs space on the volume, and retries it while space is being freed.
	WithSpace(ctx context.Context, try func() error) error

	// WasSlow records a call that took longer than Options.SlowCallMin.
	WasSlow(*recordv1.SlowCall)
}

// Group is a group that a shard serves, until it is stopped or replaced.
type Group interface {
	Name() string
	UUID() uuid.UUID
	Log() *group.Log
	Replica() *replica.Replica
	// Barrier waits until reads see every write that was acknowledged before the call. In a group with several members
	// only the leader may read.
	Barrier(ctx context.Context) error
	// ReadHere does the same as Barrier. It works on any member, because it asks the leader.
	ReadHere(ctx context.Context) error
	// Writable returns an error while the group accepts no writes, because it was restored and too few of its copies have
	// joined. It returns nil otherwise.
	Writable() error
	// MayWrite returns an error, before a write is proposed, if the group is not Writable or if another shard leads it. It
	// returns nil if this shard leads the group, or if the leader is not known.
	MayWrite() error
	// Elsewhere adds the leader's address, if it is known, to the error of a call that only the leader can handle. It
	// returns other errors unchanged.
	Elsewhere(err error) error
	// Tenant returns the tenant whose quotas apply to the group. It returns nil if no quotas apply, or if another shard
	// leads the group.
	Tenant() *quota.Tenant
	// ViewTenant returns the tenant whose quotas apply to reads of a view of the group, which any copy answers. It returns
	// nil if no quotas apply.
	ViewTenant() *quota.Tenant
	// IsServed reports whether this is still the served instance of the group.
	IsServed() bool
}

// find returns a key's group if this shard serves it, and otherwise an error that names the shard to call, if it is
// known. Errors in the key are added to v, and the group is then nil. The caller's permission for the verb is checked
// before any lookup.
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

// Asked returns the group that a request names, with either kind of routing. It checks the caller's permission for
// the verb in the same way as the method find.
func (s *Server) Asked(ctx context.Context, verb access.Verb, name, field string) (Group, error) {
	if err := s.validGroup(name, field); err != nil {
		return nil, err
	}
	if err := access.May(ctx, verb, name); err != nil {
		return nil, err
	}
	return s.shard.Group(ctx, name, 0)
}

// validGroup checks a group name from a request, in either routing.
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

// hashGroup returns the name of an id's group with Hash routing, and otherwise an empty string.
func (s *Server) hashGroup(id int64) string {
	if routing := s.shard.Routing(); routing.Mode == placement.Hash {
		return placement.GroupName(routing.GroupOf(id))
	}
	return ""
}

// inGroup reports whether an id can be in a group.
func (s *Server) inGroup(g Group, id int64) bool {
	name := s.hashGroup(id)
	return name == "" || name == g.Name()
}
