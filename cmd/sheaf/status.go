package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/archiving"
	"sheaf.dev/sheaf/internal/status/finding"
)

func statusCommand(a *app) *cobra.Command {
	var groups bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show shards, groups and loading",
		GroupID: groupCare,
		Long: "Shows the shards, the groups with what is wrong, and how far loading is. Exit code 1 where there " +
			"is a problem: sheaf doctor says which, and what to do.",
		Args: cobra.NoArgs,
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, _ []string) error {
			seen, err := askStore(ctx, conn)
			if err != nil {
				return err
			}
			if a.Out.JSON {
				err = a.Out.WriteJSON(rows{append([]*recordv1.Shard{}, seen.Shards...),
					append([]*recordv1.Group{}, seen.Groups...)})
			} else {
				err = printStatus(a.Out, seen.Shards, seen.Groups, groups)
			}
			found := finding.Of(seen)
			if n := finding.Count(found, finding.Problem); err == nil && n > 0 {
				return fmt.Errorf("%s: sheaf doctor says what to do; the first: %s", cli.Count(int64(n), "problem", "problems"),
					finding.Problems(found, "")[0])
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&groups, "groups", true, "list the groups too")
	return cmd
}

// rows holds the status for JSON output.
type rows struct {
	Shards []*recordv1.Shard `json:"shards"`
	Groups []*recordv1.Group `json:"groups"`
}

func printStatus(out *cli.Output, shards []*recordv1.Shard, groups []*recordv1.Group, list bool) error {
	t := shardTable(shards)
	if err := out.WriteTable(t); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out.Out, "\narchive: %s\n", archiveWords(shards, time.Now())); err != nil || !list {
		return err
	}
	if _, err := fmt.Fprintln(out.Out); err != nil {
		return err
	}
	return out.WriteTable(groupTable(groups))
}

// archiveWords says how long ago the store was archived, as in "archived 4 s ago". Shards know that from the archiver
// alone, and the one with the latest time heard of it last.
func archiveWords(shards []*recordv1.Shard, now time.Time) string {
	var through int64
	for _, s := range shards {
		through = max(through, s.GetArchivedThroughUnixNs())
	}
	if through == 0 {
		return "not known: no archiver has told a shard how far it is since the shards started"
	}
	return "archived " + archiving.Ago(now.Sub(time.Unix(0, through)))
}

func groupTable(groups []*recordv1.Group) cli.Table {
	t := cli.Table{Header: []string{"GROUP", "STATE", "SHARD", "ROLE", "LAG", "RECORDS", "STORED", "SUPERSEDED",
		"SEGMENTS", "MEMORY", "MESSAGE"}}
	for _, g := range groups {
		message := g.GetMessage()
		if n := max(len(g.GetDamages()), int(g.GetDamagesTotal())); n > 0 && message == "" {
			message = finding.Places(n)
		}
		figure := func(n int64, words func(int64) string) cli.Cell {
			switch {
			case n != 0, g.GetState().Serves():
				return cli.Number(words(n))
			case g.GetShard() == "": // the row stands for a group without a copy
				return cli.Number("")
			}
			return cli.Number(notKnown)
		}
		t.Rows = append(t.Rows, []cli.Cell{
			cli.Text(g.GetGroup()), groupCell(g), cli.Text(g.GetShard()), cli.Text(roleWord(g)), cli.Number(lagWords(g)),
			figure(g.GetRecords(), cli.FormatCount), figure(g.GetStoredBytes(), cli.FormatBytes),
			figure(g.GetSupersededBytes(), cli.FormatBytes), figure(int64(g.GetSegments()), cli.FormatCount),
			figure(g.GetMemoryBytes(), cli.FormatBytes), cli.Text(message),
		})
	}
	return t
}

// notKnown is printed for values that could not be read.
const notKnown = "?"

func shardTable(shards []*recordv1.Shard) cli.Table {
	t := cli.Table{Header: []string{"SHARD", "STATE", "GROUPS", "LEADERS", "LOAD", "MEMORY", "FREE", "FILE SYSTEM",
		"ADDRESS"}}
	for _, s := range shards {
		memory, free, load := notKnown, notKnown, notKnown
		if s.GetAlive() {
			memory, free = cli.FormatBytes(s.GetMemoryUsedBytes()), cli.FormatBytes(s.GetFreeBytes())
			if s.GetLoad() != nil {
				load = loadWords(s.GetLoad())
			}
			if limit := s.GetMemoryLimitBytes(); limit > 0 {
				memory += " of " + cli.FormatBytes(limit)
			}
			if s.GetCapacityBytes() <= 0 {
				free = notKnown // the shard has not reported its volume yet
			}
		}
		t.Rows = append(t.Rows, []cli.Cell{
			cli.Text(s.GetName()), shardCell(s),
			cli.Number(strconv.Itoa(int(s.GetGroups()))), cli.Number(strconv.Itoa(int(s.GetLeaders()))),
			cli.Text(load), cli.Number(memory), cli.Number(free),
			cli.Text(s.GetFileSystem()), cli.Text(s.GetAddress()),
		})
	}
	return t
}

// shardCell returns the state of a shard. It uses the same words as the HTTP page of the shard, or the word Silent as
// the HTTP page of a gateway does.
func shardCell(s *recordv1.Shard) cli.Cell {
	// Shards of older versions send no state.
	cell := cli.Cell{Text: cmp.Or(s.GetState().Word(), "Serving"), Colour: cli.Green}
	switch s.GetState() {
	case recordv1.ShardState_SHARD_STATE_UNSPECIFIED, recordv1.ShardState_SHARD_STATE_SERVING:
	case recordv1.ShardState_SHARD_STATE_PENDING, recordv1.ShardState_SHARD_STATE_LOADING,
		recordv1.ShardState_SHARD_STATE_DRAINING, recordv1.ShardState_SHARD_STATE_PARKED:
		cell.Colour = cli.Yellow
	default:
		cell.Colour = cli.Red
	}
	if !s.GetAlive() {
		cell = cli.Cell{Text: "Silent", Colour: cli.Red}
	}
	return cell
}

func groupCell(g *recordv1.Group) cli.Cell {
	colour := cli.Plain
	switch g.GetState() {
	case recordv1.GroupState_GROUP_STATE_PENDING, recordv1.GroupState_GROUP_STATE_LOADING:
		colour = cli.Yellow
	case recordv1.GroupState_GROUP_STATE_SERVING:
		colour = cli.Green
	case recordv1.GroupState_GROUP_STATE_DAMAGED, recordv1.GroupState_GROUP_STATE_FAILED,
		recordv1.GroupState_GROUP_STATE_UNAVAILABLE:
		colour = cli.Red
	}
	text := cmp.Or(g.GetState().Word(), g.GetState().String())
	if g.GetRestoring() {
		text = cli.GroupRestoring
	}
	return cli.Cell{Text: text, Colour: colour}
}

// roleWord returns a replica's role in its group. The text is empty if the role is not known.
func roleWord(g *recordv1.Group) string { return strings.ToLower(g.GetRole().Word()) }

// lagWords says how far a replica is behind its leader. While files are being copied, this is the percentage of the
// files that has arrived, and afterwards the number of missing entries.
func lagWords(g *recordv1.Group) string {
	switch c := g.GetCopy(); {
	case c.GetBytesTotal() > 0:
		return fmt.Sprintf("%d%% of %s", 100*c.GetBytesDone()/c.GetBytesTotal(), cli.FormatBytes(c.GetBytesTotal()))
	case g.LagEntries != nil:
		return strconv.FormatUint(g.GetLagEntries(), 10)
	}
	return ""
}

// loadWords returns a text such as "done in 1.2 s, 1.9 GiB/s" or "62% 1.9 GiB/s ETA 2m".
func loadWords(l *recordv1.Load) string {
	rate := cli.FormatBytes(int64(l.GetBytesPerSecond())) + "/s"
	if percent := l.PercentOfDevice(); percent > 0 {
		rate += fmt.Sprintf(" (%.0f%% of the device)", percent)
	}
	if l.GetDone() {
		words := fmt.Sprintf("done in %.1f s", l.GetElapsedSeconds())
		if l.GetBytesTotal() > 0 {
			words += ", " + rate
		}
		return words
	}
	percent := 100 * l.GetBytesDone() / max(l.GetBytesTotal(), 1)
	if l.GetEtaSeconds() <= 0 { // no data has been read yet
		return fmt.Sprintf("%d%% %s ETA %s", percent, rate, notKnown)
	}
	eta := time.Duration(l.GetEtaSeconds() * float64(time.Second)).Round(time.Second)
	return fmt.Sprintf("%d%% %s ETA %v", percent, rate, eta)
}
