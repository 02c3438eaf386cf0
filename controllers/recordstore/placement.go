package recordstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
)

// openPlacement opens the placement. For a managed etcd, it first waits until a majority of the members is ready. It
// also asks the serving members about the others.
func openPlacement(ctx context.Context, placements fleet.Placements, seen *observed,
	secrets fleet.EtcdCredentials) (fleet.Placement, step.Outcome) {
	store := seen.store
	if out := seen.awaitMajority(); !out.IsComplete() {
		return nil, out
	}
	opened, err := placements.Open(client.ObjectKeyFromObject(store).String(), seen.access, secrets)
	if err != nil {
		return nil, seen.etcdUnreachable(err)
	}
	if seen.etcdWell() < len(seen.members) {
		bounded, cancel := context.WithTimeout(ctx, fleet.EtcdPatience)
		defer cancel()
		if known, err := opened.EtcdMembers(bounded); err == nil { // the next step reports an error
			seen.learn(known)
		}
	}
	return opened, step.Complete()
}

// placing maintains the placement of a store in etcd.
type placing struct {
	*writer
	seen *observed
	etcd fleet.Placement
}

// init creates the placement, which happens only once in the life of a store. If the store is adopted, init rebuilds
// the placement instead.
func (p placing) init(ctx context.Context, live client.Reader) step.Outcome {
	store := p.store
	if store.Status.PlacementInitialized {
		return step.Complete()
	}
	if store.Spec.Restore != nil {
		if out := p.seen.mayBegin(); !out.IsComplete() {
			return out
		}
	}
	var now v1alpha1.RecordStore
	if err := live.Get(ctx, client.ObjectKeyFromObject(store), &now); err != nil {
		return step.Retry(fmt.Errorf("read store %s: %w", client.ObjectKeyFromObject(store), err))
	}
	if now.UID != store.UID || now.Status.PlacementInitialized { // the cached store was outdated
		return step.Wait("Changed", "the store changed meanwhile", step.PauseShort)
	}
	bounded, cancel := context.WithTimeout(ctx, 4*fleet.EtcdPatience)
	defer cancel()
	seen := p.seen
	var err error
	if store.Spec.AdoptStoreUID == "" {
		err = p.etcd.Init(bounded, store, seen.first.shards)
	} else if _, err = p.etcd.Plan(bounded, store, seen.first.shards,
		fleet.ShardStates(seen.pools, seen.shards)); errors.Is(err, placement.ErrPlacementLost) {
		err = p.etcd.Recover(bounded, store, seen.shardsAt())
	}
	switch {
	case err == nil:
		return step.Retry(p.commitPlacement(ctx))
	case errors.Is(err, fleet.ErrVolumesIncomplete):
		sayFalse(store, v1alpha1.ConditionPlacementReady, "Adopting", err.Error())
		return step.Wait("Adopting", fmt.Sprintf(
			"spec.adoptStoreUID: the placement of store %s is rebuilt from its volumes: %v",
			store.Status.StoreUID, err), step.PauseShort)
	default:
		return seen.placementRefused(err)
	}
}

// plan runs the planner, which decides on which shards groups are wanted.
func (p placing) plan(ctx context.Context, arrived *arrivals, now time.Time) step.Outcome {
	ctx, cancel := context.WithTimeout(ctx, 4*fleet.EtcdPatience)
	defer cancel()
	seen, states := p.seen, fleet.ShardStates(p.seen.pools, p.seen.shards)
	var planned placement.Planned
	err := p.replaceLost(ctx, states)
	if err == nil {
		planned, err = p.etcd.Plan(ctx, p.store, seen.first.shards, states)
	}
	store := p.store
	switch {
	case err == nil:
		seen.places, seen.hasPlaces = fleet.Places{Planned: planned, SilentDisks: seen.shards.Silent()}, true
		arrived.note(store.UID, planned.View, now)
		store.Status.Planned = plannedFor(store, seen.pools)
		reportPlan(ctx, planned)
		sayTrue(store, v1alpha1.ConditionEtcdReady, "Ready", "etcd answers")
		sayTrue(store, v1alpha1.ConditionPlacementReady, "Ready",
			"etcd holds the placement of store "+store.Status.StoreUID)
		return p.forgetAllowance(ctx)
	case errors.Is(err, placement.ErrPlacementLost):
		return p.lost(ctx)
	default:
		return seen.placementRefused(err)
	}
}

// replaceLost empties each shard whose node is lost, or whose device the kubelet neither mounts nor formats. It does so
// only if every group on these shards can continue without all of them. The change is undone when the node returns or
// the device is mounted.
func (p placing) replaceLost(ctx context.Context, states map[string]v1alpha1.PoolState) error {
	seen, lost := p.seen, map[string]bool{}
	for name, s := range seen.shards.ByName() {
		if s.State == v1alpha1.ShardNodeLost || s.State == v1alpha1.ShardFormatBlocked {
			lost[name] = true
		}
	}
	if len(lost) == 0 || seen.copies() <= 1 {
		return nil
	}
	planned, err := p.etcd.Look(ctx, p.store)
	if err != nil {
		return err
	}
	places := fleet.Places{Planned: planned, SilentDisks: seen.shards.Silent()}
	if len(places.Undecided(func(m placement.Member) bool { return lost[m.Shard] })) > 0 {
		return nil // the messages of the lost shards name the groups that would have no majority
	}
	for name := range lost {
		states[name] = v1alpha1.PoolDrained
	}
	return nil
}

// lost handles an etcd that is empty although the store has data. If etcd is managed and groups have several copies,
// lost rebuilds the placement from the volumes, provided that every shard answers and all answers agree. Otherwise an
// administrator has to decide.
func (p placing) lost(ctx context.Context) step.Outcome {
	store, seen, why := p.store, p.seen, ""
	sayTrue(store, v1alpha1.ConditionEtcdReady, "Ready", "etcd answers")
	if isRestoring(store) { // no volume knows the groups that waited, and a rebuild would forget them
		message := fmt.Sprintf("etcd was empty while the store was being restored, and no volume knows which groups waited "+
			"for it. Rebuild it with all shards running: sheaf recover placement --restore %s asks them and the source again. "+
			"A group on a shard that is not asked would lose what was written to it. Or delete this RecordStore and its "+
			"claims, and make it again", workload.RestoreAddress(store.Namespace, store.Name))
		sayFalse(store, v1alpha1.ConditionPlacementReady, "PlacementLost", message)
		return step.Fail("PlacementLost", message).Again(step.PauseShort)
	}
	if store.Spec.Etcd.Managed != nil && seen.copies() > 1 {
		err := p.etcd.Recover(ctx, store, seen.shardsAt())
		if err == nil {
			message := fmt.Sprintf("etcd was empty: the placement of store %s was rebuilt from the volumes of its shards",
				store.Status.StoreUID)
			sayTrue(store, v1alpha1.ConditionPlacementReady, "PlacementRebuilt",
				message)
			p.tell(ctx, "PlacementRebuilt", "Rebuild", nil, "%s", message)
			return step.Wait("PlacementRebuilt", message, step.PauseShort)
		}
		why = fmt.Sprintf(
			"It is rebuilt by itself when every shard answers and all that their volumes hold fits together, which is not so: "+
				"%s. ",
			step.Tail(err.Error(), 600))
	}
	message := why + seen.lostMessage()
	sayFalse(store, v1alpha1.ConditionPlacementReady, "PlacementLost", message)
	return step.Fail("PlacementLost", message).Again(step.PauseShort)
}

// reportPlan logs the changes of a plan.
func reportPlan(ctx context.Context, planned placement.Planned) {
	if planned.Writes() == 0 {
		return
	}
	step.LogNews(ctx, step.News{Reason: "PlanChanged", Action: "Plan",
		Message: fmt.Sprintf("the plan of the placement changed: %s wanted on other shards "+
			"than before, %s new", step.Count(planned.TargetsWritten, "group is", "groups are"),
			step.Count(planned.GroupsCreated, "group is", "groups are"))})
}

// forgetAllowance removes the permission to form a new etcd after it was used.
func (p placing) forgetAllowance(ctx context.Context) step.Outcome {
	store := p.store
	if _, there := store.Annotations[v1alpha1.AnnotationAllowNewEtcd]; !there {
		return step.Complete()
	}
	return step.Retry(step.WriteMetadata(ctx, p.Client, store, func(store *v1alpha1.RecordStore) {
		delete(store.Annotations, v1alpha1.AnnotationAllowNewEtcd)
	}))
}
