package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

func verifyCommand(a *app) *cobra.Command {
	var opts cli.VerifyTreeOptions
	cmd := &cobra.Command{
		Use:     "verify DIR",
		Short:   "Check every byte of volumes that nobody serves",
		GroupID: groupCare,
		Long: `Reads every byte of a volume, a group's folder, or a folder of volumes (that of sheaf dev for
instance), and checks it. Names group, file and offset of each damage; exit code 1 where there is
any. A volume that a process serves is refused: ask that with ` + "`sheaf group verify`" + `.

A missing superblock, that of another volume, the mark of another group of the volume, bad records of the journal and
folders or manifests that were exchanged are damage too. Groups with one copy do not record their volume: beside those,
the superblock of another volume is found only in a folder of sheaf dev. That a volume, or its superblock, is
an older state of itself only etcd can tell: the shard is refused when it starts.

Nothing is changed, unless --repair is given: then the damaged bytes are moved aside into
quarantine, so that the group loads without them. The records that were hit are then lost for good.
A volume with exchanged folders or manifests is not repaired: everything in it is whole, and in the
wrong place.`,
		Example: `  sheaf verify /data
  sheaf verify ./store -o json`,
		Args: cobra.ExactArgs(1),
		RunE: a.Body(func(ctx context.Context, args []string) error {
			report, err := cli.VerifyTree(ctx, args[0], opts, a.Out)
			if err != nil {
				return err
			}
			if a.Out.JSON {
				if err := a.Out.WriteJSON(report); err != nil {
					return err
				}
			} else {
				printVerify(a.Out, report)
			}
			if n := report.Bad(); n > 0 && !opts.Repair {
				return fmt.Errorf("%s: %s (--repair quarantines it)", args[0], finding.Places(n))
			} else if n > 0 {
				return fmt.Errorf("%s: %s found; what could be was quarantined", args[0], finding.Places(n))
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&opts.Repair, "repair", false, "move damaged bytes aside, into quarantine")
	cmd.Flags().BoolVar(&opts.Quiet, "quiet", false, "show no progress")
	return cmd
}

func printVerify(out *cli.Output, r cli.VerifyTreeReport) {
	for _, problem := range r.Problems {
		fmt.Fprintln(out.Out, problem)
	}
	for _, g := range r.Groups {
		for _, d := range g.Damages {
			fmt.Fprintf(out.Out, "group %s, %s, offset %d, %d bytes: %s%s\n", d.Group, filepath.Join(g.Dir, d.File), d.Offset,
				d.Length, d.What, cli.IDsWords(d.IDs, d.IDsUnknown))
		}
		if g.Error != "" {
			fmt.Fprintf(out.Out, "group %s in %s: %s\n", g.Group, g.Dir, g.Error)
		}
		if g.TornBytes > 0 {
			out.Sayf("group %s: a torn tail of %d bytes, which the next load removes: no damage", g.Group, g.TornBytes)
		}
		if g.Joining {
			out.Sayf("group %s in %s: the replica is only joining: nothing that counts is there yet", g.Group, g.Dir)
		}
		if len(g.Quarantined) > 0 {
			out.Sayf("group %s: repaired: %d segments rewritten; what was bad is kept in %s: %s", g.Group, len(g.Rewritten),
				filepath.Join(g.Dir, format.QuarantineName), strings.Join(g.Quarantined, ", "))
		}
	}
	out.Sayf("%s, %s, %s in %s checked in %.1f s", cli.Count(int64(r.Volumes), "volume", "volumes"),
		cli.Count(int64(len(r.Groups)), "group", "groups"), cli.FormatBytes(r.Bytes),
		cli.Count(r.Entries, "entry", "entries"), r.Seconds)
}

func dumpCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "dump FILE",
		Short:   "Write a segment, hint, manifest, mark, blob, replica or journal file in words",
		GroupID: groupCare,
		Long: "Writes what a file of a group's folder, or the journal of a volume, holds, in words, bad bytes included. " +
			"It changes nothing and needs no lock.",
		Args: cobra.ExactArgs(1),
		RunE: a.Body(func(_ context.Context, args []string) error {
			dump := fsck.Dump
			if journal.IsName(filepath.Base(args[0])) {
				dump = journal.Dump
			}
			if err := dump(a.Out.Out, vfs.OS{}, args[0]); err != nil {
				return fmt.Errorf("dump: %w", err)
			}
			return nil
		}),
	}
}
