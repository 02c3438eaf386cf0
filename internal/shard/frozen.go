package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/survey"
	"sheaf.dev/sheaf/internal/volume"
)

// An etcd that was set back to an older backup is recognised by what the volume remembers of it. Until it is reconciled
// nothing is done on its word: what serves goes on, what it names here is loaded, and no replica is made, moved or
// deleted (rule 9).

const (
	rememberEvery = 5 * time.Second // what was seen, where nothing was done on its word
	rememberQuiet = time.Minute     // how far etcd is, where nothing in it concerned this shard
	thawEvery     = time.Second
	surveyTime    = 5 * time.Second
)

// memory is what the volume remembers of its store.
type memory struct {
	mu    sync.Mutex
	facts volume.Facts // as written last
	at    time.Time
	newer bool // a newer program wrote them: they are left as they are
}

// recall reads what the volume remembers.
func (s *Shard) recall() placement.Seen {
	m := &s.seen
	m.mu.Lock()
	defer m.mu.Unlock()
	facts, err := volume.ReadFacts(s.cfg.FS, s.cfg.Dir)
	switch {
	case errors.Is(err, volume.ErrFormatVersion):
		m.newer = true
		s.logger.Warn("what the volume remembers of its store was written by a newer program", "error", err)
	case errors.Is(err, volume.ErrNoFacts):
	case err != nil:
		s.logger.Error("what the volume remembers of its store cannot be read: an older etcd is not recognised by it", "error", err)
	case facts.Store == s.store:
		m.facts = facts
		return placement.Seen{Store: s.store, Mark: markOf(facts)}
	}
	return placement.Seen{}
}

func markOf(f volume.Facts) placement.Mark {
	return placement.Mark{
		Base: f.EtcdBase, Revision: f.EtcdRevision, Content: f.EtcdContent, ContentKey: f.EtcdContentKey, Cluster: f.EtcdCluster,
	}
}

// remember makes the volume know how far etcd was seen. It is called before anything is done that an older etcd would
// not know of.
func (s *Shard) remember(view placement.View) error {
	if view.Held() != "" {
		return nil
	}
	m := &s.seen
	m.mu.Lock()
	defer m.mu.Unlock()
	facts := volume.Facts{
		Routing: string(s.meta.Routing.Mode), Groups: s.meta.Routing.Groups, Copies: s.meta.Copies,
		GroupsMax: s.meta.GroupsMax, Created: s.meta.CreatedUTC, Epoch: max(view.Epoch, m.facts.Epoch),
		EtcdBase: view.Mark.Base, EtcdRevision: view.Mark.Revision, EtcdContent: view.Mark.Content, EtcdContentKey: view.Mark.ContentKey,
		EtcdCluster: view.Mark.Cluster,
	}
	there := m.facts
	there.Format, there.Store = 0, uuid.Nil
	if m.newer || there == facts || markOf(facts).Behind(placement.Mark{Base: there.EtcdBase, Revision: there.EtcdRevision}) != "" {
		return nil // what is known is as new
	}
	err := s.volume.WriteFacts(facts)
	if err == nil {
		m.facts, m.at = facts, time.Now()
	}
	s.problems.note("remembering the store on the volume", err)
	return err
}

// rememberLater is remember of a view on whose word nothing was done, not too often. How far etcd is since then, by
// writes that do not concern this shard, is remembered more seldom: a quiet volume is left in peace.
func (s *Shard) rememberLater() {
	s.mu.Lock()
	view := s.view
	s.mu.Unlock()
	s.seen.mu.Lock()
	age := time.Since(s.seen.at)
	s.seen.mu.Unlock()
	if age > s.cfg.rememberQuiet {
		view.Mark = s.cfg.Placement.Newest(view.Mark)
	}
	if age > min(rememberEvery, s.cfg.rememberQuiet) {
		_ = s.remember(view) // it is a problem that is shown
	}
}

// see takes a view in. A view of an etcd that was set back does not take the place of what was known before.
func (s *Shard) see(view placement.View) {
	held := view.Held()
	s.mu.Lock()
	if view.Own { // after a listing it is of everything
		view = view.Of(s.own(func(id uuid.UUID) bool { return s.groups[id] != nil }))
	}
	s.neighbours.note(view.Shards)
	s.told, s.held = view, held
	if held == "" || s.view.Groups == nil || s.view.Held() != "" {
		if s.view.Meta.EpochBase != view.Meta.EpochBase {
			for _, g := range s.groups {
				g.stored = placement.Group{} // its revision is of another etcd
			}
		}
		s.view = view
	}
	s.mu.Unlock()
	var err error
	if held != "" {
		err = errors.New(held)
	}
	s.problems.note("following etcd", err)
}

// isHeld tells whether nothing may be done on the word of etcd.
func (s *Shard) isHeld() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held != ""
}

// freeze tells all others that etcd was set back, where this shard is the first to see it.
func (s *Shard) freeze(ctx context.Context) error {
	s.mu.Lock()
	told := s.told
	s.mu.Unlock()
	if told.SetBack == "" || told.Freeze != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	return s.cfg.Placement.Freeze(ctx, "shard "+s.cfg.Name, told.SetBack)
}

// thawAll ends freezes, until ctx ends.
func (s *Shard) thawAll(ctx context.Context) {
	tick := time.NewTicker(thawEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.isHeld() {
			s.rememberLater()
			continue
		}
		err := s.freeze(ctx)
		if err == nil {
			err = s.thaw(ctx)
		}
		if errors.Is(err, placement.ErrChanged) || ctx.Err() != nil {
			err = nil // again
		}
		s.problems.note("reconciling etcd", err)
	}
}

// thaw asks all shards that are registered what their volumes hold, and writes it over what etcd says. The first of
// them by name does it.
func (s *Shard) thaw(ctx context.Context) error {
	s.mu.Lock()
	told := s.told
	s.mu.Unlock()
	if told.Freeze == nil || !isFirst(told, s.cfg.Name) {
		return nil
	}
	volumes, silent := s.surveyAll(ctx, told)
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	rebuilt, err := placement.Rebuild(s.store, volumes, placement.FactsOf(told))
	if err != nil {
		return s.cfg.Placement.Unreconciled(ctx, append([]string{err.Error()}, silent...)...)
	}
	done, err := s.cfg.Placement.Reconcile(ctx, rebuilt, silent)
	if err == nil && len(done.Waits) == 0 {
		s.logger.Warn("etcd was reconciled with what the shards' volumes hold", "groups", len(rebuilt.Groups), "written", done.Written)
	}
	return err
}

// isFirst tells whether a shard is the first by name of those that are registered.
func isFirst(view placement.View, shard string) bool {
	for name := range view.Shards {
		if name < shard {
			return false
		}
	}
	_, registered := view.Shards[shard]
	return registered
}

// surveyAll asks what each volume holds. silent are those that did not answer, in words.
func (s *Shard) surveyAll(ctx context.Context, view placement.View) (volumes []placement.FoundVolume, silent []string) {
	var mu sync.Mutex
	each(maps.Values(view.Shards), 16, func(shard placement.Shard) {
		ctx, cancel := context.WithTimeout(ctx, surveyTime)
		defer cancel()
		v, err := survey.VolumeOver(ctx, shard.Address, s.speaksTo(shard.Name))
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
