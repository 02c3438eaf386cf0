// Package poolstatus is what the status of a ShardPool says: a pure function of what was seen of the pool, and of what
// the steps of a reconcile found out.
package poolstatus

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Found is what the steps of a reconcile found out. Each step adds its part, and reads no other one's.
type Found struct {
	Seen *observed.Pool // nil: the reconcile did not come to decide about shards, and nothing else is filled in
	// Statuses of the shards: first those of Seen.Shards in their order, then those that were to go and could not.
	Statuses []v1alpha1.ShardStatus
	// Held are the groups that the shards of a drained pool still have, as etcd says; nil: etcd was not asked.
	Held   map[string]int
	Growth Growth
	Update Update
	Notes  step.Notes // of steps that did not stop the others
}

// Growth is how far the volumes are from the size that is asked for.
type Growth struct {
	Reason  string // empty: all have it
	Message string
	Stalled bool
}

// Outcome of the step that makes volumes grow.
func (g Growth) Outcome() step.Outcome {
	switch {
	case g.Reason == "":
		return step.Complete()
	case g.Stalled:
		return step.Fail(g.Reason, g.Message)
	}
	return step.Wait(g.Reason, g.Message, step.PauseShort)
}

// Update is how far the pods are from the wanted template.
type Update struct {
	Reason  string // empty: all run it
	Message string
}

// ReasonPaused is of an update that goes on when spec.update.mode says so.
const ReasonPaused = "Paused"

// Of is the status of a pool whose reconcile ended with out. Where the reconcile did not come to look at shards, what
// the status says of them stays.
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
	ready := fmt.Sprintf("all %d shards serve", status.Serving)
	if pool.Spec.Shards != nil && *pool.Spec.Shards != status.Serving {
		ready = fmt.Sprintf("%d of %d shards serve, the others are parked", status.Serving, *pool.Spec.Shards)
	}
	if f.Update.Reason == ReasonPaused {
		ready += "; " + f.Update.Message
	}
	step.Summarize(&status.Conditions, pool.Generation, out, ready)
	return status
}

// describe fills in what is not a condition.
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

// loadWords sum the progress of the shards that load; empty: none does.
func loadWords(shards []*observed.Shard) string {
	var sum fleet.LoadReport
	loading, known := false, true
	for _, o := range shards {
		if o.Report == nil || o.Report.State != v1alpha1.ShardLoading {
			continue
		}
		l := o.Load()
		loading, known = true, known && l.DeviceBytesPerSecond > 0
		sum.DeviceBytesPerSecond += l.DeviceBytesPerSecond
		sum.BytesTotal, sum.BytesDone, sum.BytesPerSecond = sum.BytesTotal+l.BytesTotal, sum.BytesDone+l.BytesDone,
			sum.BytesPerSecond+l.BytesPerSecond
		sum.ETA = max(sum.ETA, l.ETA)
	}
	if !loading {
		return ""
	}
	if !known {
		sum.DeviceBytesPerSecond = 0
	}
	return observed.LoadText(sum)
}

// countGroups counts the groups of all shards of the pool, and lists the first that are not well.
func countGroups(status *v1alpha1.ShardPoolStatus, f *Found) {
	before := status.Groups.NotWell
	status.Groups, status.Records, status.StoredBytes = v1alpha1.GroupCounts{}, 0, 0
	for _, s := range f.Statuses {
		fleet.CountShard(&status.Groups, s)
		status.Groups.Total += s.Groups
		status.Records += s.Records
		status.StoredBytes += s.StoredBytes
	}
	fleet.SettleCounts(&status.Groups)
	var list []v1alpha1.GroupTrouble
	for _, o := range f.Seen.Shards {
		if o.Report == nil || !fleet.Serving(o.Report.State) { // it says nothing of groups
			for _, t := range before {
				if t.Shard == o.Name {
					list = append(list, t)
				}
			}
			continue
		}
		for _, g := range o.Report.Groups {
			if state := fleet.TroubleOf(g); state != "" {
				list = append(list, v1alpha1.GroupTrouble{Group: g.Group, Shard: o.Name, State: state,
					Message: step.Cut(g.Message, fleet.TroubleBytesMax)})
			}
		}
	}
	status.Groups.NotWell = fleet.FirstTroubles(list)
}
