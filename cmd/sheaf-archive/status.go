package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/archivecli"
)

func statusCommand(a *app) *cobra.Command {
	var opts archivecli.StatusOptions
	cmd := onArchive(a, &cobra.Command{
		Use: "status URL", Short: "Show how far the archive of a store is, and what it holds", Args: cobra.ExactArgs(1),
		Long: `Prints up to when all groups are archived, the first point in time that can be read, holes, and the
objects by kind. It lists all objects of the store. The exit code is 1 if the archive is more than
--lag-max behind, or if objects are missing.`,
		Example: "  sheaf-archive status file:///mnt/backups/quotes --lag-max 15m",
	}, func(ctx context.Context, s archivecli.Source, _ []string) error {
		return archivecli.Status(ctx, a.Out, s, opts)
	})
	cmd.Flags().DurationVar(&opts.LagMax, "lag-max", 15*time.Minute,
		"fail if the archive is more than this behind; a group that is not written is noted every 10 minutes")
	return cmd
}
