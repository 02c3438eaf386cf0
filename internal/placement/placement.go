// Package placement describes which shards hold the copies of each group, and plans where the copies should be. It
// does no I/O: package registry stores the placement in etcd, and package rescue rebuilds the placement from volumes.
// docs/placement.md explains the placement rules.
package placement

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Meta holds the fixed properties of a store. It is stored under the key "meta".
type Meta struct {
	StoreUUID  uuid.UUID `json:"storeUUID"`
	Routing    Routing   `json:"routing"`
	Copies     int       `json:"copies"` // copies of each group: 1, 3 or 5
	CreatedUTC string    `json:"created"`
	GroupsMax  int       `json:"groupsMax"` // with Named: limit on groups created by first writes; 0 means 100,000
	// ShardsMin delays the first placement until this many shards are alive. If it is 0, the first placement does not
	// wait.
	ShardsMin int `json:"shardsMin,omitempty"`
	// EpochBase is added to etcd's revision to get the routing epoch. It makes the epoch increase even if etcd is
	// created anew and its revisions begin again.
	EpochBase uint64 `json:"epochBase,omitempty"`
	// Restore is not nil if the store was created from an archive.
	Restore *Restore `json:"restore,omitempty"`
}

// Restore says from which archive a store is restored. It is part of Meta. docs/archive.md, "Restore", has the rules.
type Restore struct {
	// Source is host:port of the process that serves the groups of the archive (`sheaf-archive source`).
	Source string `json:"source"`
	// Listing means that the keys of the groups are still being written. While Listing is set, nobody creates or places
	// a group, because a group without a key might be in the archive.
	Listing bool `json:"listing,omitempty"`
	// At is the point in time as of which the groups are restored, in RFC 3339 format. A gateway refuses a source with
	// another time. If At is empty, the first gateway that asks the source sets it.
	At string `json:"at,omitempty"`
	// Partly allows a restore in which some groups cannot be restored. These groups wait until a person gives up their
	// restore.
	Partly bool `json:"partly,omitempty"`
	// First names groups, at most FirstMax. Each shard installs those of them that it has to install before its other
	// groups, in this order. A group that cannot be installed at the moment does not delay the others.
	First []string `json:"first,omitempty"`
	// Writes says from when on restored groups accept writes. An empty string means WritesRedundant.
	Writes RestoredWrites `json:"writes,omitempty"`
}

// FirstMax is the maximum length of Restore.First.
const FirstMax = 100

// validate returns an error that describes what is wrong with the restore and how to correct it, or nil. The receiver
// may be nil.
func (r *Restore) validate() error {
	if r == nil {
		return nil
	}
	if _, _, err := net.SplitHostPort(r.Source); err != nil {
		return fmt.Errorf("the source of the restore, %.100q: give host:port: %w", r.Source, err)
	}
	if _, err := time.Parse(time.RFC3339Nano, r.At); r.At != "" && err != nil {
		return fmt.Errorf("the time of the restore: %w", err)
	}
	if len(r.First) > FirstMax {
		return fmt.Errorf("the restore names %d groups that come first: give at most %d", len(r.First), FirstMax)
	}
	for i, name := range r.First {
		if err := ValidateGroupName(name); err != nil {
			return fmt.Errorf("the groups of the restore that come first: %w", err)
		}
		if slices.Contains(r.First[:i], name) {
			return fmt.Errorf("the groups of the restore that come first: %s is there twice", name)
		}
	}
	return r.Writes.Validate()
}

// Time returns the point in time as of which the groups are restored, or the zero time if At is empty.
func (r *Restore) Time() time.Time {
	at, _ := time.Parse(time.RFC3339Nano, r.At) // validate has checked it
	return at
}

// Listing reports whether the store is being restored and the keys of its groups are still being written.
func (m Meta) Listing() bool { return m.Restore != nil && m.Restore.Listing }

// WaitsForList explains why no group is created or placed while Meta.Listing is true.
func (m Meta) WaitsForList() string {
	return fmt.Sprintf("the store is being restored, and a gateway has not written the list of its groups yet: "+
		"see that the source at %s runs", m.Restore.Source)
}

// Validate returns an error that describes what is wrong with the properties and how to correct it, or nil.
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
	if m.EpochBase > NumberMax {
		return fmt.Errorf("meta: epochBase is %d, which no store reaches", m.EpochBase)
	}
	if err := m.Restore.validate(); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	return m.Policy().Validate()
}

// GroupLimit returns the limit on groups created by first writes in Named routing.
func (m Meta) GroupLimit() int {
	if m.GroupsMax == 0 {
		return GroupsMaxDefault
	}
	return m.GroupsMax
}

// ShardState is a state that a person can request for a shard.
type ShardState string

// These are the states of a shard.
const (
	Active   ShardState = "Active"
	Cordoned ShardState = "Cordoned" // the shard gets no new groups
	Draining ShardState = "Draining" // all groups move away from the shard
)

// Shard describes a registered shard, as the planner sees it. It is stored under the key "shards/NAME" with a lease,
// so a missing key means that the shard is not alive.
type Shard struct {
	Name       string    `json:"name"`    // 1 to 253 bytes of [a-z0-9.-]
	Address    string    `json:"address"` // host:port, gRPC
	VolumeUUID uuid.UUID `json:"volumeUUID"`
	Generation uint64    `json:"generation"`
	// Domain is the failure domain. No two copies of a group are placed in one domain. If Domain is empty, the shard is
	// a domain of its own.
	Domain        string     `json:"domain"`
	State         ShardState `json:"state"` // an empty string means Active
	CapacityBytes int64      `json:"capacityBytes"`
	Node          string     `json:"node,omitempty"` // where the shard runs, as configured; only shown to people
	Zone          string     `json:"zone,omitempty"`
	// Boot is a random id of this process. If it is zero, RegisterShard creates one.
	Boot uuid.UUID `json:"boot"`
	// Step is the step that the volume is in now. Registered is the newest step that the volume knows to be stored in
	// etcd. In etcd, both belong to the volume's own key, and not to the shard's key.
	Step       Step `json:"-"`
	Registered Step `json:"-"`
	Alive      bool `json:"-"`
	// Weighs means that the process reports the sizes of the groups that it leads in separate keys (weights/). Older
	// versions of Sheaf report the sizes in the groups' own keys.
	Weighs bool `json:"weighs,omitempty"`
}

// Role says whether a member has a vote in its group.
type Role string

// These are the roles.
const (
	Voter Role = ""
	// Learner means that the member is still catching up and has no vote. The role is written to etcd before the leader
	// proposes to add the member.
	Learner Role = "Learner"
)

// Member is one replica of a group. Each time that a replica is created anew, it becomes a new member with a new Raft
// id. While the replica on a shard's former volume is being replaced by one on the shard's current volume, the shard
// appears twice.
type Member struct {
	// Shard is the name of the member's shard. It is empty if the shard is unknown, because etcd was rebuilt while that
	// shard did not respond. The shard sets the field when it responds again.
	Shard      string    `json:"shard"`
	VolumeUUID uuid.UUID `json:"volumeUUID"`
	RaftID     uint64    `json:"raftID"`
	Role       Role      `json:"role,omitempty"`
}

// Group is the state of a group and its members. It is stored under the key "groups/NAME".
type Group struct {
	Name     string    `json:"name"`
	UUID     uuid.UUID `json:"uuid"`
	KeyFirst uint64    `json:"keyFirst,string"` // used only with Hash routing
	KeyLast  uint64    `json:"keyLast,string"`
	Members  []Member  `json:"members"` // empty until a shard has created the group
	Leader   string    `json:"leader"`  // name of the leader's shard; empty if unknown
	// Bytes and Records are the most recently reported sizes, which are used for balancing. The group's own key holds
	// the sizes from the last time that a leader wrote the members. The views that Watch and View return hold the newer
	// sizes, which the leader's shard reports in separate keys (weights/).
	Bytes   int64 `json:"bytes"`
	Records int64 `json:"records"`
	// Term and ConfIndex come from the leader that last wrote Members. Term is that leader's term, and ConfIndex is the
	// index of the newest membership change that it had applied. A leader with a lower value of either must not
	// overwrite Members (see PutGroupAsLeader).
	Term      uint64 `json:"term,omitempty"`
	ConfIndex uint64 `json:"confIndex,omitempty"`
	// Everywhere is an index up to which every member has the complete log, according to the leader's last report. With
	// this index, not only the leader but also the followers know which tombstones they may drop.
	Everywhere uint64 `json:"everywhere,omitempty"`

	// Restoring means that the group must be installed from the source of the restore (Meta.Restore), and that no shard
	// has reported this yet. Such a group has no members, and is never created empty. Its target names the shards that
	// should hold it; the first of them installs the group. Only the write that reports the first member clears Restoring.
	Restoring bool `json:"restoring,omitempty"`
	// WritesFrom is the number of voters from which on a restored group accepts writes, at most CopiesMax. While it is not
	// 0, the group's leader refuses writes. The write that reports that many voters sets it to 0; see WritesAfter.
	WritesFrom int `json:"writesFrom,omitempty"`

	// Deleted is the time, in UTC, at which the group was deleted. It is empty if the group exists. The key of a deleted
	// group is kept, because a missing key would mean that etcd was rolled back (safety rule 9). Views never contain
	// deleted groups.
	Deleted string `json:"deleted,omitempty"`

	// Revision is the revision at which etcd had last changed the key when the key was read. It is 0 for a group that is
	// not stored. A registry writes the group only if the key still has this revision.
	Revision int64 `json:"-"`
}

// Target names the shards on which a group should be. It is stored under the key "targets/NAME".
type Target struct {
	Group  string   `json:"group"`
	Shards []string `json:"shards"` // one shard for each copy; the first one is the preferred leader
	Reason Reason   `json:"reason,omitempty"`

	// Revision is the revision at which etcd had last changed the key when the key was read. It is 0 if the target is
	// not stored.
	Revision int64 `json:"-"`
}

// Reason says why a group's target differed from the group's shards when the target was set.
type Reason string

// These are the reasons.
const (
	ForPlacement Reason = ""        // the group is new, or only its leader changes
	ForRepair    Reason = "Repair"  // the group has too few copies
	ForDrain     Reason = "Drain"   // a shard is being drained
	ForDomain    Reason = "Domain"  // two copies are in one failure domain
	ForBalance   Reason = "Balance" // another shard has less load
)

// CopiesMax is the maximum number of copies of a group.
const CopiesMax = 5

// Policy configures the planner.
type Policy struct {
	Copies int // copies of each group: 1, 3 or 5
	// ShardGroupsMax limits the number of replicas that the planner places on one shard. If it is 0, there is no limit.
	// Replicas that already exist may stay even if they exceed the limit.
	ShardGroupsMax int
	// ShardsMin delays the first placement until this many shards are alive, so that the first shard to register does
	// not get every group. If it is 0, the first placement does not wait. ShardsMin has no effect once any group has
	// members.
	ShardsMin int
	// Moves allows the planner to move groups that have already reached their target. The planner does so to balance the
	// load, and to empty unregistered shards that are marked Draining. If Moves is false, the planner changes only the
	// targets of groups that must leave a shard.
	Moves bool
	// MovesMax limits how many groups move at the same time. ShardMovesMax limits how many of these moves may add a copy
	// to one shard or remove a copy from it. The defaults are MovesMaxDefault and ShardMovesMaxDefault. A negative value
	// means that there is no limit. Both limits apply only if Moves is set.
	MovesMax, ShardMovesMax int
}

// These are the defaults of a Policy.
const (
	MovesMaxDefault      = 64
	ShardMovesMaxDefault = 4
)

// Policy returns the planner policy for a store with these properties. It allows the planner to move groups that have
// already reached their target, because leaders know how to move their groups (internal/shard).
func (m Meta) Policy() Policy { return Policy{Copies: m.Copies, ShardsMin: m.ShardsMin, Moves: true} }

// Validate returns an error that describes what is wrong with the policy and how to correct it, or nil.
func (p Policy) Validate() error {
	if p.Copies != 1 && p.Copies != 3 && p.Copies != CopiesMax {
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

// Validate returns an error that describes what is wrong with a registration, or nil.
func (s Shard) Validate() error {
	if err := ValidateShardName(s.Name); err != nil {
		return err
	}
	if s.VolumeUUID == uuid.Nil {
		return errors.New("the volume UUID is zero")
	}
	if _, _, err := net.SplitHostPort(s.Address); err != nil {
		return fmt.Errorf("address %q: give host:port: %w", s.Address, err)
	}
	return s.State.Validate()
}

// Validate returns an error if s is not one of the defined states or the empty string.
func (s ShardState) Validate() error {
	switch s {
	case "", Active, Cordoned, Draining:
		return nil
	}
	return fmt.Errorf("state %q: give %s, %s or %s", s, Active, Cordoned, Draining)
}

// NewGroup returns a group with a random UUID and without members. If the routing is Hash, the group also gets its
// key range.
func NewGroup(routing Routing, name string, number int) Group {
	g := Group{Name: name, UUID: uuid.New()}
	if routing.Mode == Hash {
		g.KeyFirst, g.KeyLast = routing.KeyRange(number)
	}
	return g
}
