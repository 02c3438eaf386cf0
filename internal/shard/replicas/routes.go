package replicas

import (
	"strconv"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// Routes is an immutable table of this shard's groups, served or not. The zero value is the table of a shard that has
// no view of etcd yet.
type Routes struct {
	Epoch    uint64
	Held     bool // etcd was rolled back, so its state of groups may be outdated
	View     placement.View
	ByName   map[string]*Replica // nil until the first view of etcd has arrived
	ByUUID   map[uuid.UUID]*Replica
	ByNumber []*Replica // groups by number, for Hash routing; an element is nil if that group is on another shard
}

// Served returns the group with a UUID if this shard serves it, and nil otherwise.
func (r *Routes) Served(id uuid.UUID) *Served {
	if g := r.ByUUID[id]; g != nil {
		return g.Served()
	}
	return nil
}

// Routes returns the current table. It takes no lock.
func (s *Set) Routes() *Routes { return s.routes.Load() }

// publish replaces the table that calls read. The caller holds mu.
func (s *Set) publish() {
	routes := &Routes{
		Epoch: s.view.Epoch, Held: s.newest.Held() != "", View: s.view,
		ByName: make(map[string]*Replica, len(s.all)), ByUUID: make(map[uuid.UUID]*Replica, len(s.all)),
	}
	if routing := s.Meta().Routing; routing.Mode == placement.Hash {
		routes.ByNumber = make([]*Replica, routing.Groups)
	}
	for _, r := range s.all {
		if r.state.Standing.Stray() || r.Name == "" || r.state.Founder {
			continue
		}
		r.noteAwaits()
		routes.ByName[r.Name], routes.ByUUID[r.UUID] = r, r
		if n, err := strconv.Atoi(r.Name); err == nil && n >= 0 && n < len(routes.ByNumber) {
			routes.ByNumber[n] = r
		}
	}
	s.routes.Store(routes)
}
