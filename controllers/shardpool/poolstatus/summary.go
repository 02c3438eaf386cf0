package poolstatus

import (
	"fmt"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
)

// Summary returns the outcome of a reconcile. It is derived from the worst state of a shard, or from the worst outcome
// that a step noted.
func Summary(f *Found) step.Outcome {
	var trouble, waits []string
	worst, soon := step.Outcome{}, step.PauseLong
	for _, s := range f.Statuses {
		words := fmt.Sprintf("shard %s is %s: %s", s.Name, s.State, s.Message)
		switch {
		case s.State == v1alpha1.ShardServing || s.State == v1alpha1.ShardParked:
		case s.State == v1alpha1.ShardDraining:
		case fleet.NeedsPerson(s.State):
			trouble = append(trouble, words)
			if !worst.IsStalled() {
				worst = step.Fail(string(s.State), "")
			}
		default:
			waits = append(waits, words)
			soon = min(soon, fleet.PauseOf(s.State))
			if worst.IsComplete() {
				worst = step.Wait(waitReason(f.Seen.Shards, s), "", soon)
			}
		}
	}
	worst = worst.Saying(step.ShardWords(slices.Concat(trouble, waits)))
	for _, note := range f.Notes {
		if note.Rank() > worst.Rank() {
			worst = note
		}
		if note.Err() != nil {
			soon = min(soon, step.PauseShort)
		}
	}
	if worst.IsComplete() {
		worst = servesNothing(f.Statuses)
	}
	// Shards that are still starting need an early reconcile, even if another problem waits for an administrator.
	if soon < step.PauseLong && !worst.IsComplete() {
		worst = worst.Again(soon)
	}
	return worst
}

// servesNothing returns the outcome for a pool that should run no shard. Such a pool matches its spec, but is not ready
// to serve.
func servesNothing(shards []v1alpha1.ShardStatus) step.Outcome {
	switch {
	case len(shards) == 0:
		return step.Rest(fleet.ReasonNoShards, "spec.shards is 0: the pool keeps no groups. Raise it, or delete the pool")
	case !slices.ContainsFunc(shards, func(s v1alpha1.ShardStatus) bool { return s.State != v1alpha1.ShardParked }):
		return step.Rest(fleet.ReasonAllParked, fmt.Sprintf(
			"spec.parked names %s: none serves. Take those that are to serve out of it",
			step.All(len(shards), "shard", "shards")))
	}
	return step.Complete()
}

// waitReason returns the state of a shard. If the shard waits for etcd, it returns instead the reason of the condition
// in which the store reports the problem.
func waitReason(shards []*observed.Shard, s v1alpha1.ShardStatus) string {
	for _, o := range shards {
		if o.Number == s.Number && o.AwaitsEtcd() {
			return o.EtcdTrouble.Reason
		}
	}
	return string(s.State)
}
