package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/cli"
)

func (a *app) rmCommand() *cobra.Command {
	var key keyFlags
	var condition conditionFlags
	var ignore bool
	cmd := &cobra.Command{
		Use:     "rm ID",
		Short:   "Delete a record",
		GroupID: groupRecords,
		Long:    "Writes a delete version of a record. A record that is not there is exit code 3, unless --ignore-not-found.",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) (err error) {
			request := &recordv1.DeleteRequest{RequestId: cli.NewRequestID(), Condition: condition.condition()}
			if request.Key, err = key.key(args[0]); err != nil {
				return err
			}
			response, err := conn.Delete(ctx, request)
			if err != nil {
				return fmt.Errorf("rm %d: %w", request.GetKey().GetId(), err)
			}
			if a.out.JSON {
				err = a.out.WriteJSON(map[string]any{
					"id": strconv.FormatInt(request.GetKey().GetId(), 10), "existed": response.GetExisted(), "version": response.GetVersion(),
				})
			}
			if err == nil && !response.GetExisted() && !ignore {
				return cli.NotFoundf("rm %d: there is no such record", request.GetKey().GetId())
			}
			return err
		}),
	}
	key.add(cmd)
	cmd.Flags().StringVar(&condition.ifVersion, "if-version", "", "only if the newest version is this one")
	cmd.Flags().BoolVar(&ignore, "ignore-not-found", false, "succeed where there is no such record")
	return cmd
}
