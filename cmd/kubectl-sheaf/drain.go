package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/local/cli"
)

// drainFlags holds the values of the flags of the command drain.
type drainFlags struct {
	shard   int32
	undo    bool
	dryRun  bool
	wait    bool
	timeout time.Duration
}

func (a *app) drainCommand() *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain POOL",
		Short: "Move all groups off a pool, or off one shard of it",
		Long: `Sets spec.state of a ShardPool to Drained, so that its groups move to other pools while they are
served, and waits until no shard of it holds one. The pool can be deleted then. With --shard N the
shard N of the pool is emptied and removed: N is added to spec.remove, and spec.shards falls by one.
Groups that have nowhere to go stay and are served; the command then says why and ends with exit
code 1, and --undo takes it back. To drain a node, use kubectl drain: what must not go at once,
PodDisruptionBudgets hold back.`,
		Example: `  kubectl sheaf drain quotes-old --dry-run
  kubectl sheaf drain quotes-old
  kubectl sheaf drain quotes-ssd --shard 1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.undo && f.shard >= 0 {
				return fmt.Errorf(
					"--undo takes back the draining of a pool; to keep shard %d, raise spec.shards and take it out of spec.remove",
					f.shard)
			}
			return a.drain(cmd.Context(), args[0], f)
		},
	}
	cmd.Flags().Int32Var(&f.shard, "shard", -1, "empty and remove this shard only")
	cmd.Flags().BoolVar(&f.undo, "undo", false, "let the pool take groups again (state Active)")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false,
		"say what would be done; the API server checks the change and does not make it")
	cmd.Flags().BoolVar(&f.wait, "wait", true, "wait until it is done, and show how far it is")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "wait at most so long; 0: as long as it takes")
	return cmd
}

// drain changes the spec of a pool so that shards become empty, and waits until they are.
func (a *app) drain(ctx context.Context, name string, f drainFlags) error {
	var pool v1alpha1.ShardPool
	if err := a.objects.Get(ctx, client.ObjectKey{Namespace: a.namespace, Name: name}, &pool); err != nil {
		return failf("read ShardPool %s of namespace %s: %w", name, a.namespace, err)
	}
	shards, err := a.shardsOf(ctx, &pool)
	if err != nil {
		return err
	}
	change, words, err := drainChange(&pool, shards, f)
	if err != nil {
		return failure{err}
	}
	if err := a.patchPool(ctx, &pool, change, f.dryRun); err != nil {
		return failf("change ShardPool %s: %w", name, err)
	}
	if f.dryRun {
		fmt.Fprintf(a.out, "would change ShardPool %s: %s\n", name, words)
		for _, s := range shardsToDrain(shards, f) {
			fmt.Fprintf(a.out, "  shard %s on node %s: %d groups\n", s.Name, s.Node, s.Groups)
		}
		return nil
	}
	fmt.Fprintf(a.out, "changed ShardPool %s: %s\n", name, words)
	if f.undo || !f.wait {
		return nil
	}
	waiting, cancel := cli.Within(ctx, max(f.timeout, 0))
	defer cancel()
	return a.awaitDrained(ctx, waiting, pool.Name, pool.Generation, f)
}

// shardsOf returns the state of every shard of a pool, as the operator observed it last.
func (a *app) shardsOf(ctx context.Context, pool *v1alpha1.ShardPool) ([]v1alpha1.ShardStatus, error) {
	shards, err := listShards(ctx, a.objects, pool.Namespace)
	if err != nil {
		return nil, failf("list Shards of namespace %s: %w", pool.Namespace, err)
	}
	return v1alpha1.ShardsOf(pool, shards), nil
}

// drainChange returns the fields of the pool's spec that the command has to change, and a sentence that describes the
// change.
func drainChange(
	pool *v1alpha1.ShardPool, shards []v1alpha1.ShardStatus, f drainFlags,
) (spec map[string]any, words string, err error) {
	switch {
	case f.undo:
		return map[string]any{"state": v1alpha1.PoolActive}, "spec.state is Active, and it takes groups again", nil
	case f.shard < 0:
		return map[string]any{"state": v1alpha1.PoolDrained}, "spec.state is Drained, and its groups move to other pools", nil
	}
	if !slices.ContainsFunc(shards, func(s v1alpha1.ShardStatus) bool { return s.Number == f.shard }) {
		return nil, "", fmt.Errorf("ShardPool %s has no shard %d: kubectl sheaf status shows those there are", pool.Name,
			f.shard)
	}
	if slices.Contains(pool.Spec.Remove, f.shard) {
		return map[string]any{}, fmt.Sprintf("nothing, as spec.remove names shard %d already", f.shard), nil
	}
	wanted := wantedShards(pool) - 1
	remove := append(slices.Clone(pool.Spec.Remove), f.shard)
	return map[string]any{"shards": wanted, "remove": remove},
		fmt.Sprintf("spec.shards is %d, and spec.remove names shard %d, which goes when it is empty", wanted, f.shard), nil
}

// patchPool changes fields of a pool's spec. It fails if the pool has changed since it was read.
func (a *app) patchPool(ctx context.Context, pool *v1alpha1.ShardPool, spec map[string]any, dryRun bool) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": pool.ResourceVersion},
		"spec": spec})
	if err != nil {
		return err
	}
	options := []client.PatchOption{client.FieldOwner("kubectl-sheaf")}
	after := pool
	if dryRun {
		options, after = append(options, client.DryRunAll), pool.DeepCopy()
	}
	return a.objects.Patch(ctx, after, client.RawPatch(types.MergePatchType, patch), options...)
}

// shardsToDrain returns the shards to be drained: the one in --shard, or all shards of the pool.
func shardsToDrain(shards []v1alpha1.ShardStatus, f drainFlags) []v1alpha1.ShardStatus {
	if f.shard < 0 {
		return shards
	}
	return slices.DeleteFunc(slices.Clone(shards), func(s v1alpha1.ShardStatus) bool { return s.Number != f.shard })
}

// drainLook is the polling interval of the command.
const drainLook = time.Second

// awaitDrained waits until the shards that leave the pool are empty. It prints the progress whenever it changes. ctx
// is used for the requests, and the context waiting limits how long awaitDrained waits.
func (a *app) awaitDrained(ctx, waiting context.Context, name string, generation int64, f drainFlags) error {
	told := ""
	for {
		var pool v1alpha1.ShardPool
		if err := a.objects.Get(ctx, client.ObjectKey{Namespace: a.namespace, Name: name}, &pool); err != nil &&
			ctx.Err() == nil {
			return failf("read ShardPool %s: %w", name, err)
		}
		shards, err := a.shardsOf(ctx, &pool)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if ctx.Err() == nil && pool.Status.ObservedGeneration >= generation {
			words, done, err := drainProgress(&pool, shards, f)
			if words != told {
				fmt.Fprintln(a.out, words)
				told = words
			}
			if done || err != nil {
				return err
			}
		}
		if !cli.Pause(waiting, drainLook) {
			return failf("stopped waiting for ShardPool %s; it goes on: kubectl sheaf status shows how far it is", name)
		}
	}
}

// drainProgress describes the progress of a drain. If the drain cannot continue, the error says what an administrator
// has to do.
func drainProgress(
	pool *v1alpha1.ShardPool, shards []v1alpha1.ShardStatus, f drainFlags,
) (words string, done bool, err error) {
	left := shardsToDrain(shards, f)
	if f.shard >= 0 && len(left) == 0 {
		return fmt.Sprintf("shard %s is removed", workload.Shard(pool.Name, f.shard)), true, nil
	}
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionDrained); f.shard < 0 && c != nil &&
		c.Status == "True" && c.ObservedGeneration >= pool.Generation {
		return fmt.Sprintf("ShardPool %s is drained; kubectl -n %s delete shardpool %s removes it", pool.Name, pool.Namespace,
			pool.Name), true, nil
	}
	groups := int32(0)
	var parts []string
	for _, s := range left {
		if s.Groups > 0 {
			groups += s.Groups
			parts = append(parts, fmt.Sprintf("%s has %d", s.Name, s.Groups))
		}
	}
	words = fmt.Sprintf("%d groups are left: %s", groups, strings.Join(parts, ", "))
	if groups == 0 {
		words = "no groups are left; the operator looks whether all is gone"
	}
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionStalled); c != nil && c.Status == "True" &&
		c.ObservedGeneration >= pool.Generation {
		return words, false, failf("%s: %s", c.Reason, c.Message)
	}
	return words, false, nil
}
