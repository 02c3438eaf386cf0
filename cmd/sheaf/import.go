package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/parquetcli"
)

func importCommand(a *app) *cobra.Command {
	var opts cli.ImportOptions
	var format, data string
	cmd := &cobra.Command{
		Use:     "import DIR|FILE...",
		Short:   "Store every file of a tree, or every row of Parquet files, as a record",
		GroupID: groupRecords,
		Long: `Walks a tree and stores each file as a record: its bytes as data, its modification time as
timestamp, its path, mode and time as attributes, so that export writes the same tree back. Symbolic
links are kept as records with their target as data. Sockets, devices and pipes are counted and left
out. Folders are not kept by themselves: neither empty ones nor their modes and times. Nor are
owners, extended attributes, hard links and holes (docs/operations/by-hand.md). What the summary
calls "not kept" counts them.

Ids:
  --id hash        from the path: the first 8 bytes of its SHA-256 (the default)
  --id name        the file's name up to its first dot: 42, 42.json, 0x2a.bin
  --id sequence    1, 2, 3... in the order of the paths (--first-id)
  --id map:FILE    from lines "ID PATH" of a file

A file whose id is taken is never stored over the other: it is listed, counted, and the exit code is
1. So are files that cannot be read, and files that changed while they were read: these are stored as
they were seen. After a kill, --resume goes on and stores nothing twice.

As with rsync, --update stores what changed: files whose size, modification time or mode is another.
--checksum finds changed bytes behind the same size and time, too; it reads every file and record.
--delete deletes the records below --prefix (without it: every record with a path, of whatever tree)
whose path is no file of the tree any more, but none where a folder cannot be read or the tree is
empty. --dry-run asks the store and says what would be done.

With --format parquet, each row of the Parquet files becomes a record: --id and --data name the
columns with the ids (integers) and the data (binary or utf8), --group a group, or with column:NAME the
column with the group of each row. Other columns are passed over. Rows with a null or with an id that
is no int64 are listed and counted by file and row, from 0, and the exit code is 1. So are rows whose id is
taken; with --resume only if the record has other data (docs/parquet.md).`,
		Example: `  sheaf import /srv/quotes --id name
  sheaf import /srv/customers --group dir --id hash
  sheaf import /srv/quotes --id name --resume
  sheaf import /srv/quotes --prefix quotes --update --delete --dry-run
  sheaf import --format parquet part-*.parquet --id id --data data`,
		Args: func(cmd *cobra.Command, args []string) error {
			if format == formatParquet {
				return cobra.MinimumNArgs(1)(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			conn.NoNotes() // the progress is shown instead
			if format == formatParquet {
				return importParquet(ctx, conn, a.Out, parquetcli.ImportOptions{Files: args, ID: opts.ID, Data: data,
					Group: opts.Group, ImportID: opts.ImportID, Senders: opts.Senders, DryRun: opts.DryRun, Resume: opts.Resume,
					Failures: opts.Failures, Quiet: opts.Quiet})
			}
			opts.Dir = args[0]
			report, err := cli.Import(ctx, conn, a.Out, opts)
			return reportImport(a.Out, report, err)
		}),
	}
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if format == formatParquet && !cmd.Flags().Changed("id") {
			opts.ID = "" // the default is a scheme for files
		}
		return checkFormat(cmd, format, []string{"prefix", "first-id", "update", "checksum", "delete", "symlinks", "workers"},
			[]string{"data"})
	}
	addFormat(cmd, &format, "what to read: files, or parquet")
	f := cmd.Flags()
	f.StringVar(&opts.ID, "id", "hash",
		"how files get ids: name, sequence, hash or map:FILE; with --format parquet the column with the ids")
	f.StringVar(&data, "data", "", "with --format parquet: the column with the data")
	f.StringVar(&opts.Group, "group", "",
		"Named routing: dir (the first folder of the path), column:NAME (with --format parquet), or the name of one group")
	f.StringVar(&opts.Prefix, "prefix", "", "put this before every path (keeps the files of several trees apart)")
	f.Int64Var(&opts.FirstID, "first-id", 1, "first id of --id sequence")
	f.StringVar(&opts.ImportID, "import-id", "",
		"part of the request ids by which repeated puts are recognised (default: chosen for you)")
	f.BoolVar(&opts.DryRun, "dry-run", false, "store and delete nothing: ask the store, and count")
	f.BoolVar(&opts.Resume, "resume", false, "leave what an earlier import stored as it is")
	f.BoolVar(&opts.Update, "update", false, "like --resume, and store files that changed since as new versions")
	f.BoolVar(&opts.Checksum, "checksum", false, "with --update: compare bytes, and not size, time and mode alone")
	f.BoolVar(&opts.Delete, "delete", false, "with --update: delete records whose path is not in the tree any more")
	f.StringVar(&opts.Symlinks, "symlinks", "keep", "symbolic links: keep or skip")
	f.IntVar(&opts.Workers, "workers", 16, "files read at a time")
	f.IntVar(&opts.Senders, "senders", 8, "streams that send")
	f.StringVar(&opts.Failures, "failures", "", "write the list of all failures to this file, as JSON lines")
	f.BoolVar(&opts.Quiet, "quiet", false, "show no progress")
	cli.Complete(cmd, "id", "name", "sequence", "hash", "map:")
	cli.Complete(cmd, "symlinks", "keep", "skip")
	return cmd
}

func reportImport(out *cli.Output, report cli.ImportReport, err error) error {
	if report.Seconds == 0 {
		return err // the import did not start
	}
	return importEnded(out, report, importWords(report), importFailures(report), report.DryRun, err)
}

// importEnded prints the report of an import, as JSON or in words. It returns the error of the command, given the error
// that has ended the import, if there was one, and what the user has to examine.
func importEnded(out *cli.Output, report any, words, failures string, dryRun bool, err error) error {
	var printErr error
	if out.JSON {
		printErr = out.WriteJSON(report)
	} else {
		_, printErr = fmt.Fprint(out.Out, words)
	}
	switch {
	case errors.Is(err, context.Canceled) && !dryRun:
		return fmt.Errorf("%w: run again with --resume, which goes on where this import ended", err)
	case err != nil:
		return err
	case failures != "":
		return errors.New(failures)
	}
	return printErr
}

// importFailures describes the failures of an import that the user has to examine. The text is empty if there are
// none.
func importFailures(r cli.ImportReport) string {
	return counted(", ",
		row{r.NotImported(), "file was not imported", "files were not imported"},
		row{r.Mixed(), "file changed while it was read", "files changed while they were read"},
		row{r.NotDeleted(), "deletion was left out", "deletions were left out"})
}

// row is a number together with its noun.
type row struct {
	n         int64
	one, many string
}

// counted returns the rows whose number is not 0, joined by the given separator.
func counted(between string, rows ...row) string {
	var words []string
	for _, r := range rows {
		if r.n > 0 {
			words = append(words, cli.Count(r.n, r.one, r.many))
		}
	}
	return strings.Join(words, between)
}

func importWords(r cli.ImportReport) string {
	var b strings.Builder
	const leftOut = "left out (sockets, devices, pipes, links not kept)"
	verb, replaced := "stored", "of them replaced an older state"
	deleted := "deleted: their paths are not in the tree any more"
	if r.DryRun {
		verb, replaced, deleted = "would store", "of them would replace an older state", "would be "+deleted
	}
	fmt.Fprintf(&b, "%s %s, %s", verb, cli.Count(r.Stored, "file", "files"), cli.FormatBytes(r.StoredBytes))
	if !r.DryRun { // a dry run stores nothing, so it has no rate
		fmt.Fprintf(&b, ", in %.1f s: %s/s, %s/s", r.Seconds,
			cli.Count(int64(float64(r.Stored)/r.Seconds), "file", "files"),
			cli.FormatBytes(int64(float64(r.StoredBytes)/r.Seconds)))
	}
	b.WriteByte('\n')
	if rows := counted("\n  ",
		row{r.AlreadyThere, "was there already", "were there already"},
		row{r.Updated, replaced, replaced},
		row{r.Deleted, deleted, deleted},
		row{r.Empty, "of them empty", "of them empty"},
		row{r.Symlinks, "of them a symbolic link", "of them symbolic links"},
		row{r.Large, "of them above 1 MiB", "of them above 1 MiB"},
		row{r.Skipped, leftOut, leftOut},
	); rows != "" {
		fmt.Fprintf(&b, "  %s\n", rows)
	}
	if rows := counted(", ",
		row{r.NotKept.EmptyFolders, "empty folder", "empty folders"},
		row{r.NotKept.HardLinks, "hard link", "hard links"},
		row{r.NotKept.Holes, "file's holes", "files' holes"},
		row{r.NotKept.Owners, "file's owner", "files' owners"},
		row{r.NotKept.Attributes, "file's extended attributes", "files' extended attributes"},
	); rows != "" {
		fmt.Fprintf(&b, "  not kept: %s\n", rows)
	}
	for _, kind := range cli.SortedKeys(r.Failed) {
		fmt.Fprintf(&b, "  %s: %s\n", cli.FormatCount(r.Failed[kind]), cli.ImportFailure(kind))
	}
	return b.String()
}
