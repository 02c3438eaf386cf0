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

func (p *program) writePath() *cobra.Command {
	opts := bench.WritePathOptions{}
	var quick bool
	cmd := &cobra.Command{
		Use:   "write-path",
		Short: "Where the time of a durable write goes in a shard, stage by stage",
		Long: `Starts a shard as a process of the program sheaf, with one copy, and writes to it by unary puts and by
batches. For each stage of a write it shows the processor time for a record, from a profile of the
shard, and the time that goroutines wait there, from an execution trace, which "go tool trace"
reads: the go tool must be in the PATH.`,
		Args: cobra.NoArgs,
	}
	optionFlags(cmd, &opts.Options, "", nil)
	sheafFlag(cmd, &opts.Binary)
	flags := cmd.Flags()
	flags.DurationVar(&opts.Time, "time", 3*time.Second, "of one profile, in whole seconds")
	flags.IntSliceVar(&opts.Groups, "groups", []int{1, 3, 16}, "groups of the store")
	flags.IntSliceVar(&opts.Sizes, "sizes", []int{1 << 10, 10 << 10}, "bytes of data")
	flags.IntVar(&opts.Callers, "callers", 16, "concurrent callers")
	flags.IntVar(&opts.Batch, "batch", 100, "records in a batch")
	flags.BoolVar(&quick, "quick", false, "short: profiles of 1 s")
	cmd.RunE = p.Body(func(ctx context.Context, _ []string) (err error) {
		if quick && !cmd.Flags().Changed("time") {
			opts.Time = time.Second
		}
		if opts.Rounds < bench.RoundsMin || opts.Time < time.Second || opts.Time%time.Second != 0 {
			return cli.Usagef("--rounds must be at least %d, --time whole seconds", bench.RoundsMin)
		}
		for _, n := range append(append([]int{opts.Callers, opts.Batch}, opts.Sizes...), opts.Groups...) {
			if n < 1 || n > 1<<20 {
				return cli.Usagef("--sizes, --groups, --callers and --batch: %d must be 1 to 1048576", n)
			}
		}
		if opts.Binary, err = sheafBeside(opts.Binary); err != nil {
			return err
		}
		if opts.GoTool, err = exec.LookPath("go"); err != nil {
			return fmt.Errorf("execution traces are read by `go tool trace`: %w", err)
		}
		opts.Say = p.Out.Sayf
		report, err := bench.WritePath(ctx, opts)
		return p.print(report, err)
	})
	return cmd
}
