package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
)

func doctorCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "doctor [DIR|HOST:PORT]",
		Short:   "Say what is wrong, and what to do next",
		GroupID: groupCare,
		Long: `Looks at a store that runs (HOST:PORT of a gateway or shard; without an argument: --server), or
reads every byte of volumes that nobody serves (DIR, as sheaf verify does). Says what is wrong, the
worst first, and the next step for each. It changes nothing.

Exit code 1 where there is a problem: calls fail, or data are at risk. Warnings and notes leave it
at 0.`,
		Example: `  sheaf doctor
  sheaf doctor gateway:7600
  sheaf doctor /data`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if info, err := os.Stat(args[0]); err == nil && info.IsDir() {
					return a.Body(func(ctx context.Context, args []string) error {
						return doctorOfVolumes(ctx, a.Out, args[0])
					})(cmd, args)
				}
				if !strings.Contains(args[0], ":") {
					return fmt.Errorf("doctor: %s is neither a folder nor HOST:PORT", args[0])
				}
				a.server = args[0]
			}
			return a.call(false, func(ctx context.Context, conn *cli.Conn, _ []string) error {
				return doctorOfStore(ctx, a.Out, conn)
			})(cmd, args)
		},
	}
}

// doctorOfStore checks a running store.
func doctorOfStore(ctx context.Context, out *cli.Output, conn *cli.Conn) error {
	seen, err := askStore(ctx, conn)
	if err != nil {
		return err
	}
	return reportFindings(out, finding.Of(seen),
		cli.Count(int64(len(seen.Shards)), "shard", "shards")+", "+
			cli.Count(int64(len(seen.Groups)), "copy of a group", "copies of groups"))
}

// askStore asks the server for the shards and groups of its store.
func askStore(ctx context.Context, conn *cli.Conn) (finding.Facts, error) {
	shards, err := recordv1.AllShards(ctx, conn.Admin)
	if err != nil {
		return finding.Facts{}, fmt.Errorf("listing shards: %w", err)
	}
	groups, err := recordv1.AllGroups(ctx, conn.Admin, &recordv1.ListGroupsRequest{})
	if err != nil {
		return finding.Facts{}, fmt.Errorf("listing groups: %w", err)
	}
	return finding.Listed(shards, groups), nil
}

// doctorOfVolumes checks volumes that no shard serves.
func doctorOfVolumes(ctx context.Context, out *cli.Output, dir string) error {
	report, err := cli.VerifyTree(ctx, dir, cli.VerifyTreeOptions{}, out)
	if err != nil {
		return err
	}
	return reportFindings(out, report.Findings(), fmt.Sprintf("%s, %s, %s in %s",
		cli.Count(int64(report.Volumes), "volume", "volumes"), cli.Count(int64(len(report.Groups)), "group", "groups"),
		cli.FormatBytes(report.Bytes), cli.Count(report.Entries, "entry", "entries")))
}

// reportFindings prints findings. It returns an error if a finding is a problem.
func reportFindings(out *cli.Output, findings []finding.Finding, lookedAt string) error {
	if out.JSON {
		if err := out.WriteJSON(struct {
			Findings []finding.Finding `json:"findings"`
		}{append([]finding.Finding{}, findings...)}); err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			fmt.Fprintf(out.Out, "%-8s %s: %s\n", f.Severity, f.Where, f.What)
			if f.Do != "" {
				fmt.Fprintf(out.Out, "%-8s do: %s\n", "", f.Do)
			}
		}
	}
	if finding.Count(findings, finding.Problem) > 0 {
		return fmt.Errorf("%s (%s)", finding.Words(findings), lookedAt)
	}
	words := "nothing is wrong"
	if len(findings) > 0 {
		words = finding.Words(findings)
	}
	out.Sayf("%s: %s", words, lookedAt)
	return nil
}
