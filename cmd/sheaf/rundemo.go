package main

import (
	"context"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/cli"
	"sheaf.dev/sheaf/internal/demo"
)

// runDemoCommand is what `make run` calls, by hack/run.sh.
func (a *app) runDemoCommand() *cobra.Command {
	var opts demo.Options
	cmd := &cobra.Command{
		Use:    "run-demo DIR...",
		Short:  "Import trees, kill the store, load it again, report",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: a.body(func(ctx context.Context, args []string) error {
			if opts.Residency != "index" && opts.Residency != "resident" {
				return cli.Usagef("--residency %q: must be index or resident", opts.Residency)
			}
			opts.Trees, opts.Out = args, a.out
			return demo.Run(ctx, opts)
		}),
	}
	addressVar(cmd.Flags(), &opts.Listen, "listen", "127.0.0.1:7600", "address of the gateway")
	httpVar(cmd.Flags(), &opts.HTTP, "127.0.0.1:7601", "address of the page, metrics, health and status")
	cmd.Flags().StringVar(&opts.Residency, "residency", "resident", "index or resident")
	cmd.Flags().BoolVar(&opts.Once, "once", false, "end after the report")
	return cmd
}
