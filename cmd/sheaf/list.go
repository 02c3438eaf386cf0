package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
)

func versionsCommand(a *app) *cobra.Command {
	var key keyFlags
	var limit int
	cmd := &cobra.Command{
		Use:     "versions ID",
		Short:   "List the versions of a record, newest first",
		GroupID: groupRecords,
		Long:    "Lists the versions of a record that retention still keeps, newest first, deletes included.",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			if limit < 0 {
				return cli.Usagef("--limit %d: must not be negative", limit)
			}
			k, err := key.key(args[0])
			if err != nil {
				return err
			}
			var records []client.Record
			for r, err := range conn.Versions(ctx, k) {
				if err != nil {
					return fmt.Errorf("versions %d: %w", k.ID, err)
				}
				if records = append(records, r); len(records) == limit {
					break
				}
			}
			if len(records) == 0 {
				return cli.NotFoundf("versions %d: there is no such record", k.ID)
			}
			return printRecords(a.Out, records)
		}),
	}
	key.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so many; 0: all")
	return cmd
}

func findCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "find ID",
		Short:   "Find the groups that hold an id",
		GroupID: groupRecords,
		Long: "Asks all groups (in Hash routing the one that may) for a record. Fails while a group that could hold it " +
			"is silent.",
		Args: cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			id, err := cli.ParseID(args[0])
			if err != nil {
				return err
			}
			records, err := conn.Find(ctx, id)
			if err != nil {
				return fmt.Errorf("find %d: %w", id, err)
			}
			if len(records) == 0 {
				return cli.NotFoundf("find %d: no group holds it", id)
			}
			return printRecords(a.Out, records)
		}),
	}
}

func printRecords(out *cli.Output, records []client.Record) error {
	rows := make([]cli.RecordJSON, 0, len(records))
	for _, r := range records {
		rows = append(rows, cli.JSONOf(r))
	}
	return out.WriteRows(rows, cli.RecordTable(records))
}
