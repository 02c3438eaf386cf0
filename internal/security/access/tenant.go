package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Tenant owns the groups of Named routing whose names begin with a prefix, and has quotas for all of them together.
// Quotas belong to the groups, and apply to every caller that uses the groups.
type Tenant struct {
	// Name identifies the tenant in errors and metrics. It has 1 to 253 bytes and is unique in the table.
	Name string `json:"name"`
	// Prefix is the common prefix of the names of the tenant's groups: 1 to 253 bytes. No prefix in a table begins with
	// another prefix.
	Prefix string `json:"prefix"`
	Quotas Quotas `json:"quotas"`
}

// Quotas are the limits of a tenant. A field that is 0 sets no limit, except for Groups. At least one field is above 0.
type Quotas struct {
	// StoredBytes bounds the bytes stored in the tenant's groups. It does not count superseded entries, and counts only
	// one copy of each group.
	StoredBytes int64 `json:"storedBytes,omitempty"`
	// Records bounds the number of records in the tenant's groups. All versions of a record together count as one.
	Records int64 `json:"records,omitempty"`
	// Groups bounds the number of groups, including empty ones. The default is GroupsDefault. Existing groups beyond
	// the limit are still served.
	Groups int64 `json:"groups,omitempty"`
	// CallsPerSecond bounds the number of calls that begin in a second. Each message of a batch counts as one call.
	CallsPerSecond int64 `json:"callsPerSecond,omitempty"`
	// BytesPerSecond bounds the bytes of data and attributes that are read or written in a second.
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// CallsAtOnce bounds the calls in progress, including open streams.
	CallsAtOnce int64 `json:"callsAtOnce,omitempty"`
}

// GroupsDefault is the group quota of a tenant that does not set one. Without a quota, one tenant could use up the
// store's limit of 100,000 groups, and then nobody could create a group. With one hundredth of that limit, 100 such
// tenants can use up their quotas. It is enough for one group a day for almost three years.
const GroupsDefault = 1000

// Quota names one of the Quotas, by the name of its field.
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

// Of returns the limit of one quota, or 0 if it has no limit.
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

// TenantOf returns the tenant that owns a group of Named routing, or nil if no tenant does.
func TenantOf(tenants []Tenant, group string) *Tenant {
	for i := range tenants {
		if strings.HasPrefix(group, tenants[i].Prefix) {
			return &tenants[i]
		}
	}
	return nil
}

// OverlapOf looks for two tenants that could both own the same group. If it finds them, overlap is true, one is the
// index of the tenant with the shorter prefix, and other is the index of the other tenant.
func OverlapOf(tenants []Tenant) (one, other int, overlap bool) {
	order := make([]int, len(tenants))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(tenants[a].Prefix, tenants[b].Prefix) })
	// In sorted order, all prefixes that begin with the same prefix directly follow that prefix.
	for n := 1; n < len(order); n++ {
		if one, other = order[n-1], order[n]; strings.HasPrefix(tenants[other].Prefix, tenants[one].Prefix) {
			return one, other, true
		}
	}
	return 0, 0, false
}
