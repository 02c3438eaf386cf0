// Package replicas owns the state of the replicas on a shard's volume. This state consists of the set of replicas, the
// Phase and the Standing of each, their groups' state in etcd, and the Routes by which calls find them. All other code
// uses the methods of Set and Replica. Each method is atomic: no other method runs between its reads and its changes of
// the state.
//
// A Replica begins with a State, in one of five ways. Its folder is found on the volume (Replace), it is created for
// a new group (Add), it is begun as a learner (Begin) or as the founder of a restored group (Found), or etcd places it
// on this shard although it is missing (Decide). From then on, only an event changes its phase, and package member has
// the table of legal transitions. Only Decide and Confirm change a Replica's standing. A Replica has a route unless it
// is a stray or a founder, and it serves calls while it has a Served and a route.
package replicas

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/storage/group"
)

// Options holds everything that a Set may use.
type Options struct {
	Shard  string
	Volume func() uuid.UUID      // returns the UUID of the open volume
	Meta   func() placement.Meta // returns the store's Meta
	// Background is the context for installs and for following etcd. It is canceled when the shard stops.
	Background context.Context
	Logger     *slog.Logger
	Off        rules.Off // rules that a test switches off
}

// Set holds the replicas of one volume, and their state in etcd. It is safe for concurrent use.
type Set struct {
	Options

	// neighbours contains the other shards, each as etcd last reported it. Shards that are no longer registered remain
	// in the map, because a shard whose lease expired while etcd was down still serves at its last address. The map is
	// never nil, and never modified. It is replaced only while mu is held.
	neighbours atomic.Pointer[map[string]placement.Shard]

	Woken  chan struct{}    // receives when the replicas must be compared with etcd again
	Looks  *Asked[struct{}] // groups that the Steerer must examine
	Files  *Asked[uint64]   // replicas to install, each with the Raft id of the member to install from
	Sealed *Asked[struct{}] // groups that have filled a segment

	// routes is the table that calls read. It is never nil. It is never modified, only replaced while mu is held, so
	// that it always agrees with the last decision.
	routes atomic.Pointer[Routes]

	// mu guards the fields below, and the fields of each Replica that are documented as guarded by it. It is never held
	// during input or output.
	mu     sync.Mutex
	all    map[uuid.UUID]*Replica // by UUID of the group, strays included
	view   placement.View         // the view that the shard acts on, which never comes from an etcd that was rolled back
	newest placement.View         // the newest view, on which the shard does not act if etcd was rolled back
	// retired contains the Raft ids that were or may have been used on this volume. It only grows, because no new
	// replica may get such an id (rule 7).
	retired map[uint64]bool
	begun   bool // the first load has begun
}

// New creates a Set without replicas and without a view of etcd.
func New(opts Options) *Set {
	s := &Set{
		Options: opts, Woken: make(chan struct{}, 1), Looks: newAsked[struct{}](), Files: newAsked[uint64](),
		Sealed: newAsked[struct{}](),
		all:    map[uuid.UUID]*Replica{}, retired: map[uint64]bool{},
	}
	s.routes.Store(&Routes{})
	s.neighbours.Store(&map[string]placement.Shard{})
	return s
}

func (s *Set) make(id uuid.UUID, state State) *Replica {
	return &Replica{Name: state.Name, UUID: id, set: s, state: state}
}

// Replace drops all replicas, and adds those that were found on the volume.
func (s *Set) Replace(found map[uuid.UUID]State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.all)
	for id, state := range found {
		s.all[id] = s.make(id, state)
	}
}

// Add adds a replica that this shard has created for a new group, and routes calls to the replica.
func (s *Set) Add(id uuid.UUID, state State) *Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.make(id, state)
	s.all[id] = r
	s.publish()
	return r
}

// IsRetired reports whether a replica on this volume has, or ever had, the given Raft id.
func (s *Set) IsRetired(raftID uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retired[raftID]
}

// Found adds a founder that has just received the given Raft id, and retires the id. It is added without a route.
func (s *Set) Found(group placement.Group, raftID uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[group.UUID] = s.make(group.UUID, State{Replica: member.Replica{Name: group.Name, Phase: member.Joining,
		RaftID: raftID, Founder: true, Standing: member.Standing{Reason: member.Unconfirmed}}})
	s.retired[raftID] = true
	s.publish()
}

// Begin adds a learner that has just received the given Raft id, and retires the id. The next Decide routes calls to
// the learner.
func (s *Set) Begin(group placement.Group, raftID uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.make(group.UUID, State{Replica: member.Replica{Name: group.Name, Phase: member.Joining, RaftID: raftID}})
	r.Learn(group.Members)
	s.all[r.UUID], s.retired[raftID] = r, true
}

// Remove drops a replica whose files were moved or deleted.
func (s *Set) Remove(r *Replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[r.UUID] == r {
		delete(s.all, r.UUID)
	}
	s.publish()
}

// Find returns a group's replica, or nil if there is none.
func (s *Set) Find(group uuid.UUID) *Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[group]
}

// All returns all replicas, strays included, in no particular order.
func (s *Set) All() []*Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.all))
}

// Groups returns the replicas that are shown as the shard's groups, in no particular order.
func (s *Set) Groups() (groups []*Replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		if !r.state.Standing.Apart() {
			groups = append(groups, r)
		}
	}
	return groups
}

// BeginLoad begins the first load, and returns the replicas that it loads. Replicas that are added later are loaded
// one by one.
func (s *Set) BeginLoad() (pending []*Replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		if r.state.Standing.Apart() || r.state.Phase != member.Pending {
			r.state.Plan = nil // the folder may change before its load, so the plan is dropped
			continue
		}
		r.happens(member.LoadBegins)
		pending = append(pending, r)
	}
	s.begun = true
	s.Wake() // replicas that must join wait until the first load has begun
	return pending
}

// Loads calls tell for each of the given replicas, with the progress of the replica's load. All values are from the
// same moment. The function tell must not call methods of the Set or of a Replica.
func (s *Set) Loads(of []*Replica, tell func(r *Replica, phase member.Phase, outcome group.Outcome)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range of {
		tell(r, r.state.Phase, r.state.Report.Outcome)
	}
}

// See processes a view. A view of an etcd that was rolled back does not replace earlier knowledge.
func (s *Set) See(view placement.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if view.Own { // after a listing, the view also contains the groups of other shards; they are removed here
		own := s.Own()
		own.Holds = func(id uuid.UUID) bool { return s.all[id] != nil }
		view = view.Of(own)
	}
	if known := *s.neighbours.Load(); !includes(known, view.Shards) {
		next := maps.Clone(known)
		maps.Copy(next, view.Shards)
		s.neighbours.Store(&next)
	}
	for name, group := range view.Groups {
		if s.newest.GroupUnknown(name) && !view.GroupUnknown(name) {
			s.retire(group) // an earlier process may have begun these replicas, which were not known when the shard started
		}
	}
	s.newest = view
	if view.Held() == "" || s.view.Groups == nil || s.view.Held() != "" {
		if s.view.Meta.EpochBase != view.Meta.EpochBase {
			for _, r := range s.all {
				r.stored = placement.Group{} // the revision in the old state does not belong to this etcd
			}
		}
		s.view = view
	}
}

// Retire retires the Raft ids of all replicas that etcd assigns to this shard at startup, because an earlier process
// may already have started these replicas. The caller must call it before etcd can assign a new replica to the shard.
// The first view contains every such id: before a shard starts a replica, it stores on its volume the etcd revision at
// which the replica was assigned, and a shard never accepts a view older than the stored revision.
func (s *Set) Retire(view placement.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, group := range view.Groups {
		s.retire(group)
	}
}

// retire does the same as Retire, for one group. The caller holds mu.
func (s *Set) retire(group placement.Group) {
	for _, m := range s.Here(group) {
		s.retired[m.RaftID] = true
	}
}

// View returns the view that the shard follows.
func (s *Set) View() placement.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

// Newest returns the newest view, even if etcd was rolled back.
func (s *Set) Newest() placement.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

// IsHeld reports whether etcd was rolled back. If it was, the shard must not act on etcd's state.
func (s *Set) IsHeld() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest.Held() != ""
}

// Here returns the members of a group on this shard and volume. Usually there is at most one.
func (s *Set) Here(group placement.Group) []placement.Member {
	return member.Here(group, s.Shard, s.Volume())
}

// IsExpected reports whether etcd places a group on this shard, but no replica on the shard serves it as a voter yet.
func (s *Set) IsExpected(id uuid.UUID) bool {
	s.mu.Lock()
	wanted := false
	for _, group := range s.view.Groups {
		wanted = wanted || group.UUID == id && len(s.Here(group)) > 0
	}
	r := s.all[id]
	s.mu.Unlock()
	if !wanted || r == nil {
		return wanted
	}
	sv := r.Served()
	return sv == nil || sv.node.Status().Learner
}

// Group is a group's state in etcd.
type Group struct {
	placement.Group
	Target []string
	Shards map[string]placement.Shard
	Known  map[string]placement.Shard // like Shards, but also with the shards that are no longer registered
}

// GroupOf returns the state in etcd of a replica's group, as far as this shard knows it. It returns false if etcd has
// no such group.
func (s *Set) GroupOf(r *Replica) (Group, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	group, ok := s.groupOf(r)
	if !ok {
		return Group{}, false
	}
	return Group{Group: group, Target: s.view.Targets[r.Name].Shards, Shards: s.view.Shards,
		Known: *s.neighbours.Load()}, true
}

// groupOf returns the key of a replica's group: the one in the view, or the one that this shard has written since. It
// returns false if the view has no such group. The caller holds mu.
func (s *Set) groupOf(r *Replica) (placement.Group, bool) {
	group, ok := s.view.Groups[r.Name]
	if !ok || group.UUID != r.UUID {
		return placement.Group{}, false
	}
	if r.stored.Revision > group.Revision {
		group = r.stored
	}
	return group, true
}

// Address returns a shard's address as etcd last reported it. It returns false if the shard is unknown.
func (s *Set) Address(shard string) (string, bool) {
	known, ok := (*s.neighbours.Load())[shard]
	return known.Address, ok
}

// includes reports whether each of the given shards is in known with the same address and domain.
func includes(known, shards map[string]placement.Shard) bool {
	for name, shard := range shards {
		if old, ok := known[name]; !ok || old.Address != shard.Address || old.Domain != shard.Domain {
			return false
		}
	}
	return true
}

// Own describes the groups whose keys this shard follows in etcd.
func (s *Set) Own() placement.Own {
	return placement.Own{Shard: s.Shard, Volume: s.Volume(), Held: s.names,
		Holds: func(group uuid.UUID) bool { return s.Find(group) != nil }}
}

// names returns the names of the groups that have a folder on the volume, as far as they are known.
func (s *Set) names() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		if r.Name != "" {
			names = append(names, r.Name)
		}
	}
	return names
}
