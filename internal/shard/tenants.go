package shard

import (
	"context"
	"fmt"
	"sync"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

// tables passes the grants table on to code that does not watch etcd itself. It is safe for concurrent use.
type tables struct {
	mu      sync.Mutex
	last    registry.Access
	changed chan struct{} // closed when the table changes
}

func newTables() *tables { return &tables{changed: make(chan struct{})} }

func (t *tables) set(found registry.Access) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = found
	close(t.changed)
	t.changed = make(chan struct{})
}

// follow calls take with the current table immediately, and again after each change, until ctx is done.
func (t *tables) follow(ctx context.Context, take func(registry.Access)) {
	for {
		t.mu.Lock()
		last, changed := t.last, t.changed
		t.mu.Unlock()
		take(last)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// newQuotas creates the tenants' quotas for the groups that this shard leads.
func (s *Shard) newQuotas() *quota.Set {
	return quota.New(quota.Config{
		Shard: s.cfg.Name, Etcd: s.cfg.Placement, Every: s.cfg.ReportInterval,
		Led: func(tell func(group string, stored quota.Amount)) { storedOf(s.replicas.Routes(), tell) },
	})
}

// storedOf calls tell with the size of each group that this shard leads and that belongs to a tenant. Superseded data
// is not included, because it is freed without the tenant's action.
func storedOf(r *replicas.Routes, tell func(group string, stored quota.Amount)) {
	for name, g := range r.ByName {
		sv := g.Served()
		if sv == nil || sv.Quota.Tenant() == nil || !sv.Replica().Status().Leader {
			continue
		}
		stats := sv.Log().Stats()
		tell(name, quota.Amount{Bytes: max(0, stats.StoredBytes-stats.SupersededBytes), Records: stats.Records})
	}
}

// followTenants adopts the tenants of each new grants table, until ctx is done. If the table is invalid or missing, the
// last valid table remains in use, as it does for grants.
func (s *Shard) followTenants(ctx context.Context) {
	if s.meta.Routing.Mode == placement.Hash {
		return // with Hash routing, group names are numbers, and no tenant has such groups
	}
	take := func(found registry.Access) {
		if found.Table == nil {
			return
		}
		table, err := access.ParseTable(found.Table)
		if err != nil {
			s.problems.Note("quotas of tenants", fmt.Errorf("those of the last table stay in use: %w", err))
			return
		}
		s.quotas.Take(table.Tenants)
	}
	if s.cfg.tables != nil {
		s.cfg.tables.follow(ctx, take)
		return
	}
	for found := range s.cfg.Placement.WatchAccess(ctx) {
		take(found)
	}
}
