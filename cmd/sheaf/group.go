package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
)

// groupCommand returns the commands for one group of a running store.
func groupCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "group",
		Aliases: []string{"groups"},
		Short:   "Create, check, compact or delete a group, or accept its losses",
		GroupID: groupCare,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("say what to do with which group: create, verify, compact, delete or accept-loss")
		},
	}
	cmd.AddCommand(groupCreate(a), groupVerify(a), groupCompact(a), groupDelete(a), groupAcceptLoss(a))
	return cmd
}

func groupCreate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "create GROUP",
		Short: "Make a group (Named routing)",
		Args:  cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			made, err := conn.Admin.CreateGroup(ctx, &recordv1.CreateGroupRequest{Group: args[0]})
			if err != nil {
				return fmt.Errorf("creating group %s: %w", args[0], err)
			}
			return a.Out.Print(map[string]string{"group": made.GetGroup(), "uuid": made.GetUuid()}, "%s\n", made.GetUuid())
		}),
	}
}

func groupVerify(a *app) *cobra.Command {
	var rate cli.Size
	cmd := &cobra.Command{
		Use:   "verify GROUP",
		Short: "Read every byte of a group and check it, while it serves",
		Long: `Reads every byte of each copy of a group on its shard, all copies at the same time, and checks it.
Exit code 1 where any has damage, or could not be checked: the shard is named. A copy with damage is
repaired from another one by itself, within seconds.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			report, err := conn.Admin.Verify(ctx, &recordv1.VerifyRequest{Group: args[0], RateBytesPerSecond: int64(rate)})
			if err != nil {
				return fmt.Errorf("verifying group %s: %w", args[0], err)
			}
			copies, unchecked := verifiedCopies(a.Out, args[0], report.GetCopies())
			n := 0
			for _, c := range report.GetCopies() {
				n += int(c.GetDamages())
			}
			n = max(n, len(report.GetDamages()))
			if err := printDamages(a.Out, report.GetDamages(), n, map[string]any{
				"group": args[0], "bytes": report.GetBytes(), "entries": report.GetEntries(), "copies": copies,
			}); err != nil {
				return err
			}
			a.Out.Sayf("group %s: %s in %s entries checked", args[0], cli.FormatBytes(report.GetBytes()),
				cli.FormatCount(report.GetEntries()))
			switch {
			case n > 0 && unchecked > 0:
				return fmt.Errorf("group %s: %s, and %d of %d copies could not be checked", args[0], finding.Places(n), unchecked,
					len(copies))
			case n > 0:
				return fmt.Errorf("group %s: %s", args[0], finding.Places(n))
			case unchecked > 0:
				return fmt.Errorf("group %s: %d of %d copies could not be checked", args[0], unchecked, len(copies))
			}
			return nil
		}),
	}
	cmd.Flags().Var(&rate, "rate", "bytes per second; 0: 64 MiB/s")
	return cmd
}

// verifiedCopies returns the rows of the JSON output. If there are several copies, it also prints the result for each
// copy.
func verifiedCopies(out *cli.Output, group string, copies []*recordv1.VerifiedCopy) (rows []map[string]any,
	unchecked int) {
	for _, c := range copies {
		row := map[string]any{"shard": c.GetShard(), "bytes": c.GetBytes(), "entries": c.GetEntries(),
			"damages": c.GetDamages()}
		rows = append(rows, row)
		switch {
		case c.GetError() != "":
			unchecked++
			row["error"] = c.GetError()
			out.Sayf("group %s on shard %s: not checked: %s", group, c.GetShard(), c.GetError())
		case len(copies) > 1:
			out.Sayf("group %s on shard %s: %s in %s entries, %s", group, c.GetShard(),
				cli.FormatBytes(c.GetBytes()), cli.FormatCount(c.GetEntries()), finding.Places(int(c.GetDamages())))
		}
	}
	return rows, unchecked
}

func groupCompact(a *app) *cobra.Command {
	var rate cli.Size
	var all, why bool
	cmd := &cobra.Command{
		Use:   "compact GROUP",
		Short: "Drop the versions of a group that retention no longer keeps, or say why they are still there",
		Args:  cobra.ExactArgs(1),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			r, err := conn.Admin.Compact(ctx, &recordv1.CompactRequest{Group: args[0], All: all, RateBytesPerSecond: int64(rate),
				Explain: why})
			if err != nil {
				return fmt.Errorf("compacting group %s: %w", args[0], err)
			}
			if why {
				return writeHolds(a.Out, args[0], r.GetHolds())
			}
			return a.Out.Print(map[string]any{
				"group": args[0], "segmentsRewritten": r.GetSegmentsRewritten(), "entriesDropped": r.GetEntriesDropped(),
				"bytesBefore": r.GetBytesBefore(), "bytesAfter": r.GetBytesAfter(),
			}, "group %s: %d segments rewritten, %s entries dropped, %s before, %s now\n", args[0], r.GetSegmentsRewritten(),
				cli.FormatCount(r.GetEntriesDropped()), cli.FormatBytes(r.GetBytesBefore()), cli.FormatBytes(r.GetBytesAfter()))
		}),
	}
	cmd.Flags().Var(&rate, "rate", "bytes per second; 0: no limit")
	cmd.Flags().BoolVar(&all, "all", false, "also segments that hold little to drop, and the newest one")
	cmd.Flags().BoolVar(&why, "why", false, "compact nothing: say what is superseded and still stored, and why")
	return cmd
}

// writeHolds prints the reasons why a group still stores superseded bytes.
func writeHolds(out *cli.Output, group string, holds []*recordv1.CompactionHold) error {
	if out.JSON {
		rows := make([]map[string]any, 0, len(holds))
		for _, h := range holds {
			rows = append(rows, map[string]any{"reason": h.GetReason(), "bytes": h.GetBytes(), "text": h.GetText()})
		}
		return out.WriteJSON(map[string]any{"group": group, "holds": rows})
	}
	if len(holds) == 0 {
		_, err := fmt.Fprintf(out.Out, "group %s: nothing is superseded that is still stored\n", group)
		return err
	}
	for _, h := range holds {
		if _, err := fmt.Fprintf(out.Out, "group %s: %s (%s): %s\n", group, cli.FormatBytes(h.GetBytes()), h.GetReason(),
			h.GetText()); err != nil {
			return err
		}
	}
	return nil
}

func groupDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "delete GROUP...",
		Short:   "Delete groups that hold nothing (Named routing)",
		Long:    cli.GroupDeleteLong,
		Example: `  sheaf groups delete old-1 old-2`,
		Args:    cobra.MinimumNArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			return cli.DeleteGroups(ctx, conn.DeleteGroup, args, func(group string) { a.Out.Sayf("group %s: deleted", group) })
		}),
	}
}

func groupAcceptLoss(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept-loss GROUP",
		Short: "Give up the damaged entries of a group",
		Long: `Declares the damaged entries of a group lost. Reads that answered DATA_LOSS answer from what is
left. It cannot be undone; the damaged bytes are kept aside on the shard.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			if !yes {
				return cli.Usagef("accepting loss cannot be undone: look at `sheaf group verify %s` first, then add --yes", args[0])
			}
			r, err := conn.Admin.AcceptLoss(ctx, &recordv1.AcceptLossRequest{Group: args[0]})
			if err != nil {
				return fmt.Errorf("accepting the loss of group %s: %w", args[0], err)
			}
			return printDamages(a.Out, r.GetDamages(), int(r.GetDamagesTotal()), map[string]any{"group": args[0]})
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "really")
	return cmd
}

// damageRow describes one place of damage in the JSON output.
type damageRow struct {
	Group       string   `json:"group"`
	Shard       string   `json:"shard,omitempty"`
	File        string   `json:"file"`
	OffsetBytes int64    `json:"offsetBytes"`
	LengthBytes int64    `json:"lengthBytes"`
	What        string   `json:"what"`
	IDs         []string `json:"ids"`
	IDsUnknown  bool     `json:"idsUnknown"`
}

func damageRows(damages []*recordv1.Damage) []damageRow {
	rows := make([]damageRow, 0, len(damages))
	for _, d := range damages {
		row := damageRow{
			Group: d.GetGroup(), Shard: d.GetShard(), File: d.GetFile(), OffsetBytes: d.GetOffsetBytes(),
			LengthBytes: d.GetLengthBytes(), What: d.GetWhat(),
			IDs: make([]string, 0, len(d.GetIds())), IDsUnknown: d.GetIdsUnknown(),
		}
		for _, id := range d.GetIds() {
			row.IDs = append(row.IDs, strconv.FormatInt(id, 10))
		}
		rows = append(rows, row)
	}
	return rows
}

// printDamages prints the places of damage that an answer lists, and the number of further places that the answer only
// counts.
func printDamages(out *cli.Output, damages []*recordv1.Damage, total int, fields map[string]any) error {
	if out.JSON {
		fields["damages"], fields["damages_total"] = damageRows(damages), max(total, len(damages))
		return out.WriteJSON(fields)
	}
	for _, d := range damages {
		of := ""
		if d.GetShard() != "" {
			of = " on shard " + d.GetShard()
		}
		if _, err := fmt.Fprintf(out.Out, "group %s%s, %s, offset %d, %d bytes: %s%s\n", d.GetGroup(), of, d.GetFile(),
			d.GetOffsetBytes(), d.GetLengthBytes(), d.GetWhat(), cli.IDsWords(d.GetIds(), d.GetIdsUnknown())); err != nil {
			return err
		}
	}
	if more := total - len(damages); more > 0 {
		out.Sayf("and %s", cli.Count(int64(more), "more place", "more places"))
	}
	return nil
}
