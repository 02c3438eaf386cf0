package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
)

// shardsCommand returns the commands that control whether groups are placed on a shard.
func shardsCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "shards",
		Short:   "List shards; cordon, drain, activate or remove one",
		GroupID: groupCare,
		Long: `Says whether the planner places groups on a shard. What is set stays until it is set again, also
while the shard does not run. These commands are for a store that is run by hand: under the operator a
gateway refuses them, and kubectl sheaf drain POOL --shard NUMBER does the same.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("say what to do: list, cordon, drain, activate or remove")
		},
	}
	cmd.AddCommand(shardsList(a), shardsSet(a, "cordon", "Give a shard no new groups; those that it has stay",
		recordv1.PlacementState_PLACEMENT_STATE_CORDONED), shardsDrain(a),
		shardsSet(a, "activate", "Let a shard take groups again, and end its draining",
			recordv1.PlacementState_PLACEMENT_STATE_ACTIVE), shardsRemove(a))
	return cmd
}

func shardsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List shards, with the groups that are placed on them",
		Args:  cobra.NoArgs,
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, _ []string) error {
			list, err := recordv1.AllShards(ctx, conn.Admin)
			if err != nil {
				return fmt.Errorf("listing shards: %w", err)
			}
			return a.Out.WriteRows(placedJSON(list.GetShards()), placedTable(list.GetShards()))
		}),
	}
}

func placedTable(shards []*recordv1.Shard) cli.Table {
	t := cli.Table{Header: []string{"SHARD", "STATE", "PLACEMENT", "GROUPS", "DOMAIN", "ADDRESS", "MESSAGE"}}
	for _, s := range shards {
		domain := s.GetDomain()
		if !s.GetAlive() {
			domain = notKnown
		}
		t.Rows = append(t.Rows, []cli.Cell{
			cli.Text(s.GetName()), shardCell(s), cli.Text(s.GetPlacementState().Word()),
			cli.Number(strconv.Itoa(int(s.GetPlacedGroups()))), cli.Text(domain), cli.Text(s.GetAddress()),
			cli.Text(s.GetPlacementWaits()),
		})
	}
	return t
}

// placedRow is a shard in the output of `sheaf shards list`.
type placedRow struct {
	Name      string `json:"name"`
	Address   string `json:"address"`
	Alive     bool   `json:"alive"`
	Placement string `json:"placement"`
	Groups    int32  `json:"groups"`
	Domain    string `json:"domain,omitempty"`
	Message   string `json:"message,omitempty"`
}

func placedJSON(shards []*recordv1.Shard) []placedRow {
	rows := make([]placedRow, 0, len(shards))
	for _, s := range shards {
		rows = append(rows, placedRow{
			Name: s.GetName(), Address: s.GetAddress(), Alive: s.GetAlive(), Placement: s.GetPlacementState().Word(),
			Groups: s.GetPlacedGroups(), Domain: s.GetDomain(), Message: s.GetPlacementWaits(),
		})
	}
	return rows
}

// shardsSet returns a command that sets the state of a shard.
func shardsSet(a *app, verb, short string, state recordv1.PlacementState) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " SHARD",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			return setShardState(ctx, a.Out, conn, args[0], state)
		}),
	}
}

func setShardState(ctx context.Context, out *cli.Output, conn *cli.Conn, shard string,
	state recordv1.PlacementState) error {
	_, err := conn.Admin.SetShardState(ctx, &recordv1.SetShardStateRequest{Shard: shard, State: state})
	if err != nil {
		return fmt.Errorf("setting the state of shard %s: %w", shard, err)
	}
	out.Sayf("shard %s: %s", shard, state.Word())
	return nil
}

func shardsDrain(a *app) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "drain SHARD",
		Short: "Move all groups off a shard, whether it runs or not",
		Long: `Moves all groups off a shard while they are served, and waits until it holds none; it can be
stopped and removed then. A shard that does not run is given up: its groups get new copies elsewhere,
where a majority of their copies is left. Groups that have nowhere to go stay as they are; the
command then says why and ends with exit code 1, and sheaf shards activate takes it back.`,
		Example: `  sheaf shards drain quotes-2
  sheaf moves
  sheaf shards remove quotes-2`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			err := setShardState(ctx, a.Out, conn, args[0], recordv1.PlacementState_PLACEMENT_STATE_DRAINING)
			if err != nil || !wait {
				return err
			}
			return awaitDrained(ctx, a.Out, conn, args[0])
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until it is done, and show how far it is")
	return cmd
}

// awaitDrained reads the state of a draining shard at intervals of drainLook. It gives up only if drainLooks
// consecutive reads have returned a reason to give up. A single read is not enough: the gateway or the planner may not
// have seen the drain yet, or may not know about another shard that has just started.
const (
	drainLook  = time.Second
	drainLooks = 5
)

// awaitDrained waits until no group is placed on a shard.
func awaitDrained(ctx context.Context, out *cli.Output, conn *cli.Conn, shard string) error {
	told, stuck := "", 0
	for {
		list, err := recordv1.AllShards(ctx, conn.Admin)
		if err != nil {
			return fmt.Errorf("listing shards: %w; shard %s is drained all the same", err, shard)
		}
		var row *recordv1.Shard // nil if the shard is not registered and has no groups
		for _, s := range list.GetShards() {
			if s.GetName() == shard {
				row = s
			}
		}
		isDraining := row == nil || row.GetPlacementState() == recordv1.PlacementState_PLACEMENT_STATE_DRAINING
		if isDraining && row.GetPlacedGroups() == 0 {
			out.Sayf("shard %s: empty; when its process is stopped: sheaf shards remove %s", shard, shard)
			return nil
		}
		words := cli.Count(int64(row.GetPlacedGroups()), "group", "groups") + " left"
		if stuck++; row.GetPlacementWaits() == "" {
			stuck = 0
		}
		if stuck >= drainLooks {
			return fmt.Errorf("shard %s: %s, which stay as they are: %s; sheaf shards activate %s takes the order back",
				shard, words, row.GetPlacementWaits(), shard)
		}
		if words != told {
			out.Sayf("shard %s: %s", shard, words)
			told = words
		}
		if !cli.Pause(ctx, drainLook) {
			return fmt.Errorf("stopped waiting for shard %s, which is drained all the same: sheaf shards list shows how far "+
				"it is: %w", shard, ctx.Err())
		}
	}
}

func shardsRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "remove SHARD",
		Short: "Forget a shard that is drained and stopped",
		Long: `Forgets a shard that does not run and holds no group. It is refused before: drain the shard, and
stop its process. A shard of the same name that starts later takes groups as any other.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			if _, err := conn.Admin.RemoveShard(ctx, &recordv1.RemoveShardRequest{Shard: args[0]}); err != nil {
				return fmt.Errorf("removing shard %s: %w", args[0], err)
			}
			a.Out.Sayf("shard %s: removed", args[0])
			return nil
		}),
	}
}
