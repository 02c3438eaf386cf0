package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// placementSpec is what is fixed about the store's placement.
func placementSpec(run *storeRun) PlacementSpec {
	groups := run.store.Spec.Groups
	spec := PlacementSpec{
		StoreUID: run.store.Status.StoreUID, Routing: groups.Routing,
		Copies: max(run.store.Spec.Replication.Copies, 1), ShardsMin: run.first.shards,
	}
	if groups.Count != nil {
		spec.Groups = *groups.Count
	}
	if groups.Max != nil {
		spec.GroupsMax = *groups.Max
	}
	return spec
}

// firstPlacementMost is how long the first placement of a store waits for all of its shards: one that cannot start must not keep the
// others from serving.
const firstPlacementMost = 2 * time.Minute

// firstPlacement is what the first placement of groups waits for, so that all shards share them.
type firstPlacement struct {
	shards int32     // so many have to be registered; 0: none
	until  time.Time // zero: etcd does not hold the placement yet
}

// decideFirst counts from when etcd held the placement and the last pool was made.
func decideFirst(store *v1alpha1.RecordStore, pools []v1alpha1.ShardPool, now time.Time) firstPlacement {
	first := firstPlacement{shards: shardsWanted(pools)}
	ready := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionPlacementReady)
	if ready == nil || ready.Status != metav1.ConditionTrue {
		return first
	}
	since := ready.LastTransitionTime.Time
	for n := range pools {
		if made := pools[n].CreationTimestamp.Time; made.After(since) {
			since = made
		}
	}
	first.until = since.Add(firstPlacementMost)
	if !now.Before(first.until) {
		first.shards = 0
	}
	return first
}

// words say that the first placement waits; empty where it does not.
func (f firstPlacement) words(state *PlacementState) string {
	if int(f.shards) <= len(state.Alive) || state.Groups == 0 || state.Homeless < state.Groups {
		return ""
	}
	text := fmt.Sprintf("the first placement of groups waits until all %d shards are registered, so that they share the groups; %d are",
		f.shards, len(state.Alive))
	if !f.until.IsZero() {
		text += fmt.Sprintf(". At %s, %v after the last pool was made, it goes on with those", f.until.UTC().Format(time.RFC3339), firstPlacementMost)
	}
	return text
}

// awaitEtcd opens the placement; for a managed etcd, once a majority is ready.
func (r *RecordStoreReconciler) awaitEtcd(ctx context.Context, run *storeRun) Outcome {
	store := run.store
	if store.Spec.Etcd.Managed != nil {
		if ready, members := run.etcdWell(), len(run.members); ready <= members/2 {
			message := fmt.Sprintf("%d of %d members of etcd are ready; %d are needed", ready, members, members/2+1)
			for _, o := range run.members {
				if !o.well() {
					message += ": " + o.why()
					break
				}
			}
			if run.emptyMember() {
				message += fmt.Sprintf(". Where the data of etcd is lost for good, let it begin anew, and then rebuild the placement as "+
					"condition PlacementReady says: kubectl -n %s annotate recordstore/%s %s=%s", store.Namespace, store.Name,
					AnnotationAllowNewEtcd, store.Status.StoreUID)
			}
			return r.etcdAway(run, "EtcdNotReady", message)
		}
	}
	var err error
	key := client.ObjectKeyFromObject(store).String()
	if run.placement, err = r.Placements.Open(key, run.access, run.secrets); err != nil {
		return r.etcdUnreachable(run, err)
	}
	run.askMembers(ctx)
	return Complete()
}

// emptyMember says whether a member has ended because it has no data where there was some.
func (run *storeRun) emptyMember() bool {
	return slices.ContainsFunc(run.members, func(o *observedMember) bool {
		return o.Pod != nil && !o.well() && strings.Contains(etcdTrouble(o.Pod), emptyMember)
	})
}

// emptyMember is part of the last words of a member of etcd that has no data where there was some (etcd.ErrEmptyExisting).
const emptyMember = "the folder is empty, and the cluster was formed before"

// etcdAway is the outcome while etcd cannot be asked. Settled groups serve on.
func (r *RecordStoreReconciler) etcdAway(run *storeRun, reason, message string) Outcome {
	SetFalse(&run.store.Status.Conditions, run.store.Generation, v1alpha1.ConditionEtcdReady, reason,
		message+". Settled groups are read and written meanwhile; groups and shards that start now wait for etcd")
	return Wait(reason, message, 2*PauseShort) // a managed one is watched
}

// etcdUnreachable is etcdAway of an etcd that does not answer. It names where it was asked for.
func (r *RecordStoreReconciler) etcdUnreachable(run *storeRun, err error) Outcome {
	message := fmt.Sprintf("etcd at %s cannot be reached: %v", strings.Join(run.access.Endpoints, ", "), err)
	if run.store.Spec.Etcd.External != nil {
		message += ". Start it, correct spec.etcd.external, or let the operator's pod reach it"
	}
	return r.etcdAway(run, "EtcdUnreachable", message)
}

// etcdTrouble is why a member of etcd does not run, in the words of its last end; empty where there is nothing to say.
func etcdTrouble(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if end := c.LastTerminationState.Terminated; end != nil && end.ExitCode != 0 && end.Message != "" {
			return fmt.Sprintf("%s: %s", pod.Name, lastWords(end.Message))
		}
		if end := c.State.Terminated; end != nil && end.ExitCode != 0 && end.Message != "" {
			return fmt.Sprintf("%s: %s", pod.Name, lastWords(end.Message))
		}
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return fmt.Sprintf("%s: %s: %s", pod.Name, w.Reason, w.Message)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("%s: %s", pod.Name, c.Message)
		}
	}
	return ""
}

// lastWords are what a program of ours has said last, without the log before it.
func lastWords(message string) string {
	if at := strings.LastIndex(message, "\nsheaf: "); at >= 0 {
		message = message[at+1:]
	}
	return tail(message, 512)
}

// tail is the end of a text: the last words say why a process ended.
func tail(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return "..." + text[len(text)-bytes:]
}

// initPlacement makes the placement once in the life of a store, or rebuilds that of an adopted one.
func (r *RecordStoreReconciler) initPlacement(ctx context.Context, run *storeRun) Outcome {
	store := run.store
	if store.Status.PlacementInitialized {
		return Complete()
	}
	var live v1alpha1.RecordStore
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(store), &live); err != nil {
		return Retry(fmt.Errorf("read store %s: %w", client.ObjectKeyFromObject(store), err))
	}
	if live.UID != store.UID || live.Status.PlacementInitialized { // the cache is behind
		return Wait("Changed", "the store changed meanwhile", PauseShort)
	}
	bounded, cancel := context.WithTimeout(ctx, 4*placementTimeout)
	defer cancel()
	spec := placementSpec(run)
	var err error
	if store.Spec.AdoptStoreUID == "" {
		err = run.placement.Init(bounded, spec)
	} else if _, err = run.placement.Plan(bounded, spec, shardStates(run.pools, run.seen)); is(err, ErrPlacementLost) {
		err = run.placement.Recover(bounded, spec, shardAddresses(run.pools, run.seen))
	}
	switch {
	case err == nil:
		// Written before there is any group: an etcd that is lost later is never taken for a new one.
		before := store.DeepCopy()
		store.Status.PlacementInitialized = true
		if _, err := r.writeStatus(ctx, before, store); err != nil {
			store.Status.PlacementInitialized = false
			return Retry(err)
		}
		return Complete()
	case is(err, ErrOtherStore):
		return r.otherStore(run, err)
	case is(err, ErrCopiesDiffer):
		return copiesDiffer(err)
	case is(err, ErrEtcdRolledBack):
		return r.etcdRolledBack(run, err)
	case is(err, ErrVolumesIncomplete):
		SetFalse(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "Adopting", err.Error())
		return Wait("Adopting", fmt.Sprintf("spec.adoptStoreUID: the placement of store %s is rebuilt from its volumes: %v",
			store.Status.StoreUID, err), PauseShort)
	case is(err, ErrPlacementChanged):
		return Wait("PlacementChanged", err.Error(), PauseShort)
	default:
		return r.etcdUnreachable(run, err)
	}
}

// plan lets the planner decide where groups are wanted.
func (r *RecordStoreReconciler) plan(ctx context.Context, run *storeRun) Outcome {
	ctx, cancel := context.WithTimeout(ctx, 4*placementTimeout)
	defer cancel()
	states := shardStates(run.pools, run.seen)
	var state PlacementState
	err := r.replaceLost(ctx, run, states)
	if err == nil {
		state, err = run.placement.Plan(ctx, placementSpec(run), states)
	}
	store := run.store
	switch {
	case err == nil:
		run.state, run.hasState = state, true
		store.Status.Planned = plannedFor(store, run.pools)
		tellPlan(ctx, state)
		SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionEtcdReady, "Ready", "etcd answers")
		SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "Ready",
			"etcd holds the placement of store "+store.Status.StoreUID)
		return r.forgetAllowance(ctx, run)
	case is(err, ErrPlacementLost):
		return r.placementLost(ctx, run)
	case is(err, ErrEtcdRolledBack):
		return r.etcdRolledBack(run, err)
	case is(err, ErrOtherStore):
		return r.otherStore(run, err)
	case is(err, ErrCopiesDiffer):
		return copiesDiffer(err)
	case is(err, ErrPlacementChanged):
		return Wait("PlacementChanged", err.Error(), PauseShort)
	default:
		return r.etcdUnreachable(run, err)
	}
}

// copiesDiffer: admission refuses to change them, but etcd may hold the placement of a store that was made before that.
func copiesDiffer(err error) Outcome {
	return Fail("CopiesDiffer", fmt.Sprintf("spec.replication.copies: %v. It cannot be changed, and groups go on as they are: make a new "+
		"RecordStore and copy the records with sheaf export and sheaf import", err))
}

// lostShardsMax bounds the shards that lostMessage names: a condition has room for 2 KiB.
const lostShardsMax = 8

// lostMessage says how a lost placement is rebuilt, by a program that every pod of the gateway has, with its files.
func lostMessage(run *storeRun) string {
	store := run.store
	command := fmt.Sprintf("kubectl -n %s exec deploy/%s -c %s -- /sheaf recover placement %s --store-uid=%s --shards=",
		store.Namespace, workload.Gateway(store.Name), workload.ContainerGateway, strings.Join(run.access.Args(), " "), store.Status.StoreUID)
	addresses := shardAddresses(run.pools, run.seen)
	if len(addresses) > lostShardsMax {
		command += strings.Join(addresses[:lostShardsMax], ",") + fmt.Sprintf(",... (all %d shards)", len(addresses))
	} else {
		command += strings.Join(addresses, ",")
	}
	return "etcd is empty, but this store has data: nothing is made afresh. Rebuild the placement from the shards' volumes, " +
		"first without --yes to see what would be written: " + command + " --yes"
}

// otherStore is the outcome where etcd holds another store's placement.
func (r *RecordStoreReconciler) otherStore(run *storeRun, err error) Outcome {
	store := run.store
	SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionEtcdReady, "Ready", "etcd answers")
	message := fmt.Sprintf("%v. Give this store an etcd or prefix of its own, or adopt the one that is there (spec.adoptStoreUID)", err)
	SetFalse(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "OtherStore", message)
	return Fail("OtherStore", message)
}

// forgetAllowance takes the permission to form a new etcd back once it was used.
func (r *RecordStoreReconciler) forgetAllowance(ctx context.Context, run *storeRun) Outcome {
	store := run.store
	if _, there := store.Annotations[AnnotationAllowNewEtcd]; !there {
		return Complete()
	}
	err := r.writeMetadata(ctx, store, func(store *v1alpha1.RecordStore) { delete(store.Annotations, AnnotationAllowNewEtcd) })
	if err != nil {
		return Retry(err)
	}
	return Complete()
}

// shardStates wanted, by shard.
func shardStates(pools []v1alpha1.ShardPool, seen seenShards) map[string]v1alpha1.PoolState {
	states := map[string]v1alpha1.PoolState{}
	for _, pool := range pools {
		leaving := leavingShards(&pool, seen.of(&pool))
		for _, shard := range poolShardNames(&pool, seen.of(&pool)) {
			states[shard] = pool.Spec.State
			if leaving[shard] || !pool.DeletionTimestamp.IsZero() {
				states[shard] = v1alpha1.PoolDrained
			}
		}
	}
	return states
}

// poolNumbers are the shards that a pool has, or should have, as its own controller numbers them.
func poolNumbers(pool *v1alpha1.ShardPool, seen []v1alpha1.ShardStatus) numbersPlan {
	in := numbersInput{Wanted: int(poolShards(pool)), Remove: pool.Spec.Remove}
	for _, s := range seen {
		in.Exist = append(in.Exist, s.Number)
	}
	return planNumbers(in)
}

// poolShardNames are the shards that a pool has or should have, by number.
func poolShardNames(pool *v1alpha1.ShardPool, seen []v1alpha1.ShardStatus) []string {
	plan := poolNumbers(pool, seen)
	numbers := slices.Concat(plan.Keep, plan.Create, plan.Leave, plan.Remove)
	slices.Sort(numbers)
	names := make([]string, 0, len(numbers))
	for _, n := range numbers {
		names = append(names, workload.Shard(pool.Name, n))
	}
	return names
}

// shardAddresses of all pools.
func shardAddresses(pools []v1alpha1.ShardPool, seen seenShards) []string {
	var out []string
	for _, pool := range pools {
		for _, shard := range poolShardNames(&pool, seen.of(&pool)) {
			out = append(out, workload.ShardAddress(pool.Namespace, pool.Name, shard))
		}
	}
	return out
}
