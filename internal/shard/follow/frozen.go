package follow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// The volume stores facts about etcd. From these facts, the shard recognizes an etcd that was restored from an older
// backup. Until such an etcd is reconciled, the shard does not act on its state: groups that are served continue,
// groups that etcd places on the shard are loaded, but no replica is created, moved or deleted (rule 9).

const (
	// SafeModeRetry is the time between two attempts to end a freeze.
	SafeModeRetry = time.Second
	rememberEvery = 5 * time.Second // time between two writes of the facts, as long as views require no action
	surveyTime    = 5 * time.Second // time limit for one shard's response
	reconcileTime = 10 * time.Second
)

// memory holds the facts about the store that are on the volume.
type memory struct {
	mu    sync.Mutex
	facts volume.Facts // the facts as last written
	at    time.Time
	newer bool // a newer program wrote the facts, so they are left unchanged
}

// recall reads the facts about etcd that are stored on the volume.
func (f *Watcher) recall() placement.Progress {
	m := &f.seen
	m.mu.Lock()
	defer m.mu.Unlock()
	facts, err := f.Facts()
	switch {
	case errors.Is(err, volume.ErrFormatVersion):
		m.newer = true
		f.Logger.Warn("what the volume remembers of its store was written by a newer program", "error", err)
	case errors.Is(err, volume.ErrNoFacts):
	case err != nil:
		f.Logger.Error("what the volume remembers of its store cannot be read: an older etcd is not recognised by it",
			"error", err)
	case facts.Store == f.Store():
		m.facts = facts
		return placement.Progress{Store: f.Store(), Mark: markOf(facts)}
	}
	return placement.Progress{}
}

func markOf(f volume.Facts) placement.Mark {
	return placement.Mark{
		Base: f.EtcdBase, Revision: f.EtcdRevision, Content: f.EtcdContent, ContentKey: f.EtcdContentKey,
		Cluster: f.EtcdCluster,
	}
}

// remember records on the volume the newest etcd revision that the shard has seen. It must be called before the shard
// acts on that revision.
func (f *Watcher) remember(view placement.View) error {
	if view.Held() != "" {
		return nil
	}
	m := &f.seen
	m.mu.Lock()
	defer m.mu.Unlock()
	meta := f.Replicas.Meta()
	facts := volume.Facts{
		Routing: string(meta.Routing.Mode), Groups: meta.Routing.Groups, Copies: meta.Copies,
		GroupsMax: meta.GroupsMax, Created: meta.CreatedUTC, Epoch: max(view.Epoch, m.facts.Epoch),
		EtcdBase: view.Mark.Base, EtcdRevision: view.Mark.Revision, EtcdContent: view.Mark.Content,
		EtcdContentKey: view.Mark.ContentKey,
		EtcdCluster:    view.Mark.Cluster,
	}
	there := m.facts
	there.Format, there.Store = 0, uuid.Nil
	if m.newer || there == facts || markOf(facts).Behind(placement.Mark{Base: there.EtcdBase,
		Revision: there.EtcdRevision}) != "" {
		return nil // the facts on the volume are at least as new
	}
	err := f.Volume().WriteFacts(facts)
	if err == nil {
		m.facts, m.at = facts, time.Now()
	}
	f.Problems.Note("remembering the store on the volume", err)
	return err
}

// rememberLater calls remember for views that require no action, but only at a limited rate. A revision that results
// from a write about another shard is recorded even less often, so that an idle volume is rarely written to.
func (f *Watcher) rememberLater() {
	view := f.Replicas.View()
	f.seen.mu.Lock()
	age := time.Since(f.seen.at)
	f.seen.mu.Unlock()
	if age > f.RememberQuiet {
		view.Mark = f.Etcd.Newest(view.Mark)
	}
	if age > min(rememberEvery, f.RememberQuiet) {
		_ = f.remember(view) // the error becomes a problem of the shard
	}
}

// See processes a view. A view of an etcd that was rolled back does not replace earlier knowledge.
func (f *Watcher) See(view placement.View) {
	f.Replicas.See(view)
	var err error
	if held := view.Held(); held != "" {
		err = errors.New(held)
	}
	f.Problems.Note("following etcd", err)
}

// freeze records in etcd that etcd was rolled back, if this shard is the first to notice. All other shards see that
// record.
func (f *Watcher) freeze(ctx context.Context) error {
	told := f.Replicas.Newest()
	if told.SetBack == "" || told.Freeze != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	return f.Etcd.Freeze(ctx, "shard "+f.Replicas.Shard, told.SetBack)
}

// LeaveSafeMode ends each freeze, until ctx is done.
func (f *Watcher) LeaveSafeMode(ctx context.Context) {
	for backoff.Sleep(ctx, SafeModeRetry) {
		if !f.Replicas.IsHeld() {
			f.rememberLater()
			continue
		}
		err := f.freeze(ctx)
		if err == nil {
			err = f.leaveSafeMode(ctx)
		}
		if errors.Is(err, placement.ErrChanged) || ctx.Err() != nil {
			err = nil // the next attempt follows after a pause
		}
		f.Problems.Note("reconciling etcd", err)
	}
}

// leaveSafeMode asks all registered shards for the contents of their volumes, and corrects the state in etcd
// accordingly. Only one shard does this: the registered shard whose name sorts first.
func (f *Watcher) leaveSafeMode(ctx context.Context) error {
	told := f.Replicas.Newest()
	if told.Freeze == nil || !isFirst(told, f.Replicas.Shard) {
		return nil
	}
	volumes, silent := f.surveyAll(ctx, told)
	ctx, cancel := context.WithTimeout(ctx, reconcileTime)
	defer cancel()
	rebuilt, err := rescue.Rebuild(f.Store(), volumes, rescue.FactsOf(told))
	if err != nil {
		return f.Etcd.Unreconciled(ctx, append([]string{err.Error()}, silent...)...)
	}
	done, err := f.Etcd.Reconcile(ctx, rebuilt, silent)
	if err == nil && len(done.Waits) == 0 {
		f.Logger.Warn("etcd was reconciled with what the shards' volumes hold", "groups", len(rebuilt.Groups), "written",
			done.Written)
	}
	return err
}

// isFirst reports whether a shard's name sorts before the names of all other registered shards.
func isFirst(view placement.View, shard string) bool {
	for name := range view.Shards {
		if name < shard {
			return false
		}
	}
	_, registered := view.Shards[shard]
	return registered
}

// surveyAll asks each shard for the contents of its volume. silent describes the shards that did not respond.
func (f *Watcher) surveyAll(ctx context.Context, view placement.View) (volumes []rescue.FoundVolume,
	silent []string) {
	var mu sync.Mutex
	parallel.Each(maps.Values(view.Shards), 16, func(shard placement.Shard) {
		ctx, cancel := context.WithTimeout(ctx, surveyTime)
		defer cancel()
		v, err := f.Ask(ctx, shard)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			silent = append(silent, fmt.Sprintf("shard %s at %s does not answer: %v", shard.Name, shard.Address, err))
			return
		}
		volumes = append(volumes, v)
	})
	slices.Sort(silent)
	return volumes, silent
}
