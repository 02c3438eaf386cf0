package main

import (
	"context"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/bench/demo"
	"sheaf.dev/sheaf/internal/local/cli"
)

// demo returns the command that hack/run.sh calls for `make run`.
func (p *program) demo() *cobra.Command {
	var opts demo.Options
	cmd := &cobra.Command{
		Use:   "demo DIR...",
		Short: "Import trees, kill the store, load it again, report",
		Args:  cobra.MinimumNArgs(1),
		RunE: p.Body(func(ctx context.Context, args []string) error {
			if opts.Residency != "index" && opts.Residency != "resident" {
				return cli.Usagef("--residency %q: must be index or resident", opts.Residency)
			}
			var err error
			if opts.Program, err = sheafBeside(opts.Program); err != nil {
				return err
			}
			opts.Trees, opts.Out = args, p.Out
			return demo.Run(ctx, opts)
		}),
	}
	sheafFlag(cmd, &opts.Program)
	cli.AddressVar(cmd.Flags(), &opts.Listen, "listen", "127.0.0.1:7600", "address of the gateway")
	cli.HTTPVar(cmd.Flags(), &opts.HTTP, "127.0.0.1:7601", "address of the page, metrics, health and status")
	cmd.Flags().StringVar(&opts.Residency, "residency", "resident", "index or resident")
	cmd.Flags().BoolVar(&opts.Once, "once", false, "end after the report")
	return cmd
}
