package recordstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// awaitEtcd opens the placement. For a managed etcd, it first waits until a majority of the members is ready.
func (r *Reconciler) awaitEtcd(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if store.Spec.Etcd.Managed != nil {
		if ready, members := run.etcdWell(), len(run.members); ready <= members/2 {
			message := fmt.Sprintf("%s ready; %s needed",
				step.CountOf(ready, members, "member of etcd is", "members of etcd are"), step.Count(members/2+1, "is", "are"))
			for _, o := range run.members {
				if !o.well() {
					message += ": " + o.why()
					break
				}
			}
			if run.emptyMember() {
				message += fmt.Sprintf(
					". Where the data of etcd is lost for good, let it begin empty, and then rebuild the placement as "+
						"condition PlacementReady says: kubectl -n %s annotate recordstore/%s %s=%s", store.Namespace, store.Name,
					v1alpha1.AnnotationAllowNewEtcd, store.Status.StoreUID)
			}
			return etcdAway(run, "EtcdNotReady", message)
		}
	}
	var err error
	key := client.ObjectKeyFromObject(store).String()
	if run.placement, err = r.Placements.Open(key, run.access, run.secrets); err != nil {
		return r.etcdUnreachable(run, err)
	}
	run.askMembers(ctx)
	return step.Complete()
}

// emptyMember reports whether a member has ended because its folder is empty although the cluster formed before.
func (run *storeRun) emptyMember() bool {
	return slices.ContainsFunc(run.members, func(o *observedMember) bool {
		return o.Pod != nil && !o.well() && workload.LostEtcdData(o.Pod)
	})
}

// etcdAway returns the outcome while etcd cannot be asked. Groups that are placed continue to serve.
func etcdAway(run *storeRun, reason, message string) step.Outcome {
	step.SetFalse(&run.store.Status.Conditions, run.store.Generation, v1alpha1.ConditionEtcdReady, reason,
		strings.TrimSuffix(message, ".")+". Settled groups are read and written meanwhile; groups and shards that "+
			"start now wait for etcd")
	return step.Wait(reason, message, 2*step.PauseShort) // a managed etcd is watched
}

// etcdUnreachable is etcdAway for an etcd that does not answer. Its message names the endpoints that were asked.
func (r *Reconciler) etcdUnreachable(run *storeRun, err error) step.Outcome {
	message := fmt.Sprintf("etcd at %s cannot be reached: %v", strings.Join(run.access.Endpoints, ", "), err)
	if run.store.Spec.Etcd.External != nil {
		message += ". Start it, correct spec.etcd.external, or let the operator's pod reach it"
	}
	return etcdAway(run, "EtcdUnreachable", message)
}

// podTrouble says why a pod does not run: the message of its last termination, the reason why its container waits, or
// the message of the scheduler. It is empty if no reason is known.
func podTrouble(pod *corev1.Pod) string {
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
	if c := fleet.Unscheduled(pod); c.Type != "" {
		return fmt.Sprintf("%s: %s", pod.Name, c.Message)
	}
	return ""
}

// lastWords returns the final message of a program of Sheaf, without the log before it.
func lastWords(message string) string {
	if at := strings.LastIndex(message, "\nsheaf: "); at >= 0 {
		message = message[at+1:]
	}
	return step.Tail(message, 512)
}

// initPlacement creates the placement once in the life of a store, or rebuilds the placement of an adopted store.
func (r *Reconciler) initPlacement(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if store.Status.PlacementInitialized {
		return step.Complete()
	}
	var live v1alpha1.RecordStore
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(store), &live); err != nil {
		return step.Retry(fmt.Errorf("read store %s: %w", client.ObjectKeyFromObject(store), err))
	}
	if live.UID != store.UID || live.Status.PlacementInitialized { // the cache is stale
		return step.Wait("Changed", "the store changed meanwhile", step.PauseShort)
	}
	bounded, cancel := context.WithTimeout(ctx, 4*fleet.EtcdPatience)
	defer cancel()
	spec := fleet.PlacementSpecOf(run.store, run.first.shards)
	var err error
	if store.Spec.AdoptStoreUID == "" {
		err = run.placement.Init(bounded, spec)
	} else if _, err = run.placement.Plan(bounded, spec, fleet.ShardStates(run.pools, run.observed)); errors.Is(err,
		fleet.ErrPlacementLost) {
		err = run.placement.Recover(bounded, spec, shardsAt(run))
	}
	switch {
	case err == nil:
		// The status is written before the first group exists, so that an etcd that loses its data later is never
		// mistaken for a new one.
		before := store.DeepCopy()
		store.Status.PlacementInitialized = true
		if _, err := r.writeStatus(ctx, before, store); err != nil {
			store.Status.PlacementInitialized = false
			return step.Retry(err)
		}
		return step.Complete()
	case errors.Is(err, fleet.ErrVolumesIncomplete):
		step.SetFalse(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "Adopting", err.Error())
		return step.Wait("Adopting", fmt.Sprintf(
			"spec.adoptStoreUID: the placement of store %s is rebuilt from its volumes: %v",
			store.Status.StoreUID, err), step.PauseShort)
	default:
		return r.placementRefused(run, err)
	}
}

// plan runs the planner, which decides where groups are wanted.
func (r *Reconciler) plan(ctx context.Context, run *storeRun) step.Outcome {
	ctx, cancel := context.WithTimeout(ctx, 4*fleet.EtcdPatience)
	defer cancel()
	states := fleet.ShardStates(run.pools, run.observed)
	var state fleet.PlacementState
	err := r.replaceLost(ctx, run, states)
	if err == nil {
		state, err = run.placement.Plan(ctx, fleet.PlacementSpecOf(run.store, run.first.shards), states)
	}
	store := run.store
	switch {
	case err == nil:
		state.View.Silence(run.observed.Silent())
		run.state, run.hasState = state, true
		r.arrived.note(store.UID, &state, r.now())
		store.Status.Planned = plannedFor(store, run.pools)
		reportPlan(ctx, state)
		step.SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionEtcdReady, "Ready", "etcd answers")
		step.SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "Ready",
			"etcd holds the placement of store "+store.Status.StoreUID)
		return r.forgetAllowance(ctx, run)
	case errors.Is(err, fleet.ErrPlacementLost):
		return r.placementLost(ctx, run)
	default:
		return r.placementRefused(run, err)
	}
}

// placementRefused converts an error from the placement in etcd to an outcome.
func (r *Reconciler) placementRefused(run *storeRun, err error) step.Outcome {
	switch {
	case errors.Is(err, fleet.ErrOtherStore):
		return r.otherStore(run, err)
	case errors.Is(err, fleet.ErrCopiesDiffer):
		return copiesDiffer(err)
	case errors.Is(err, fleet.ErrEtcdRolledBack):
		return r.etcdRolledBack(run, err)
	case errors.Is(err, fleet.ErrPlacementChanged):
		return step.Wait("PlacementChanged", err.Error(), step.PauseShort)
	default:
		return r.etcdUnreachable(run, err)
	}
}

// copiesDiffer returns the outcome if the number of copies in the spec differs from that in etcd. Admission refuses to
// change the number, but etcd may hold the placement of a store that was created before admission did.
func copiesDiffer(err error) step.Outcome {
	return step.Fail("CopiesDiffer", fmt.Sprintf(
		"spec.replication.copies: %v. It cannot be changed, and groups go on as they are: make a new "+
			"RecordStore and copy the records with sheaf export and sheaf import", err))
}

// lostShardsMax is the maximum number of shards that lostMessage names: the message of a condition has at most 2 KiB.
const lostShardsMax = 8

// lostMessage says how to rebuild a lost placement with a program that every gateway pod contains, together with the
// files that it needs.
func lostMessage(run *storeRun) string {
	store := run.store
	command := fmt.Sprintf("kubectl -n %s exec deploy/%s -c %s -- /sheaf recover placement %s --store-uid=%s --shards=",
		store.Namespace, workload.Gateway(store.Name), workload.ContainerGateway,
		strings.Join(append(workload.TLSArgs(store), run.access.Args()...), " "), store.Status.StoreUID)
	shards := shardsAt(run)
	addresses := make([]string, len(shards))
	for i, shard := range shards {
		addresses[i] = shard.Address
	}
	if len(addresses) > lostShardsMax {
		command += strings.Join(addresses[:lostShardsMax], ",") + ",... (" + step.All(len(addresses), "shard", "shards") + ")"
	} else {
		command += strings.Join(addresses, ",")
	}
	return "etcd is empty, but this store has data: nothing is made afresh. Rebuild the placement from the shards' " +
		"volumes, " +
		"first without --yes to see what would be written: " + command + " --yes"
}

// otherStore returns the outcome for an etcd that holds the placement of another store.
func (r *Reconciler) otherStore(run *storeRun, err error) step.Outcome {
	store := run.store
	step.SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionEtcdReady, "Ready", "etcd answers")
	message := fmt.Sprintf(
		"%v. Give this store an etcd or prefix of its own, or adopt the one that is there (spec.adoptStoreUID)", err)
	step.SetFalse(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "OtherStore", message)
	return step.Fail("OtherStore", message)
}

// forgetAllowance removes the permission to form a new etcd after it was used.
func (r *Reconciler) forgetAllowance(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if _, there := store.Annotations[v1alpha1.AnnotationAllowNewEtcd]; !there {
		return step.Complete()
	}
	err := step.WriteMetadata(ctx, r.Client, store, func(store *v1alpha1.RecordStore) {
		delete(store.Annotations, v1alpha1.AnnotationAllowNewEtcd)
	})
	if err != nil {
		return step.Retry(err)
	}
	return step.Complete()
}

// shardsAt returns the shards of all pools of a store and their addresses.
func shardsAt(run *storeRun) []fleet.ShardAt {
	var out []fleet.ShardAt
	for _, pool := range run.pools {
		for _, shard := range fleet.PoolShardNames(&pool, run.observed.Of(&pool)) {
			out = append(out, fleet.ShardAt{
				Store: client.ObjectKeyFromObject(run.store).String(), Name: shard,
				Address: workload.ShardAddress(pool.Namespace, pool.Name, shard),
			})
		}
	}
	return out
}
