package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/bench"
	"sheaf.dev/sheaf/internal/local/cli"
)

func (p *program) copies() *cobra.Command {
	opts := bench.CopiesOptions{}
	move := cli.Size(1e9)
	var quick bool
	cmd := &cobra.Command{
		Use:   "copies",
		Short: "Copies on several shards: puts, reads, moves, failover, rest; etcd beside them",
		Long: `Starts shards and members of etcd as processes of the program sheaf, all on the device of --dir, and
kills them. Parts: put (against plain appenders with a loopback copy), move (against cp and sync),
foreground (puts and gets while groups move), read (against copies 1), etcd (three members of etcd),
failover (kill -9 of leaders), quiet (groups that nobody uses). With --tls, put and move alone:
copies over mutual TLS take turns with copies in plaintext.`,
		Args: cobra.NoArgs,
	}
	optionFlags(cmd, &opts.Options, "; must allow O_DIRECT", bench.CopiesParts())
	sheafFlag(cmd, &opts.Binary)
	flags := cmd.Flags()
	flags.DurationVar(&opts.Time, "time", 2*time.Second, "of one variant in one round")
	flags.Var(&move, "move", "bytes of the group that is moved")
	flags.IntVar(&opts.Kills, "kills", 100, "of a leader's process")
	flags.IntVar(&opts.Groups, "groups", 1024, "groups that nobody uses, each with three copies")
	flags.BoolVar(&opts.TLS, "tls", false,
		"put and move over mutual TLS between shards, in turns with plaintext; no other part")
	flags.BoolVar(&quick, "quick", false, "short: 0.5 s per variant, 128 MB moved, 5 kills, 64 groups")
	cmd.RunE = p.Body(func(ctx context.Context, _ []string) (err error) {
		changed := cmd.Flags().Changed
		if quick {
			setUnless(changed("time"), &opts.Time, 500*time.Millisecond)
			setUnless(changed("move"), &move, 128e6)
			setUnless(changed("kills"), &opts.Kills, 5)
			setUnless(changed("groups"), &opts.Groups, 64)
		}
		parts, with := bench.CopiesParts(), ""
		if opts.TLS {
			parts, with = bench.CopiesPartsTLS(), " with --tls"
		}
		if err := checkOnly(opts.Only, parts, with); err != nil {
			return err
		}
		if opts.Rounds < bench.RoundsMin || opts.Time <= 0 || move < 1<<20 || opts.Kills < 1 || opts.Groups < 1 {
			return cli.Usagef(
				"--rounds must be at least %d, --time positive, --move at least 1 MiB, --kills and --groups at least 1",
				bench.RoundsMin)
		}
		if opts.Binary, err = sheafBeside(opts.Binary); err != nil {
			return err
		}
		opts.MoveBytes, opts.Say = int64(move), p.Out.Sayf
		report, err := bench.Copies(ctx, opts)
		return p.print(report, err)
	})
	return cmd
}
