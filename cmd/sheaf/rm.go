package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
)

func rmCommand(a *app) *cobra.Command {
	var key keyFlags
	var opts client.DeleteOptions
	var ignore bool
	cmd := &cobra.Command{
		Use:     "rm ID",
		Short:   "Delete a record",
		GroupID: groupRecords,
		Long:    "Writes a delete version of a record. A record that is not there is exit code 3, unless --ignore-not-found.",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			k, err := key.key(args[0])
			if err != nil {
				return err
			}
			result, err := conn.Delete(ctx, k, &opts)
			if err != nil {
				return fmt.Errorf("rm %d: %w", k.ID, err)
			}
			if a.Out.JSON {
				err = a.Out.WriteJSON(map[string]any{
					"id": strconv.FormatInt(k.ID, 10), "existed": result.Existed, "version": result.Version,
				})
			}
			if err == nil && !result.Existed && !ignore {
				return cli.NotFoundf("rm %d: there is no such record", k.ID)
			}
			return err
		}),
	}
	key.add(cmd)
	cmd.Flags().StringVar(&opts.IfVersion, "if-version", "", "only if the newest version is this one")
	cmd.Flags().BoolVar(&ignore, "ignore-not-found", false, "succeed where there is no such record")
	return cmd
}
