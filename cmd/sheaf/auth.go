package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/quota"
)

func authCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "auth", Short: "Show who calls and what that one may do; read and set the grants of a store; show its tenants",
		GroupID: groupCare, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(whoAmICommand(a), canICommand(a), authTableCommand(a), authTenantsCommand(a))
	return cmd
}

func whoAmICommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show who the server takes the caller for", Args: cobra.NoArgs,
		Long: "Prints client/NAME, admin/NAME, serviceaccount/NAMESPACE/NAME or oidc/ISSUER/SUBJECT/GROUP..., each part " +
			"escaped as in a URL.",
		Example: "  sheaf auth whoami --ca ca.crt --cert reader.crt --key reader.key\n  sheaf auth whoami --ca ca.crt " +
			"--token-file /var/run/secrets/sheaf/token",
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, _ []string) error {
			who, err := conn.Access.WhoAmI(ctx, &recordv1.WhoAmIRequest{})
			if err != nil {
				return fmt.Errorf("asking who calls: %w", err)
			}
			if a.Out.JSON {
				return a.Out.WriteJSON(struct {
					Caller              string `json:"caller"`
					TokenExpiresUnixSec int64  `json:"tokenExpiresUnixSeconds,omitempty"`
					TableVersion        int64  `json:"tableVersion"`
				}{who.GetCaller(), who.GetTokenExpiresUnixS(), who.GetTableVersion()})
			}
			if who.GetCaller() == "" {
				a.Out.Sayf("%s speaks plaintext: it knows nobody, and all may do all", a.server)
				return nil
			}
			fmt.Fprintln(a.Out.Out, who.GetCaller())
			if ends := who.GetTokenExpiresUnixS(); ends != 0 {
				a.Out.Sayf("by a token that ends at %s", time.Unix(ends, 0).UTC().Format(time.RFC3339))
			}
			if v := who.GetTableVersion(); v != 0 {
				a.Out.Sayf("table %d of grants decides", v)
			} else {
				a.Out.Sayf("the store has no table of grants: every caller with a certificate may use all records")
			}
			return nil
		}),
	}
}

func canICommand(a *app) *cobra.Command {
	var group string
	cmd := &cobra.Command{
		Use: "can-i VERB", Short: "Tell whether the caller may do something", Args: cobra.ExactArgs(1),
		Long: "VERB is get, put, delete, scan, watch, admin-read (status, lists, all of the routing) or admin-write. " +
			"Without --group: in all groups.\n" +
			"Prints yes, or no and why; no is exit code 1. Whether the group exists is not revealed.",
		Example: "  sheaf auth can-i put --group team-a-7",
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			if _, err := access.ParseVerb(args[0]); err != nil {
				return cli.Usagef("%w", err)
			}
			answer, err := conn.Access.CanI(ctx, &recordv1.CanIRequest{Verb: args[0], Group: group})
			if err != nil {
				return fmt.Errorf("asking what the caller may do: %w", err)
			}
			switch {
			case a.Out.JSON:
				if err := a.Out.WriteJSON(struct {
					Allowed bool   `json:"allowed"`
					Reason  string `json:"reason,omitempty"`
				}{answer.GetAllowed(), answer.GetReason()}); err != nil {
					return err
				}
			case answer.GetAllowed():
				fmt.Fprintln(a.Out.Out, "yes")
			default:
				fmt.Fprintln(a.Out.Out, "no")
			}
			if !answer.GetAllowed() {
				return errors.New(answer.GetReason())
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&group, "group", "", "the group; empty: all groups")
	cmd.ValidArgsFunction = cobra.FixedCompletions([]string{"get", "put", "delete", "scan", "watch", "admin-read",
		"admin-write"}, cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

func authTableCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "table", Short: "Read and set the table of grants in etcd", Args: cobra.NoArgs,
		Long: `For stores without an operator: on Kubernetes the operator writes the table. It is JSON, as
docs/security.md has it. Gateways and shards take a new table within a few seconds, and end the open
streams that it does not allow any more.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(inEtcd(a, &cobra.Command{
		Use: "get", Short: "Print the table of grants", Args: cobra.NoArgs,
		Example: "  sheaf auth table get --etcd etcd:2379 --store quotes >table.json",
	}, func(ctx context.Context, store *registry.Store, _ []string) error {
		found, err := store.Access(ctx)
		switch {
		case err != nil:
			return err
		case found.Table == nil:
			return cli.NotFoundf("the store %s has no table of grants: every caller with a certificate may use all records",
				store.Name())
		}
		_, err = fmt.Fprintf(a.Out.Out, "%s\n", found.Table)
		return err
	}), inEtcd(a, &cobra.Command{
		Use: "set FILE", Short: "Check a table of grants, and put it in the place of the present one",
		Args: cobra.ExactArgs(1),
		Long: `FILE is a table, or - for standard input. Its version is that of the table which it replaces, as
"sheaf auth table get" prints it, or 0 where there is none; it is stored with the next one. Where
the store has another version by then, nothing is changed.`,
		Example: "  sheaf auth table set table.json --etcd etcd:2379 --store quotes",
	}, func(ctx context.Context, store *registry.Store, args []string) error {
		return setTable(ctx, a.Out, store, args[0])
	}))
	return cmd
}

// inEtcd makes cmd connect directly to the etcd of a store and call run.
func inEtcd(a *app, cmd *cobra.Command, run func(ctx context.Context, store *registry.Store,
	args []string) error) *cobra.Command {
	var place placementFlags
	place.add(cmd)
	cmd.RunE = a.Body(func(ctx context.Context, args []string) (err error) {
		ctx, cancel := cli.Within(ctx, a.timeout)
		defer cancel()
		client, store, err := place.open(nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, client.Close()) }()
		return run(ctx, store, args)
	})
	return cmd
}

// setTable replaces the store's table of grants with the table in a file. The file name - means standard input.
func setTable(ctx context.Context, out *cli.Output, store *registry.Store, file string) error {
	from := io.Reader(os.Stdin)
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = opened.Close() }() // the file was only read, so a failed close loses nothing
		from = opened
	}
	text, err := io.ReadAll(io.LimitReader(from, access.TableBytesMax+1))
	if err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	found, err := store.Access(ctx)
	if err != nil {
		return err
	}
	before := int64(0)
	if found.Table != nil {
		there, err := access.ParseTable(found.Table)
		if err != nil {
			return fmt.Errorf("the table in etcd: %w", err)
		}
		before = there.Version
	}
	next, err := access.ParseNext(text, before)
	if err != nil {
		return cli.Usagef("%s: %w", file, err)
	}
	encoded, err := next.Encode()
	if err != nil {
		return cli.Usagef("%s: %w", file, err)
	}
	if _, err := store.Meta(ctx); err != nil {
		return err
	}
	if err := store.PutAccess(ctx, encoded, found.Revision); err != nil {
		return err
	}
	out.Sayf("table %d is stored, with %d grants", next.Version, len(next.Grants))
	return nil
}

// tenantRow is one row in the output of `sheaf auth tenants`, with one quota of one tenant.
type tenantRow struct {
	Tenant string       `json:"tenant"`
	Prefix string       `json:"prefix"`
	Groups int64        `json:"groups"`
	Quota  access.Quota `json:"quota"`
	Limit  int64        `json:"limit"`
	Used   *int64       `json:"used,omitempty"` // absent if the quota limits a rate
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
