package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
)

func scanCommand(a *app) *cobra.Command {
	var group, names string
	var metadata, asTar, setuid bool
	cmd := &cobra.Command{
		Use:     "scan",
		Short:   "Write all records, as JSON lines or as a tar archive",
		GroupID: groupRecords,
		Long: `Writes the newest version of every record, once, from one snapshot per group: as one JSON object a
line (data in base64), or with --tar as a tar archive.

Members of the archive are GROUP/ID.bin. With --tar-names path they have the paths that import
stored and are the tree that export writes: files with their mode and time, and symbolic links. As
with export, folders, owners, extended attributes, hard links and holes are not kept, setuid, setgid
and sticky bits only with --keep-setuid, and records whose paths do not make one tree are listed and
counted (exit code 1). Version, id, group and attributes of a record are in PAX records of its member,
SCHILY.xattr.user.sheaf.version and so on, which tar --xattrs restores.`,
		Example: `  sheaf scan | jq -r .id
  sheaf scan --metadata --group customers
  sheaf scan --tar > all.tar
  sheaf scan --tar --tar-names path | tar -x -C DIR`,
		Args: cobra.NoArgs,
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, _ []string) error {
			if names != "id" && names != "path" {
				return cli.Usagef("--tar-names %q: must be id or path", names)
			}
			if !asTar && (names != "id" || setuid) {
				return cli.Usagef("--tar-names and --keep-setuid go with --tar")
			}
			w := bufio.NewWriterSize(a.Out.Out, 1<<20)
			options := &client.ScanOptions{Group: group, MetadataOnly: metadata}
			var err error
			if asTar {
				err = scanTar(ctx, a.Out, conn, options, cli.TarOptions{Paths: names == "path", Setuid: setuid}, w)
			} else {
				err = conn.WriteScanJSON(ctx, options, w)
			}
			return errors.Join(err, w.Flush())
		}),
	}
	cmd.Flags().StringVar(&group, "group", "", "only this group")
	cmd.Flags().BoolVar(&metadata, "metadata", false, "leave the data out")
	cmd.Flags().BoolVar(&asTar, "tar", false, "write a tar archive")
	cmd.Flags().StringVar(&names, "tar-names", "id", "names in the archive: id (GROUP/ID.bin) or path, as export")
	cmd.Flags().BoolVar(&setuid, "keep-setuid", false, "keep setuid, setgid and sticky bits in the archive")
	cmd.MarkFlagsMutuallyExclusive("metadata", "tar")
	cli.Complete(cmd, "tar-names", "id", "path")
	return cmd
}

// scanTar writes an archive, and reports the records that it leaves out.
func scanTar(ctx context.Context, out *cli.Output, conn *cli.Conn, options *client.ScanOptions, opts cli.TarOptions,
	w io.Writer) error {
	report, err := conn.WriteScanTar(ctx, out, options, opts, w)
	if err != nil {
		return err
	}
	if report.Privileged > 0 {
		sayPrivileged(out, report.Privileged)
	}
	for _, kind := range cli.SortedKeys(report.Failed) {
		out.Sayf("%s not in the archive: %s", cli.FormatCount(report.Failed[kind]), kind)
	}
	if n := report.Failed.Total(); n > 0 {
		return fmt.Errorf("%s not written", cli.Count(n, "record was", "records were"))
	}
	return nil
}
