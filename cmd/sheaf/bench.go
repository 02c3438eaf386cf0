package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/bench"
	"sheaf.dev/sheaf/internal/cli"
)

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "Measure against the limits of this machine",
		GroupID: groupCare,
		Long: `Measures side by side with what the machine gives at most, in one run, in an order that rotates from round to round, and
compares medians. Ratios count; the figures beside them are those of this machine.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("say what to measure: load, rpc, copies or layouts")
		},
	}
	cmd.AddCommand(a.benchLoad(), a.benchRPC(), a.benchCopies(), a.benchLayouts())
	return cmd
}

func (a *app) benchLoad() *cobra.Command {
	opts := bench.LoadOptions{}
	large, small := cli.Size(8e9), cli.Size(2e9)
	var quick bool
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Loading, starting, durable puts and cold gets against the device",
		Long: `Fills folders of its own and removes them. The disk needs room for --large and once more as much; memory must hold twice
--large, as the raw read and ours are held side by side.`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Dir, "dir", "", "where to make a temporary folder; must allow O_DIRECT (default: the system's)")
	flags.IntVar(&opts.Rounds, "rounds", bench.RoundsMin, "rounds to take medians of")
	flags.Var(&large, "large", "bytes of the dataset of 10 KB records")
	flags.Var(&small, "small", "bytes of the dataset of 1 KB records; 0: none")
	flags.Int64Var(&opts.IndexRecords, "records", 10_000_000, "records of the Index start, and of linearity against 100,000")
	flags.DurationVar(&opts.PutTime, "put-time", 3*time.Second, "of one variant of durable puts in one round")
	flags.StringVar(&opts.Only, "only", "", "one part: "+strings.Join(bench.LoadParts(), ", "))
	flags.BoolVar(&quick, "quick", false, "short: 1 GB, 256 MB, 1M records, 1 s")
	a.complete(cmd, "only", bench.LoadParts()...)
	cmd.RunE = a.body(func(ctx context.Context, _ []string) error {
		changed := cmd.Flags().Changed
		if quick {
			setUnless(changed("large"), &large, 1e9)
			setUnless(changed("small"), &small, 256e6)
			setUnless(changed("records"), &opts.IndexRecords, 1_000_000)
			setUnless(changed("put-time"), &opts.PutTime, time.Second)
		}
		if opts.Only != "" && !slices.Contains(bench.LoadParts(), opts.Only) {
			return cli.Usagef("--only %q: must be one of %s", opts.Only, strings.Join(bench.LoadParts(), ", "))
		}
		if opts.Rounds < bench.RoundsMin || large < 1<<20 || opts.IndexRecords < 1000 || opts.PutTime <= 0 {
			return cli.Usagef("--rounds must be at least %d, --large at least 1 MiB, --records at least 1000, --put-time positive", bench.RoundsMin)
		}
		opts.LargeBytes, opts.SmallBytes, opts.Say = int64(large), int64(small), a.out.Sayf
		report, err := bench.Load(ctx, opts)
		return a.printBench(report, err)
	})
	return cmd
}

func setUnless[T any](given bool, flag *T, value T) {
	if !given {
		*flag = value
	}
}

func (a *app) benchRPC() *cobra.Command {
	opts := bench.RPCOptions{}
	var quick bool
	cmd := &cobra.Command{
		Use:   "rpc",
		Short: "Unary and batch calls against a bare gRPC echo",
		Args:  cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Dir, "dir", "", "where to make a temporary folder (default: the system's)")
	flags.IntVar(&opts.Rounds, "rounds", bench.RoundsMin, "rounds to take medians of")
	flags.DurationVar(&opts.Time, "time", 2*time.Second, "of one variant in one round")
	flags.IntVar(&opts.Records, "records", 20000, "records that are read")
	flags.IntSliceVar(&opts.Sizes, "sizes", []int{1 << 10, 10 << 10}, "bytes of data")
	flags.IntSliceVar(&opts.Callers, "callers", []int{16, 64}, "concurrent callers")
	flags.BoolVar(&quick, "quick", false, "short: 0.3 s per variant")
	cmd.RunE = a.body(func(ctx context.Context, _ []string) error {
		if quick && !cmd.Flags().Changed("time") {
			opts.Time = 300 * time.Millisecond
		}
		if opts.Rounds < bench.RoundsMin || opts.Time <= 0 || opts.Records < 200 {
			return cli.Usagef("--rounds must be at least %d, --time positive, --records at least 200", bench.RoundsMin)
		}
		for _, n := range append(append([]int{}, opts.Sizes...), opts.Callers...) {
			if n < 1 || n > 1<<20 {
				return cli.Usagef("--sizes and --callers: %d must be 1 to 1048576", n)
			}
		}
		opts.Say = a.out.Sayf
		report, err := bench.RPC(ctx, opts)
		return a.printBench(report, err)
	})
	return cmd
}

// printBench prints what was measured, also where an error ended it. Targets are shown, not enforced: a machine under load
// misses them.
func (a *app) printBench(report bench.Report, err error) error {
	if a.out.JSON {
		return errors.Join(err, a.out.WriteJSON(report))
	}
	m := report.Machine
	fmt.Fprintf(a.out.Out, "%s, %d CPUs, %s memory, Linux %s, %s; %.0f s\n", m.CPU, m.CPUs, cli.FormatBytes(m.MemoryBytes), m.Kernel, m.Go, report.Seconds)
	for _, row := range report.Rows {
		fmt.Fprintln(a.out.Out, row)
	}
	return err
}
