package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
)

const clearScreen = "\x1b[H\x1b[2J"

func movesCommand(a *app) *cobra.Command {
	var (
		watch, dryRun bool
		every         time.Duration
	)
	cmd := &cobra.Command{
		Use:     "moves",
		Short:   "Show which groups move and how far they are, and which would",
		GroupID: groupCare,
		Long: `Shows the groups that are being moved to other shards, with the bytes that are there and the time
that the rest takes, and those that the planner would move if nothing else changed: they follow as
the limits on moves at a time allow. Nothing is changed. With --watch it shows that again and again,
until nothing moves or it is interrupted.

On its way a group never has two copies in one failure domain where an order of the steps avoids it.
Where none does, that is said before it begins. With --dry-run only what has not begun is shown.`,
		Example: `  sheaf moves
  sheaf moves --dry-run
  sheaf moves --watch`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if every <= 0 {
			return cli.Usagef("--every %v: must be more than 0", every)
		}
		if watch && dryRun {
			return cli.Usagef("--watch follows what is under way, --dry-run shows what is not: give one of them")
		}
		return a.call(watch, func(ctx context.Context, conn *cli.Conn, _ []string) error {
			if watch {
				return watchMoves(ctx, a.Out, conn, every)
			}
			moves, err := planMoves(ctx, conn)
			if err != nil {
				return err
			}
			if dryRun {
				moves = slices.DeleteFunc(moves, (*recordv1.Move).GetRunning)
			}
			return printMoves(a.Out, moves)
		})(c, args)
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until nothing moves")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show only the moves that have not begun")
	cmd.Flags().DurationVar(&every, "every", time.Second, "pause between two looks, with --watch")
	return cmd
}

func planMoves(ctx context.Context, conn *cli.Conn) ([]*recordv1.Move, error) {
	list, err := recordv1.AllMoves(ctx, conn.Admin)
	if err != nil {
		return nil, fmt.Errorf("asking for moves: %w", err)
	}
	return list.GetMoves(), nil
}

// watchMoves prints the moves repeatedly until there are none left. On a terminal, each list replaces the previous
// one. Otherwise, the lists are printed one below the other.
func watchMoves(ctx context.Context, out *cli.Output, conn *cli.Conn, every time.Duration) error {
	for {
		moves, err := planMoves(ctx, conn)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // an interrupt is the normal way to end the command
		}
		if err != nil {
			return err
		}
		if !out.JSON && out.Colour() {
			if _, err := fmt.Fprint(out.Out, clearScreen); err != nil {
				return err
			}
		}
		if err := printMoves(out, moves); err != nil || len(moves) == 0 || !cli.Pause(ctx, every) {
			return err
		}
	}
}

func printMoves(out *cli.Output, moves []*recordv1.Move) error {
	if out.JSON {
		return out.WriteJSON(movesJSON(moves))
	}
	if err := out.WriteTable(movesTable(moves)); err != nil {
		return err
	}
	out.Sayf("%s", cli.MovesWords(moves))
	if words := sharedWords(moves); words != "" {
		out.Sayf("%s", words)
	}
	return nil
}

// sharedWords lists the groups that temporarily have two copies in one failure domain while they move. The text is
// empty if there are no such groups.
func sharedWords(moves []*recordv1.Move) string {
	var groups, domains []string
	for _, m := range moves {
		if shared := m.GetSharedDomains(); len(shared) > 0 {
			groups, domains = append(groups, m.GetGroup()), append(domains, shared...)
		}
	}
	if len(groups) == 0 {
		return ""
	}
	slices.Sort(domains)
	return fmt.Sprintf(
		"for a part of their move two copies may be in one failure domain (%s), as no order of the steps avoids it: groups "+
			"%s",
		strings.Join(slices.Compact(domains), ", "), units.Some(groups, 5))
}

func movesTable(moves []*recordv1.Move) cli.Table {
	t := cli.Table{Header: []string{"GROUP", "STATE", "FROM", "TO", "DONE", "BYTES", "RATE", "ETA", "REASON"}}
	for _, m := range moves {
		state := cli.Text(cli.MoveState(m))
		if m.GetRunning() {
			state.Colour = cli.Yellow
		}
		done, rate, eta := cli.MoveFigures(m)
		t.Rows = append(t.Rows, []cli.Cell{
			cli.Text(m.GetGroup()), state, cli.Text(strings.Join(m.GetFrom(), ",")), cli.Text(strings.Join(m.GetTo(), ",")),
			cli.Number(done), cli.Number(cli.FormatBytes(m.GetBytes())), cli.Number(rate), cli.Number(eta),
			cli.Text(m.GetReason()),
		})
	}
	return t
}

// moveRow is a move in the command's output.
type moveRow struct {
	Group          string    `json:"group"`
	Running        bool      `json:"running"`
	Phase          string    `json:"phase,omitempty"`
	From           []string  `json:"from"`
	To             []string  `json:"to"`
	Bytes          int64     `json:"bytes"`
	BytesDone      int64     `json:"bytesDone"`
	BytesPerSecond float64   `json:"bytesPerSecond"`
	ETASeconds     *float64  `json:"etaSeconds,omitempty"`
	Reason         string    `json:"reason"`
	Copies         []copyRow `json:"copies,omitempty"`
	SharedDomains  []string  `json:"sharedDomains,omitempty"`
}

// copyRow is a copy that is being created.
type copyRow struct {
	Shard          string   `json:"shard"`
	Phase          string   `json:"phase"`
	From           string   `json:"from,omitempty"`
	BytesTotal     int64    `json:"bytesTotal"`
	BytesDone      int64    `json:"bytesDone"`
	BytesPerSecond float64  `json:"bytesPerSecond"`
	ETASeconds     *float64 `json:"etaSeconds,omitempty"`
}

func movesJSON(moves []*recordv1.Move) []moveRow {
	rows := make([]moveRow, 0, len(moves))
	for _, m := range moves {
		row := moveRow{
			Group: m.GetGroup(), Running: m.GetRunning(), From: m.GetFrom(), To: m.GetTo(), Bytes: m.GetBytes(),
			BytesDone: m.GetBytesDone(), BytesPerSecond: m.GetBytesPerSecond(), ETASeconds: m.EtaSeconds, Reason: m.GetReason(),
			SharedDomains: m.GetSharedDomains(),
		}
		if m.GetRunning() {
			row.Phase = cli.MoveState(m)
		}
		for _, c := range m.GetCopies() {
			row.Copies = append(row.Copies, copyRow{
				Shard: c.GetShard(), Phase: strings.ToLower(c.GetPhase().Word()), From: c.GetFrom(), BytesTotal: c.GetBytesTotal(),
				BytesDone: c.GetBytesDone(), BytesPerSecond: c.GetBytesPerSecond(), ETASeconds: c.EtaSeconds,
			})
		}
		rows = append(rows, row)
	}
	return rows
}
