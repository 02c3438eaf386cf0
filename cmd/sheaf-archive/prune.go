package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/archivecli"
)

func pointCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "point", Short: "Create, list or delete points in time that pruning keeps",
		Long: `A point is a time that stays readable after it is older than the window of prune. Read it with
--at point:NAME.`,
	}
	cmd.AddCommand(pointCreateCommand(a), pointListCommand(a), pointDeleteCommand(a))
	return cmd
}

func pointCreateCommand(a *app) *cobra.Command {
	opts := archivecli.PointOptions{Now: time.Now}
	cmd := onArchive(a, &cobra.Command{
		Use: "create URL NAME", Short: "Keep a point in time", Args: cobra.ExactArgs(2),
		Example: "  sheaf-archive point create file:///mnt/backups before-1.2 --for 2160h",
	}, func(ctx context.Context, s archivecli.Source, args []string) error {
		opts := opts
		opts.Name = args[0]
		return archivecli.CreatePoint(ctx, a.Out, s, opts)
	})
	flags := cmd.Flags()
	flags.StringVar(&opts.At, "at", "",
		"a time such as 2026-11-01T12:00:00Z; default: the time up to which all groups are archived")
	flags.DurationVar(&opts.For, "for", 0, "how long it is kept; 0: until it is deleted")
	flags.BoolVar(&opts.Schedule, "schedule", false, "it is one of many: prune --points keeps only the newest ones")
	return cmd
}

func pointListCommand(a *app) *cobra.Command {
	return onArchive(a, &cobra.Command{
		Use: "list URL", Short: "List the points of an archive", Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, s archivecli.Source, _ []string) error {
		return archivecli.ListPoints(ctx, a.Out, s)
	})
}

func pointDeleteCommand(a *app) *cobra.Command {
	return onArchive(a, &cobra.Command{
		Use: "delete URL NAME", Short: "Keep a point no longer", Args: cobra.ExactArgs(2),
		Long: `The point is not kept any more. Its objects are deleted by a later prune, a day from now at the earliest.`,
	}, func(ctx context.Context, s archivecli.Source, args []string) error {
		return archivecli.DeletePoint(ctx, a.Out, s, args[0], time.Now)
	})
}

func pruneCommand(a *app) *cobra.Command {
	opts := archivecli.PruneOptions{Now: time.Now}
	cmd := onArchive(a, &cobra.Command{
		Use: "prune URL", Short: "Make an archive smaller, apart from a window and points", Args: cobra.ExactArgs(1),
		Long: `Times that are younger than --keep stay readable as they are, and so do points. What nothing else needs
is listed in a drop, and deleted by the first prune that runs more than a day later. Run it once a day.
While a restore reads the archive, nothing is done.`,
		Example: "  sheaf-archive prune file:///mnt/backups --keep 168h --points 30 --dry-run",
	}, func(ctx context.Context, s archivecli.Source, _ []string) error {
		return archivecli.Prune(ctx, a.Out, s, opts)
	})
	flags := cmd.Flags()
	flags.DurationVar(&opts.Keep, "keep", 7*24*time.Hour, "how far back every state stays readable")
	flags.IntVar(&opts.Points, "points", 30, "points of a schedule that are kept; others are kept until they end")
	flags.BoolVar(&opts.DryRun, "dry-run", false, "change nothing, and print what would be done")
	return cmd
}
