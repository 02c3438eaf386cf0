package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/bench"
	"sheaf.dev/sheaf/internal/local/cli"
)

func (p *program) readers() *cobra.Command {
	opts := bench.ReadersOptions{}
	bytes := cli.Size(50e6)
	cmd := &cobra.Command{
		Use:   "readers",
		Short: "Readers in Python: batches, scans and loaders beside local files, gRPC and Flight",
		Long: `Starts a store in this process, and readers in Python as processes. Parts: batches (random batches
against array_record, Lance and grpcio; scans against a bare Flight server; loaders against
WebDataset and files, also by torch's DataLoader), calls (HTTP against gRPC, from Go), order
(indexes of a shuffled order), first (time to the first batch), beside (gets of others beside
loaders). All data are warm. What the Python of --python lacks is reported as not measured; "make
bench-readers" installs it.`,
		Args: cobra.NoArgs,
	}
	optionFlags(cmd, &opts.Options, "; needs six times --bytes", bench.ReadersParts())
	flags := cmd.Flags()
	flags.StringVar(&opts.Python, "python", "python3", "the Python program of the readers")
	flags.DurationVar(&opts.Time, "time", 500*time.Millisecond, "of one variant in one round")
	flags.Var(&bytes, "bytes", "of the records of each size")
	flags.IntSliceVar(&opts.Sizes, "sizes", []int{10_000, 110_000}, "bytes of data in a record")
	flags.IntVar(&opts.Records, "records", 200_000, "small records of the part first")
	cmd.RunE = p.Body(func(ctx context.Context, _ []string) (err error) {
		if err := checkOnly(opts.Only, bench.ReadersParts(), ""); err != nil {
			return err
		}
		if opts.Rounds < bench.RoundsMin || opts.Time <= 0 || bytes < 1 || opts.Records < bench.RecordsMin {
			return cli.Usagef("--rounds must be at least %d, --time and --bytes positive, --records at least %d",
				bench.RoundsMin, bench.RecordsMin)
		}
		if len(opts.Sizes) == 0 {
			return cli.Usagef("--sizes: give at least one")
		}
		for _, n := range opts.Sizes {
			if n < 1 || n > 1<<20 {
				return cli.Usagef("--sizes: %d must be 1 to 1048576", n)
			}
		}
		if opts.Python, err = exec.LookPath(opts.Python); err != nil {
			return fmt.Errorf("readers are Python programs: %w: run `make bench-readers`, or give --python", err)
		}
		opts.Bytes, opts.Say = int64(bytes), p.Out.Sayf
		report, err := bench.Readers(ctx, opts)
		return p.print(report, err)
	})
	return cmd
}
