// Package follow has a shard do what etcd says of the groups of its volume: a view of etcd comes in, package member
// decides about each group, and what was decided is carried out by the hands that the Follower is given. Here is also
// what a shard knows of etcd: the view that is followed, whether etcd was set back, and where the other shards are.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/internal/base/backoff"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// Options are all that a Follower may touch.
type Options[R Owned] struct {
	Shard  string
	Store  func() uuid.UUID
	Volume func() *volume.Volume // that is open
	Facts  func() (volume.Facts, error)
	Meta   func() placement.Meta // of the store
	Etcd   Etcd
	Hands  Hands[R]
	// Ask has another shard say what its volume holds.
	Ask func(ctx context.Context, shard placement.Shard) (placement.FoundVolume, error)
	// Background is the context of all that goes on after the start.
	Background context.Context
	// Lock guards Replicas, which are those on the volume by UUID of their group, strays included; and what each of
	// them, and the Follower, say that it guards.
	Lock     *sync.Mutex
	Replicas map[uuid.UUID]R
	Problems Problems
	Logger   *slog.Logger

	// RememberQuiet is how often the volume is told how far etcd is, where nothing in it concerned this shard.
	RememberQuiet time.Duration
	// Adopt has groups taken over that etcd gives to another shard, which is not there, on just this volume.
	Adopt bool

	// Rules that tests switch off: what a kill leaves of a learner's folder is taken for a replica that is there, and
	// what fails while the shard stops counts as done.
	CountRemnants, ForgiveStop bool
}

// Etcd is what a Follower needs of etcd: part of *placement.Store, which says what each method does.
type Etcd interface {
	Follow(ctx context.Context, before placement.Seen, own placement.Own) <-chan placement.View
	Look(ctx context.Context, group string) (placement.View, error)
	PutGroup(ctx context.Context, g placement.Group) (placement.Group, error)
	Freeze(ctx context.Context, by, reason string) error
	Reconcile(ctx context.Context, r placement.Rebuilt, silent []string) (placement.Reconciled, error)
	Unreconciled(ctx context.Context, why ...string) error
	Newest(m placement.Mark) placement.Mark
}

// Problems are what a person should see of the shard.
type Problems interface {
	// Note remembers a problem; nil takes it back.
	Note(what string, err error)
	// Forget takes back the problems with what is over.
	Forget(over func(what string) bool)
}

// Hands are what a Follower has done with replicas.
type Hands[R Owned] interface {
	// LoadBegun tells whether the first load has begun. It and the next four are called with Options.Lock held, and do
	// not wait.
	LoadBegun() bool
	// Missing stands for the replica of a group that etcd says is here, and that has no folder.
	Missing(state placement.Group) R
	// Look has the leader of a group look at it again, where it is here.
	Look(r R)
	// Publish has calls find the replicas as they are now.
	Publish()
	// Connect keeps connections to these shards, and no others.
	Connect(shards []string)

	// Load, Join and Reinstall begin to load a replica, to install one that has nothing yet, and one that is torn. They
	// do not wait.
	Load(r R)
	Join(r R)
	Reinstall(r R)
	// LoadNow loads a replica. Whether it serves then, its Node says.
	LoadNow(ctx context.Context, r R)
	// Close takes a replica out of service. Its files stay.
	Close(ctx context.Context, r R) error
	// Trash does so with one that has left its group, and puts its files into the trash.
	Trash(ctx context.Context, r R) error
	// Create makes a group, and loads it.
	Create(ctx context.Context, state placement.Group) error
	// MakeFolder makes the folder of a learner of this shard.
	MakeFolder(state placement.Group) error
}

// Follower follows etcd for one shard. Start comes first, then Run and Thaw side by side; everything else is safe for
// concurrent use.
type Follower[R Owned] struct {
	Options[R]
	neighbours neighbours
	seen       memory
	views      <-chan placement.View // set by Start
	nudged     chan struct{}         // Run looks again

	// Guarded by Options.Lock.

	View  placement.View  // that is followed
	Told  placement.View  // the newest, also of an etcd that was set back
	Held  string          // why nothing is done on the word of etcd; empty: it is
	Spent map[uint64]bool // Raft ids: see member.View
}

// New makes a Follower, which follows nothing before Start.
func New[R Owned](opts Options[R]) *Follower[R] {
	return &Follower[R]{
		Options: opts, neighbours: neighbours{addresses: map[string]string{}}, nudged: make(chan struct{}, 1),
		Spent: map[uint64]bool{},
	}
}

// Start takes the first view of etcd and decides about what is on the volume; Run does what was decided. Where etcd was
// set back it is told so before this returns, so that nobody gives anything to the shard on the word of an older etcd.
// ctx bounds the start.
func (f *Follower[R]) Start(ctx context.Context) error {
	f.views = f.Etcd.Follow(f.Background, f.recall(), f.own(f.holds))
	select {
	case view, ok := <-f.views:
		if !ok {
			return errors.New("the watch of etcd ended")
		}
		var err error
		if view, err = f.adoptMembers(ctx, view); err != nil {
			return err
		}
		f.See(view)
		f.Spend(view)
		if err := placement.Patiently(ctx, f.freeze); err != nil {
			return fmt.Errorf("etcd was set back, and cannot be told so: %w", err)
		}
		_ = f.remember(view) // it is a problem that is shown
		f.Lock.Lock()
		defer f.Lock.Unlock()
		f.Decide(view)
		f.Hands.Publish()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the first view of etcd: %w", ctx.Err())
	}
}

// Spend notes the replicas that etcd names here at the start, before anybody can give the shard a new one: an earlier
// process may have begun them. What was begun, the volume remembers the view of: no earlier one is followed.
func (f *Follower[R]) Spend(view placement.View) {
	f.Lock.Lock()
	defer f.Lock.Unlock()
	for _, state := range view.Groups {
		for _, m := range f.Here(state) {
			f.Spent[m.RaftID] = true
		}
	}
}

// A view that takes longer than viewCostMax is followed by a pause of at most viewPauseMax.
const (
	viewCostMax  = 10 * time.Millisecond
	viewPauseMax = 100 * time.Millisecond
)

// Run does what views say, one after another, and tries again what failed, until ctx ends.
func (f *Follower[R]) Run(ctx context.Context) {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	unfinished := f.Reconcile(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case view, ok := <-f.views:
			if !ok {
				return
			}
			began := time.Now()
			f.See(view)
			unfinished = f.Reconcile(ctx)
			// While very many groups are made, views must not keep a processor busy: the newest one waits a little,
			// those between are left out.
			if cost := time.Since(began); cost > viewCostMax {
				backoff.Sleep(ctx, min(2*cost, viewPauseMax))
			}
		case <-f.nudged:
			unfinished = f.Reconcile(ctx)
		case <-again.C:
			if unfinished {
				unfinished = f.Reconcile(ctx)
			}
		}
	}
}

// Nudge has Run look again. It never blocks.
func (f *Follower[R]) Nudge() {
	select {
	case f.nudged <- struct{}{}:
	default:
	}
}

// Reconcile compares the volume with the view, and does what follows. True: something is left to do.
func (f *Follower[R]) Reconcile(ctx context.Context) (unfinished bool) {
	f.Lock.Lock()
	view := f.View
	todo := f.Decide(view)
	f.Hands.Publish()
	f.forgetDone(todo)
	f.Lock.Unlock()
	if todo.acts() && f.remember(view) != nil {
		// An older etcd could not be told from this one later: what may wait does.
		todo = Work[R]{Load: todo.Load, Join: todo.Join, Reinstall: todo.Reinstall, Close: todo.Close, Later: true}
	}

	for _, r := range todo.Close {
		if err := f.Hands.Close(ctx, r); err != nil {
			f.Problems.Note("closing group "+r.Known().Name, err)
		}
	}
	for _, r := range todo.Load {
		f.Hands.Load(r)
	}
	for _, r := range todo.Join {
		f.Hands.Join(r)
	}
	for _, r := range todo.Reinstall {
		f.Hands.Reinstall(r)
	}
	for _, r := range todo.Trash {
		name := r.Known().Name
		left, err := f.hasLeftNow(ctx, r)
		if err == nil && !left {
			f.Problems.Note("leaving group "+name, nil)
			unfinished = true // the next view says what it is
			continue
		}
		if err == nil {
			err = f.Hands.Trash(ctx, r)
		}
		f.Problems.Note("leaving group "+name, err)
		unfinished = unfinished || err != nil || IsOwn(view, name, f.Shard)
	}
	failed := todo.Later
	for _, some := range []struct {
		groups []placement.Group
		do     func(ctx context.Context, state placement.Group) error
	}{{todo.Create, f.create}, {todo.Announce, f.announce}, {todo.Confess, f.confess}, {todo.Claim, f.claim}} {
		failed = f.inParallel(ctx, some.groups, some.do) || failed
	}
	notBegun := f.inParallel(ctx, todo.MakeFolder, func(_ context.Context, state placement.Group) error {
		return f.Hands.MakeFolder(state)
	})
	if len(todo.MakeFolder) > 0 && !notBegun {
		return f.Reconcile(ctx) || unfinished // which installs them
	}
	return unfinished || notBegun || failed
}

// groupProblem is what the problem with making a group, or with telling etcd of it, is known by.
func groupProblem(group string) string { return "group " + group }

// forgetDone takes back what was said of groups for which nothing is left to do: others did it, or it is not wanted any
// more.
func (f *Follower[R]) forgetDone(todo Work[R]) {
	wanted := map[string]bool{}
	for _, state := range todo.groups() {
		wanted[groupProblem(state.Name)] = true
	}
	f.Problems.Forget(func(what string) bool { return strings.HasPrefix(what, groupProblem("")) && !wanted[what] })
}

// errLater: what is to be done waits for something else here.
var errLater = errors.New("later")

// inParallel does at most 16 at a time; true where one failed.
func (f *Follower[R]) inParallel(
	ctx context.Context, groups []placement.Group, do func(context.Context, placement.Group) error,
) (failed bool) {
	var all errgroup.Group
	all.SetLimit(16)
	for _, state := range groups {
		all.Go(func() error {
			err := do(ctx, state)
			if errors.Is(err, placement.ErrChanged) || ctx.Err() != nil && f.ForgiveStop {
				err = nil // the next view says what to do
			}
			// An error in a shard that stops is nobody's problem, and nothing is done all the same.
			if !errors.Is(err, errLater) && (err == nil || ctx.Err() == nil) {
				f.Problems.Note(groupProblem(state.Name), err)
			}
			return err
		})
	}
	return all.Wait() != nil
}

// Here are the members of a group on this shard and volume: usually one.
func (f *Follower[R]) Here(state placement.Group) []placement.Member {
	return member.Here(state, f.Shard, f.Volume().Superblock().Volume)
}

// Group is what etcd holds of a group.
type Group struct {
	placement.Group
	Target  []string
	Shards  map[string]placement.Shard
	Domains map[string]string // failure domains of shards, also of those that are not registered any more
}

// StateOf is what etcd says of the group of a replica, as this shard knows it; false: nothing.
func (f *Follower[R]) StateOf(owned R) (Group, bool) {
	f.Lock.Lock()
	defer f.Lock.Unlock()
	r := owned.Known()
	state, ok := f.View.Groups[r.Name]
	if !ok || state.UUID != r.UUID {
		return Group{}, false
	}
	if r.Stored.Revision > state.Revision {
		state = r.Stored
	}
	return Group{Group: state, Target: f.View.Targets[r.Name].Shards, Shards: f.View.Shards,
		Domains: f.neighbours.allDomains()}, true
}

// Address of a shard, as etcd last said; false: it was never heard of.
func (f *Follower[R]) Address(shard string) (string, bool) { return f.neighbours.address(shard) }

// own says which groups this shard follows.
func (f *Follower[R]) own(holds func(group uuid.UUID) bool) placement.Own {
	return placement.Own{Shard: f.Shard, Volume: f.Volume().Superblock().Volume, Holds: holds, Held: f.heldNames}
}

// heldNames are the names of the groups that have a folder on the volume, as far as they are known.
func (f *Follower[R]) heldNames() []string {
	f.Lock.Lock()
	defer f.Lock.Unlock()
	names := make([]string, 0, len(f.Replicas))
	for _, r := range f.Replicas {
		if name := r.Known().Name; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// holds tells whether a group has a folder on the volume.
func (f *Follower[R]) holds(group uuid.UUID) bool {
	f.Lock.Lock()
	defer f.Lock.Unlock()
	_, ok := f.Replicas[group]
	return ok
}
