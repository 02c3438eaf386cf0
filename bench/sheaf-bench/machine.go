package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/bench"
	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/internal/local/cli"
)

func (p *program) load() *cobra.Command {
	opts := bench.LoadOptions{}
	large, small, start := cli.Size(8e9), cli.Size(2e9), cli.Size(256<<20)
	var quick bool
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Loading, starting, durable puts and cold gets against the device",
		Long: `Fills folders of its own and removes them. The disk needs room for --large and once more as much;
memory must hold twice
--large, as the raw read and ours are held side by side.`,
		Args: cobra.NoArgs,
	}
	optionFlags(cmd, &opts.Options, "; must allow O_DIRECT", bench.LoadParts())
	flags := cmd.Flags()
	flags.Var(&large, "large", "bytes of the dataset of 10 KB records")
	flags.Var(&small, "small", "bytes of the dataset of 1 KB records; 0: none")
	flags.Var(&start, "start", "bytes of each dataset of the starts")
	flags.StringSliceVar(&opts.FileSystems, "fs", defaultStartFileSystems(),
		"file systems that starts are measured on, on loop devices as root, as in ext4,xfs; empty: that of --dir")
	flags.Int64Var(&opts.IndexRecords, "records", 10_000_000,
		"records of the Index start, and of linearity against 100,000; twice as many in one group")
	flags.DurationVar(&opts.PutTime, "put-time", 3*time.Second, "of one variant of durable puts in one round")
	flags.BoolVar(&quick, "quick", false, "short: 1 GB, 256 MB, 1M records, 1 s")
	cmd.RunE = p.Body(func(ctx context.Context, _ []string) error {
		changed := cmd.Flags().Changed
		if quick {
			setUnless(changed("large"), &large, 1e9)
			setUnless(changed("small"), &small, 256e6)
			setUnless(changed("start"), &start, 64<<20)
			setUnless(changed("records"), &opts.IndexRecords, 1_000_000)
			setUnless(changed("put-time"), &opts.PutTime, time.Second)
		}
		if err := checkOnly(opts.Only, bench.LoadParts(), ""); err != nil {
			return err
		}
		if opts.Rounds < bench.RoundsMin || large < 1<<20 || opts.IndexRecords < 1000 || opts.PutTime <= 0 {
			return cli.Usagef(
				"--rounds must be at least %d, --large at least 1 MiB, --records at least 1000, --put-time positive",
				bench.RoundsMin)
		}
		for _, fs := range opts.FileSystems {
			if !slices.Contains(layouts.FileSystemNames(), fs) {
				return cli.Usagef("--fs %q: must be some of %s", fs, strings.Join(layouts.FileSystemNames(), ", "))
			}
		}
		if start < 1<<20 {
			return cli.Usagef("--start must be at least 1 MiB")
		}
		opts.LargeBytes, opts.SmallBytes, opts.StartBytes, opts.Say = int64(large), int64(small), int64(start), p.Out.Sayf
		report, err := bench.Load(ctx, opts)
		return p.print(report, err)
	})
	return cmd
}

// defaultStartFileSystems returns the file systems that local volumes usually have, or none if this process cannot
// make them.
func defaultStartFileSystems() []string {
	if os.Geteuid() != 0 {
		return nil
	}
	return []string{"ext4", "xfs", "btrfs"}
}

// optionFlags adds the flags that set bench.Options. The argument dir is appended to the help of --dir. The argument
// parts lists the values of --only. If parts is empty, the flag --only is not added.
func optionFlags(cmd *cobra.Command, o *bench.Options, dir string, parts []string) {
	flags := cmd.Flags()
	flags.StringVar(&o.Dir, "dir", "", "where to make a temporary folder"+dir+" (default: the system's)")
	flags.IntVar(&o.Rounds, "rounds", bench.RoundsMin, "rounds to take medians of")
	if len(parts) > 0 {
		flags.StringVar(&o.Only, "only", "", "one part: "+strings.Join(parts, ", "))
		cli.Complete(cmd, "only", parts...)
	}
}

// checkOnly returns a usage error if the argument only is not the name of a part. The argument with explains how
// other flags restrict the parts, and is appended to the message.
func checkOnly(only string, parts []string, with string) error {
	if only != "" && !slices.Contains(parts, only) {
		return cli.Usagef("--only %q: must be one of %s%s", only, strings.Join(parts, ", "), with)
	}
	return nil
}

func setUnless[T any](given bool, flag *T, value T) {
	if !given {
		*flag = value
	}
}

func (p *program) rpc() *cobra.Command {
	opts := bench.RPCOptions{}
	var quick bool
	cmd := &cobra.Command{
		Use:   "rpc",
		Short: "Unary and batch calls against a bare gRPC echo",
		Args:  cobra.NoArgs,
	}
	optionFlags(cmd, &opts.Options, "", nil)
	flags := cmd.Flags()
	flags.DurationVar(&opts.Time, "time", 2*time.Second, "of one variant in one round")
	flags.IntVar(&opts.Records, "records", 20000, "records that are read")
	flags.IntSliceVar(&opts.Sizes, "sizes", []int{1 << 10, 10 << 10}, "bytes of data")
	flags.IntSliceVar(&opts.Callers, "callers", []int{16, 64}, "concurrent callers")
	flags.BoolVar(&opts.TLS, "tls", false, "mutual TLS on every connection, also to the echo")
	flags.BoolVar(&quick, "quick", false, "short: 0.3 s per variant")
	cmd.RunE = p.Body(func(ctx context.Context, _ []string) error {
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
		opts.Say = p.Out.Sayf
		report, err := bench.RPC(ctx, opts)
		return p.print(report, err)
	})
	return cmd
}
