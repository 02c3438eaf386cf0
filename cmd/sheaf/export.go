package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/parquetcli"
)

func exportCommand(a *app) *cobra.Command {
	var opts cli.ExportOptions
	var parquet parquetcli.ExportOptions
	var format string
	cmd := &cobra.Command{
		Use:     "export DIR",
		Short:   "Write records back as files, or as Parquet files",
		GroupID: groupRecords,
		Long: `Writes every record that import made to its path below DIR, with the same bytes, mode and time;
records without a path go to _records/GROUP/ID. Nothing outside DIR is ever written, and nothing
through a symbolic link below it: a record whose path leads through one is listed and counted. What
is there already is left as it is, listed and counted, unless --force. Then the exit code is 1.

Whoever writes a record chooses its path and mode. Setuid, setgid and sticky bits are left out unless
--keep-setuid: the files belong to the user who exports, and a program would run with that user's
rights. Symbolic links get the target they were stored with, also an absolute one.

With --format parquet, DIR gets the Parquet files part-00000.parquet and so on, which pyarrow, DuckDB
and Polars read, and manifest.json with their counts and digests (docs/parquet.md). DIR must be
empty. All files are of one view of the store: run the same command again after a kill, and it writes
the files that are missing, of the same view. Records above 32 MiB are rows without data: they are
listed and counted. Then the exit code is 1.`,
		Example: `  sheaf export /srv/copy
  sheaf export --format parquet /srv/records`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			conn.NoNotes() // the progress is shown instead
			if format == formatParquet {
				parquet.Dir, parquet.Group, parquet.Failures, parquet.Quiet = args[0], opts.Group, opts.Failures, opts.Quiet
				return exportParquet(ctx, conn, a.Out, parquet)
			}
			opts.Dir = args[0]
			report, err := cli.Export(ctx, conn, a.Out, opts)
			if report.Seconds == 0 {
				return err // the export did not start
			}
			printErr := printExport(a.Out, report)
			if err != nil {
				return err
			}
			if n := report.Failed.Total(); n > 0 {
				return fmt.Errorf("%s not exported", cli.Count(n, "record was", "records were"))
			}
			return printErr
		}),
	}
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		parquet.Workers = 0
		if cmd.Flags().Changed("workers") {
			parquet.Workers = opts.Workers
		}
		return checkFormat(cmd, format, []string{"prefix", "force", "keep-setuid"}, []string{"view-expires", "split-bytes"})
	}
	addFormat(cmd, &format, "what to write: files, or parquet")
	f := cmd.Flags()
	f.StringVar(&opts.Group, "group", "", "only this group")
	f.StringVar(&opts.Prefix, "prefix", "", "only records whose path lies below this one, which is taken off")
	f.BoolVar(&opts.Force, "force", false, "replace files that are there")
	f.BoolVar(&opts.Setuid, "keep-setuid", false, "restore setuid, setgid and sticky bits, too")
	f.IntVar(&opts.Workers, "workers", 8, "files written at a time (with --format parquet 2, see docs/parquet.md)")
	f.DurationVar(&parquet.Expires, "view-expires", 24*time.Hour,
		"with --format parquet: how long an export that was ended can be continued, 1m to 720h")
	f.Int64Var(&parquet.SplitBytes, "split-bytes", 256<<20, "with --format parquet: about how much data a file has")
	f.StringVar(&opts.Failures, "failures", "", "write the list of all failures to this file, as JSON lines")
	f.BoolVar(&opts.Quiet, "quiet", false, "show no progress")
	return cmd
}

func printExport(out *cli.Output, r cli.ExportReport) error {
	if out.JSON {
		return out.WriteJSON(r)
	}
	_, err := fmt.Fprintf(out.Out, "wrote %s, %s, in %.1f s\n", cli.Count(r.Files, "file", "files"),
		cli.FormatBytes(r.Bytes), r.Seconds)
	if r.NoPath > 0 {
		out.Sayf("%s without a path: written to _records/", cli.Count(r.NoPath, "record", "records"))
	}
	if r.Privileged > 0 {
		sayPrivileged(out, r.Privileged)
	}
	for _, kind := range cli.SortedKeys(r.Failed) {
		out.Sayf("%s not exported: %s", cli.FormatCount(r.Failed[kind]), kind)
	}
	return err
}

func sayPrivileged(out *cli.Output, n int64) {
	out.Sayf("%s without the setuid, setgid or sticky bit of the record (--keep-setuid keeps it)",
		cli.Count(n, "file", "files"))
}
