package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/must"
)

// simulateOperator simulates the operator. After the spec of a pool has changed, it writes one status for each step.
func simulateOperator(ctx context.Context, t *testing.T, c client.Client, namespace, name string,
	steps ...func(*v1alpha1.ShardPool)) {
	t.Helper()
	go func() {
		seen := false
		for len(steps) > 0 && ctx.Err() == nil {
			var pool v1alpha1.ShardPool
			if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pool); err != nil {
				return
			}
			if seen = seen || pool.Generation > 1; seen {
				steps[0](&pool)
				pool.Status.ObservedGeneration = pool.Generation
				if err := c.Status().Update(ctx, &pool); err == nil {
					steps = steps[1:]
				}
			}
			if !cli.Pause(ctx, 300*time.Millisecond) {
				return
			}
		}
	}()
}

func drainedPool(t *testing.T, namespace string) (*app, func() string, *v1alpha1.ShardPool) {
	t.Helper()
	a, out := newTestApp(t, namespace)
	pool := healthyStore().Pools[0].DeepCopy()
	create(t, a.objects, namespace, pool)
	return a, func() string { defer out.Reset(); return out.String() }, pool
}

func read(t *testing.T, a *app, name string) *v1alpha1.ShardPool {
	t.Helper()
	var pool v1alpha1.ShardPool
	must.OK(t, a.objects.Get(t.Context(), client.ObjectKey{Namespace: a.namespace, Name: name}, &pool))
	return &pool
}

func leftOf(groups ...int32) func(*v1alpha1.ShardPool) {
	return func(p *v1alpha1.ShardPool) {
		for i := range p.Status.ShardStatuses {
			p.Status.ShardStatuses[i].Groups = groups[i]
		}
	}
}

func TestDrainAPool(t *testing.T) {
	a, said, pool := drainedPool(t, "drain-pool")
	must.OK(t, a.call(t.Context(), "drain", pool.Name, "--dry-run"))
	if text := said(); !strings.Contains(text, "would change ShardPool quotes-ssd: spec.state is Drained") ||
		!strings.Contains(text, "shard quotes-ssd-1 on node n2: 64 groups") {
		t.Errorf("--dry-run says\n%s", text)
	}
	if state := read(t, a, pool.Name).Spec.State; state != v1alpha1.PoolActive {
		t.Fatalf("--dry-run has changed the state: %s", state)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	simulateOperator(ctx, t, a.objects, a.namespace, pool.Name, leftOf(64, 10, 0), leftOf(0, 0, 0),
		func(p *v1alpha1.ShardPool) {
			c := isTrue(v1alpha1.ConditionDrained, "Drained", p.Generation)
			p.Status.Conditions = append(p.Status.Conditions, c)
		})
	must.OK(t, a.call(ctx, "drain", pool.Name))
	text := said()
	if !strings.Contains(text, "kubectl -n drain-pool delete shardpool quotes-ssd removes it") {
		t.Errorf("it says\n%s", text)
	}
	if lines := strings.Split(strings.TrimSpace(text), "\n"); len(lines) != len(slices.Compact(lines)) {
		t.Errorf("a step is told twice:\n%s", text)
	}
	if state := read(t, a, pool.Name).Spec.State; state != v1alpha1.PoolDrained {
		t.Errorf("state %s", state)
	}
	if err := a.call(ctx, "drain", pool.Name, "--undo"); err != nil || read(t, a, pool.Name).
		Spec.State != v1alpha1.PoolActive {
		t.Errorf("--undo: %v", err)
	}
}

func isTrue(kind, reason string, generation int64) metav1.Condition {
	return metav1.Condition{
		Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: "words of " + reason,
		ObservedGeneration: generation, LastTransitionTime: metav1.Now(),
	}
}

func TestDrainAShard(t *testing.T) {
	a, said, pool := drainedPool(t, "drain-shard")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	simulateOperator(ctx, t, a.objects, a.namespace, pool.Name, leftOf(64, 3, 64), func(p *v1alpha1.ShardPool) {
		p.Status.ShardStatuses = slices.Delete(p.Status.ShardStatuses, 1, 2)
	})
	must.OK(t, a.call(ctx, "drain", pool.Name, "--shard=1"))
	if text := said(); !strings.Contains(text, "spec.shards is 2, and spec.remove names shard 1") ||
		!strings.Contains(text, "shard quotes-ssd-1 is removed") {
		t.Errorf("it says\n%s", text)
	}
	if spec := read(t, a, pool.Name).Spec; *spec.Shards != 2 || !slices.Equal(spec.Remove, []int32{1}) {
		t.Errorf("spec %+v", spec)
	}
	// Repeating the command, for example after an interruption, does not remove another shard.
	err := a.call(ctx, "drain", pool.Name, "--shard=1")
	if err == nil || !strings.Contains(err.Error(), "has no shard 1") || *read(t, a, pool.Name).Spec.Shards != 2 {
		t.Errorf("once more: %v", err)
	}
}

func TestDrainWithNowhereToGo(t *testing.T) {
	a, _, pool := drainedPool(t, "drain-stalled")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	simulateOperator(ctx, t, a.objects, a.namespace, pool.Name, func(p *v1alpha1.ShardPool) {
		p.Status.Conditions = append(p.Status.Conditions, isTrue(v1alpha1.ConditionStalled, "NowhereToGo", p.Generation))
	})
	err := a.call(ctx, "drain", pool.Name)
	if err == nil || exitCode(err) != exitFailed || !strings.Contains(err.Error(), "NowhereToGo: words of NowhereToGo") {
		t.Errorf("%v", err)
	}
	err = a.call(t.Context(), "drain", "another")
	if err == nil || !strings.Contains(err.Error(), "read ShardPool another of namespace drain-stalled") {
		t.Errorf("a pool that is not there: %v", err)
	}
}

func TestDrainStopsWaiting(t *testing.T) {
	a, _, pool := drainedPool(t, "drain-timeout")
	err := a.call(t.Context(), "drain", pool.Name, "--timeout=1s")
	if err == nil || !strings.Contains(err.Error(), "stopped waiting") {
		t.Errorf("%v", err)
	}
}

// If a pool has more shards than its status lists, the command reads the Shard objects.
func TestDrainAShardThatThePoolDoesNotList(t *testing.T) {
	a, out := newTestApp(t, "drain-many")
	pool := healthyStore().Pools[0].DeepCopy()
	pool.Spec.Shards, pool.Status.Shards, pool.Status.ShardStatuses = new(int32(40)), 40, nil
	for n := range int32(v1alpha1.ShardStatusesMax) {
		pool.Status.ShardStatuses = append(pool.Status.ShardStatuses, v1alpha1.ShardStatus{
			Name: workload.Shard(pool.Name, n), Number: n, State: v1alpha1.ShardServing})
	}
	shard := &v1alpha1.Shard{Spec: v1alpha1.ShardSpec{Pool: pool.Name, Number: 33}}
	shard.Name, shard.Status = workload.Shard(pool.Name, 33), v1alpha1.ShardStatus{
		Name: workload.Shard(pool.Name, 33), Number: 33, State: v1alpha1.ShardServing, Node: "n7", Groups: 5}
	shard.Namespace = "drain-many"
	create(t, a.objects, "drain-many", pool)
	create(t, a.objects, "drain-many", shard)
	must.OK(t, a.call(t.Context(), "drain", pool.Name, "--shard=33", "--dry-run"))
	if text := out.String(); !strings.Contains(text, "shard quotes-ssd-33 on node n7: 5 groups") {
		t.Errorf("it says\n%s", text)
	}
	if err := a.call(t.Context(), "drain", pool.Name, "--shard=5", "--dry-run"); err == nil ||
		!strings.Contains(err.Error(), "has no shard 5") {
		t.Errorf("a shard that only a list that is cut names: %v", err)
	}
}
