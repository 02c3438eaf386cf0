package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"

	"github.com/spf13/cobra"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/cli"
)

func (a *app) watchCommand() *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:     "watch GROUP",
		Short:   "Follow the changes of a group",
		GroupID: groupRecords,
		Long: `Writes the latest state of each record of a group that is put or deleted, as it is committed, one a line, until it is
interrupted. Each change comes at least once; what was superseded before it was read may be left out. Cursors come on lines
of their own: --from goes on behind one.`,
		Example: `  sheaf watch customers
  sheaf watch 7 -o json --from AQPd...`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			cursor, err := base64.RawURLEncoding.DecodeString(from)
			if err != nil {
				return cli.Usagef("--from %q: give a cursor as this command has printed it", from)
			}
			if err := conn.Watch(ctx, &recordv1.WatchRequest{Group: args[0], Cursor: cursor}, a.printChanges); ctx.Err() == nil {
				return err
			}
			return nil // interrupted: that is how it ends
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "go on behind this cursor; empty: from now")
	return cmd
}

// printChanges writes one message.
func (a *app) printChanges(message *recordv1.WatchResponse) error {
	for _, r := range message.GetRecords() {
		var err error
		switch {
		case a.out.JSON && (r.GetDeleted() || r.DataCrc32C == nil):
			err = cli.WriteJSONLine(a.out.Out, r, nil)
		case a.out.JSON:
			err = cli.WriteJSONLine(a.out.Out, r, bytes.NewReader(r.GetData()))
		case r.GetDeleted():
			_, err = fmt.Fprintf(a.out.Out, "%d\t%s\tdeleted\n", r.GetKey().GetId(), r.GetVersion())
		default:
			_, err = fmt.Fprintf(a.out.Out, "%d\t%s\t%s\n", r.GetKey().GetId(), r.GetVersion(), cli.FormatBytes(r.GetSizeBytes()))
		}
		if err != nil {
			return err
		}
	}
	cursor := base64.RawURLEncoding.EncodeToString(message.GetCursor())
	if a.out.JSON {
		_, err := fmt.Fprintf(a.out.Out, "{\"cursor\":%q}\n", cursor)
		return err
	}
	_, err := fmt.Fprintf(a.out.Out, "cursor\t%s\n", cursor)
	return err
}
