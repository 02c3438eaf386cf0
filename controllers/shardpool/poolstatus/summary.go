package poolstatus

import (
	"fmt"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
)

// Summary ends a reconcile: with the worst that was found of shards, or that steps noted.
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
	// What is still on its way up is looked at soon, whatever else a person has to do.
	if soon < step.PauseLong && !worst.IsComplete() {
		worst = worst.Again(soon)
	}
	return worst
}

// reasonAllParked is of Ready of a pool that serves nothing because its spec says so.
const reasonAllParked = "AllParked"

// servesNothing is the outcome of a pool without a shard that is to run: it is as its spec wants it, and not ready for
// anything.
func servesNothing(shards []v1alpha1.ShardStatus) step.Outcome {
	switch {
	case len(shards) == 0:
		return step.Rest(fleet.ReasonNoShards, "spec.shards is 0: the pool keeps no groups. Raise it, or delete the pool")
	case !slices.ContainsFunc(shards, func(s v1alpha1.ShardStatus) bool { return s.State != v1alpha1.ShardParked }):
		return step.Rest(reasonAllParked, fmt.Sprintf(
			"spec.parked names all %d shards: none serves. Take those that are to serve out of it", len(shards)))
	}
	return step.Complete()
}

// waitReason is the state of a shard, or what the store calls the trouble of its etcd where the shard waits for that.
func waitReason(shards []*observed.Shard, s v1alpha1.ShardStatus) string {
	for _, o := range shards {
		if o.Number == s.Number && o.AwaitsEtcd() {
			return o.EtcdTrouble.Reason
		}
	}
	return string(s.State)
}
