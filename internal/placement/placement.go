// Package placement decides which group holds a record and which shards hold a group. Routing (package routing) and the
// planner (plan.go) are pure; the etcd store is separate (store.go, watch.go, register.go, planner.go).
// docs/placement.md explains the same in prose.
package placement

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// Meta holds the fixed properties of a store. Key "meta".
type Meta struct {
	StoreUUID  uuid.UUID `json:"storeUUID"`
	Routing    Routing   `json:"routing"`
	Copies     int       `json:"copies"` // 1, 3 or 5
	CreatedUTC string    `json:"created"`
	GroupsMax  int       `json:"groupsMax"` // Named: the limit for groups made by first writes; 0: 100,000
	// ShardsMin: the first placement waits until this many shards are alive; 0: no wait.
	ShardsMin int `json:"shardsMin,omitempty"`
	// EpochBase is added to etcd's revision to form the routing epoch, so that the epoch keeps growing in an etcd
	// that was created anew.
	EpochBase uint64 `json:"epochBase,omitempty"`
}

// Validate returns an error that says what is wrong and what to do.
func (m Meta) Validate() error {
	if m.StoreUUID == uuid.Nil {
		return errors.New("meta: the store UUID is zero: make a random one")
	}
	if err := m.Routing.Validate(); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	if m.GroupsMax < 0 {
		return fmt.Errorf("meta: groupsMax is %d: give 0 (%d) or more", m.GroupsMax, GroupsMaxDefault)
	}
	return m.Policy().Validate()
}

// GroupLimit is the limit for groups made by first writes, in Named routing.
func (m Meta) GroupLimit() int {
	if m.GroupsMax == 0 {
		return GroupsMaxDefault
	}
	return m.GroupsMax
}

// ShardState is the state of a shard that a person requested.
type ShardState string

// The shard states.
const (
	Active   ShardState = "Active"
	Cordoned ShardState = "Cordoned" // gets no new groups
	Draining ShardState = "Draining" // all groups move away
)

// Shard is a shard as registered (key "shards/NAME", bound to a lease: a missing key means not alive) and as the
// planner sees it.
type Shard struct {
	Name       string    `json:"name"`    // 1 to 253 bytes of [a-z0-9.-]
	Address    string    `json:"address"` // host:port, gRPC
	VolumeUUID uuid.UUID `json:"volumeUUID"`
	Generation uint64    `json:"generation"`
	// failure domain; no two copies in one; empty: the shard is a domain of its own
	Domain        string     `json:"domain"`
	State         ShardState `json:"state"` // empty: Active
	CapacityBytes int64      `json:"capacityBytes"`
	Node          string     `json:"node,omitempty"` // where it runs, as configured; for people
	Zone          string     `json:"zone,omitempty"`
	// Boot is a random id of this process. Zero: RegisterShard creates one.
	Boot uuid.UUID `json:"boot"`
	// Step is the volume's present step. Registered is the last step that, as far as the volume knows, etcd has
	// stored. Both are in the key of the volume.
	Step       Step `json:"-"`
	Registered Step `json:"-"`
	Alive      bool `json:"-"`
	// Weighs: the process reports the figures of the groups that it leads by Store.PutWeights. Older programs
	// report them in the groups.
	Weighs bool `json:"weighs,omitempty"`
}

// Role is what a member is in its group.
type Role string

// The roles.
const (
	Voter Role = ""
	// Learner: the member is catching up and has no vote. etcd gets the role before the leader proposes the member.
	Learner Role = "Learner"
)

// Member is one replica of a group: one incarnation, with its own Raft id. A shard may appear twice while the replica
// on its former volume is being replaced by one on its present volume.
type Member struct {
	// Shard is empty if the member's place is unknown: etcd was rebuilt, and the member's shard did not answer.
	// That shard sets it.
	Shard      string    `json:"shard"`
	VolumeUUID uuid.UUID `json:"volumeUUID"`
	RaftID     uint64    `json:"raftID"`
	Role       Role      `json:"role,omitempty"`
}

// Group is the state of a group and its members (key "groups/NAME").
type Group struct {
	Name     string    `json:"name"`
	UUID     uuid.UUID `json:"uuid"`
	KeyFirst uint64    `json:"keyFirst,string"` // Hash only
	KeyLast  uint64    `json:"keyLast,string"`
	Members  []Member  `json:"members"` // empty until a shard has created the group
	Leader   string    `json:"leader"`  // shard; empty: unknown
	// Bytes and Records are the last reported figures, for balance. The group's own key holds the figures from when
	// a leader last wrote the members. Views of Watch and View hold what the leader's shard has reported since; see
	// Store.PutWeights.
	Bytes   int64 `json:"bytes"`
	Records int64 `json:"records"`
	// Term and ConfIndex belong to the leader that last wrote Members: its term, and the index of the membership
	// change that it had applied. An older leader does not overwrite them, see PutGroupAsLeader.
	Term      uint64 `json:"term,omitempty"`
	ConfIndex uint64 `json:"confIndex,omitempty"`
	// Everywhere is an index up to which every member has the complete log, as known to the leader at its last
	// report. Followers may drop tombstones up to it, too.
	Everywhere uint64 `json:"everywhere,omitempty"`

	// Revision is etcd's revision of the key when it was read, 0 for a group that is not stored. Store.PutGroup
	// writes only if it is unchanged.
	Revision int64 `json:"-"`
}

// Target says on which shards a group should be (key "targets/NAME").
type Target struct {
	Group  string   `json:"group"`
	Shards []string `json:"shards"` // one per copy; the first one should lead
	Reason Reason   `json:"reason,omitempty"`

	// Revision is etcd's revision of the key when it was read; 0: not stored.
	Revision int64 `json:"-"`
}

// Reason says why a target differs from the group's place at the time when the target was set.
type Reason string

// The reasons.
const (
	ForPlacement Reason = ""        // the group was new, or only its leader changes
	ForRepair    Reason = "Repair"  // it had too few copies
	ForDrain     Reason = "Drain"   // a shard is being drained
	ForDomain    Reason = "Domain"  // two copies were in one failure domain
	ForBalance   Reason = "Balance" // another shard had less load
)

// View is everything in etcd at one revision. Maps are keyed by name and must not be changed.
type View struct {
	Epoch   uint64 // the routing epoch: etcd's revision plus Meta.EpochBase
	Meta    Meta
	Shards  map[string]Shard // all registered, and so live, shards; States overrides their State
	Groups  map[string]Group
	Targets map[string]Target
	States  map[string]ShardState // the states requested by SetShardState, for registered and other shards
	// Domains are the failure domains of all shards that this process has seen registered, including those that no
	// longer are.
	Domains map[string]string
	Mark    Mark
	// Freeze: etcd was set back, and is not reconciled yet; nil: it was not set back. SetBack: this process has
	// noticed that by itself.
	Freeze  *Freeze
	SetBack string
	// Odd holds the keys, without the store's prefix, that cannot be read and were therefore skipped. See OddGroup and
	// Problems.
	Odd map[string]Odd
	// Own: Groups and Targets are complete for one shard only. Those of other shards may be missing or outdated:
	// use Store.Look. Such views may differ at one Epoch.
	Own bool
}

// Policy configures the planner.
type Policy struct {
	Copies int // 1, 3 or 5
	// ShardGroupsMax limits the number of replicas that the planner places on one shard; 0: no limit. Existing
	// replicas stay.
	ShardGroupsMax int
	// ShardsMin delays the very first placement until this many shards are alive, so that the first shard to
	// register does not get every group; 0: no wait. It has no effect once any group has members.
	ShardsMin int
	// Moves allows moves of groups that are at their target: for balance, and away from shards that are gone and marked
	// Draining. Without it the planner only changes the targets of groups that must leave a shard.
	Moves bool
	// MovesMax limits the groups that move at a time. ShardMovesMax limits the moves in which one shard gives or
	// receives a copy. 0: MovesMaxDefault, ShardMovesMaxDefault; negative: no limit. They apply only with Moves.
	MovesMax, ShardMovesMax int
}

// Defaults of a Policy.
const (
	MovesMaxDefault      = 64
	ShardMovesMaxDefault = 4
)

// Policy returns the planner policy that the store's meta requires. Leaders move their groups (internal/shard), so
// groups that are at their target may be moved.
func (m Meta) Policy() Policy { return Policy{Copies: m.Copies, ShardsMin: m.ShardsMin, Moves: true} }

// Validate returns an error that says what is wrong and what to do.
func (p Policy) Validate() error {
	if p.Copies != 1 && p.Copies != 3 && p.Copies != 5 {
		return fmt.Errorf("copies is %d: give 1, 3 or 5", p.Copies)
	}
	if p.ShardGroupsMax < 0 {
		return fmt.Errorf("the limit of groups per shard is %d: give 0 (no limit) or more", p.ShardGroupsMax)
	}
	if p.ShardsMin < 0 {
		return fmt.Errorf("the number of shards to wait for is %d: give 0 (none) or more", p.ShardsMin)
	}
	return nil
}
