// Package lead steers the groups that a shard leads. It changes their members and leaders until they match the targets,
// and transfers the leadership when the disk does not respond or the shard stops. Package move decides on each step.
package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/consensus/move"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

const (
	// changeApplyTime is how long members may take to apply a membership change before one of them is made leader.
	changeApplyTime = 300 * time.Millisecond
	steerAtOnce     = 16
	changeTime      = 10 * time.Second // timeout of one membership change
	etcdTime        = 5 * time.Second
	stepsAtOnce     = 32 // maximum number of steps in one group before other groups get their turn
	handOverTime    = 3 * time.Second
	handOverWait    = 50 * time.Millisecond // pause between two attempts to transfer the leaderships of all groups
	leaveSilentWait = time.Second           // pause between two checks of the volume, and between two transfers
	// leadRest is how long a new leader keeps the leadership even if the target prefers another leader. The preferred
	// leader may be the previous one, which is about to stop but is still registered.
	leadRest = 5 * time.Second
	// groupsMovingMax is how many groups led by this shard may get copies on other shards at the same time. The limit
	// leaves most of the disk and network capacity to calls.
	groupsMovingMax = 4
)

// lookPauses are the pauses between two examinations of a group whose change is unfinished.
var lookPauses = backoff.Doubling{First: 200 * time.Millisecond, Most: 2 * time.Second}

// Options holds everything that a Steerer may use.
type Options struct {
	Replicas *replicas.Set
	Etcd     Etcd
	Problems *problems.List
	Logger   *slog.Logger

	// VolumeSilent reports whether this shard's volume has stopped answering.
	VolumeSilent func() bool
	// IsSilent reports whether a peer is known to be silent. When such a peer responds again, the Steerer examines the
	// groups that have a member on the peer.
	IsSilent func(shard string) bool
	// MustNotLead reports whether a peer has asked not to lead groups, because of its disk.
	MustNotLead func(shard string) bool
	// Withdraw takes a replica out of service because it lacks entries on which its leader relies.
	Withdraw func(ctx context.Context, sv *replicas.Served, why error)
	// WriteReplicaFile records which replica is in a group's folder.
	WriteReplicaFile func(group uuid.UUID, raftID uint64) error
}

// Etcd is the part of *registry.Store that a Steerer needs; its method is documented in package registry.
type Etcd interface {
	PutGroupAsLeader(ctx context.Context, g placement.Group) (placement.Group, error)
}

// Steerer brings the groups that this shard leads to their targets, step by step. It is safe for concurrent use.
type Steerer struct {
	Options
	steering
}

// New creates a Steerer. It does nothing until Run is called.
func New(opts Options) *Steerer { return &Steerer{opts, newSteering()} }

// Run examines groups until ctx is done. Other code calls Replica.AskLook to request this when a group's leader or
// membership, the view of etcd, or the peers have changed. As long as a group's change is unfinished, Run examines
// the group again and again.
func (q *Steerer) Run(ctx context.Context) {
	var looks errgroup.Group
	looks.SetLimit(steerAtOnce)
	defer func() { _ = looks.Wait() }()
	for ctx.Err() == nil {
		for _, g := range q.take(q.Replicas.Looks.Take()) {
			looks.Go(func() error {
				q.done(g, q.look(ctx, g) && ctx.Err() == nil)
				return nil
			})
		}
		select {
		case <-q.Replicas.Looks.Woken:
		case <-ctx.Done():
		}
	}
}

// look examines a group, and takes steps towards the group's target while this replica leads. It returns true if the
// group must be examined again, because a change is unfinished.
func (q *Steerer) look(ctx context.Context, g *replicas.Replica) (again bool) {
	defer func() {
		if p := recover(); p != nil {
			q.Problems.Note(problems.Moving+g.Name, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	for range stepsAtOnce {
		sv := g.Served()
		if sv == nil && q.Replicas.Find(g.UUID) == nil {
			q.forget(g) // a look that began before the replica was removed may have recorded the group again
		}
		if sv == nil || ctx.Err() != nil {
			return false
		}
		status := sv.Replica().Status()
		if errors.Is(status.Err, replica.ErrLostEntries) {
			q.Withdraw(ctx, sv, status.Err)
			return false
		}
		if !status.Leader {
			q.moved(g)
			return status.LeaderID == sv.RaftID // this replica was elected, but has not yet applied an entry of its own term
		}
		if q.Replicas.IsHeld() {
			return true
		}
		state, ok := q.Replicas.GroupOf(g)
		if !ok || len(state.Members) == 0 {
			q.Problems.Note(problems.Moving+g.Name, nil)
			return false // the watcher must first report the group to etcd
		}
		m := sv.Replica().Members()
		if sv.Replica().Ended() {
			err := q.resume(ctx, sv, m, state.Group)
			q.Problems.Note(problems.Resuming+g.Name, err)
			return true
		}
		if isPlain(sv, m, state) {
			q.Problems.Note(problems.Moving+g.Name, nil)
			return false
		}
		next, err := q.step(ctx, sv, m, state)
		switch {
		case errors.Is(err, placement.ErrChanged), errors.Is(err, placement.ErrStaleLeader),
			errors.Is(err, replica.ErrChanging),
			errors.Is(err, replica.ErrNoLeader), errors.Is(err, replica.ErrNotTransferred),
			errors.Is(err, replica.ErrOutcomeUnknown):
			return true // the decision was based on an outdated state
		case ctx.Err() != nil:
			return false
		}
		q.Problems.Note(problems.Moving+g.Name, err)
		if err != nil || next != stepAgain {
			return err != nil || next == stepLater
		}
	}
	return true
}

// stepped says whether a step was taken.
type stepped uint8

const (
	stepDone  stepped = iota // no step is left
	stepLater                // the step must wait for something
	stepAgain                // the step is done
)

// isPlain reports whether a group has a single copy that already is on its target, which is this shard. The leader of
// such a group takes no steps, and the shard's reporter reports the group's size.
func isPlain(sv *replicas.Served, m replica.Members, state replicas.Group) bool {
	return len(m.Conf.GetVoters()) == 1 && len(m.Conf.GetLearners()) == 0 && len(m.Conf.GetVotersOutgoing()) == 0 &&
		len(state.Members) == 1 && state.Members[0].RaftID == sv.RaftID && state.Members[0].Role == placement.Voter &&
		state.ConfIndex == m.ConfIndex && (len(state.Target) == 0 || len(state.Target) == 1 &&
		state.Target[0] == state.Members[0].Shard)
}

// namesAll reports whether a list contains every member of a membership. An incomplete list must not be written for
// that membership, because an omitted replica would conclude that it has left the group.
func namesAll(members []placement.Member, conf *raftpb.ConfState) bool {
	for _, id := range slices.Concat(conf.GetVoters(), conf.GetVotersOutgoing(), conf.GetLearners(),
		conf.GetLearnersNext()) {
		if !slices.ContainsFunc(members, func(m placement.Member) bool { return m.RaftID == id }) {
			return false
		}
	}
	return true
}

// step decides on one step and takes it.
func (q *Steerer) step(
	ctx context.Context, sv *replicas.Served, m replica.Members, state replicas.Group,
) (stepped, error) {
	g := sv.Group
	known := q.memoryOf(g)
	if known.term != m.Term {
		known.term, known.since = m.Term, time.Now()
	}
	if namesAll(state.Members, m.Conf) && (state.Leader != q.Replicas.Shard || state.Term < m.Term ||
		state.ConfIndex < m.ConfIndex) {
		return stepAgain, q.storeAsLeader(ctx, sv, m, state.Group) // calls can then find the leader in etcd
	}
	in := move.State{
		Self: sv.RaftID, Conf: m.Conf, Pending: m.Changing, Last: m.LastIndex, Progress: map[uint64]move.Progress{},
		Members: state.Members, Target: state.Target, FreshID: format.NewRaftID(), LearnersMax: -1,
	}
	places := g.Members()
	for _, p := range m.Progress {
		in.Progress[p.ID] = move.Progress{Match: p.Match, Replicating: p.State == replica.StateReplicate,
			Active: p.RecentActive && !p.Down && !q.MustNotLead(places[p.ID].Shard)}
	}
	in.Known = slices.Collect(maps.Values(places))
	in.Shards = shardsOf(state, in.Known)
	if knownVoters(m.Conf, state.Members) >= q.Replicas.Meta().Copies && !q.mayMove(g, groupsMovingMax) {
		in.LearnersMax = 0 // the group has all its copies, so its move must wait until moves of other groups have finished
	}
	a := move.Decide(in)
	if a.Kind == move.Nothing {
		if a.Done || len(m.Conf.GetLearners()) == 0 {
			q.moved(g)
		}
		if a.Done && (state.Target[0] == q.Replicas.Shard || q.IsSilent(state.Target[0])) {
			return stepDone, nil // the group is examined again when the designated leader responds again
		}
		// The group waits, perhaps only for the designated leader.
		q.Logger.Debug("a move waits", "group", g.Name, "reason", a.Reason)
		return stepLater, nil
	}
	if a.Kind == move.TransferLeader && time.Since(known.changedAt) < changeApplyTime {
		return stepLater, nil // the target would refuse the leadership, and writes would wait meanwhile
	}
	if a.Kind == move.TransferLeader && slices.Contains(state.Target, q.Replicas.Shard) &&
		time.Since(known.since) < leadRest {
		return stepLater, nil
	}
	if comes := a.Kind == move.RecordMembers && a.ID != 0; (comes || a.Kind == move.RemoveMember) &&
		mayStillReport(known, state, a.ID, comes) {
		return stepLater, nil
	}
	q.stepped(g)
	q.Logger.Info("a step of a move", "group", g.Name, "step", a.Kind.String(), "reason", a.Reason)
	return stepAgain, q.act(ctx, sv, m, state.Group, a)
}

// knownVoters counts the voters whose location is known.
func knownVoters(conf *raftpb.ConfState, members []placement.Member) (n int) {
	for _, id := range conf.GetVoters() {
		if !slices.ContainsFunc(members, func(m placement.Member) bool { return m.RaftID == id && m.Shard == "" }) {
			n++
		}
	}
	return n
}

// reportTime is how long a leader waits after a target shard has registered. In that time, the shard may report that
// it has a member whose location is missing in etcd.
const reportTime = 3 * time.Second

// mayStillReport reports whether a shard may still report a member whose location is missing in etcd. As long as this
// is possible, the member must not be removed or replaced, because the group would lose an existing copy, and a group
// of three could then not survive the loss of another one. It is possible as long as no registered shard could take
// the member's place, and until a newly registered shard has had time to report its replicas. If a new member is
// about to be added (comes), the function considers every member without a location, and otherwise only the member
// with the given id.
func mayStillReport(g *memory, state replicas.Group, id uint64, comes bool) bool {
	var come []string
	whole := len(state.Target) > 0 // the target is complete without the member
	for _, name := range state.Target {
		if _, holds := replicas.MemberOf(state.Group, name); holds {
			continue
		}
		whole = false
		if shard, ok := state.Shards[name]; ok {
			come = append(come, name, shard.VolumeUUID.String())
		}
	}
	if !slices.Equal(g.come, come) {
		g.come, g.comeSince = come, time.Now()
	}
	lookedFor := slices.ContainsFunc(state.Members, func(m placement.Member) bool {
		return (comes || m.RaftID == id) && m.Shard == ""
	})
	return lookedFor && !whole && (len(come) == 0 || time.Since(g.comeSince) < reportTime)
}

// act performs the step that was decided on.
func (q *Steerer) act(
	ctx context.Context, sv *replicas.Served, m replica.Members, state placement.Group, a move.Action,
) error {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	switch a.Kind {
	case move.RecordMembers:
		state.Members = a.Members
		return q.storeAsLeader(ctx, sv, m, state)
	case move.TransferLeader:
		return sv.Replica().TransferLeader(ctx, a.ID)
	case move.AddLearner:
		// A sole voter needs no replica file, because the membership identifies it. With a second member, the file
		// must identify the one on this volume.
		if err := q.WriteReplicaFile(sv.UUID(), sv.RaftID); err != nil {
			return err
		}
	}
	defer func() { q.memoryOf(sv.Group).changedAt = time.Now() }()
	return sv.Replica().ChangeMembers(ctx, a.Change())
}

// storeAsLeader writes the leader's record of a group to etcd.
func (q *Steerer) storeAsLeader(
	ctx context.Context, sv *replicas.Served, m replica.Members, state placement.Group,
) error {
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	stats := sv.Log().Stats()
	state.Leader, state.Term, state.ConfIndex = q.Replicas.Shard, m.Term, m.ConfIndex
	state.Bytes, state.Records, state.Everywhere = stats.StoredBytes, stats.Records, sv.Everywhere(m)
	stored, err := q.Etcd.PutGroupAsLeader(ctx, state)
	if err != nil {
		return fmt.Errorf("telling etcd: %w", err)
	}
	sv.Group.NoteStored(stored)
	sv.Group.Learn(stored.Members)
	return nil
}

// HoldEnded keeps an ended group from being resumed until release is called, so that a deletion of the group can
// complete. It returns false if a deletion or a resumption of the group is already in progress.
func (q *Steerer) HoldEnded(g *replicas.Replica) (release func(), ok bool) {
	held := &q.memoryOf(g).held
	return func() { held.Store(false) }, held.CompareAndSwap(false, true)
}

// resume lets an ended group that this shard leads accept writes again, unless the group is deleted or being deleted.
// It first changes the group's key in etcd, so that an earlier attempt to delete the group, by this shard or by the
// former leader, finds a changed key and fails. While etcd does not respond, the group remains ended.
func (q *Steerer) resume(ctx context.Context, sv *replicas.Served, m replica.Members, state placement.Group) error {
	release, ok := q.HoldEnded(sv.Group)
	if !ok {
		return nil // a deletion is in progress; when it ends, it requests another examination
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	state.Leader, state.Term = q.Replicas.Shard, m.Term
	stored, err := q.Etcd.PutGroupAsLeader(ctx, state)
	switch {
	case errors.Is(err, placement.ErrNoGroup), errors.Is(err, placement.ErrChanged),
		errors.Is(err, placement.ErrStaleLeader):
		return nil // either the group is deleted, or the next view shows the change
	case err != nil:
		return fmt.Errorf("before it resumes: %w", err)
	}
	sv.Group.NoteStored(stored)
	err = sv.Replica().Resume(ctx, m.Term)
	if errors.Is(err, replica.ErrNoLeader) || errors.Is(err, replica.ErrChanging) {
		return nil // the next examination decides how to continue
	}
	return err
}

// LeaveSilent transfers the leadership of all groups to other shards while the volume does not respond, until ctx is
// done. Reads at a leader wait for its disk. Without writes, a shard with a silent disk would remain leader, because it
// still sends heartbeats.
func (q *Steerer) LeaveSilent(ctx context.Context) {
	for told := false; backoff.Sleep(ctx, leaveSilentWait); {
		silent := q.VolumeSilent()
		if silent && told { // the peers have had time to learn that they must not return the leadership
			if took, _, _ := q.handOverAll(ctx, q.Replicas.Routes()); took > 0 {
				q.Logger.Warn("handed the lead over, because the volume does not answer", "groups", took)
			}
		}
		told = silent
	}
}

// HandOver transfers the leadership of all groups to other shards before this shard stops. If a member does not
// accept the leadership or returns it, HandOver tries again for a while.
func (q *Steerer) HandOver(ctx context.Context) {
	r := q.Replicas.Routes()
	ctx, cancel := context.WithTimeout(ctx, handOverTime)
	defer cancel()
	handed := 0
	for {
		took, open, kept := q.handOverAll(ctx, r)
		handed += took
		if open == 0 || ctx.Err() != nil {
			if handed+kept > 0 {
				q.Logger.Info("handed the lead over before the stop", "groups", handed, "kept", kept)
			}
			return
		}
		backoff.Sleep(ctx, handOverWait)
	}
}

// handOverAll makes one attempt to transfer the leadership of each group. It returns the number of groups that this
// shard no longer leads (took), that it still leads (kept), and that it still leads although another shard could
// (open).
func (q *Steerer) handOverAll(ctx context.Context, r *replicas.Routes) (took, open, kept int) {
	var mu sync.Mutex
	parallel.Each(maps.Values(r.ByUUID), 4*steerAtOnce, func(g *replicas.Replica) {
		sv := g.Served()
		if sv == nil || sv.Replica().Alone() { // the group has no other member
			return
		}
		m := sv.Replica().Members()
		if m.LeaderID != sv.RaftID {
			return
		}
		to := q.transferTarget(sv, m)
		var err error
		if to != 0 {
			if err = sv.Replica().TransferLeader(ctx, to); err != nil && ctx.Err() == nil {
				q.Logger.Warn("handing the lead over", "group", g.Name, "error", err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case sv.Replica().Members().LeaderID != sv.RaftID:
			took++
		case to != 0 && !errors.Is(err, replica.ErrFailed):
			open++
			fallthrough
		default:
			kept++
		}
	})
	return took, open, kept
}

// transferTarget returns the member with the longest log among those that can take the leadership, or 0 if no member
// can take it. A member whose disk hangs can neither lead nor store a vote. If no majority can vote, this shard keeps
// the leadership, because a leader whose disk hangs still serves reads from memory, but after a failed election the
// group would have no leader.
func (q *Steerer) transferTarget(sv *replicas.Served, m replica.Members) uint64 {
	var to, match uint64
	votes, places := map[uint64]bool{}, sv.Group.Members()
	for _, p := range m.Progress {
		if p.ID == sv.RaftID {
			votes[p.ID] = !q.VolumeSilent()
			continue
		}
		if !p.RecentActive || p.Down || q.MustNotLead(places[p.ID].Shard) {
			continue
		}
		votes[p.ID] = true
		if !p.Learner && p.State == replica.StateReplicate && p.Match >= match {
			to, match = p.ID, p.Match
		}
	}
	for _, voters := range [][]uint64{m.Conf.GetVoters(), m.Conf.GetVotersOutgoing()} {
		n := 0
		for _, id := range voters {
			if votes[id] {
				n++
			}
		}
		if len(voters) > 0 && 2*n <= len(voters) {
			return 0
		}
	}
	return to
}

// shardsOf returns what package move needs to know about the shards of a group. It includes the shards of all known
// members.
func shardsOf(state replicas.Group, known []placement.Member) map[string]move.Shard {
	out := make(map[string]move.Shard, len(state.Members)+len(state.Target))
	note := func(name string) {
		shard, registered := state.Shards[name]
		if !registered {
			out[name] = move.Shard{Domain: state.Known[name].Domain}
			return
		}
		out[name] = move.Shard{Domain: shard.Domain, Volume: shard.VolumeUUID, Alive: true}
	}
	for _, m := range slices.Concat(state.Members, known) {
		note(m.Shard)
	}
	for _, name := range state.Target {
		note(name)
	}
	return out
}
