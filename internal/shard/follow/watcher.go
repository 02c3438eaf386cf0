// Package follow makes a shard carry out what etcd says of the groups on its volume. The Watcher receives views of
// etcd, package replicas keeps them and decides about each group, and the Actions of the Watcher carry the decisions
// out.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// Options hold everything that a Watcher may use.
type Options struct {
	Store   func() uuid.UUID
	Volume  func() *volume.Volume // the open volume
	Facts   func() (volume.Facts, error)
	Etcd    Etcd
	Actions Actions
	// Ask asks another shard what its volume holds.
	Ask      func(ctx context.Context, shard placement.Shard) (rescue.FoundVolume, error)
	Replicas *replicas.Set
	Problems *problems.List
	Logger   *slog.Logger

	// RememberQuiet is how often the volume records the revision of etcd when nothing in it concerned this shard.
	RememberQuiet time.Duration
	// Adopt makes the shard take over groups that etcd assigns to another shard on this same volume, if that shard is not
	// registered.
	Adopt bool
}

// Etcd is the part of *registry.Store that a Watcher needs; the methods are documented there.
type Etcd interface {
	Follow(ctx context.Context, before placement.Progress, own placement.Own) <-chan placement.View
	Look(ctx context.Context, group string) (placement.View, error)
	PutGroup(ctx context.Context, g placement.Group) (placement.Group, error)
	Freeze(ctx context.Context, by, reason string) error
	Reconcile(ctx context.Context, r rescue.Rebuilt, silent []string) (rescue.Reconciled, error)
	Unreconciled(ctx context.Context, why ...string) error
	Newest(m placement.Mark) placement.Mark
}

// Actions carries out what a Watcher decides about replicas.
type Actions interface {
	// Connect keeps connections to these shards and to no others. It does not wait.
	Connect(shards []string)

	// Load begins to load a replica. Join begins to install a replica that is empty. Reinstall begins to install a
	// replica again that lacks entries that count. They do not wait.
	Load(r *replicas.Replica)
	Join(r *replicas.Replica)
	Reinstall(r *replicas.Replica)
	// LoadNow loads a replica and waits for it. Replica.Served then says whether the replica serves.
	LoadNow(ctx context.Context, r *replicas.Replica)
	// Close takes a replica out of service, and keeps its files.
	Close(ctx context.Context, r *replicas.Replica) error
	// Trash closes a replica that has left its group, and moves its files to the trash.
	Trash(ctx context.Context, r *replicas.Replica) error
	// Create makes a group and loads it.
	Create(ctx context.Context, state placement.Group) error
	// MakeFolder makes the folder of a learner of this shard.
	MakeFolder(state placement.Group) error
}

// Watcher follows etcd for one shard. Call Start first, then call Run and LeaveSafeMode concurrently. All other methods
// are safe for concurrent use.
type Watcher struct {
	Options
	seen  memory
	views <-chan placement.View // set by Start
}

// New makes a Watcher. It follows nothing before Start.
func New(opts Options) *Watcher { return &Watcher{Options: opts} }

// Start receives the first view of etcd and decides about what is on the volume; Run carries the decisions out. If etcd
// was set back, Start records that in etcd before it returns, so that no planner assigns groups to the shard because of
// the older state. ctx bounds the start.
func (f *Watcher) Start(ctx context.Context) error {
	f.views = f.Etcd.Follow(f.Replicas.Background, f.recall(), f.Replicas.Own())
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
		f.Replicas.Retire(view)
		if err := registry.Patiently(ctx, f.Logger, f.freeze); err != nil {
			return fmt.Errorf("etcd was set back, and cannot be informed: %w", err)
		}
		_ = f.remember(view) // the error is shown as a problem
		f.decide(view)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the first view of etcd: %w", ctx.Err())
	}
}

// decide decides about all groups, connects the peers of this shard, requests looks at changed groups, and returns the
// work that is left.
func (f *Watcher) decide(view placement.View) replicas.Work {
	todo := f.Replicas.Decide(view)
	f.Actions.Connect(todo.Peers)
	for _, r := range todo.Look {
		r.AskLook()
	}
	return todo
}

// A view that takes longer than viewCostMax is followed by a pause of at most viewPauseMax.
const (
	viewCostMax  = 10 * time.Millisecond
	viewPauseMax = 100 * time.Millisecond
)

// Run carries out what the views say, one view after another, and retries what failed, until ctx ends.
func (f *Watcher) Run(ctx context.Context) {
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
			// While very many groups are created, views must not keep a processor busy: the newest view waits a little,
			// and those in between are skipped.
			if cost := time.Since(began); cost > viewCostMax {
				backoff.Sleep(ctx, min(2*cost, viewPauseMax))
			}
		case <-f.Replicas.Woken:
			unfinished = f.Reconcile(ctx)
		case <-again.C:
			if unfinished {
				unfinished = f.Reconcile(ctx)
			}
		}
	}
}

// Reconcile compares the volume with the view and acts on the differences. It returns true if something is left to do.
func (f *Watcher) Reconcile(ctx context.Context) (unfinished bool) {
	view := f.Replicas.View()
	todo := f.decide(view)
	f.forgetDone(todo)
	if todo.Acts() && f.remember(view) != nil {
		// The volume could not record the revision of this view. An older etcd could then not be distinguished from the
		// present one, so only urgent work is done.
		todo = replicas.Work{Load: todo.Load, Join: todo.Join, Reinstall: todo.Reinstall, Close: todo.Close, Later: true}
	}

	for _, r := range todo.Close {
		if err := f.Actions.Close(ctx, r); err != nil {
			f.Problems.Note("closing group "+r.Name, err)
		}
	}
	for _, r := range todo.Load {
		f.Actions.Load(r)
	}
	for _, r := range todo.Join {
		f.Actions.Join(r)
	}
	for _, r := range todo.Reinstall {
		f.Actions.Reinstall(r)
	}
	for _, r := range todo.Trash {
		name := r.Name
		left, err := f.hasLeftNow(ctx, r)
		if err == nil && !left {
			f.Problems.Note("leaving group "+name, nil)
			unfinished = true // the next view decides
			continue
		}
		if err == nil {
			err = f.Actions.Trash(ctx, r)
		}
		f.Problems.Note("leaving group "+name, err)
		unfinished = unfinished || err != nil || replicas.IsOwn(view, name, f.Replicas.Shard)
	}
	failed := todo.Later
	for _, some := range []struct {
		groups []placement.Group
		do     func(ctx context.Context, state placement.Group) error
	}{{todo.Create, f.create}, {todo.Announce, f.announce}, {todo.Missing, f.reportMissing},
		{todo.Present, f.reportPresent}} {
		failed = f.inParallel(ctx, some.groups, some.do) || failed
	}
	notBegun := f.inParallel(ctx, todo.MakeFolder, func(_ context.Context, state placement.Group) error {
		return f.Actions.MakeFolder(state)
	})
	if len(todo.MakeFolder) > 0 && !notBegun {
		return f.Reconcile(ctx) || unfinished // the second pass installs them
	}
	return unfinished || notBegun || failed
}

// groupProblem is the name of a problem with creating a group or with reporting it to etcd.
func groupProblem(group string) string { return "group " + group }

// forgetDone removes the problems of groups for which no work is left: other shards have done the work, or it is no
// longer wanted.
func (f *Watcher) forgetDone(todo replicas.Work) {
	wanted := map[string]bool{}
	for _, state := range todo.Groups() {
		wanted[groupProblem(state.Name)] = true
	}
	f.Problems.Forget(func(what string) bool { return strings.HasPrefix(what, groupProblem("")) && !wanted[what] })
}

// errLater means that the work must wait for something else on this shard.
var errLater = errors.New("later")

// inParallel calls the function do for each group, at most 16 at a time, and reports whether a call failed.
func (f *Watcher) inParallel(
	ctx context.Context, groups []placement.Group, do func(context.Context, placement.Group) error,
) (failed bool) {
	var all errgroup.Group
	all.SetLimit(16)
	for _, state := range groups {
		all.Go(func() error {
			err := do(ctx, state)
			if errors.Is(err, placement.ErrChanged) || ctx.Err() != nil && !f.Replicas.Off.Keeps(rules.Stop) {
				err = nil // the next view says what to do
			}
			// In a shard that stops, errors are expected and are not shown as problems.
			if !errors.Is(err, errLater) && (err == nil || ctx.Err() == nil) {
				f.Problems.Note(groupProblem(state.Name), err)
			}
			return err
		})
	}
	return all.Wait() != nil
}
