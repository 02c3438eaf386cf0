package main

import (
	"context"
	"errors"

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

func wipeCommand(a *app) *cobra.Command {
	var confirm string
	cmd := &cobra.Command{
		Use:     "wipe DEVICE",
		Short:   "Make a disk blank, so that it can be formatted again",
		GroupID: groupCare,
		Long: `Takes a block device for itself alone, discards all of it where the disk can do that, and overwrites
what file systems, partition tables and RAID are known by. What was on it is lost. A device that is
mounted anywhere on the machine, or that the kernel uses otherwise, is refused, and nothing can
mount it meanwhile.

It is no secure erasure: a disk that cannot discard keeps what is not overwritten, for who looks for
it.

The operator runs it for disks of a DiskSet, after it has asked twice (docs/operations/disks.md).`,
		Example: `  sheaf wipe /dev/disk/by-id/nvme-eui.0025385b --confirm /dev/disk/by-id/nvme-eui.0025385b`,
		Args:    cobra.ExactArgs(1),
		RunE: a.Body(func(_ context.Context, args []string) error {
			if confirm != args[0] {
				return errors.New("everything on " + args[0] + " is lost by this: repeat its path, as in --confirm " + args[0])
			}
			report, err := wipe.Device(args[0])
			if err != nil {
				return err
			}
			words := "the disk cannot discard, so only what file systems and partition tables are known by is gone"
			if report.Discarded {
				words = "all of it was discarded"
			}
			return a.Out.Print(report, "%s of %s is blank: %s, %s overwritten with zeros and read back\n", args[0],
				cli.FormatBytes(report.Bytes), words, cli.FormatBytes(report.Zeroed))
		}),
	}
	cmd.Flags().StringVar(&confirm, "confirm", "", "the path of the device once more: what is on it is lost")
	return cmd
}
