package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
)

// groupsPatience is the default time limit of the commands for groups. It is the same as the default of --timeout in
// sheaf.
const groupsPatience = 30 * time.Second

func (a *app) groupsCommand() *cobra.Command {
	var (
		width    int
		output   string
		patience time.Duration
	)
	cmd := &cobra.Command{
		Use:     "groups [STORE]",
		Aliases: []string{"group"},
		Short:   "List the groups of a store, or delete empty ones",
		Long: `Lists the groups of a store with their copies, leader, records, bytes and state. A gateway is asked over
a forwarded port. Records and bytes are ? where nobody who answers knows them.`,
		Example: `  kubectl sheaf groups quotes -n prod
  kubectl sheaf groups quotes -n prod -o json
  kubectl sheaf groups delete quotes old-1 old-2`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output %q: must be json, or absent", output)
			}
			return a.ofGateway(cmd.Context(), args, patience, "groups",
				func(ctx context.Context, store *v1alpha1.RecordStore, admin recordv1.AdminServiceClient) error {
					list, err := recordv1.AllGroups(ctx, admin, &recordv1.ListGroupsRequest{})
					if err != nil {
						return fmt.Errorf("listing groups: %w", err)
					}
					rows := cli.GroupRows(list.GetGroups(), max(1, int(store.Spec.Replication.Copies)))
					return a.printGroups(rows, output, a.width(width))
				})
		},
	}
	cmd.Flags().IntVar(&width, "width", 0, "columns of the screen; 0: those of the terminal, else 140")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json; absent: for people")
	cmd.PersistentFlags().DurationVar(&patience, "timeout", groupsPatience,
		"end the command after this time, whatever it does; 0: never")
	cmd.AddCommand(a.groupsDeleteCommand(&patience))
	return cmd
}

func (a *app) groupsDeleteCommand(patience *time.Duration) *cobra.Command {
	return &cobra.Command{
		Use:     "delete STORE GROUP...",
		Short:   "Delete groups that hold nothing (Named routing)",
		Long:    cli.GroupDeleteLong,
		Example: `  kubectl sheaf groups delete quotes old-1 old-2`,
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ofGateway(cmd.Context(), args[:1], *patience, "groups",
				func(ctx context.Context, _ *v1alpha1.RecordStore, admin recordv1.AdminServiceClient) error {
					deleteOne := func(ctx context.Context, group string) error {
						found, err := admin.DeleteGroup(ctx, &recordv1.DeleteGroupRequest{Group: group, ResolveOnly: true})
						if err != nil {
							return err
						}
						_, err = admin.DeleteGroup(ctx, &recordv1.DeleteGroupRequest{Group: group, GroupUuid: found.GetGroupUuid()})
						return err
					}
					return cli.DeleteGroups(ctx, deleteOne, args[1:], func(group string) {
						fmt.Fprintf(a.err, "group %s: deleted\n", group)
					})
				})
		},
	}
}

// ofGateway connects to a gateway of the store that args names, and calls do with the connection. The argument
// patience limits the total time; 0 means no limit.
func (a *app) ofGateway(ctx context.Context, args []string, patience time.Duration, what string,
	do func(context.Context, *v1alpha1.RecordStore, recordv1.AdminServiceClient) error) error {
	if patience < 0 {
		return fmt.Errorf("--timeout %v: must not be negative", patience)
	}
	ctx, cancel := cli.Within(ctx, patience)
	defer cancel()
	store, err := a.oneStore(ctx, args, patience)
	if err != nil {
		return err
	}
	err = a.gateway(ctx, store, func(admin recordv1.AdminServiceClient) error { return do(ctx, store, admin) })
	if err != nil {
		return failf("%s of store %s: %s", what, store.Name, cli.Describe(err, "the forwarded port"))
	}
	return nil
}

// notKnown is printed in place of a number that no shard has reported.
const notKnown = "?"

func (a *app) printGroups(rows []cli.GroupRow, output string, width int) error {
	if output == "json" {
		if err := cli.EncodeJSON(a.out, rows); err != nil {
			return fmt.Errorf("write the groups: %w", err)
		}
		return nil
	}
	t := table{columns: []column{
		{name: "GROUP"}, {name: "STATE"}, {name: "COPIES", right: true}, {name: "LEADER", drop: 2},
		{name: "RECORDS", right: true}, {name: "STORED", drop: 1, right: true}, {name: "MESSAGE", drop: 3, words: true},
	}}
	figure := func(n *int64, words func(int64) string) string {
		if n == nil {
			return notKnown
		}
		return words(*n)
	}
	for _, r := range rows {
		t.add(r.Group, r.State, strconv.Itoa(r.Copies), r.Leader, figure(r.Records, cli.FormatCount),
			figure(r.StoredBytes, cli.FormatBytes), r.Message)
	}
	if len(rows) > 0 {
		fmt.Fprintln(a.out, strings.Join(t.lines(width), "\n"))
	}
	_, err := fmt.Fprintln(a.err, cli.Count(int64(len(rows)), "group", "groups"))
	return err
}
