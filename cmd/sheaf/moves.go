package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	recordv1 "sheaf.dev/sheaf/api/record/v1"
	"sheaf.dev/sheaf/internal/cli"
)

func (a *app) movesCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "moves",
		Short:   "Show which groups move, and which would",
		GroupID: groupCare,
		Long: `Shows the groups that are being moved to other shards, and those that the planner would move if nothing else changed:
they follow as the limits on moves at a time allow. Nothing is changed.`,
		Args: cobra.NoArgs,
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, _ []string) error {
			list, err := conn.Admin.PlanMoves(ctx, &recordv1.PlanMovesRequest{})
			if err != nil {
				return fmt.Errorf("asking for moves: %w", err)
			}
			if a.out.JSON {
				return a.out.WriteJSON(movesJSON(list.GetMoves()))
			}
			return a.printMoves(list.GetMoves())
		}),
	}
}

func (a *app) printMoves(moves []*recordv1.Move) error {
	t := cli.Table{Header: []string{"GROUP", "STATE", "FROM", "TO", "BYTES", "REASON"}}
	for _, m := range moves {
		state := cli.Text("planned")
		if m.GetRunning() {
			state = cli.Cell{Text: "running", Colour: cli.Yellow}
		}
		t.Rows = append(t.Rows, []cli.Cell{
			cli.Text(m.GetGroup()), state, cli.Text(strings.Join(m.GetFrom(), ",")), cli.Text(strings.Join(m.GetTo(), ",")),
			cli.Number(cli.FormatBytes(m.GetBytes())), cli.Text(m.GetReason()),
		})
	}
	return a.out.WriteTable(t)
}

// moveRow is a move as the command prints it.
type moveRow struct {
	Group   string   `json:"group"`
	Running bool     `json:"running"`
	From    []string `json:"from"`
	To      []string `json:"to"`
	Bytes   int64    `json:"bytes"`
	Reason  string   `json:"reason"`
}

func movesJSON(moves []*recordv1.Move) []moveRow {
	rows := make([]moveRow, 0, len(moves))
	for _, m := range moves {
		rows = append(rows, moveRow{m.GetGroup(), m.GetRunning(), m.GetFrom(), m.GetTo(), m.GetBytes(), m.GetReason()})
	}
	return rows
}
