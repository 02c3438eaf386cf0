package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/quota"
)

// tenantRow is one quota of a tenant.
type tenantRow struct {
	Tenant string       `json:"tenant"`
	Prefix string       `json:"prefix"`
	Groups int64        `json:"groups"`
	Quota  access.Quota `json:"quota"`
	Limit  int64        `json:"limit"`
	Used   *int64       `json:"used,omitempty"` // absent for a rate
}

func authTenantsCommand(a *app) *cobra.Command {
	return inEtcd(a, &cobra.Command{
		Use: "tenants", Short: "Show the quotas of tenants, and what is used of them", Args: cobra.NoArgs,
		Long: `Reads the table of grants and what shards tell of what is stored: up to half a minute old, and
within a 128th of the limit for each shard. What is used of the rates only the metrics of shards
tell (sheaf_tenant_calls_total, sheaf_tenant_bytes_total).`,
		Example: "  sheaf auth tenants --etcd etcd:2379 --store quotes",
	}, func(ctx context.Context, store *registry.Store, _ []string) error {
		found, err := store.Access(ctx)
		if err != nil {
			return err
		}
		table := &access.Table{}
		if found.Table != nil {
			if table, err = access.ParseTable(found.Table); err != nil {
				return fmt.Errorf("the table in etcd: %w", err)
			}
		}
		rows, err := tenantRows(ctx, store, table.Tenants)
		if err != nil {
			return err
		}
		if len(rows) == 0 && !a.Out.JSON {
			a.Out.Sayf("the store %s has no tenants", store.Name())
			return nil
		}
		return a.Out.WriteRows(rows, tenantTable(rows))
	})
}

func tenantRows(ctx context.Context, store *registry.Store, tenants []access.Tenant) ([]tenantRow, error) {
	keys := make([]registry.TenantKey, 0, len(tenants))
	for i := range tenants {
		keys = append(keys, registry.TenantKey{Name: tenants[i].Name, Prefix: tenants[i].Prefix})
	}
	ledgers, err := store.Ledgers(ctx, keys)
	if err != nil {
		return nil, err
	}
	rows := []tenantRow{}
	for i := range tenants {
		t := &tenants[i]
		ledger, err := quota.ParseLedger(ledgers[i].Value)
		if err != nil {
			return nil, fmt.Errorf("tenant %s: %w", t.Name, err)
		}
		used := ledger.Used()
		for _, q := range access.AllQuotas() {
			row := tenantRow{Tenant: t.Name, Prefix: t.Prefix, Groups: ledgers[i].Groups, Quota: q, Limit: t.Quotas.Of(q)}
			switch {
			case row.Limit == 0:
				continue
			case q == access.StoredBytes:
				row.Used = &used.Bytes
			case q == access.Records:
				row.Used = &used.Records
			case q == access.TenantGroups:
				row.Used = &row.Groups
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

func tenantTable(rows []tenantRow) cli.Table {
	t := cli.Table{Header: []string{"TENANT", "PREFIX", "GROUPS", "QUOTA", "LIMIT", "USED"}}
	for i := range rows {
		r := &rows[i]
		words := cli.FormatCount
		if r.Quota == access.StoredBytes || r.Quota == access.BytesPerSecond {
			words = cli.FormatBytes
		}
		used := cli.Number("-")
		if r.Used != nil {
			used = cli.Number(words(*r.Used))
			if *r.Used >= r.Limit {
				used.Colour = cli.Red
			}
		}
		t.Rows = append(t.Rows, []cli.Cell{
			cli.Text(r.Tenant), cli.Text(r.Prefix), cli.Number(cli.FormatCount(r.Groups)), cli.Text(string(r.Quota)),
			cli.Number(words(r.Limit)), used,
		})
	}
	return t
}
