package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/archivecli"
	"sheaf.dev/sheaf/internal/local/cli"
)

// callTimeout limits each call to the store that has a single answer. It also limits how long a broken stream is
// retried.
const callTimeout = time.Minute

// copyFlags are the flags of the command copy that are not in CopyOptions.
type copyFlags struct {
	ids  string
	rate cli.Size
	// noUse makes the command read without protection from pruning.
	noUse bool
	tls   cli.TLS
}

func copyCommand(a *app) *cobra.Command {
	var f copyFlags
	var opts archivecli.CopyOptions
	cmd := onArchive(a, &cobra.Command{
		Use: "copy URL", Short: "Write records, as they were at a point in time, into a living store",
		Args: cobra.ExactArgs(1),
		Long: `Brings back records that somebody deleted or overwrote. It reads them from the archive as they were at
a point in time, and writes them by ordinary puts, with their data, attributes and timestamps. Records
that are in the store as they were are not written. Nothing is deleted.

A record that has other content now is left, and makes the exit code 1, unless --overwrite is given.
After an interruption, run the command again: what it has written is not written twice. While it runs,
an object below use/ of the archive stops prune.

--ids names a file with one id in each line, or GROUP/ID; - is stdin. Without --ids, all records of
--group are copied. --as writes them to another group; the group is created if it does not exist.`,
		Example: "  sheaf-archive copy file:///mnt/backups --at 2026-11-01T12:00:00Z --ids lost.txt\n" +
			"  sheaf-archive copy file:///mnt/backups --at 2026-11-01T12:00:00Z --group team-a-7 --as team-a-7-then",
	}, func(ctx context.Context, s archivecli.Source, _ []string) (err error) {
		opts := opts
		opts.Rate, s.NoUse = int64(f.rate), f.noUse
		ids, err := f.open()
		if err != nil {
			return err
		}
		if ids != nil {
			defer ids.Close() //nolint:errcheck // the file was only read
			opts.IDs = ids
		}
		conn, err := cli.Dial(a.server, f.tls, callTimeout)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		return archivecli.Copy(ctx, a.Out, s, conn, opts)
	})
	flags := cmd.Flags()
	flags.StringVar(&opts.At, "at", "", "a time such as 2026-11-01T12:00:00Z; with one group also index:NUMBER")
	flags.BoolVar(&opts.Nearest, "nearest", false,
		"if a group cannot be read as of --at, take the nearest point, and say which")
	flags.StringVar(&f.ids, "ids", "", "file with the ids of the records, or -")
	flags.StringVar(&opts.Group, "group", "", "name or UUID of the group; with --ids, that of ids without a group")
	flags.StringVar(&opts.As, "as", "", "Named routing: write to this group")
	flags.BoolVar(&opts.Overwrite, "overwrite", false, "also replace records that have other content now")
	flags.BoolVar(&opts.DryRun, "dry-run", false, "write nothing: compare with the store, and count")
	flags.Var(&f.rate, "rate", "bytes of data written in a second, at most, such as 20MiB; 0: no limit")
	addNoUse(cmd, &f.noUse)
	flags.BoolVar(&opts.Quiet, "quiet", false, "show no progress")
	flags.StringVar(&a.server, "server", "127.0.0.1:7600", "HOST:PORT of a gateway of the store")
	f.tls.Add(flags)
	return cmd
}

// open opens the list of ids. It returns nil if the flags name no list.
func (f *copyFlags) open() (io.ReadCloser, error) {
	switch f.ids {
	case "":
		return nil, nil
	case "-":
		return io.NopCloser(os.Stdin), nil
	}
	file, err := os.Open(f.ids)
	if err != nil {
		return nil, cli.Usagef("--ids: %w", err)
	}
	return file, nil
}
