// Package poolstatus computes the status of a ShardPool. It is a pure function of the observed pool and of the
// findings of the reconcile's steps.
package poolstatus

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Found holds the findings of the steps of a reconcile. Each step adds its own part, and reads no other part.
type Found struct {
	Seen *observed.Pool // nil if the reconcile stopped before it decided about shards; all other fields are then empty
	// Statuses has the statuses of the shards: first those of Seen.Shards in their order, then those of shards that
	// could not be removed yet.
	Statuses []v1alpha1.ShardStatus
	// Held counts the groups that each shard of a drained pool still holds, as etcd reports. It is nil if the pool is
	// not drained, or if etcd cannot be asked.
	Held   map[string]int
	Growth Growth
	Update Update
	Notes  step.Notes // outcomes of steps that did not stop the others
}

// Growth says why volumes do not have the wanted size yet.
type Growth struct {
	Reason  string // empty if all volumes have the wanted size
	Message string
	Stalled bool
}

// Outcome returns the outcome of the step that grows volumes.
func (g Growth) Outcome() step.Outcome {
	switch {
	case g.Reason == "":
		return step.Complete()
	case g.Stalled:
		return step.Fail(g.Reason, g.Message)
	}
	return step.Wait(g.Reason, g.Message, step.PauseShort)
}

// Update says why some pods do not have the wanted template yet.
type Update struct {
	Reason  string // empty if all pods have the wanted template
	Message string
}

// ReasonPaused is the reason for an update that has stopped until spec.update.mode lets it continue.
const ReasonPaused = "Paused"

// Of returns the status of a pool whose reconcile ended with out. If the reconcile did not reach the shards, their part
// of the status remains unchanged.
func Of(pool *v1alpha1.ShardPool, f *Found, out step.Outcome) v1alpha1.ShardPoolStatus {
	status := *pool.Status.DeepCopy()
	status.ObservedGeneration = pool.Generation
	if f.Seen != nil {
		describe(&status, f)
		for _, c := range conditions(f, status.Load) {
			if c.Status == "" {
				meta.RemoveStatusCondition(&status.Conditions, c.Type)
				continue
			}
			step.SetCondition(&status.Conditions, pool.Generation, c.Type, c.Status, c.Reason, c.Message)
		}
	}
	ready := step.All(status.Serving, "shard serves", "shards serve")
	if pool.Spec.Shards != nil && *pool.Spec.Shards != status.Serving {
		ready = step.CountOf(status.Serving, *pool.Spec.Shards, "shard serves", "shards serve") + ", the others are parked"
	}
	if f.Update.Reason == ReasonPaused {
		ready += "; " + f.Update.Message
	}
	step.Summarize(&status.Conditions, pool.Generation, out, ready)
	return status
}

// describe fills in all fields except the conditions.
func describe(status *v1alpha1.ShardPoolStatus, f *Found) {
	pool, shards := f.Seen.Pool, ByNumber(f.Statuses)
	status.Device = f.Seen.Device
	status.ShardStatuses, status.States = worstShards(shards), countStates(shards)
	status.Selector = workload.SelectorText(workload.PoolSelector(f.Seen.Store.Name, pool.Name))
	status.Shards, status.Serving, status.Updated, status.HighestNumber = int32(len(shards)), 0, 0, nil
	byName := map[string]v1alpha1.ShardStatus{}
	for _, s := range shards {
		status.HighestNumber = new(s.Number)
		if s.State == v1alpha1.ShardServing || s.State == v1alpha1.ShardDraining {
			status.Serving++
		}
		if s.Updated {
			status.Updated++
		}
		byName[s.Name] = s
	}
	status.Nodes, status.Version = fleet.NodeWords(shards), fleet.VersionWords(byName)
	status.Load = loadWords(f.Seen.Shards)
	countGroups(status, f)
}

// loadWords returns the total progress of the shards that load. The result is empty if no shard loads.
func loadWords(shards []*observed.Shard) string {
	sum := &recordv1.Load{}
	loading, known := false, true
	for _, o := range shards {
		if o.Report.GetShard().GetState() != recordv1.ShardState_SHARD_STATE_LOADING {
			continue
		}
		l := o.Load()
		loading, known = true, known && l.GetDeviceBytesPerSecond() > 0
		sum.Add(l)
		sum.BytesPerSecond += l.GetBytesPerSecond()
		sum.DeviceBytesPerSecond += l.GetDeviceBytesPerSecond()
	}
	if !loading {
		return ""
	}
	if !known {
		sum.DeviceBytesPerSecond = 0
	}
	return observed.LoadText(sum)
}

// countGroups counts the groups of all shards of the pool, and lists the first unhealthy ones.
func countGroups(status *v1alpha1.ShardPoolStatus, f *Found) {
	before := status.Groups.NotWell
	status.Groups, status.Records, status.StoredBytes = v1alpha1.GroupCounts{}, 0, 0
	for _, s := range f.Statuses {
		fleet.CountShard(&status.Groups, s)
		status.Groups.Total += s.Groups
		status.Records += s.Records
		status.StoredBytes += s.StoredBytes
	}
	fleet.CompleteCounts(&status.Groups)
	var list []v1alpha1.GroupTrouble
	for _, o := range f.Seen.Shards {
		if !o.Report.GetShard().GetState().Serves() { // a shard in such a state reports no groups
			for _, t := range before {
				if t.Shard == o.Name {
					list = append(list, t)
				}
			}
			continue
		}
		for _, g := range o.Report.GetGroups() {
			if state := fleet.TroubleOf(g); state != "" {
				list = append(list, v1alpha1.GroupTrouble{Group: g.GetGroup(), Shard: o.Name, State: state,
					Message: step.Truncate(g.GetMessage(), fleet.TroubleBytesMax)})
			}
		}
	}
	status.Groups.NotWell = fleet.FirstTroubles(list)
}

// statesByWorst lists all states of shards, the worst first: states that need an administrator, then states that end
// without one, then healthy states.
var statesByWorst = []v1alpha1.ShardState{
	v1alpha1.ShardDiskLost, v1alpha1.ShardNodeLost, v1alpha1.ShardDiskMissing, v1alpha1.ShardForeign,
	v1alpha1.ShardFormatBlocked,
	v1alpha1.ShardFileSystemMismatch, v1alpha1.ShardMemoryTooSmall,
	v1alpha1.ShardCrashLooping, v1alpha1.ShardUnreachable, v1alpha1.ShardNodeDown, v1alpha1.ShardImagePull,
	v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume, v1alpha1.ShardUnschedulable, v1alpha1.ShardPending,
	v1alpha1.ShardLoading, v1alpha1.ShardDraining,
	v1alpha1.ShardServing, v1alpha1.ShardParked,
}

// severityOf returns the index of a state in statesByWorst. A state of a later version gets -1, the worst.
func severityOf(state v1alpha1.ShardState) int { return slices.Index(statesByWorst, state) }

// severityOfShard ranks a shard with damaged or lost groups among those that need an administrator.
func severityOfShard(s *v1alpha1.ShardStatus) int {
	if !fleet.NeedsPerson(s.State) && s.DamagedGroups+s.LostGroups > 0 {
		return severityOf(v1alpha1.ShardMemoryTooSmall)
	}
	return severityOf(s.State)
}

// ByNumber returns the same shards sorted by number.
func ByNumber(shards []v1alpha1.ShardStatus) []v1alpha1.ShardStatus {
	return slices.SortedFunc(slices.Values(shards), byNumber)
}

func byNumber(a, b v1alpha1.ShardStatus) int { return cmp.Compare(a.Number, b.Number) }

// worstShards returns up to ShardStatusesMax of a pool's shards, sorted by number. It takes the worst ones first and,
// among equals, those with the lowest numbers.
func worstShards(all []v1alpha1.ShardStatus) []v1alpha1.ShardStatus {
	list := slices.Clone(all)
	slices.SortFunc(list, func(a, b v1alpha1.ShardStatus) int {
		return cmp.Or(cmp.Compare(severityOfShard(&a), severityOfShard(&b)), byNumber(a, b))
	})
	list = list[:min(v1alpha1.ShardStatusesMax, len(list))]
	slices.SortFunc(list, byNumber)
	return list
}

// countStates counts shards by their state, the worst state first.
func countStates(all []v1alpha1.ShardStatus) (counts []v1alpha1.ShardStateCount) {
	of := map[v1alpha1.ShardState]int32{}
	for _, s := range all {
		of[s.State]++
	}
	for state, n := range of {
		counts = append(counts, v1alpha1.ShardStateCount{State: state, Shards: n})
	}
	slices.SortFunc(counts, func(a, b v1alpha1.ShardStateCount) int {
		return cmp.Or(cmp.Compare(severityOf(a.State), severityOf(b.State)), cmp.Compare(a.State, b.State))
	})
	return counts
}
