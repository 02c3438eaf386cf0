package main

import (
	"bufio"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
)

func (a *app) scanCommand() *cobra.Command {
	var group, names string
	var metadata, asTar bool
	cmd := &cobra.Command{
		Use:     "scan",
		Short:   "Write all records, as JSON lines or as a tar archive",
		GroupID: groupRecords,
		Long: `Writes the newest version of every record, once, from one snapshot per group: as one JSON object a
line (data in base64), or with --tar as a tar archive with members GROUP/ID.`,
		Example: `  sheaf scan | jq -r .id
  sheaf scan --metadata --group customers
  sheaf scan --tar > all.tar`,
		Args: cobra.NoArgs,
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, _ []string) error {
			if names != "id" && names != "path" {
				return cli.Usagef("--tar-names %q: must be id or path", names)
			}
			w := bufio.NewWriterSize(a.Out.Out, 1<<20)
			options := &client.ScanOptions{Group: group, MetadataOnly: metadata}
			var err error
			if asTar {
				err = conn.WriteScanTar(ctx, options, names, w)
			} else {
				err = conn.WriteScanJSON(ctx, options, w)
			}
			return errors.Join(err, w.Flush())
		}),
	}
	cmd.Flags().StringVar(&group, "group", "", "only this group")
	cmd.Flags().BoolVar(&metadata, "metadata", false, "leave the data out")
	cmd.Flags().BoolVar(&asTar, "tar", false, "write a tar archive")
	cmd.Flags().StringVar(&names, "tar-names", "id", "names in the archive: id (GROUP/ID), or path where import kept one")
	cmd.MarkFlagsMutuallyExclusive("metadata", "tar")
	cli.Complete(cmd, "tar-names", "id", "path")
	return cmd
}
