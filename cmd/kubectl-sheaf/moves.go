package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
)

func (a *app) movesCommand() *cobra.Command {
	var (
		watch bool
		every time.Duration
		width int
	)
	cmd := &cobra.Command{
		Use:   "moves [STORE]",
		Short: "Show which groups move and how far they are, and which will",
		Long: `Shows the groups that are being moved to other shards, with the bytes that are there and the time
that the rest takes, and those that follow. A gateway is asked over a forwarded port. With --watch
it shows that again and again, until nothing moves or it is interrupted.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every <= 0 {
				return fmt.Errorf("--every %v: must be more than 0", every)
			}
			store, err := a.oneStore(cmd.Context(), args, sourcePatience)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			err = a.onGateway(ctx, store, func(admin recordv1.AdminServiceClient) error {
				for {
					list, err := recordv1.AllMoves(ctx, admin)
					if err != nil {
						return fmt.Errorf("ask for moves: %w", err)
					}
					moves := list.GetMoves()
					if len(moves) > 0 {
						t := movesTable(moves, len(moves))
						fmt.Fprintln(a.out, strings.Join(t.lines(a.width(width)), "\n"))
					}
					fmt.Fprintln(a.out, cli.MovesWords(moves))
					if !watch || len(moves) == 0 || !cli.Pause(ctx, every) {
						return nil
					}
				}
			})
			if err != nil && ctx.Err() == nil { // an interruption by the user is not an error
				return failf("moves of store %s: %w", store.Name, err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until nothing moves")
	cmd.Flags().DurationVar(&every, "every", 2*time.Second, "pause between two looks, with --watch")
	cmd.Flags().IntVar(&width, "width", 0, "columns of the screen; 0: those of the terminal, else 140")
	return cmd
}
