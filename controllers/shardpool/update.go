package shardpool

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/shardpool/poolstatus"
	"sheaf.dev/sheaf/controllers/shardpool/turns"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// podUpdater restarts shards whose pods have an outdated template, one after the other.
type podUpdater struct {
	writer
	live     client.Reader // bypasses the cache
	seen     *observed.Pool
	statuses []v1alpha1.ShardStatus // the statuses of seen.Shards, in the same order
	places   *places
	shards   shardClient
	choosing *sync.Mutex       // held while a shard of the store is chosen and stopped; one mutex per store
	found    poolstatus.Update // the progress of the update
}

// do takes the next step of an update: the StatefulSet of the shard whose turn it is gets the wanted template, and
// then the pod is deleted. This order makes a crash between the two harmless, because the pod still counts as
// outdated.
func (u *podUpdater) do(ctx context.Context) step.Outcome {
	outdated := 0
	for _, o := range u.seen.Shards {
		if o.Outdated() {
			outdated++
		}
	}
	if outdated == 0 {
		return step.Complete()
	}
	u.found = poolstatus.Update{Reason: turns.ReasonUpdating, Message: step.CountOf(outdated, len(u.seen.Shards),
		"shard does", "shards do") + " not run the wanted pod template yet"}
	if u.pool.Spec.Update.Mode == v1alpha1.UpdatePaused {
		u.found.Reason, u.found.Message = poolstatus.ReasonPaused,
			u.found.Message+"; update.mode is Paused: set it to OneByOne to go on"
		return step.Complete()
	}
	all, err := u.cachedTurns(ctx)
	if err != nil {
		return step.Retry(err)
	}
	name, heldUpBy := turns.Choose(all, u.parkedWell())
	reason := turns.HoldReason(all, u.parkedWell())
	if name == "" && slices.ContainsFunc(u.seen.Shards, u.waitsForImage) {
		reason = turns.ReasonHeldUp
		heldUpBy = fmt.Sprintf("gateway and etcd of RecordStore %s do not run image %s: its condition Updated says why",
			u.seen.Store.Name, u.seen.Image)
	}
	if name == "" {
		return u.heldUp(reason, cmp.Or(heldUpBy, "their nodes are away"))
	}
	i := slices.IndexFunc(u.seen.Shards, func(o *observed.Shard) bool { return o.Name == name })
	return u.restart(ctx, u.seen.Shards[i], all)
}

// waitsForImage reports whether a shard keeps its present image for now. The gateways and etcd get a new image first,
// because a bad image does less harm there. A shard that serves no groups need not wait.
func (u *podUpdater) waitsForImage(o *observed.Shard) bool {
	store := u.seen.Store.Status.Image
	if store == "" || store == u.seen.Image || o.Pod == nil || fleet.ImageOf(&o.Pod.Spec) == u.seen.Image {
		return false
	}
	return turns.CostOf(statusOf(u.statuses, o.Number).State) != turns.CostNone
}

func (u *podUpdater) heldUp(reason, by string) step.Outcome {
	u.found.Reason = reason
	u.found.Message += "; none is restarted while " + by
	return step.Wait(u.found.Reason, u.found.Message, step.PauseShort)
}

// parkedWell reports whether restarts need not wait for shards that are parked on purpose. With one copy, no group
// needs such a shard for a majority. With several copies, turns.Needed checks the groups' majorities after etcd has
// returned the places of the copies.
func (u *podUpdater) parkedWell() bool {
	return u.seen.Store.Spec.Replication.Copies <= 1 || u.places.known()
}

// cachedTurns returns all shards of the store: the shards of this pool with their decided states, and the others with
// their last observed states.
func (u *podUpdater) cachedTurns(ctx context.Context) ([]turns.Turn, error) {
	var list []turns.Turn
	for i, o := range u.seen.Shards {
		t := turns.Turn{Name: o.Name, State: u.statuses[i].State, Outdated: o.Outdated() && !u.waitsForImage(o), Mine: true}
		if o.Pod != nil {
			t.Since = o.Pod.CreationTimestamp.Time
		}
		list = append(list, t)
	}
	pools, seen, err := fleet.ReadPools(ctx, u, storeKey(u.pool))
	if err != nil {
		return nil, err
	}
	for i := range pools {
		if pools[i].Name == u.pool.Name {
			continue
		}
		for _, s := range seen.Of(&pools[i]) {
			list = append(list, turns.Turn{Name: s.Name, State: s.State})
		}
	}
	return list, nil
}

// restart checks with the API server and with the shards themselves that it is the shard's turn to restart. It then
// sets the wanted template in the StatefulSet and, after the StatefulSet controller has observed the change, deletes
// the pod.
func (u *podUpdater) restart(ctx context.Context, o *observed.Shard, cached []turns.Turn) step.Outcome {
	words := fmt.Sprintf("shard %s is to be restarted: %s", o.Name, u.found.Message)
	if o.Set == nil || o.Set.DeletionTimestamp != nil {
		return step.Wait(turns.ReasonUpdating, words, step.PauseShort)
	}
	u.choosing.Lock()
	defer u.choosing.Unlock()
	live, err := u.liveTurns(ctx, cached)
	if err != nil {
		return step.Retry(err)
	}
	if name, heldUpBy := turns.Choose(live, u.parkedWell()); name != o.Name {
		u.found.Reason = turns.HoldReason(live, u.parkedWell())
		return step.Wait(u.found.Reason, u.found.Message+"; none is restarted while "+cmp.Or(heldUpBy, "another one is"),
			step.PauseShort)
	}
	if held := u.whyNeeded(ctx, o.Name, live); held != "" {
		u.found.Reason, u.found.Message = turns.ReasonHeldUp, fmt.Sprintf("%s; shard %s is not restarted: %s",
			u.found.Message, o.Name, held)
		return step.Wait(u.found.Reason, u.found.Message, step.PauseShort)
	}
	if changed, err := step.Apply(ctx, u.Client, u.pool, o.Wanted); err != nil {
		return step.Retry(err)
	} else if changed || setTemplate(o.Set) != o.Template || o.Set.Status.ObservedGeneration < o.Set.Generation {
		return step.Wait(turns.ReasonUpdating, words, step.PauseShort)
	}
	news := step.News{Reason: "ShardRestarts", Action: "Restart",
		Message: fmt.Sprintf("restarting shard %s for a changed pod template", o.Name)}
	if err := u.remove(ctx, o.Pod, "Pod "+o.Pod.Name, news); err != nil {
		return step.Retry(err)
	}
	return step.Wait(turns.ReasonUpdating, words, step.PauseShort)
}

// liveTurns reads the shards of the store again without the cache, to make sure that the shards that seemed healthy
// really are. A shard that did not seem healthy keeps its observed state, unless it serves.
func (u *podUpdater) liveTurns(ctx context.Context, cached []turns.Turn) ([]turns.Turn, error) {
	in := []client.ListOption{client.InNamespace(u.pool.Namespace),
		client.MatchingLabels(workload.Selector(u.seen.Store.Name, workload.ContainerShard))}
	var pods corev1.PodList
	var sets appsv1.StatefulSetList
	if err := u.live.List(ctx, &sets, in...); err != nil {
		return nil, fmt.Errorf("list StatefulSets of RecordStore %s: %w", u.seen.Store.Name, err)
	}
	if err := u.live.List(ctx, &pods, in...); err != nil {
		return nil, fmt.Errorf("list pods of RecordStore %s: %w", u.seen.Store.Name, err)
	}
	seen := map[string]turns.Turn{}
	for _, t := range cached {
		seen[t.Name] = t
	}
	// Add the shards whose StatefulSets the cache does not contain yet.
	for i := range sets.Items {
		set := &sets.Items[i]
		if _, ok := seen[set.Name]; !ok && (set.Spec.Replicas == nil || *set.Spec.Replicas > 0) {
			seen[set.Name] = turns.Turn{Name: set.Name, State: v1alpha1.ShardServing}
		}
	}
	byShard := map[string]*corev1.Pod{}
	for i := range pods.Items {
		byShard[strings.TrimSuffix(pods.Items[i].Name, "-0")] = &pods.Items[i]
	}
	for i := range sets.Items {
		set := &sets.Items[i]
		if pod := byShard[set.Name]; pod != nil && setTemplate(set) != pod.Annotations[workload.AnnotationTemplate] {
			t := seen[set.Name]
			t.Name, t.Begun = set.Name, true
			seen[set.Name] = t
		}
	}
	live := slices.Collect(maps.Values(seen))
	parallel.Times(len(live), describeAtOnce, func(n int) {
		t := &live[n]
		now, report := u.liveState(ctx, byShard[t.Name])
		t.Report = report
		if turns.CostOf(now) == turns.CostAll || turns.CostOf(t.State) == turns.CostAll {
			t.State = now
		}
	})
	return live, nil
}

func (u *podUpdater) liveState(ctx context.Context, pod *corev1.Pod) (v1alpha1.ShardState, *recordv1.ShardStatus) {
	if pod == nil || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
		return v1alpha1.ShardPending, nil
	}
	report, err := u.shards.ask(ctx, pod)
	if err != nil {
		return v1alpha1.ShardUnreachable, nil
	}
	return fleet.StateOf(report), report
}

// whyNeeded returns the reason why a serving shard must not be restarted now. The result is empty if every group with
// several copies can continue without the shard.
func (u *podUpdater) whyNeeded(ctx context.Context, shard string, live []turns.Turn) string {
	i := slices.IndexFunc(live, func(t turns.Turn) bool { return t.Name == shard })
	if u.seen.Store.Spec.Replication.Copies <= 1 || !u.places.known() || i >= 0 &&
		turns.CostOf(live[i].State) != turns.CostAll {
		return ""
	}
	view, err := u.places.lookAgain(ctx)
	if err != nil {
		return fmt.Sprintf("etcd was not asked whether its groups go on without it: %v", err)
	}
	return turns.Needed(view, shard, live)
}
