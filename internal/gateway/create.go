package gateway

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
)

// groupsUncounted is a margin below the store's group limit. While a gateway's table has fewer groups than the limit
// minus this margin, the gateway creates groups without counting all groups in etcd.
const groupsUncounted = 1000

// quotaError means that a tenant has as many groups as its quota allows, or more.
type quotaError struct {
	tenant access.Tenant
	groups int64
}

func (e *quotaError) Error() string {
	return fmt.Sprintf("tenant %s: the quota %s of %d is used up: %d groups begin with %q. "+
		"Put into one of these, delete empty ones (sheaf groups delete), or have the quota raised",
		e.tenant.Name, access.TenantGroups, e.tenant.Quotas.Of(access.TenantGroups), e.groups, e.tenant.Prefix)
}

// create creates a group with Named routing if the group does not exist. The tenant's quota must allow the group. If
// the argument limited is true, the store's group limit must also allow it. It returns a *quotaError,
// placement.ErrGroupLimit, or an etcd error.
func (g *Gateway) create(ctx context.Context, t *table, name string, limited bool) (there placement.Group, created bool,
	err error) {
	tenant, err := g.tenantOf(ctx, name)
	if err != nil {
		return placement.Group{}, false, err
	}
	var bounds []placement.Bound
	var refused prometheus.Counter
	if tenant != nil {
		// The series is created with the tenant's first group, so that an alert sees the counter grow from 0.
		refused = g.metrics.refused.WithLabelValues(tenant.Name, string(access.TenantGroups))
		bounds = append(bounds, placement.Bound{Prefix: tenant.Prefix, Most: tenant.Quotas.Of(access.TenantGroups)})
	}
	meta := t.view.Meta
	if limited && len(t.named)+groupsUncounted >= meta.GroupLimit() {
		bounds = append(bounds, placement.Bound{Most: int64(meta.GroupLimit())})
	}
	there, created, err = g.cfg.Store.CreateGroup(ctx, placement.NewGroup(meta.Routing, name, 0), bounds...)
	if limit, ok := errors.AsType[*placement.LimitError](err); ok && limit.Prefix != "" {
		refused.Inc()
		err = &quotaError{*tenant, limit.Groups}
	}
	return there, created, err
}

// createError returns the error for a call whose group could not be created. The argument outcome has the same
// meaning as in etcdFailed.
func createError(name string, err error, outcome bool) error {
	quota, ok := errors.AsType[*quotaError](err)
	switch {
	case ok:
		return withDetails(codes.ResourceExhausted, err.Error(), &errdetails.ErrorInfo{
			Domain: reason.Domain, Reason: reason.QuotaExceeded, Metadata: map[string]string{
				"tenant": quota.tenant.Name, "quota": string(access.TenantGroups),
				"limit": strconv.FormatInt(quota.tenant.Quotas.Of(access.TenantGroups), 10),
			},
		})
	case errors.Is(err, placement.ErrGroupLimit):
		return fail(codes.ResourceExhausted, reason.GroupLimit, "group %q: %v: put into groups that exist, or delete "+
			"empty ones (sheaf groups delete)", name, err)
	}
	return etcdFailed(err, outcome, "group %q is not known here, and cannot be looked up or made", name)
}

// knownTenants are the tenants in one revision of the grants table.
type knownTenants struct {
	revision int64
	list     []access.Tenant
}

// tenantOf returns the tenant that owns a group according to the grants table that etcd holds now, or nil if no
// tenant owns it. If that table cannot be used, the last usable table remains in use, as it does for grants.
func (g *Gateway) tenantOf(ctx context.Context, group string) (*access.Tenant, error) {
	known := g.tenants.Load()
	if known == nil {
		known = &knownTenants{}
	}
	found, changed, err := g.cfg.Store.AccessSince(ctx, known.revision)
	if err != nil {
		return nil, fmt.Errorf("the table of grants, which says which tenant owns the group, cannot be read: %w", err)
	}
	if changed {
		next := &knownTenants{revision: found.Revision}
		if found.Table != nil {
			table, err := access.ParseTable(found.Table)
			switch {
			case err == nil:
				next.list = table.Tenants
			case known.revision == 0:
				return nil, fmt.Errorf("the table of grants, which says which tenant owns the group, cannot be used: %w", err)
			default:
				next = known
			}
		}
		g.tenants.Store(next)
		known = next
	}
	return access.TenantOf(known.list, group), nil
}

// groupsNear is the fraction of the store's group limit above which the status has a warning. An administrator must act
// before the limit is reached, because the limit cannot be raised.
const groupsNear = 0.8

// warnings returns a message for each limit of the store that is nearly reached.
func (t *table) warnings() []string {
	limit := t.groupLimit()
	if limit == 0 || float64(len(t.named)) < groupsNear*float64(limit) {
		return nil
	}
	return []string{fmt.Sprintf("it has %d groups, of at most %d: nobody can create a group beyond that, and the limit "+
		"of a store cannot be raised. Delete empty groups (sheaf groups delete), and lower the quotas of groups of tenants "+
		"that create many (sheaf auth tenants)", len(t.named), limit)}
}

// groupLimit returns the number of groups up to which first writes create groups. It returns 0 if first writes do not
// create groups.
func (t *table) groupLimit() int {
	if t.view.Meta.Routing.Mode == placement.Hash {
		return 0
	}
	return t.view.Meta.GroupLimit()
}
