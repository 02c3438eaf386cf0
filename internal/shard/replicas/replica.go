package replicas

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/storage/group"
)

// State describes a replica at one moment.
type State struct {
	// The embedded member.Replica is the input for decisions. KnownIndex is the index of the membership in the manifest
	// when the replica was found. Only the copies that Replica.State and facts return have Fetching and Serves, and only
	// those of facts have InConf.
	member.Replica
	Err    error             // why the replica is in a broken Phase, or why its load takes long
	Conf   *raftpb.ConfState // the membership in the manifest when the replica was found
	Report group.Report      // report of the replica's last load
	Plan   *group.Plan       // the part of the folder that was read before the first load; nil if nothing was read
}

// Replica is a group's replica on the volume, from the moment when its folder is found or created. It is safe for
// concurrent use.
type Replica struct {
	// Name is the group's name. It is empty until Decide learns it, and until then the replica has no route. Code that may
	// meet a replica without a route reads the name from State.
	Name string
	UUID uuid.UUID

	Progress group.Progress // progress of the replica's load

	set *Set
	// known holds every member that etcd ever named, by Raft id; see Members.
	known atomic.Pointer[map[uint64]placement.Member]
	// copying is the progress of copying the replica's files from another shard. It is nil if no copy is in progress.
	copying atomic.Pointer[Copying]
	// served is nil while no node serves the replica. Only Serve sets it, and TakeOut and Close end it.
	served atomic.Pointer[Served]
	// awaits is true while the group accepts no writes, because too few of its copies have joined.
	awaits atomic.Bool
	// changing is held while the node is stopped or replaced. It is taken before Set.mu.
	changing longlock.Mutex

	// The fields below are guarded by Set.mu.

	// state holds the replica's phase and standing. Only the method happens changes the phase. Only Decide and Confirm
	// change the standing.
	state     State
	fetch     context.Context    // context of the install in progress, in any phase; nil if there is none
	stopFetch context.CancelFunc // cancels fetch; nil if fetch is nil
	// stored is the group as this shard last wrote it to etcd. The view that this shard follows may be older.
	stored placement.Group
	seen   look
}

// look holds a group's state at the last run of Decide. The leader examines the group again only if this state has
// changed.
type look struct {
	group, target int64 // revisions of the group's key and of its target's key in etcd
	replaced      int64 // number of members whose shards have another volume now
}

// NoTransition is logged when an event is not legal in a replica's phase. Tests fail if they see it.
const NoTransition = "a replica stays in its phase, which this event must not find it in: that is a bug, please " +
	"report it"

// happens changes the phase according to an event. The caller holds Set.mu.
func (r *Replica) happens(e member.Event) {
	next, legal := r.state.Phase.After(e)
	if !legal {
		r.set.Logger.Error(NoTransition, "group", r.Name, "uuid", r.UUID, "phase", r.state.Phase, "event", e)
	}
	if next != r.state.Phase {
		r.set.Logger.Debug("the phase of a replica changes", "group", r.Name, "from", r.state.Phase, "event", e, "to", next)
	}
	r.state.Phase = next
	if next != member.Loading {
		r.state.Plan = nil // the folder may change before its next load, so the plan is dropped
	}
}

// Happens changes the phase after an event that has no other effect.
func (r *Replica) Happens(e member.Event) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.happens(e)
}

// State returns a copy of the replica's current state.
func (r *Replica) State() State {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	state := r.state
	state.Name, state.Fetching, state.Serves = r.Name, r.fetch != nil, r.Served() != nil
	return state
}

// BeginLoad begins the load of a replica that waits for one. It returns false if there is nothing to load, or if the
// first load has not begun.
func (r *Replica) BeginLoad() bool {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	if r.state.Phase != member.Pending || !r.set.begun {
		return false
	}
	r.happens(member.LoadBegins)
	return true
}

// NotePlan stores the plan of the replica's load. TakePlan returns it later.
func (r *Replica) NotePlan(plan *group.Plan) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.state.Plan = plan
}

// TakePlan returns the plan that NotePlan stored, and drops it. It returns nil if a decision was made about the replica
// since the folder was read, because the folder may have changed.
func (r *Replica) TakePlan() *group.Plan {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	plan := r.state.Plan
	r.state.Plan = nil
	if r.set.all[r.UUID] != r || r.state.Phase != member.Loading {
		return nil
	}
	return plan
}

// NoteDelay records the reason why a load takes long.
func (r *Replica) NoteDelay(err error) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.state.Err = err
}

// EndLoad records the result of a load, and reports whether the load found a damaged tail. Decisions that were made
// about the replica during the load remain in force.
func (r *Replica) EndLoad(report group.Report, err error) (torn bool) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.state.Report = report
	if r.state.Phase == member.Lost || r.state.Phase == member.MissingEntries {
		return false
	}
	r.state.Err = err
	switch {
	case err == nil:
		r.happens(member.Loaded)
		if r.state.Founder {
			r.set.Wake() // the founder must be reported or settled
		}
	case errors.Is(err, group.ErrTailDamaged):
		r.happens(member.Tearing)
		r.state.Err = tailError(err)
		r.set.Wake()
		return true
	default:
		r.happens(member.Failing)
	}
	return false
}

// Fail records the reason why the replica cannot serve.
func (r *Replica) Fail(err error) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.state.Err = err
	r.happens(member.Failing)
}

// NoteMissing records that the replica lacks entries on which its leader relies.
func (r *Replica) NoteMissing(err error) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.happens(member.Forgot)
	r.state.Err = tailError(err)
	r.set.Wake()
}

// tailError wraps the error about a damaged tail, and explains what will happen to the replica.
func tailError(err error) error {
	return fmt.Errorf("%w; it does not vote, and is installed again from another copy, or replaced; where it stays so, "+
		"start the shards that hold the other copies: a replacement needs a majority without this one", err)
}

// NoteStored records the group as this shard has just written it to etcd.
func (r *Replica) NoteStored(stored placement.Group) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.stored = stored
	r.noteAwaits()
}

// noteAwaits records whether the group accepts writes, according to what etcd last said. If the group's key cannot be
// read, the former answer remains. The caller holds Set.mu.
func (r *Replica) noteAwaits() {
	if group, known := r.set.groupOf(r); known {
		r.awaits.Store(group.WritesFrom > 0)
	}
}

// Confirm records that etcd now lists this shard as the location of the replica, which this process has created.
// Calls are then routed to the replica.
func (r *Replica) Confirm(stored placement.Group) {
	s := r.set
	s.mu.Lock()
	defer s.mu.Unlock()
	r.state.Standing, r.state.NeverReported = member.Standing{}, false
	r.state.Confirmed = s.view.Meta.EpochBase + uint64(stored.Revision)
	r.stored = stored
	s.publish()
}

// Settle records that the volume now says that etcd lists the founder. Calls are then routed to it.
func (r *Replica) Settle() {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.state.Founder = false
	r.set.publish()
}

// beginFetch creates the context for installing a replica that joins, has a damaged tail, or lacks entries. The caller
// holds Set.mu.
func (r *Replica) beginFetch(ctx context.Context) {
	r.fetch, r.stopFetch = context.WithCancel(ctx)
	r.copying.Store(&Copying{now: time.Now})
}

// BeginFetch begins the install of a replica that serves. It returns nil if an install is in progress, or if nothing
// serves the replica. If it does not return nil, the caller must call EndFetch after the install.
func (r *Replica) BeginFetch(ctx context.Context) (*Served, context.Context) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	sv := r.Served()
	if r.fetch != nil || sv == nil {
		return nil, nil
	}
	r.beginFetch(ctx)
	return sv, r.fetch
}

// Fetch returns the context of the install in progress, or nil if there is none.
func (r *Replica) Fetch() context.Context {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	return r.fetch
}

// EndFetch ends the install in progress.
func (r *Replica) EndFetch() {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.stopFetch()
	r.fetch, r.stopFetch = nil, nil
	r.copying.Store(nil)
	if r.state.Phase.MissingEntries() {
		r.set.Wake()
	}
}

// Copying returns the progress of the install in progress, or nil if there is none.
func (r *Replica) Copying() *Copying { return r.copying.Load() }

// Members returns every member that etcd ever named to this shard, by Raft id. Members that etcd no longer names are
// kept, because the membership in the log may be older or newer than that in etcd.
func (r *Replica) Members() map[uint64]placement.Member {
	if m := r.known.Load(); m != nil {
		return *m
	}
	return nil
}

// Learn records the members that etcd names, and replaces what was recorded about them before.
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
		if m.Shard != "" { // an empty name means that etcd does not know the location
			next[m.RaftID] = m
		}
	}
	r.known.Store(&next)
}

// Route returns the shard of the member with a Raft id. It returns false if the shard is not known.
func (r *Replica) Route(raftID uint64) (shard string, ok bool) {
	m, ok := r.Members()[raftID]
	return m.Shard, ok && m.Shard != ""
}

// Member describes the replica as a member of its group. forgotten is true if the given state in etcd wrongly lacks
// this member, because that state is older than the membership in the log.
func (r *Replica) Member(state placement.Group) (m placement.Member, forgotten bool) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	role, _ := r.role()
	return placement.Member{RaftID: r.state.RaftID, Role: role}, member.EtcdIsBehind(state, r.facts(state))
}

// facts returns the input for a decision about the replica, given the state of its group in etcd. The caller holds
// Set.mu.
func (r *Replica) facts(state placement.Group) *member.Replica {
	sv := r.Served()
	facts := r.state.Replica
	facts.Name, facts.Fetching, facts.Serves = r.Name, r.fetch != nil, sv != nil
	if state.UUID == r.UUID && !member.Names(state, facts.RaftID) {
		if sv != nil {
			facts.KnownIndex = max(facts.KnownIndex, sv.log.ConfIndex())
		}
		if len(state.Members) > 0 && facts.KnownIndex > state.ConfIndex {
			_, facts.InConf = r.role() // role takes the node's lock, so it is called only in this case
		}
	}
	return &facts
}

// role returns the role of the replica in the newest membership in its log. It returns false if the replica has no
// role in that membership. The caller holds Set.mu.
func (r *Replica) role() (placement.Role, bool) {
	conf, raftID := r.state.Conf, r.state.RaftID
	if sv := r.Served(); sv != nil {
		conf = sv.node.Members().Conf
	}
	switch {
	case slices.Contains(conf.GetVoters(), raftID), slices.Contains(conf.GetVotersOutgoing(), raftID):
		return placement.Voter, true
	case slices.Contains(conf.GetLearners(), raftID), slices.Contains(conf.GetLearnersNext(), raftID):
		return placement.Learner, true
	}
	return "", false
}
