package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
)

func (a *app) importCommand() *cobra.Command {
	var opts cli.ImportOptions
	cmd := &cobra.Command{
		Use:     "import DIR",
		Short:   "Store every file of a tree as a record",
		GroupID: groupRecords,
		Long: `Walks a tree and stores each file as a record: its bytes as data, its modification time as
timestamp, its path, mode and time as attributes, so that export writes the same tree back. Symbolic
links are kept as records with their target as data. Sockets, devices and pipes are counted and left
out. Folders are not kept by themselves: neither empty ones nor their modes and times. Nor are
owners, extended attributes, hard links and holes (docs/operations/by-hand.md).

Ids:
  --id hash        from the path: the first 8 bytes of its SHA-256 (the default)
  --id name        the file's name up to its first dot: 42, 42.json, 0x2a.bin
  --id sequence    1, 2, 3... in the order of the paths (--first-id)
  --id map:FILE    from lines "ID PATH" of a file

A file whose id is taken is never stored over the other: it is listed, counted, and the exit code is
1. So are files that cannot be read. After a kill, --resume goes on and stores nothing twice;
--update also replaces what has changed since.`,
		Example: `  sheaf import /srv/quotes --id name
  sheaf import /srv/customers --group dir --id hash
  sheaf import /srv/quotes --id name --resume`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			opts.Dir = args[0]
			conn.NoNotes() // progress is shown instead
			report, err := cli.Import(ctx, conn, a.Out, opts)
			return a.reportImport(report, err)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&opts.ID, "id", "hash", "how files get ids: name, sequence, hash or map:FILE")
	f.StringVar(&opts.Group, "group", "", "Named routing: dir (the first folder of the path), or the name of one group")
	f.StringVar(&opts.Prefix, "prefix", "", "put this before every path (tells the files of several trees apart)")
	f.Int64Var(&opts.FirstID, "first-id", 1, "first id of --id sequence")
	f.StringVar(&opts.ImportID, "import-id", "",
		"part of the request ids by which repeated puts are recognised (default: chosen for you)")
	f.BoolVar(&opts.DryRun, "dry-run", false, "store nothing: count, and find collisions and unreadable files")
	f.BoolVar(&opts.Resume, "resume", false, "leave what an earlier import stored as it is")
	f.BoolVar(&opts.Update, "update", false, "like --resume, and store files that changed since as new versions")
	f.StringVar(&opts.Symlinks, "symlinks", "keep", "symbolic links: keep or skip")
	f.IntVar(&opts.Workers, "workers", 16, "files read at a time")
	f.IntVar(&opts.Senders, "senders", 8, "streams that send")
	f.StringVar(&opts.Failures, "failures", "", "write the list of all failures to this file, as JSON lines")
	f.BoolVar(&opts.Quiet, "quiet", false, "show no progress")
	cli.Complete(cmd, "id", "name", "sequence", "hash", "map:")
	cli.Complete(cmd, "symlinks", "keep", "skip")
	return cmd
}

func (a *app) reportImport(report cli.ImportReport, err error) error {
	if report.Seconds == 0 {
		return err // the import did not start
	}
	var printErr error
	if a.Out.JSON {
		printErr = a.Out.WriteJSON(report)
	} else {
		_, printErr = fmt.Fprint(a.Out.Out, importWords(report))
	}
	if err != nil {
		return err
	}
	if n := report.Failed.Total(); n > 0 {
		return fmt.Errorf("%s of the files were not imported", cli.FormatCount(n))
	}
	return printErr
}

func importWords(r cli.ImportReport) string {
	var b strings.Builder
	verb := "stored"
	if r.DryRun {
		verb = "would store"
	}
	fmt.Fprintf(&b, "%s %s files, %s, in %.1f s: %s files/s", verb, cli.FormatCount(r.Stored),
		cli.FormatBytes(r.StoredBytes),
		r.Seconds, cli.FormatCount(int64(float64(r.Stored)/r.Seconds)))
	if !r.DryRun { // a dry run reads no bytes
		fmt.Fprintf(&b, ", %s/s", cli.FormatBytes(int64(float64(r.StoredBytes)/r.Seconds)))
	}
	b.WriteByte('\n')
	for _, row := range []struct {
		n    int64
		what string
	}{
		{r.AlreadyThere, "were there already"},
		{r.Updated, "of them replaced an older state"},
		{r.Empty, "of them empty"},
		{r.Symlinks, "of them symbolic links"},
		{r.Large, "of them above 1 MiB"},
		{r.Skipped, "left out (sockets, devices, pipes, links not kept)"},
	} {
		if row.n > 0 {
			fmt.Fprintf(&b, "  %s %s\n", cli.FormatCount(row.n), row.what)
		}
	}
	for _, kind := range cli.SortedKeys(r.Failed) {
		fmt.Fprintf(&b, "  %s not imported: %s\n", cli.FormatCount(r.Failed[kind]), kind)
	}
	return b.String()
}
