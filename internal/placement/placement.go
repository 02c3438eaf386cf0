// Package placement says which group holds a record and which shards hold a group. Routing (package routing) and the
// planner (plan.go) are pure; the etcd store stands beside them (store.go, watch.go, register.go, planner.go).
// docs/placement.md says the same in words.
package placement

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// Meta is what is fixed about a store. Key "meta".
type Meta struct {
	StoreUUID  uuid.UUID `json:"storeUUID"`
	Routing    Routing   `json:"routing"`
	Copies     int       `json:"copies"` // 1, 3 or 5
	CreatedUTC string    `json:"created"`
	GroupsMax  int       `json:"groupsMax"` // Named: the limit for groups made by first writes; 0: 100,000
	// ShardsMin: the first placement waits until so many shards are alive; 0: no wait.
	ShardsMin int `json:"shardsMin,omitempty"`
	// EpochBase is added to etcd's revision to make the routing epoch: it goes on growing in an etcd that was made
	// anew.
	EpochBase uint64 `json:"epochBase,omitempty"`
}

// Validate says what is wrong and what to do.
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

// ShardState is what a person wants of a shard.
type ShardState string

// The shard states.
const (
	Active   ShardState = "Active"
	Cordoned ShardState = "Cordoned" // gets no new groups
	Draining ShardState = "Draining" // is to be emptied
)

// Shard as registered (key "shards/NAME", bound to a lease: gone means not alive) and as the planner sees it.
type Shard struct {
	Name          string     `json:"name"`    // 1 to 253 bytes of [a-z0-9.-]
	Address       string     `json:"address"` // host:port, gRPC
	VolumeUUID    uuid.UUID  `json:"volumeUUID"`
	Generation    uint64     `json:"generation"`
	Domain        string     `json:"domain"` // failure domain; no two copies in one; empty: the shard is one of its own
	State         ShardState `json:"state"`  // empty: Active
	CapacityBytes int64      `json:"capacityBytes"`
	Node          string     `json:"node,omitempty"` // where it runs, as it was told; for people
	Zone          string     `json:"zone,omitempty"`
	// Boot is random, of this process. Zero: RegisterShard makes one.
	Boot uuid.UUID `json:"boot"`
	// Step that the volume is in, and the last one of which the volume knows that etcd held it. Both are in the key of
	// the volume.
	Step       Step `json:"-"`
	Registered Step `json:"-"`
	Alive      bool `json:"-"`
	// Weighs: the process tells the figures of the groups that it leads by Store.PutWeights. One of before does it in
	// the groups.
	Weighs bool `json:"weighs,omitempty"`
}

// Role is what a member is in its group.
type Role string

// The roles.
const (
	Voter Role = ""
	// Learner: it is being caught up, and has no vote. It is written before the leader proposes it.
	Learner Role = "Learner"
)

// Member is one replica of a group: one incarnation, which has a Raft id of its own. A shard may be named twice while
// the replica on its former volume is being replaced by one on the volume that it has now.
type Member struct {
	// Shard is empty where nobody knows where the member is: etcd was rebuilt, and it did not answer. Its shard sets
	// it.
	Shard      string    `json:"shard"`
	VolumeUUID uuid.UUID `json:"volumeUUID"`
	RaftID     uint64    `json:"raftID"`
	Role       Role      `json:"role,omitempty"`
}

// Group is the state of a group: where it is (key "groups/NAME").
type Group struct {
	Name     string    `json:"name"`
	UUID     uuid.UUID `json:"uuid"`
	KeyFirst uint64    `json:"keyFirst,string"` // Hash only
	KeyLast  uint64    `json:"keyLast,string"`
	Members  []Member  `json:"members"` // empty until a shard has created it
	Leader   string    `json:"leader"`  // shard; empty: none known
	// Bytes and Records as last reported, for balance: in the group's own key as they were when a leader wrote the
	// members last. Views of Watch and View have what the leader's shard reported since; see Store.PutWeights.
	Bytes   int64 `json:"bytes"`
	Records int64 `json:"records"`
	// Term and ConfIndex are those of the leader that wrote Members last: its term, and the index of the membership
	// change that it had applied. An older leader does not write over them, see PutGroupAsLeader.
	Term      uint64 `json:"term,omitempty"`
	ConfIndex uint64 `json:"confIndex,omitempty"`
	// Everywhere is an index up to which every member has the whole log, as the leader knew when it reported last: so
	// far those that do not lead may drop tombstones too.
	Everywhere uint64 `json:"everywhere,omitempty"`

	// Revision is etcd's revision of the key when it was read, 0 for a group that is not stored. Store.PutGroup writes
	// only where it is unchanged.
	Revision int64 `json:"-"`
}

// Target says where a group is wanted (key "targets/NAME").
type Target struct {
	Group  string   `json:"group"`
	Shards []string `json:"shards"` // as many as copies, the first one is to lead
	Reason Reason   `json:"reason,omitempty"`

	// Revision is etcd's revision of the key when it was read; 0: not stored.
	Revision int64 `json:"-"`
}

// Reason says why a target differs from where the group was when it was set.
type Reason string

// The reasons.
const (
	ForPlacement Reason = ""        // the group was new, or only its leader is to be another
	ForRepair    Reason = "Repair"  // it had too few copies
	ForDrain     Reason = "Drain"   // a shard is to be emptied
	ForDomain    Reason = "Domain"  // two copies were in one failure domain
	ForBalance   Reason = "Balance" // another shard had less to do
)

// View is everything in etcd at one revision. Maps are by name and must not be changed.
type View struct {
	Epoch   uint64 // the routing epoch: etcd's revision, and Meta.EpochBase
	Meta    Meta
	Shards  map[string]Shard // those registered, which are all alive; their State is that of States, where it says one
	Groups  map[string]Group
	Targets map[string]Target
	States  map[string]ShardState // what SetShardState wants of shards, registered or not
	// Domains are the failure domains of shards that this process has seen registered, also where they are not any
	// more.
	Domains map[string]string
	Mark    Mark
	// Freeze: etcd was set back, and is not reconciled yet; nil: it was not. SetBack: this process has noticed that by
	// itself.
	Freeze  *Freeze
	SetBack string
	// Own: Groups and Targets are of one shard. Others may be missing, or be as they were a while ago: ask Store.Look.
	// Such views may differ at one Epoch.
	Own bool
}

// Policy of the planner.
type Policy struct {
	Copies int // 1, 3 or 5
	// ShardGroupsMax limits the replicas that the planner gives to one shard; 0: no limit. What is there stays.
	ShardGroupsMax int
	// ShardsMin holds back the very first placement until so many shards are alive, so that the shard that registers
	// first does not get every group; 0: no wait. It does not count once any group has members.
	ShardsMin int
	// Moves allows to move what is settled: for balance, and off shards that are gone and marked Draining. Without it
	// the planner only ever changes the targets of groups that must leave a shard.
	Moves bool
	// MovesMax limits the groups that move at a time, ShardMovesMax those of one shard, where it gives or takes a copy.
	// 0: MovesMaxDefault, ShardMovesMaxDefault; negative: no limit. Only where Moves is set.
	MovesMax, ShardMovesMax int
}

// Defaults of a Policy.
const (
	MovesMaxDefault      = 64
	ShardMovesMaxDefault = 4
)

// Policy is what the store's meta asks of the planner. Leaders move their groups (internal/shard), so settled groups
// may be moved.
func (m Meta) Policy() Policy { return Policy{Copies: m.Copies, ShardsMin: m.ShardsMin, Moves: true} }

// Validate says what is wrong and what to do.
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
