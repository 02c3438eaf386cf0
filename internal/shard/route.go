package shard

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/follow"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

// notServed returns the error for a call to a group that this shard does not serve. The error tells the caller which
// shard to call, if that is known.
func (s *Shard) notServed(ctx context.Context, r *replicas.Routes, name string, epoch uint64) error {
	if s.stopping.Load() {
		return answer.Stopping()
	}
	if r.ByName == nil {
		return answer.Loading(name, 0)
	}
	if g := r.ByName[name]; g != nil {
		if address := s.otherMember(r.View, name); address != "" {
			return answer.NotLeader(name, address, r.Epoch)
		}
		return unavailable(g, s.cfg.Name, s.loading.ETA())
	}
	view := r.View
	if r.Held {
		return answer.Loading(name, follow.SafeModeRetry) // etcd was rolled back, and may not know yet where the group is
	}
	behind := epoch > r.Epoch // the caller has seen a newer view than this shard
	if view.Own && (behind || !replicas.IsOwn(view, name, s.cfg.Name)) {
		// This shard's view does not contain the groups of other shards.
		var err error
		if view, err = s.lookups.find(ctx, name, epoch); err != nil {
			return s.notFollowed(ctx, r, name)
		}
		behind = epoch > view.Epoch || replicas.IsOwn(view, name, s.cfg.Name) &&
			(view.Groups[name].Revision != r.View.Groups[name].Revision ||
				view.Targets[name].Revision != r.View.Targets[name].Revision)
	}
	state, known := view.Groups[name]
	if err := s.founded(state); err != nil {
		return err
	}
	switch {
	// Either this shard's view is outdated, or a shard is about to create or restore the group.
	case behind, state.Restoring, slices.Contains(view.Targets[name].Shards, s.cfg.Name) && len(state.Members) == 0:
		return answer.Loading(name, 0)
	case !known && s.meta.Routing.Mode == placement.Named:
		return answer.GroupNotFound(name)
	}
	if err := s.anothersFolder(r, state); err != nil {
		return err
	}
	return answer.WrongShard(name, addressOf(view, state), view.Epoch)
}

// notFollowed returns the error for a call to a group that could not be looked up in etcd. The caller must try other
// shards, unless the group is one of this shard's own.
func (s *Shard) notFollowed(ctx context.Context, r *replicas.Routes, name string) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case replicas.IsOwn(r.View, name, s.cfg.Name):
		return answer.Loading(name, 0)
	}
	return answer.WrongShard(name, "", r.Epoch)
}

// founded returns the error for a call to a restored group whose founder is on this shard, but does not serve calls
// yet. It returns nil if there is no such founder.
func (s *Shard) founded(state placement.Group) error {
	g := s.replicas.Find(state.UUID)
	if g == nil {
		return nil
	}
	if known := g.State(); !known.Founder || known.Standing.Apart() {
		return nil
	}
	eta := s.loading.ETA()
	if c := g.Copying(); c != nil {
		eta = c.ETA()
	}
	return unavailable(g, s.cfg.Name, eta)
}

// anothersFolder returns an error if etcd places a group on this shard, but the folder with the group's UUID holds
// the files of another group. Otherwise it returns nil. The error lasts until an operator has put the right files
// back.
func (s *Shard) anothersFolder(r *replicas.Routes, state placement.Group) error {
	if len(s.replicas.Here(state)) == 0 {
		return nil
	}
	reason := ""
	if g := s.replicas.Find(state.UUID); g != nil {
		if known := g.State(); known.Name != "" && known.Name != state.Name {
			reason = known.Standing.String()
		}
	}
	if reason == "" {
		return nil
	}
	if address := s.otherMember(r.View, state.Name); address != "" {
		return answer.NotLeader(state.Name, address, r.Epoch)
	}
	return answer.Failed(state.Name, s.cfg.Name, errors.New(reason))
}

// addressOf returns the address of a group's leader, or of a live member. It returns an empty string if the group has
// neither.
func addressOf(view placement.View, state placement.Group) string {
	if leader, ok := view.Shards[state.Leader]; ok {
		return leader.Address
	}
	for _, m := range state.Members {
		if shard, ok := view.Shards[m.Shard]; ok {
			return shard.Address
		}
	}
	return ""
}

// otherMember returns the address of a shard that can serve a group while this shard cannot. It returns an empty string
// if there is no such shard.
func (s *Shard) otherMember(view placement.View, name string) string {
	state := view.Groups[name]
	if !member.IsShared(state) || state.Leader == s.cfg.Name {
		return ""
	}
	address, _ := s.replicas.Address(state.Leader)
	return address
}

// unavailable returns the error for a call to a group that does not serve on the named shard.
func unavailable(g *replicas.Replica, shard string, eta time.Duration) error {
	switch known := g.State(); {
	case known.Phase == member.Lost:
		return answer.Lost(g.Name, known.Err)
	case known.Phase.Broken():
		return answer.Failed(g.Name, shard, known.Err)
	default:
		return answer.Loading(g.Name, eta)
	}
}

// A shard follows only its own groups (registry.Store.Follow). If a client sends it a call to another group by
// mistake, the shard looks up that group in etcd.

const (
	lookupTime   = 2 * time.Second
	lookupKeep   = time.Second // time for which all calls use the result of one lookup
	lookupsMax   = 16          // maximum number of lookups in progress
	lookupsKnown = 4096
)

// errBusyLookups means that the maximum number of lookups is already in progress.
var errBusyLookups = errors.New("too many groups that are elsewhere are asked for")

// lookups asks etcd for groups that this shard does not follow, and caches the responses briefly.
type lookups struct {
	ask   func(group string) (placement.View, error) // looks up a group in etcd
	begin func(func())                               // runs a function in the background

	mu      sync.Mutex
	running int
	recent  map[string]*lookup // by group name
}

// lookup is one request to etcd. Its result may be read when done is closed.
type lookup struct {
	began time.Time
	done  chan struct{}
	view  placement.View
	err   error
}

// isOver reports whether callers with the given epoch need a new lookup, because this one has failed, or because its
// result is too old for them.
func (l *lookup) isOver(epoch uint64) bool {
	select {
	case <-l.done:
		return time.Since(l.began) > lookupKeep || l.err != nil || l.view.Epoch < epoch
	default:
		return false
	}
}

// find asks etcd for a view of one group. It returns a view that is older than the given epoch only if etcd itself
// has nothing newer.
func (q *lookups) find(ctx context.Context, name string, epoch uint64) (placement.View, error) {
	q.mu.Lock()
	l := q.recent[name]
	if l == nil || l.isOver(epoch) {
		if q.running >= lookupsMax {
			q.mu.Unlock()
			return placement.View{}, errBusyLookups
		}
		if len(q.recent) >= lookupsKnown || q.recent == nil {
			q.recent = map[string]*lookup{}
		}
		l = &lookup{began: time.Now(), done: make(chan struct{})}
		q.recent[name] = l
		q.running++
		q.begin(func() {
			view, err := q.ask(name)
			q.mu.Lock()
			defer q.mu.Unlock()
			l.view, l.err = view, err
			// Closing the channel wakes callers, which may look up another group, so this lookup must no longer count as
			// running.
			q.running--
			close(l.done)
		})
	}
	q.mu.Unlock()
	select {
	case <-l.done:
		return l.view, l.err
	case <-ctx.Done():
		return placement.View{}, ctx.Err()
	}
}
