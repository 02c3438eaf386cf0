package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/bench"
	"sheaf.dev/sheaf/internal/local/cli"
)

func (p *program) archive() *cobra.Command {
	opts := bench.ArchiveOptions{}
	bytes := cli.Size(256 << 20)
	record := cli.Size(10 << 10)
	var folder bool
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Archives in a bucket: first copy, puts meanwhile, restore, memory",
		Long: `Starts a store, sheaf-archive and an S3 server (versitygw) as processes on this machine. Parts: upload (the
first copy of a store, against the same client without Sheaf), puts (while the store is archived, in turns with puts
without), restore (into a new store, against bucket and disk, and against one group alone), day (an archive of one
put per second, against the same records in one segment for each group).

With --folder, the archive is in a folder in place of an S3 server. "make bin/tools/versitygw" builds the server.`,
		Args: cobra.NoArgs,
	}
	optionFlags(cmd, &opts.Options, "", bench.ArchiveParts())
	sheafFlag(cmd, &opts.Binary)
	flags := cmd.Flags()
	flags.StringVar(&opts.Archive, "sheaf-archive", "", "the program sheaf-archive (default: the one beside this program)")
	flags.StringVar(&opts.Gateway, "versitygw", "",
		"the program versitygw (default: tools/versitygw beside this program)")
	flags.BoolVar(&folder, "folder", false, "archive to a folder in place of an S3 server")
	flags.Var(&bytes, "bytes", "bytes of all records of the store")
	flags.Var(&record, "record-bytes", "bytes of one record")
	flags.IntVar(&opts.Groups, "groups", 16, "groups of the stores")
	flags.DurationVar(&opts.Time, "time", 3*time.Second, "of one turn of puts")
	flags.IntVar(&opts.DayRecords, "day-records", 86_400, "records of the archive of one put per second")
	cmd.RunE = p.Body(func(ctx context.Context, _ []string) (err error) {
		if err := checkOnly(opts.Only, bench.ArchiveParts(), ""); err != nil {
			return err
		}
		if opts.Rounds < bench.RoundsMin || opts.Time <= 0 || record < 1 || record > 1<<20 || bytes < record ||
			opts.Groups < 1 || opts.Groups > 4096 || opts.DayRecords < opts.Groups {
			return cli.Usagef("--rounds must be at least %d, --time positive, --record-bytes 1 to 1 MiB, --bytes at least "+
				"that, --groups 1 to 4096, --day-records at least --groups", bench.RoundsMin)
		}
		opts.Bytes, opts.RecordBytes, opts.Say = int64(bytes), int(record), p.Out.Sayf
		if opts.Binary, err = sheafBeside(opts.Binary); err != nil {
			return err
		}
		if opts.Archive, err = beside(opts.Archive, "sheaf-archive", "give --sheaf-archive"); err != nil {
			return err
		}
		if folder {
			opts.Gateway = ""
		} else if opts.Gateway, err = beside(opts.Gateway, filepath.Join("tools", "versitygw"),
			"run `make bin/tools/versitygw`, give --versitygw, or give --folder"); err != nil {
			return err
		}
		report, err := bench.Archive(ctx, opts)
		return p.print(report, err)
	})
	return cmd
}
