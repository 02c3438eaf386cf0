package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
)

func exportCommand(a *app) *cobra.Command {
	var opts cli.ExportOptions
	cmd := &cobra.Command{
		Use:     "export DIR",
		Short:   "Write records back as files",
		GroupID: groupRecords,
		Long: `Writes every record that import made to its path below DIR, with the same bytes, mode and time;
records without a path go to _records/GROUP/ID. Nothing outside DIR is ever written, and nothing
through a symbolic link below it: a record whose path leads through one is listed and counted. What
is there already is left as it is, listed and counted, unless --force. Then the exit code is 1.

Whoever writes a record chooses its path and mode. Setuid, setgid and sticky bits are left out unless
--keep-setuid: the files belong to the user who exports, and a program would run with that user's
rights. Symbolic links get the target they were stored with, also an absolute one.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			opts.Dir = args[0]
			conn.NoNotes() // the progress is shown instead
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
	f := cmd.Flags()
	f.StringVar(&opts.Group, "group", "", "only this group")
	f.StringVar(&opts.Prefix, "prefix", "", "only records whose path lies below this one, which is taken off")
	f.BoolVar(&opts.Force, "force", false, "replace files that are there")
	f.BoolVar(&opts.Setuid, "keep-setuid", false, "restore setuid, setgid and sticky bits, too")
	f.IntVar(&opts.Workers, "workers", 8, "files written at a time")
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
