package follow

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// Replica is what is known of a group's replica on the volume, from the moment that its folder is found or made.
type Replica struct {
	Name string // of the group; empty: not known yet
	UUID uuid.UUID
	Dir  string

	// known is every member that etcd ever named, by Raft id: see Members.
	known atomic.Pointer[map[uint64]placement.Member]

	// Guarded by Options.Lock.

	Phase    member.Phase    // how far it is: after it is found or made, Happens alone changes it
	Err      error           // why Phase is one that is broken
	Standing member.Standing // what etcd says of it: a stray is not served
	// What the folder is. Each may be so in any phase.
	Foreign    bool   // it was made on another volume, so that it must not run
	Exchanged  string // why it is another group's than its manifest's, as fsck.Exchanged says; empty: it is not
	Unreadable bool   // it has no manifest that can be read
	// What was said to etcd, whatever etcd says since.
	// this process made it for a new group, and etcd never said that it is here: it has never served
	Untold bool
	// the epoch at which etcd was told that the group made here is here: what an older view says of it is late
	Confirmed uint64
	RaftID    uint64             // of this incarnation; 0: not known before it is loaded
	ConfIndex uint64             // of the membership in the manifest that was found
	Conf      *raftpb.ConfState  // that membership
	Fetch     context.Context    // of an install that is under way, in whatever phase; nil: none is
	StopFetch context.CancelFunc // ends it
	// Stored is the group as this shard wrote it to etcd last: views may be older.
	Stored placement.Group
	// seen is what was there when it was looked at last: the revisions of the group and its target, and how many of its
	// members' shards have another volume now.
	seen [3]int64
}

// Owned is a replica as its shard has it: a type that embeds Replica, and knows what serves it.
type Owned interface {
	comparable
	Known() *Replica
	// Node is what serves the replica; false: nothing does.
	Node() (Node, bool)
	// BeginFetch makes the context of an install. Called with Options.Lock held.
	BeginFetch(ctx context.Context)
}

// Node is what serves a replica, as far as membership goes.
type Node interface {
	// ConfIndex of the newest membership that it knows.
	ConfIndex() uint64
	// Conf is that membership.
	Conf() *raftpb.ConfState
}

// Known implements Owned.
func (r *Replica) Known() *Replica { return r }

// NoTransition is logged where something happens to a replica that cannot happen in its phase. Tests fail where they
// see it.
const NoTransition = "a replica stays in its phase, which this event must not find it in: that is a bug, please " +
	"report it"

// Happens changes the phase. Called with Options.Lock held.
func (r *Replica) Happens(e member.Event, logger *slog.Logger) {
	next, legal := r.Phase.After(e)
	if !legal {
		logger.Error(NoTransition, "group", r.Name, "uuid", r.UUID, "phase", r.Phase, "event", e)
	}
	r.Phase = next
}

// BeginFetch makes the context of an install: of a replica that joins, of a torn one, or of one that is installed anew.
// Called with Options.Lock held.
func (r *Replica) BeginFetch(ctx context.Context) {
	r.Fetch, r.StopFetch = context.WithCancel(ctx)
}

// EndFetch is the end of what BeginFetch began. Called with Options.Lock held.
func (r *Replica) EndFetch() {
	r.StopFetch()
	r.Fetch, r.StopFetch = nil, nil
}

// IsFetching tells whether an install is under way; StopFetch ends it. Called with Options.Lock held.
func (r *Replica) IsFetching() bool { return r.StopFetch != nil }

// Members is every member that etcd ever named to this shard, by Raft id: a membership change may be behind it or
// ahead.
func (r *Replica) Members() map[uint64]placement.Member {
	if m := r.known.Load(); m != nil {
		return *m
	}
	return nil
}

// Learn notes the members that etcd names.
func (r *Replica) Learn(named []placement.Member) {
	old := r.Members()
	if !slices.ContainsFunc(named, func(m placement.Member) bool { return old[m.RaftID] != m }) {
		return
	}
	next := maps.Clone(old)
	if next == nil {
		next = map[uint64]placement.Member{}
	}
	for _, m := range named {
		if m.Shard != "" { // empty: etcd does not know
			next[m.RaftID] = m
		}
	}
	r.known.Store(&next)
}

// Route says on which shard a member is.
func (r *Replica) Route(raftID uint64) (shard string, ok bool) {
	m, ok := r.Members()[raftID]
	return m.Shard, ok && m.Shard != ""
}

// facts are what is known of a replica when it is decided about; nil where there is none. Called with Options.Lock
// held.
func facts[R Owned](owned R, state placement.Group) *member.Replica {
	var none R
	if owned == none {
		return nil
	}
	g := owned.Known()
	node, serves := owned.Node()
	r := &member.Replica{
		Name: g.Name, RaftID: g.RaftID, Phase: g.Phase, Standing: g.Standing,
		Foreign: g.Foreign, Exchanged: g.Exchanged, Unreadable: g.Unreadable, Untold: g.Untold, Confirmed: g.Confirmed,
		Fetching: g.IsFetching(), Serves: serves, KnownIndex: g.ConfIndex,
	}
	if state.UUID == g.UUID && !member.Names(state, g.RaftID) {
		if serves {
			r.KnownIndex = max(g.ConfIndex, node.ConfIndex())
		}
		if len(state.Members) > 0 && r.KnownIndex > state.ConfIndex {
			_, r.InConf = role(owned) // seldom: this takes the node's own lock
		}
	}
	return r
}

// role is what the replica is in the newest membership that it knows; false: nothing. Called with Options.Lock held.
func role[R Owned](owned R) (placement.Role, bool) {
	conf, raftID := owned.Known().Conf, owned.Known().RaftID
	if node, serves := owned.Node(); serves {
		conf = node.Conf()
	}
	switch {
	case slices.Contains(conf.GetVoters(), raftID), slices.Contains(conf.GetVotersOutgoing(), raftID):
		return placement.Voter, true
	case slices.Contains(conf.GetLearners(), raftID), slices.Contains(conf.GetLearnersNext(), raftID):
		return placement.Learner, true
	}
	return "", false
}
