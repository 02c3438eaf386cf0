package recordstore

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
)

// etcdAway returns the outcome while etcd cannot be asked. Groups that are placed continue to serve.
func etcdAway(store *v1alpha1.RecordStore, reason, message string) step.Outcome {
	sayFalse(store, v1alpha1.ConditionEtcdReady, reason,
		strings.TrimSuffix(message, ".")+". Settled groups are read and written meanwhile; groups and shards that "+
			"start now wait for etcd")
	// No shorter pause is needed, because changes of a managed etcd cause a reconcile.
	return step.Wait(reason, message, 2*step.PauseShort)
}

// etcdUnreachable returns the outcome if etcd does not answer. The message of the outcome names the endpoints that were
// asked.
func (seen *observed) etcdUnreachable(err error) step.Outcome {
	message := fmt.Sprintf("etcd at %s cannot be reached: %v", strings.Join(seen.access.Endpoints, ", "), err)
	if seen.store.Spec.Etcd.External != nil {
		message += ". Start it, correct spec.etcd.external, or let the operator's pod reach it"
	}
	return etcdAway(seen.store, "EtcdUnreachable", message)
}

// plannedFor returns the generations of the store and its pools that the current plan takes into account.
func plannedFor(store *v1alpha1.RecordStore, pools []v1alpha1.ShardPool) *v1alpha1.Planned {
	out := &v1alpha1.Planned{Generation: store.Generation}
	for n := range pools[:min(len(pools), fleet.PlannedPoolsMax)] {
		out.Pools = append(out.Pools, v1alpha1.PlannedPool{Name: pools[n].Name, Generation: pools[n].Generation})
	}
	return out
}

// placementRefused converts an error from the placement in etcd to an outcome.
func (seen *observed) placementRefused(err error) step.Outcome {
	switch {
	case errors.Is(err, placement.ErrOtherStore):
		return seen.otherStore(err)
	case errors.Is(err, fleet.ErrCopiesDiffer):
		// The API server refuses to change the number, but etcd may contain the placement of a store that was created
		// before there was such a rule.
		return step.Fail("CopiesDiffer", fmt.Sprintf(
			"spec.replication.copies: %v. It cannot be changed, and groups go on as they are: make a new "+
				"RecordStore and copy the records with sheaf export and sheaf import", err))
	case errors.Is(err, placement.ErrFrozen):
		// This etcd holds an older state of the store than an earlier read did. The shards restore the newer state.
		message := fmt.Sprintf("%v. Where a shard that it waits for does not come back, see docs/operations/etcd.md", err)
		sayFalse(seen.store, v1alpha1.ConditionEtcdReady, "EtcdRolledBack", message)
		return step.Wait("EtcdRolledBack", message, step.PauseShort)
	case errors.Is(err, placement.ErrChanged):
		return step.Wait("PlacementChanged", "the placement changed meanwhile: "+err.Error(), step.PauseShort)
	default:
		return seen.etcdUnreachable(err)
	}
}

// lostShardsMax is the maximum number of shards that lostMessage names. It exists because the message of a condition
// has at most 2 KiB.
const lostShardsMax = 8

// lostMessage says how to rebuild a lost placement with a program that every gateway pod contains, together with its
// configuration files.
func (seen *observed) lostMessage() string {
	store := seen.store
	command := fmt.Sprintf("kubectl -n %s exec deploy/%s -c %s -- /sheaf recover placement %s --store-uid=%s --shards=",
		store.Namespace, workload.Gateway(store.Name), workload.ContainerGateway,
		strings.Join(append(workload.TLSArgs(store), seen.access.Args()...), " "), store.Status.StoreUID)
	shards := seen.shardsAt()
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
		"volumes, first without --yes to see what would be written: " + command + " --yes"
}

// otherStore returns the outcome for an etcd that holds the placement of another store.
func (seen *observed) otherStore(err error) step.Outcome {
	store := seen.store
	sayTrue(store, v1alpha1.ConditionEtcdReady, "Ready", "etcd answers")
	message := fmt.Sprintf(
		"%v. Give this store an etcd or prefix of its own, or adopt the one that is there (spec.adoptStoreUID)", err)
	sayFalse(store, v1alpha1.ConditionPlacementReady, "OtherStore", message)
	return step.Fail("OtherStore", message)
}

// shardsAt returns the shards of all pools of a store and their addresses.
func (seen *observed) shardsAt() []fleet.ShardAt {
	var out []fleet.ShardAt
	for _, pool := range seen.pools {
		for _, shard := range fleet.PoolShardNames(&pool, seen.shards.Of(&pool)) {
			out = append(out, fleet.ShardAt{
				Store: client.ObjectKeyFromObject(seen.store).String(), Name: shard,
				Address: workload.ShardAddress(pool.Namespace, pool.Name, shard),
			})
		}
	}
	return out
}
