// Package follow brings the groups on a shard's volume to their state in etcd. The Watcher receives views of etcd,
// package replicas keeps the views and decides about each group, and the Actions of the Watcher carry out the
// decisions.
package follow

import (
	"cmp"
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

// Options holds everything that a Watcher may use.
type Options struct {
	Store   func() uuid.UUID
	Volume  func() *volume.Volume // returns the open volume
	Facts   func() (volume.Facts, error)
	Etcd    Etcd
	Actions Actions
	// Ask asks another shard for the contents of its volume.
	Ask      func(ctx context.Context, shard placement.Shard) (rescue.FoundVolume, error)
	Replicas *replicas.Set
	Problems *problems.List
	Logger   *slog.Logger

	// RememberQuiet is the interval at which the revision of etcd is written to the volume as long as no change in etcd
	// concerns this shard.
	RememberQuiet time.Duration
	// Adopt makes the shard take over the members that etcd places on this shard's volume under the name of another
	// shard. It takes them over only if that other shard is not registered.
	Adopt bool
}

// Etcd is the part of *registry.Store that a Watcher needs; its methods are documented in package registry.
type Etcd interface {
	Follow(ctx context.Context, before placement.Progress, own placement.Own) <-chan placement.View
	Look(ctx context.Context, group string) (placement.View, error)
	PutGroup(ctx context.Context, g placement.Group) (placement.Group, error)
	Freeze(ctx context.Context, by, reason string) error
	Reconcile(ctx context.Context, r rescue.Rebuilt, silent []string) (rescue.Reconciled, error)
	Unreconciled(ctx context.Context, why ...string) error
	Newest(m placement.Mark) placement.Mark
}

// Actions carries out the decisions of a Watcher about replicas.
type Actions interface {
	// Connect keeps connections to exactly these shards. It does not wait for them.
	Connect(shards []string)

	// Load begins to load a replica. Join begins to install a replica that is empty, from another copy or from the source
	// of a restore. Reinstall begins to reinstall a
	// replica that lacks entries. None of the three methods waits for the result.
	Load(r *replicas.Replica)
	Join(r *replicas.Replica)
	Reinstall(r *replicas.Replica)
	// LoadNow loads a replica and waits for the result. Replica.Served then shows whether the replica serves.
	LoadNow(ctx context.Context, r *replicas.Replica)
	// Close takes a replica out of service, and keeps its files.
	Close(ctx context.Context, r *replicas.Replica) error
	// Trash closes a replica that has left its group, and moves its files to the trash.
	Trash(ctx context.Context, r *replicas.Replica) error
	// Create creates a group and loads it.
	Create(ctx context.Context, state placement.Group) error
	// MakeFolder creates the folder of a learner on this shard, or that of a founder if the group is restored.
	MakeFolder(state placement.Group) error
	// Settle records on the volume that etcd now lists the replica as a member. It is called for the first replica of a
	// restored group.
	Settle(r *replicas.Replica) error
}

// Watcher follows etcd for one shard. Call Start first, then call Run and LeaveSafeMode concurrently. All other methods
// are safe for concurrent use.
type Watcher struct {
	Options
	seen  memory
	views <-chan placement.View // set by Start
}

// New creates a Watcher. It does nothing until Start is called.
func New(opts Options) *Watcher { return &Watcher{Options: opts} }

// Start receives the first view of etcd, and decides about the replicas on the volume. Run carries out these
// decisions later. If etcd was rolled back, Start records that in etcd before it returns, so that no planner assigns
// groups to the shard on the basis of the older state. ctx bounds only the start.
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
		_ = f.remember(view) // the error becomes a problem of the shard
		f.decide(view)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the first view of etcd: %w", ctx.Err())
	}
}

// decide makes the decisions about all groups, connects this shard to its peers, asks the Steerer to examine changed
// groups, and returns the remaining work.
func (f *Watcher) decide(view placement.View) replicas.Work {
	todo := f.Replicas.Decide(view)
	f.Actions.Connect(todo.Peers)
	for _, r := range todo.Look {
		r.AskLook()
	}
	return todo
}

// If it takes longer than viewCostMax to process a view, Run pauses afterwards, for at most viewPauseMax.
const (
	viewCostMax  = 10 * time.Millisecond
	viewPauseMax = 100 * time.Millisecond
)

// Run acts on one view after another, and retries failed actions, until ctx is done.
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
			// While many groups are being created, views must not keep a processor busy. So the newest view waits
			// briefly, and the views in between are skipped.
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

// Reconcile compares the volume with the view and acts on the differences. It returns true if some work is
// unfinished.
func (f *Watcher) Reconcile(ctx context.Context) (unfinished bool) {
	view := f.Replicas.View()
	todo := f.decide(view)
	f.forgetDone(todo)
	if todo.Acts() && f.remember(view) != nil {
		// The volume could not record the revision of this view. Without that record, the shard could not tell an older etcd
		// from the current one, so only urgent work is done.
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
		name := cmp.Or(r.Name, r.UUID.String())
		left, err := f.hasLeftNow(ctx, r)
		if err == nil && !left {
			f.Problems.Note("leaving group "+name, nil)
			unfinished = true // the next view decides what to do
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
	}{{todo.Create, f.create}, {todo.Announce, f.announce}, {todo.Settle, f.settle}, {todo.Missing, f.reportMissing},
		{todo.Present, f.reportPresent}} {
		failed = f.inParallel(ctx, some.groups, some.do) || failed
	}
	notBegun := f.inParallel(ctx, todo.MakeFolder, func(_ context.Context, state placement.Group) error {
		return f.Actions.MakeFolder(state)
	})
	if len(todo.MakeFolder) > 0 && !notBegun {
		return f.Reconcile(ctx) || unfinished // a second pass installs these replicas
	}
	return unfinished || notBegun || failed
}

// groupProblem returns the name of a problem with creating a group or with reporting it to etcd.
func groupProblem(group string) string { return "group " + group }

// forgetDone removes the problems of groups for which no work is left, because other shards have done the work, or
// because the work is no longer wanted.
func (f *Watcher) forgetDone(todo replicas.Work) {
	wanted := map[string]bool{}
	for _, state := range todo.Groups() {
		wanted[groupProblem(state.Name)] = true
	}
	f.Problems.Forget(func(what string) bool { return strings.HasPrefix(what, groupProblem("")) && !wanted[what] })
}

// errLater means that the action must wait for other work of this shard.
var errLater = errors.New("later")

// inParallel calls do for each group, at most 16 at a time, and reports whether a call failed.
func (f *Watcher) inParallel(
	ctx context.Context, groups []placement.Group, do func(context.Context, placement.Group) error,
) (failed bool) {
	var all errgroup.Group
	all.SetLimit(16)
	for _, state := range groups {
		all.Go(func() error {
			err := do(ctx, state)
			if errors.Is(err, placement.ErrChanged) || ctx.Err() != nil && !f.Replicas.Off.Keeps(rules.Stop) {
				err = nil // the next view decides how to continue
			}
			// While a shard stops, errors are expected and are not shown as problems.
			if !errors.Is(err, errLater) && (err == nil || ctx.Err() == nil) {
				f.Problems.Note(groupProblem(state.Name), err)
			}
			return err
		})
	}
	return all.Wait() != nil
}
