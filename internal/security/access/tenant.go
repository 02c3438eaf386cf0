package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Tenant owns all groups of Named routing whose names begin with its prefix. Its quotas apply to these groups
// together, no matter which caller uses them.
type Tenant struct {
	// Name identifies the tenant in errors and metrics. It has 1 to 253 bytes and is unique in the table.
	Name string `json:"name"`
	// Prefix is the prefix of the names of all groups of the tenant. It has 1 to 253 bytes. No prefix in a table may
	// begin with another one.
	Prefix string `json:"prefix"`
	Quotas Quotas `json:"quotas"`
}

// Quotas are the limits of a tenant. A field that is 0 sets no limit, except Groups, which then has a default. At
// least one field must be above 0.
type Quotas struct {
	// StoredBytes limits the bytes stored in the tenant's groups. Superseded entries do not count, and only one copy of
	// each group counts.
	StoredBytes int64 `json:"storedBytes,omitempty"`
	// Records limits the number of records in the tenant's groups. All versions of a record count as one record.
	Records int64 `json:"records,omitempty"`
	// Groups limits the number of groups, including empty ones. The default is GroupsDefault. If a tenant already has
	// more groups, they are still served.
	Groups int64 `json:"groups,omitempty"`
	// CallsPerSecond limits the number of calls that begin in each second. Each message of a batch counts as a call.
	CallsPerSecond int64 `json:"callsPerSecond,omitempty"`
	// BytesPerSecond limits the bytes of data and attributes that are read or written in each second.
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// CallsAtOnce limits the number of calls in progress, including open streams.
	CallsAtOnce int64 `json:"callsAtOnce,omitempty"`
}

// GroupsDefault is the quota of groups for a tenant that does not set one. If such a tenant had no quota, it could
// use up the store's limit of 100,000 groups, and then nobody could create any more groups. Because the default is
// one hundredth of that limit, even 100 such tenants can use their quotas fully. A tenant that creates one group a
// day reaches the default after almost three years.
const GroupsDefault = 1000

// Quota is the name of one of the fields of Quotas.
type Quota string

// These are the quotas.
const (
	StoredBytes    Quota = "storedBytes"
	Records        Quota = "records"
	TenantGroups   Quota = "groups"
	CallsPerSecond Quota = "callsPerSecond"
	BytesPerSecond Quota = "bytesPerSecond"
	CallsAtOnce    Quota = "callsAtOnce"
)

// AllQuotas returns the quotas in the order of their fields.
func AllQuotas() []Quota {
	return []Quota{StoredBytes, Records, TenantGroups, CallsPerSecond, BytesPerSecond, CallsAtOnce}
}

// Of returns the limit that one quota sets, or 0 if it sets none.
func (q *Quotas) Of(quota Quota) int64 {
	switch quota {
	case StoredBytes:
		return q.StoredBytes
	case Records:
		return q.Records
	case TenantGroups:
		return cmp.Or(q.Groups, GroupsDefault)
	case CallsPerSecond:
		return q.CallsPerSecond
	case BytesPerSecond:
		return q.BytesPerSecond
	case CallsAtOnce:
		return q.CallsAtOnce
	}
	return 0
}

// TenantsMax is the maximum number of tenants in a table.
const TenantsMax = 1000

// validateTenants checks the tenants of a table.
func validateTenants(tenants []Tenant) error {
	if len(tenants) > TenantsMax {
		return bad("tenants", "has %d: give at most %d", len(tenants), TenantsMax)
	}
	seen := make(map[string]int, len(tenants))
	for i := range tenants {
		t, field := &tenants[i], fmt.Sprintf("tenants[%d]", i)
		if err := text(field+".name", t.Name, nameBytesMax); err != nil {
			return err
		}
		if before, double := seen[t.Name]; double {
			return bad(field+".name", "%q is the name of tenants[%d], too", t.Name, before)
		}
		seen[t.Name] = i
		field = fmt.Sprintf("%s (%s)", field, t.Name)
		if err := text(field+".prefix", t.Prefix, nameBytesMax); err != nil {
			return err
		}
		for _, quota := range AllQuotas() {
			limit := t.Quotas.Of(quota)
			if limit < 0 {
				return bad(fmt.Sprintf("%s.quotas.%s", field, quota), "is %d: must be above 0, or absent where there is none",
					limit)
			}
		}
		if t.Quotas == (Quotas{}) {
			return bad(field+".quotas", "is empty: give one quota at least")
		}
	}
	if one, other, overlap := OverlapOf(tenants); overlap {
		return bad(fmt.Sprintf("tenants[%d] (%s).prefix", other, tenants[other].Name),
			"%q and %q of tenants[%d] (%s) have groups in common: one begins with the other",
			tenants[other].Prefix, tenants[one].Prefix, one, tenants[one].Name)
	}
	return nil
}

// TenantOf returns the tenant that owns a group of Named routing, or nil if the group belongs to no tenant.
func TenantOf(tenants []Tenant, group string) *Tenant {
	for i := range tenants {
		if strings.HasPrefix(group, tenants[i].Prefix) {
			return &tenants[i]
		}
	}
	return nil
}

// OverlapOf looks for two tenants that could own the same group, and sets overlap if there are any. The result one is
// then the index of the tenant with the shorter prefix, and the result other is the index of the tenant with the
// longer one.
func OverlapOf(tenants []Tenant) (one, other int, overlap bool) {
	order := make([]int, len(tenants))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(tenants[a].Prefix, tenants[b].Prefix) })
	// In sorted order, a prefix is directly followed by all prefixes that begin with it.
	for n := 1; n < len(order); n++ {
		if one, other = order[n-1], order[n]; strings.HasPrefix(tenants[other].Prefix, tenants[one].Prefix) {
			return one, other, true
		}
	}
	return 0, 0, false
}
