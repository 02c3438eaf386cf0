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

// Replica is the state of a group's replica on the volume, from the moment that its folder is found or made.
type Replica struct {
	Name string // name of the group; empty: not known yet
	UUID uuid.UUID
	Dir  string

	// known holds every member that etcd ever named, by Raft id: see Members.
	known atomic.Pointer[map[uint64]placement.Member]

	// Guarded by Options.Lock.

	Phase    member.Phase    // progress; after the replica is found or made, only Happens changes it
	Err      error           // why Phase is a broken one
	Standing member.Standing // what etcd says of it: a stray is not served
	// These fields are facts about the folder. Each of them may hold in any phase.
	Foreign bool // it was made on another volume, so that it must not run
	// Exchanged says why the files of the folder belong to a group other than the manifest's, in the words of
	// fsck.Exchanged. It is empty if they belong to the same group.
	Exchanged  string
	Unreadable bool // it has no readable manifest
	// NeverReported says that this process made the replica for a new group, and that etcd never listed the replica
	// here. Such a replica has never served. A later view does not set NeverReported again.
	NeverReported bool
	// Confirmed is the epoch at which this process reported to etcd that the group it made is here. Views from before
	// that epoch are outdated.
	Confirmed uint64
	RaftID    uint64             // Raft id of this incarnation; 0: unknown until the replica is loaded
	ConfIndex uint64             // index of the membership in the manifest as found
	Conf      *raftpb.ConfState  // that membership
	Fetch     context.Context    // context of an install in progress, in any phase; nil: no install
	StopFetch context.CancelFunc // ends Fetch
	// Stored is the group as this shard last wrote it to etcd. The views that this shard has received may be older.
	Stored placement.Group
	seen   look
}

// look is what a look at a group compares with the one before. A group that has not changed is not looked at again.
type look struct {
	group, target int64 // revisions in etcd
	replaced      int64 // members whose shards have another volume now
}

// Owned is a replica as its shard holds it: a type that embeds Replica, and knows the node that serves it.
type Owned interface {
	comparable
	Known() *Replica
	// Node returns the node that serves the replica. It returns false if no node serves the replica.
	Node() (Node, bool)
	// BeginFetch makes the context of an install. Called with Options.Lock held.
	BeginFetch(ctx context.Context)
}

// Node is the node that serves a replica. The interface has only the part that concerns membership.
type Node interface {
	// ConfIndex returns the index of the newest membership that the node knows.
	ConfIndex() uint64
	// Conf returns the newest membership that the node knows.
	Conf() *raftpb.ConfState
}

// Known implements Owned.
func (r *Replica) Known() *Replica { return r }

// NoTransition is logged when an event is not legal in the phase of a replica. Tests fail if they see it.
const NoTransition = "a replica stays in its phase, which this event must not find it in: that is a bug, please " +
	"report it"

// Happens changes the phase. Called with Options.Lock held.
func (r *Replica) Happens(e member.Event, logger *slog.Logger) {
	next, legal := r.Phase.After(e)
	if !legal {
		logger.Error(NoTransition, "group", r.Name, "uuid", r.UUID, "phase", r.Phase, "event", e)
	}
	if next != r.Phase {
		logger.Debug("the phase of a replica changes", "group", r.Name, "from", r.Phase, "event", e, "to", next)
	}
	r.Phase = next
}

// BeginFetch makes the context of an install: of a replica that joins, of one with a damaged tail, or of one that is
// reinstalled. Called with Options.Lock held.
func (r *Replica) BeginFetch(ctx context.Context) {
	r.Fetch, r.StopFetch = context.WithCancel(ctx)
}

// EndFetch ends what BeginFetch began. Called with Options.Lock held.
func (r *Replica) EndFetch() {
	r.StopFetch()
	r.Fetch, r.StopFetch = nil, nil
}

// IsFetching reports whether an install is in progress. StopFetch ends it. Called with Options.Lock held.
func (r *Replica) IsFetching() bool { return r.StopFetch != nil }

// Members returns every member that etcd ever named to this shard, by Raft id. All are kept, because the membership in
// the log may be older or newer than that in etcd.
func (r *Replica) Members() map[uint64]placement.Member {
	if m := r.known.Load(); m != nil {
		return *m
	}
	return nil
}

// Learn records the members that etcd names. It replaces what was known of them.
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
		if m.Shard != "" { // empty: etcd does not know the location
			next[m.RaftID] = m
		}
	}
	r.known.Store(&next)
}

// Route returns the shard of a member.
func (r *Replica) Route(raftID uint64) (shard string, ok bool) {
	m, ok := r.Members()[raftID]
	return m.Shard, ok && m.Shard != ""
}

// facts returns what is known of a replica for a decision, or nil if there is no replica. Called with Options.Lock
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
		Foreign: g.Foreign, Exchanged: g.Exchanged, Unreadable: g.Unreadable, NeverReported: g.NeverReported,
		Confirmed: g.Confirmed,
		Fetching:  g.IsFetching(), Serves: serves, KnownIndex: g.ConfIndex,
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

// role returns the role of the replica in the newest membership that the replica knows. It returns false if the replica
// has no role in that membership. Called with Options.Lock held.
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
