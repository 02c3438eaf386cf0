package recordstore

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// awaitPools waits until every group serves.
func (seen *observed) awaitPools() step.Outcome {
	counts, shards := seen.rollUp()
	redundant, _ := seen.redundant()
	switch {
	case shardsWanted(seen.pools) == 0:
		return step.Wait("NoShards", fmt.Sprintf(
			"no ShardPool gives this store shards: create one with spec.storeRef.name: %s and spec.shards of at least 1",
			seen.store.Name), step.PauseLong)
	case redundant.byPerson(): // groups lack copies until an administrator acts
		return seen.awaitCopies()
	case seen.places.GroupsCreated > 0 || seen.places.Writes() > 0 &&
		seen.places.Homeless() > 0: // groups that merely move do not keep a store from being ready
		return step.Wait("Placing", step.Count(counts.Total, "group is", "groups are")+" placed on shards", step.PauseShort)
	case counts.Serving < counts.Total || shards.Serving < shards.Total:
		verb := "serve"
		if len(seen.unasked(counts)) > 0 {
			verb = "are known to serve"
		}
		reason, message := "Loading", fmt.Sprintf("%s and %s %s",
			step.CountOf(counts.Serving, counts.Total, "group", "groups"),
			step.CountOf(shards.Serving, shards.Total, "shard", "shards"), verb)
		if counts.DataLost > 0 {
			reason, message = fleet.GroupLost, fmt.Sprintf("%s; the data of %s are lost%s", message,
				step.Count(counts.DataLost, "group", "groups"), firstWords(counts.NotWell))
		}
		if pool := firstStalled(seen.pools); pool != nil {
			condition := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
			reason, message = condition.Reason, fmt.Sprintf("%s; pool %s: %s", message, pool.Name, condition.Message)
		}
		// Changes of pools cause a reconcile, but the progress of starting groups does not.
		pause := fleet.PauseOf(v1alpha1.ShardState(reason))
		if waits := seen.first.words(seen.places.View); waits != "" {
			message, pause = waits+"; "+message, step.PauseShort
		}
		return step.Wait(reason, message, pause)
	}
	return step.Complete()
}

// firstWords describes the first group of a list.
func firstWords(list []v1alpha1.GroupTrouble) string {
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf(", such as group %s of shard %s: %s", list[0].Group, list[0].Shard, list[0].Message)
}

// firstStalled returns the first pool that is known not to be ready, unless its spec wants no shards.
func firstStalled(pools []v1alpha1.ShardPool) *v1alpha1.ShardPool {
	for n := range pools {
		c := meta.FindStatusCondition(pools[n].Status.Conditions, v1alpha1.ConditionReady)
		// If the condition is Unknown, the controller of pools has not reconciled the pool yet.
		if c != nil && c.Status == metav1.ConditionFalse && c.Reason != fleet.ReasonNoShards {
			return &pools[n]
		}
	}
	return nil
}

// awaitGateway waits until all wanted gateways are ready.
func (seen *observed) awaitGateway() step.Outcome {
	if ready, wanted := seen.gatewaysReady(); ready < wanted {
		return step.Wait("GatewayNotReady", seen.gatewayWords(), step.PauseShort)
	}
	return step.Complete()
}

func (seen *observed) gatewayWords() string {
	ready, wanted := seen.gatewaysReady()
	words := step.CountOf(ready, wanted, "gateway is", "gateways are") + " ready"
	if older := seen.gateway.Status.AvailableReplicas - ready; older > 0 {
		words += ", and " + step.Count(older, "older one serves", "older ones serve")
	}
	return words + seen.trouble
}

// gatewaysReady counts the ready gateways of the wanted template.
func (seen *observed) gatewaysReady() (ready, wanted int32) {
	wanted = workload.GatewayReplicas(seen.store)
	if d := seen.gateway; d != nil && d.Status.ObservedGeneration >= d.Generation {
		old := d.Status.Replicas - d.Status.UpdatedReplicas
		ready = max(0, min(d.Status.UpdatedReplicas, d.Status.AvailableReplicas-old))
	}
	return ready, wanted
}

// summarize writes the observed state into the status.
func (seen *observed) summarize(grants *fleet.GrantBook, out step.Outcome) {
	store, generation := seen.store, seen.store.Generation
	status := &store.Status
	status.ObservedGeneration = generation
	status.Address = workload.GatewayHost(store)
	if seen.hasPools {
		seen.summarizePools()
	}
	if seen.gateway != nil {
		_, wanted := seen.gatewaysReady()
		serves := seen.gateway.Status.AvailableReplicas > 0 // gateways with an older template serve as well
		sayWhether(store, v1alpha1.ConditionGatewayReady, serves || wanted == 0,
			"Ready", "NotReady", seen.gatewayWords())
	}
	seen.setRestored()
	seen.setAvailable()
	sayGrants(store, grants)
	step.Summarize(&status.Conditions, generation, out, servingWords(status.Groups.Total, status.Shards.Total))
}

// servingWords returns a text such as "16 groups on 3 shards serve".
func servingWords(groups, shards int32) string {
	verb := "serve"
	if groups == 1 {
		verb = "serves"
	}
	return fmt.Sprintf("%s on %s %s", step.Count(groups, "group", "groups"), step.Count(shards, "shard", "shards"), verb)
}

// summarizePools writes the statuses of the pools into the store's status.
func (seen *observed) summarizePools() {
	status := &seen.store.Status
	before := status.Groups
	status.Groups, status.Shards = seen.rollUp()
	if !seen.hasPlaces {
		status.Groups.NotWell = before.NotWell
		if seen.copies() > 1 { // only etcd knows where the copies are, and only the shards know whether they serve
			status.Groups = reportedCounts(before, seen.reported, seen.copies())
		}
	}
	seen.setRedundant()
	status.Load, status.Version = storeLoadText(seen.pools), fleet.VersionWords(seen.shards.ByName())
	seen.figures()
	for _, kind := range []string{
		v1alpha1.ConditionLoaded, v1alpha1.ConditionFileSystemMatches, v1alpha1.ConditionMemoryFits,
		v1alpha1.ConditionVolumesReady, v1alpha1.ConditionSpaceAvailable, v1alpha1.ConditionUpdated,
	} {
		rollUpCondition(seen.store, seen.pools, kind)
	}
	seen.summarizeImage()
}

// rollUpCondition sets a condition of the store from its pools. The condition is absent if no pool has it, and True if
// it is True for all pools. Otherwise it is copied from the first pool for which it is False, or, if there is none,
// from the first pool for which it is Unknown. A pool that should run no shard is considered only if no other pool has
// the condition.
func rollUpCondition(store *v1alpha1.RecordStore, pools []v1alpha1.ShardPool, kind string) {
	// The first condition that is False, the first that is Unknown, and the condition of a pool without shards.
	var first [3]*metav1.Condition
	good, have := 0, 0
	note := func(at int, pool string, c metav1.Condition) {
		if first[at] == nil {
			c.Message = fmt.Sprintf("pool %s: %s", pool, c.Message)
			first[at] = &c
		}
	}
	for n := range pools {
		c := meta.FindStatusCondition(pools[n].Status.Conditions, kind)
		switch {
		case c == nil:
			note(1, pools[n].Name, metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonPending,
				Message: "the operator has not looked at it yet"})
			continue
		case c.Status == metav1.ConditionTrue:
			good++
		case c.Status == metav1.ConditionFalse:
			note(0, pools[n].Name, *c)
		case c.Reason == fleet.ReasonNoShards || c.Reason == fleet.ReasonAllParked:
			note(2, pools[n].Name, *c)
		default:
			note(1, pools[n].Name, *c)
		}
		have++
	}
	result := cmp.Or(first[0], first[1])
	if good == 0 {
		result = cmp.Or(result, first[2])
	}
	switch {
	case have == 0:
		meta.RemoveStatusCondition(&store.Status.Conditions, kind)
	case result != nil:
		say(store, kind, result.Status, result.Reason, result.Message)
	case len(pools) == 1:
		c := meta.FindStatusCondition(pools[0].Status.Conditions, kind)
		sayTrue(store, kind, "Pools", fmt.Sprintf("pool %s: %s", pools[0].Name, c.Message))
	case good == len(pools):
		sayTrue(store, kind, "Pools", "so in "+step.All(len(pools), "pool", "pools"))
	default:
		sayTrue(store, kind, "Pools",
			"so in "+step.All(good, "pool that is", "pools that are")+" to run shards")
	}
}

// figures sums records and bytes. If a group has several copies, only the records of its leader count. The leader may
// have changed since some pool was last reconciled, so figures takes the current leader from the GroupBook.
func (seen *observed) figures() {
	status, records := &seen.store.Status, int64(0)
	status.StoredBytes = 0
	for n := range seen.pools {
		records += seen.pools[n].Status.Records
		status.StoredBytes += seen.pools[n].Status.StoredBytes
	}
	switch {
	case seen.copies() <= 1:
	case !seen.reported.Known:
		records = status.Records
	case seen.keeps:
		records = fleet.Steady(status.Records, seen.reported.Records, status.Records)
	default:
		records = seen.reported.Records
	}
	status.Records = records
}

// rollUp counts groups and shards. If etcd was not asked, the total number of groups does not change.
func (seen *observed) rollUp() (v1alpha1.GroupCounts, v1alpha1.ShardCounts) {
	total := seen.store.Status.Groups.Total
	if seen.hasPlaces {
		total = int32(len(seen.places.Groups) + seen.places.GroupsCreated) //nolint:gosec // there are at most 100000 groups
	}
	groups := v1alpha1.GroupCounts{Total: total}
	var shards v1alpha1.ShardCounts
	lost := map[string]v1alpha1.ShardStatus{}
	var list []v1alpha1.GroupTrouble
	for n := range seen.pools {
		pool := &seen.pools[n]
		shards.Total += fleet.PoolShards(pool)
		shards.Updated += pool.Status.Updated
		list = append(list, pool.Status.Groups.NotWell...)
		for _, s := range seen.shards.Of(pool) {
			fleet.CountShard(&groups, s)
			switch s.State {
			case v1alpha1.ShardServing, v1alpha1.ShardDraining:
				shards.Serving++
			case v1alpha1.ShardLoading:
				shards.Loading++
			case v1alpha1.ShardDiskLost, v1alpha1.ShardForeign:
				lost[s.Name] = s
			}
		}
	}
	if seen.copies() > 1 { // with several copies, the shards count copies and not groups
		damaged := groups.Damaged
		groups = countCopies(&seen.places, seen.shards.ByName(), seen.reported)
		groups.Total = total
		groups.Damaged = min(damaged, groups.Total)
		groups.NotWell = fleet.FirstTroubles(append(list, groups.NotWell...))
		return groups, shards
	}
	for name := range seen.places.Groups {
		if seen.places.IsMoving(name) {
			groups.Moving++
		}
	}
	fleet.CompleteCounts(&groups)
	groups.NotWell = fleet.FirstTroubles(append(list, unavailable(&seen.places, lost)...))
	return groups, shards
}

// unavailable lists by name the groups that no shard serves.
func unavailable(places *fleet.Places, lost map[string]v1alpha1.ShardStatus) (list []v1alpha1.GroupTrouble) {
	silent := places.Silent()
	for _, name := range slices.Sorted(maps.Keys(silent)) {
		t := v1alpha1.GroupTrouble{Group: name, Shard: silent[name], State: "Unavailable",
			Message: "its shard is not registered in etcd"}
		if s, ok := lost[t.Shard]; ok {
			t.State, t.Message = string(s.State), step.Truncate(s.Message, fleet.TroubleBytesMax)
		}
		list = append(list, t)
	}
	for _, name := range slices.Sorted(maps.Keys(places.Unplaced)) {
		if _, there := silent[name]; !there {
			list = append(list, v1alpha1.GroupTrouble{Group: name, State: "Unplaced",
				Message: step.Truncate(places.Unplaced[name], fleet.TroubleBytesMax)})
		}
	}
	return list
}

// storeLoadText returns the progress of each pool that loads. If the store has several pools, it puts the name of the
// pool before each progress.
func storeLoadText(pools []v1alpha1.ShardPool) string {
	text, n := "", 0
	for _, pool := range pools {
		if pool.Status.Load == "" {
			continue
		}
		if n++; n > 1 {
			text += "; "
		}
		if len(pools) > 1 {
			text += pool.Name + ": "
		}
		text += pool.Status.Load
	}
	return text
}

// troublesFromTheStart are the conditions that are never False while a store starts normally.
var troublesFromTheStart = []string{
	v1alpha1.ConditionStalled, v1alpha1.ConditionVolumesReady, v1alpha1.ConditionFileSystemMatches,
	v1alpha1.ConditionMemoryFits,
	v1alpha1.ConditionSpaceAvailable, v1alpha1.ConditionPlacementReady, v1alpha1.ConditionVolumesGrown,
}

// worthWarning reports whether the new status of a condition is a problem. While a store starts, it is normal that
// most conditions are not True yet.
func worthWarning(c metav1.Condition, starts bool) bool {
	if c.Type == v1alpha1.ConditionRestored { // a restore is part of a start, so only its problems count
		return c.Status == metav1.ConditionFalse && !slices.Contains(restoreGoesOn, c.Reason)
	}
	if starts && !slices.Contains(troublesFromTheStart, c.Type) {
		return false
	}
	return c.Status == metav1.ConditionFalse && c.Type != v1alpha1.ConditionReady || c.Type == v1alpha1.ConditionStalled
}

// shardsWanted returns the wanted number of shards of all pools.
func shardsWanted(pools []v1alpha1.ShardPool) int32 {
	n := int32(0)
	for _, pool := range pools {
		n += fleet.PoolShards(&pool)
	}
	return n
}

func sayTrue(store *v1alpha1.RecordStore, kind, reason, message string) {
	say(store, kind, metav1.ConditionTrue, reason, message)
}

func sayFalse(store *v1alpha1.RecordStore, kind, reason, message string) {
	say(store, kind, metav1.ConditionFalse, reason, message)
}

func say(store *v1alpha1.RecordStore, kind string, status metav1.ConditionStatus, reason, message string) {
	step.SetCondition(&store.Status.Conditions, store.Generation, kind, status, reason, message)
}

// sayWhether sets a condition of the new status. If truth is true, the condition is True with the reason good.
// Otherwise it is False with the reason bad.
func sayWhether(store *v1alpha1.RecordStore, kind string, truth bool, good, bad, message string) {
	if truth {
		sayTrue(store, kind, good, message)
	} else {
		sayFalse(store, kind, bad, message)
	}
}

// sayGrants sets the conditions GrantsInForce and IssuersReady from the findings of the controller of grants. A store
// without issuers has no condition IssuersReady.
func sayGrants(store *v1alpha1.RecordStore, grants *fleet.GrantBook) {
	key := client.ObjectKeyFromObject(store)
	what, known := grants.Of(key)
	if !known {
		return
	}
	say(store, v1alpha1.ConditionGrantsInForce, what.Status(), what.Reason, what.Message)
	if issuers, has := grants.IssuersOf(key); has {
		say(store, v1alpha1.ConditionIssuersReady, issuers.Status(), issuers.Reason, issuers.Message)
	} else {
		meta.RemoveStatusCondition(&store.Status.Conditions, v1alpha1.ConditionIssuersReady)
	}
}
