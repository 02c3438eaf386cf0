package main

import (
	"context"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/storage/wipe"
)

func lookCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "look DEVICE",
		Short:   "Say whether a disk is blank",
		GroupID: groupCare,
		Long: `Reads the beginning of a block device, or of an image of one, and says which file system, partition table or
other content it recognizes there. Nothing is written, and nothing is mounted. The exit code is 4 if the disk is not
blank.

The operator runs it for each disk of a DiskSet before a store gets the disk (docs/operations/disks.md).`,
		Example: `  sheaf look /dev/disk/by-id/nvme-eui.0025385b`,
		Args:    cobra.ExactArgs(1),
		RunE: a.Body(func(_ context.Context, args []string) error {
			found, err := wipe.Look(args[0])
			if err != nil {
				return err
			}
			if found != "" {
				return cli.NotBlankf("%s holds %s", args[0], found)
			}
			return a.Out.Print(map[string]bool{"blank": true},
				"%s is blank: no file system and no partition table is recognized\n", args[0])
		}),
	}
}
