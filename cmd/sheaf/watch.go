package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
)

func watchCommand(a *app) *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:     "watch GROUP",
		Short:   "Follow the changes of a group",
		GroupID: groupRecords,
		Long: `Writes the latest state of each record of a group that is put or deleted, as it is committed, one a
line, until it is interrupted. Each change comes at least once; what was superseded before it was
read may be left out. Cursors come on lines of their own: --from goes on behind one.`,
		Example: `  sheaf watch customers
  sheaf watch 7 -o json --from AQPd...`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			cursor, err := base64.RawURLEncoding.DecodeString(from)
			if err != nil {
				return cli.Usagef("--from %q: give a cursor as this command has printed it", from)
			}
			var written error
			options := &client.WatchOptions{Cursor: cursor, OnCursor: func(cursor []byte) {
				written = errors.Join(written, printCursor(a.Out, cursor))
			}}
			for r, err := range conn.Watch(ctx, args[0], options) {
				if err != nil && errors.Is(ctx.Err(), context.Canceled) {
					return nil // an interruption is the normal end
				}
				if err != nil {
					return fmt.Errorf("watching group %s: %w", args[0], err)
				}
				if err := errors.Join(written, printChange(a.Out, r)); err != nil {
					return err
				}
			}
			return written
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "go on behind this cursor; empty: from now")
	return cmd
}

// printChange prints a record.
func printChange(out *cli.Output, r client.Record) (err error) {
	switch {
	case out.JSON && r.HasData:
		err = cli.WriteJSONLine(out.Out, r, bytes.NewReader(r.Data))
	case out.JSON:
		err = cli.WriteJSONLine(out.Out, r, nil)
	case r.Deleted:
		_, err = fmt.Fprintf(out.Out, "%d\t%s\tdeleted\n", r.Key.ID, r.Version)
	default:
		_, err = fmt.Fprintf(out.Out, "%d\t%s\t%s\n", r.Key.ID, r.Version, cli.FormatBytes(r.Size))
	}
	return err
}

// printCursor writes the cursor with which a later command continues after the printed records.
func printCursor(out *cli.Output, cursor []byte) error {
	format := "cursor\t%s\n"
	if out.JSON {
		format = "{\"cursor\":%q}\n"
	}
	_, err := fmt.Fprintf(out.Out, format, base64.RawURLEncoding.EncodeToString(cursor))
	return err
}
