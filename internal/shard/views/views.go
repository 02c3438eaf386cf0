// Package views holds what a shard knows of the store's views (sheaf.batch.v1.ViewService, ADR 66). A shard reads them
// from etcd, and what its logs keep for them follows from etcd alone.
package views

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
)

// leaveGrace is how long a group's history is still kept after its view is gone from etcd. Within this time, a shard
// notices that etcd was rolled back, and that the view is only missing there. Reads of the view end at once.
const leaveGrace = 10 * time.Second

// Etcd is the part of *registry.Store that a Set needs; its methods are documented in package registry.
type Etcd interface {
	WatchDataViews(ctx context.Context) <-chan registry.DataViews
	DataView(ctx context.Context, id uuid.UUID) (v placement.DataView, found bool, err error)
	PutDataView(ctx context.Context, v placement.DataView) (placement.DataView, error)
}

// Set is the views that a shard knows. It is safe for concurrent use.
type Set struct {
	etcd   Etcd
	isHeld func() bool // reports whether etcd was rolled back
	// changed is called after each change, without a lock of the Set.
	changed func()

	mu      sync.Mutex
	heard   bool // etcd has answered since the start
	at      int64
	views   []placement.DataView
	leaving []leaving
	news    chan struct{} // closed at the next change
}

// leaving is a view that is gone from etcd, and whose history is still kept.
type leaving struct {
	placement.DataView
	since time.Time
}

// New creates a Set. It knows nothing until Run is called.
func New(etcd Etcd, isHeld func() bool, changed func()) *Set {
	return &Set{etcd: etcd, isHeld: isHeld, changed: changed, news: make(chan struct{})}
}

// Run follows the views in etcd until ctx is done.
func (s *Set) Run(ctx context.Context) {
	for found := range s.etcd.WatchDataViews(ctx) {
		s.take(found, time.Now())
		s.changed()
	}
}

// take replaces what the Set knows.
func (s *Set) take(found registry.DataViews, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	still := map[uuid.UUID]bool{}
	for _, v := range found.List {
		still[v.ID] = true
	}
	var leave []leaving
	for _, old := range s.leaving {
		if !still[old.ID] && s.keeps(&old, now) {
			leave = append(leave, old)
		}
	}
	for _, old := range s.views {
		if !still[old.ID] {
			leave = append(leave, leaving{old, now})
		}
	}
	s.views, s.leaving, s.at, s.heard = found.List, leave, found.At, true
	close(s.news)
	s.news = make(chan struct{})
}

func (s *Set) keeps(l *leaving, now time.Time) bool {
	return now.Sub(l.since) < leaveGrace || s.isHeld()
}

// HoldOf returns the index from which on the views need a group's history. If on is false, no view needs it. If known
// is false, etcd has not answered since the start, so that nothing is known about views.
func (s *Set) HoldOf(group uuid.UUID) (at uint64, on, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, on = placement.HoldOf(s.views, group)
	for i := range s.leaving {
		if !s.keeps(&s.leaving[i], time.Now()) {
			continue
		}
		if left, held := placement.HoldOf([]placement.DataView{s.leaving[i].DataView}, group); held && (!on || left < at) {
			at, on = left, true
		}
	}
	return at, on, s.heard
}

// All returns all views that are in etcd. The caller must not change them.
func (s *Set) All() []placement.DataView {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.views
}

// find returns a view, and a channel that is closed when the Set hears of something new.
func (s *Set) find(id uuid.UUID) (v placement.DataView, found bool, news <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.views {
		if s.views[i].ID == id {
			return s.views[i], true, s.news
		}
	}
	return v, false, s.news
}

// Await waits until the Set has heard of a view. The result may be a view that is not open yet.
func (s *Set) Await(ctx context.Context, id uuid.UUID) (placement.DataView, error) {
	for {
		v, found, news := s.find(id)
		if found {
			return v, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}

// These are the errors of Find.
var (
	ErrGone    = errors.New("there is no such view: it was closed, or has expired")
	ErrOpening = errors.New("the view is still being opened")
)

// findTime limits the time for which Find asks etcd.
const findTime = 2 * time.Second

// Find returns an open view. If the Set does not know the view as an open one, Find asks etcd, because the watch may be
// a moment behind the gateway that opened it. The errors are ErrGone, ErrOpening, or an error of etcd.
func (s *Set) Find(ctx context.Context, id uuid.UUID) (placement.DataView, error) {
	v, found, _ := s.find(id)
	if found && v.IsOpen() {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	v, found, err := s.etcd.DataView(ctx, id)
	switch {
	case err != nil:
		return v, err
	case !found:
		return v, ErrGone
	case !v.IsOpen():
		return v, ErrOpening
	}
	return v, nil
}

// Lose records in etcd that a group of a view can no longer be read in it, for the given reason. Each copy of the group
// gives up the history when it hears of this. If another process has changed the view meanwhile, Lose does nothing, and
// returns an error.
func (s *Set) Lose(ctx context.Context, v *placement.DataView, group, why string) error {
	next, lost := v.Lose(group, why)
	if !lost {
		return nil
	}
	next, err := s.etcd.PutDataView(ctx, next)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.views {
		if s.views[i].ID == v.ID && s.views[i].Revision == v.Revision {
			views := append([]placement.DataView(nil), s.views...)
			views[i], s.views = next, views
		}
	}
	return nil
}
