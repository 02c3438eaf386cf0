package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/cmd/sheaf-archive/cloud"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/local/archivecli"
	"sheaf.dev/sheaf/internal/local/cli"
)

// onBucket returns the RunE function of a command whose first argument is the URL of a bucket. A command for which
// bounded is true always has a deadline. Any other command has one only if --timeout is set.
func (a *app) onBucket(run func(ctx context.Context, b bucket.Bucket, args []string) error,
	bounded bool) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.Body(func(ctx context.Context, args []string) (err error) {
			if bounded || cmd.Flags().Changed("timeout") {
				var cancel context.CancelFunc
				ctx, cancel = cli.Within(ctx, a.timeout)
				defer cancel()
			}
			b, err := cloud.Open(ctx, args[0])
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, b.Close()) }()
			return run(ctx, b, args[1:])
		})(cmd, args)
	}
}

// onArchive makes cmd a command that reads the archive of one store.
func onArchive(a *app, cmd *cobra.Command, run func(ctx context.Context, s archivecli.Source,
	args []string) error) *cobra.Command {
	var store, keysDir string
	cmd.Flags().StringVar(&store, "store", "", "UUID of the store; not needed if the URL has one store alone")
	addKeys(cmd, &keysDir)
	cmd.RunE = a.onBucket(func(ctx context.Context, b bucket.Bucket, args []string) error {
		all, err := loadKeys(keysDir)
		if err != nil {
			return err
		}
		return run(ctx, archivecli.Source{Bucket: b, Store: store, Keys: all}, args)
	}, false)
	return cmd
}

// addNoUse adds the flag of commands that read for long.
func addNoUse(cmd *cobra.Command, noUse *bool) {
	cmd.Flags().BoolVar(noUse, "no-use", false,
		"create no object that stops prune meanwhile, for read-only credentials: safe only while nobody prunes the archive")
}

func listCommand(a *app) *cobra.Command {
	return onArchive(a, &cobra.Command{
		Use: "list URL", Short: "List the stores of a URL and their groups", Args: cobra.ExactArgs(1),
		Example: "  sheaf-archive list 's3://backups/quotes?region=eu-central-1'",
	}, func(ctx context.Context, s archivecli.Source, _ []string) error {
		return archivecli.List(ctx, a.Out, s)
	})
}

func showCommand(a *app) *cobra.Command {
	var opts archivecli.ShowOptions
	cmd := onArchive(a, &cobra.Command{
		Use: "show URL [OBJECT]", Short: "Show an object, the history of a group, or the versions of a record",
		Args: cobra.RangeArgs(1, 2),
		Example: "  sheaf-archive show file:///mnt/backups log/00/0000000000000000001\n" +
			"  sheaf-archive show file:///mnt/backups --group team-a-7 --id 42",
	}, func(ctx context.Context, s archivecli.Source, args []string) error {
		opts := opts
		if len(args) > 0 {
			opts.Object = args[0]
		}
		return archivecli.Show(ctx, a.Out, s, opts)
	})
	cmd.Flags().StringVar(&opts.Group, "group", "", "name or UUID of a group")
	cmd.Flags().StringVar(&opts.ID, "id", "", "id of a record of the group")
	return cmd
}

func verifyCommand(a *app) *cobra.Command {
	var opts archivecli.VerifyOptions
	var noUse bool
	cmd := onArchive(a, &cobra.Command{
		Use: "verify URL", Short: "Check all objects of an archive, and what they say of each other",
		Args: cobra.ExactArgs(1),
		Long: `Reads every byte of the archive, unless --sample is given, and prints what is wrong. It changes nothing,
apart from a small object below use/, which stops prune and is deleted at the end.`,
	}, func(ctx context.Context, s archivecli.Source, _ []string) error {
		s.NoUse = noUse
		return archivecli.Verify(ctx, a.Out, s, opts)
	})
	cmd.Flags().IntVar(&opts.Sample, "sample", 0, "percent of the segments, blobs and log objects to read; 0: all")
	cmd.Flags().Uint64Var(&opts.Seed, "seed", 0, "chooses the sample")
	addNoUse(cmd, &noUse)
	return cmd
}

func catCommand(a *app) *cobra.Command {
	var opts archivecli.CatOptions
	cmd := onArchive(a, &cobra.Command{
		Use: "cat URL ID", Short: "Write the data of a record as of a point in time", Args: cobra.ExactArgs(2),
		Example: "  sheaf-archive cat file:///mnt/backups 42 --at 2026-11-01T12:00:00Z",
	}, func(ctx context.Context, s archivecli.Source, args []string) error {
		opts := opts
		opts.ID = args[0]
		return archivecli.Cat(ctx, a.Out, s, opts)
	})
	cmd.Flags().StringVar(&opts.Group, "group", "", "name or UUID of the group; needed if several groups have the record")
	cmd.Flags().StringVar(&opts.At, "at", "",
		"a time such as 2026-11-01T12:00:00Z, or index:NUMBER; empty: the newest state")
	return cmd
}
