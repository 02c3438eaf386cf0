package shardpool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Reasons reported for a shard whose disk has to be replaced.
const (
	reasonReplacing      = "ReplacingDisk"
	reasonReplaceWaits   = "ReplaceWaits"
	reasonReplaceRefused = "ReplaceRefused"
)

// replacement is the next step in moving a shard to another volume.
type replacement int

const (
	replaceDone    replacement = iota // nothing to do
	replaceRefused                    // refused; an administrator has to change the spec
	replaceWaits                      // postponed
	replaceGiveUp                     // give up the volume, and record this in the pool
	replaceRemove                     // delete the claim; the StatefulSet creates another one with the next pod
)

// askedReplacement is the input of decideReplacement.
type askedReplacement struct {
	Name   string
	Number int32
	Exists bool // the pool has the shard
	Leaves bool // the shard has to be removed
	Copies int32
	Claim  *corev1.PersistentVolumeClaim
	// Replaced is the UID of the claim that was given up. It is empty if no claim was given up since the shard was
	// added to spec.replace.
	Replaced types.UID
	// Stopped is true if the shard has no pod. The StatefulSet creates no pod while the claim that was given up exists,
	// because a pod created while its claim is being deleted would have to wait for a long time.
	Stopped bool
	// Undecided lists the groups that could not continue without the shard's copy. Known is true if etcd has been asked
	// for them.
	Undecided []string
	Known     bool
	Unknown   error // why etcd could not be asked
}

// decideReplacement handles every combination of inputs and does no I/O. Once a claim is given up, the replacement is
// completed regardless of later findings.
func decideReplacement(a askedReplacement) (replacement, string) {
	switch {
	case !a.Exists:
		return replaceRefused, fmt.Sprintf("spec.replace names shard %d, and the pool has none of that number: take it out",
			a.Number)
	case a.Replaced != "" && (a.Claim == nil || a.Claim.UID != a.Replaced):
		return replaceDone, ""
	case a.Replaced != "" && !a.Stopped:
		return replaceWaits, fmt.Sprintf("shard %s gets another volume: its pod is stopped first", a.Name)
	case a.Replaced != "":
		return replaceRemove, fmt.Sprintf("shard %s gets another volume: claim %s is deleted, and created again with the pod",
			a.Name, a.Claim.Name)
	case a.Leaves:
		return replaceRefused, fmt.Sprintf(
			"spec.replace names shard %s, which is to be removed: take it out, or raise spec.shards", a.Name)
	case a.Copies <= 1:
		return replaceRefused, fmt.Sprintf(
			"spec.replace names shard %s, and its records are nowhere else, as the store has one copy of each group: add a "+
				"shard and remove this one (spec.remove), which moves its groups first", a.Name)
	case a.Claim == nil:
		return replaceWaits, fmt.Sprintf("shard %s is named in spec.replace, and has no claim yet", a.Name)
	case !a.Known:
		return replaceWaits, fmt.Sprintf("shard %s is named in spec.replace, and etcd was not asked for its groups: %v",
			a.Name, a.Unknown)
	case len(a.Undecided) > 0:
		return replaceWaits, fmt.Sprintf(
			"shard %s is named in spec.replace, and keeps its volume until %s a majority of copies without it (%s): "+
				"start the other shards, or wait until they have caught up", a.Name,
			step.Count(len(a.Undecided), "group has", "groups have"), fleet.GroupWords(a.Undecided))
	}
	return replaceGiveUp, fmt.Sprintf(
		"shard %s gives its volume up, as spec.replace says: every group on it has a majority elsewhere", a.Name)
}

// diskReplacer moves the shards that spec.replace lists to other volumes.
type diskReplacer struct {
	writer
	seen   *observed.Pool
	places *places
	notes  *step.Notes
}

// do takes the next step for only one shard at a time. A group may have copies on two of these shards, and must have
// rebuilt the first copy before it can continue without the second.
func (r diskReplacer) do(ctx context.Context) step.Outcome {
	marks := fleet.ReplacedClaims(r.pool)
	if err := r.dropMarks(ctx, marks); err != nil {
		return step.Retry(err)
	}
	for _, n := range slices.Sorted(slices.Values(r.pool.Spec.Replace)) {
		a := r.askedFor(ctx, n, marks[n])
		what, words := decideReplacement(a)
		switch what {
		case replaceDone:
			continue
		case replaceRefused:
			note(r.notes, step.Fail(reasonReplaceRefused, words))
			continue
		case replaceWaits:
			note(r.notes, step.Wait(reasonReplaceWaits, words, step.PauseShort))
			continue
		case replaceGiveUp:
			if err := r.mark(ctx, a, marks); err != nil {
				return step.Retry(err)
			}
			r.tell(ctx, "VolumeGivenUp", "Replace", step.ShardObject(r.pool, a.Name), "%s", words)
		case replaceRemove:
			news := step.News{Reason: "ClaimDeleted", Action: "Replace",
				Message: fmt.Sprintf("deleted PersistentVolumeClaim %s, as spec.replace names shard %d", a.Claim.Name, a.Number)}
			if err := r.remove(ctx, a.Claim, fmt.Sprintf("PersistentVolumeClaim %s, which was given up", a.Claim.Name),
				news); err != nil {
				return step.Retry(err)
			}
		}
		return step.Wait(reasonReplacing, words, step.PauseShort)
	}
	return step.Complete()
}

// askedFor gathers the input for the next step of shard n. It queries etcd only if the answer matters.
func (r diskReplacer) askedFor(ctx context.Context, n int32, mark types.UID) askedReplacement {
	plan := r.seen.Plan
	a := askedReplacement{
		Name: workload.Shard(r.pool.Name, n), Number: n, Exists: slices.Contains(plan.All(), n),
		Leaves: slices.Contains(plan.Leave, n),
		Copies: r.seen.Store.Spec.Replication.Copies, Claim: r.seen.Claims[n], Replaced: mark, Stopped: r.seen.Pods[n] == nil,
	}
	if mark == "" && a.Exists && !a.Leaves && a.Copies > 1 && r.places.known() {
		var view *fleet.Places
		view, a.Unknown = r.places.look(ctx)
		if a.Known = a.Unknown == nil; a.Known {
			a.Undecided = view.Undecided(fleet.OnShard(a.Name))
		}
	}
	return a
}

// mark records in the pool, in one write, that a claim and its volume are given up.
func (r diskReplacer) mark(ctx context.Context, a askedReplacement, marks map[int32]types.UID) error {
	marks[a.Number] = a.Claim.UID
	return r.annotate(ctx, func(pool *v1alpha1.ShardPool) {
		step.Annotate(&pool.Annotations, fleet.AnnotationReplaced, markWords(marks))
		for _, o := range r.seen.Shards {
			if o.Number == a.Number && o.Last.Volume.UUID != "" {
				addForgotten(pool, o.Last.Volume.UUID)
			}
		}
	})
}

// dropMarks removes the records of shards that spec.replace no longer lists. If spec.replace lists such a shard later,
// the shard is replaced again.
func (r diskReplacer) dropMarks(ctx context.Context, marks map[int32]types.UID) error {
	before := len(marks)
	maps.DeleteFunc(marks, func(n int32, _ types.UID) bool { return !slices.Contains(r.pool.Spec.Replace, n) })
	if len(marks) == before {
		return nil
	}
	return r.annotate(ctx, func(pool *v1alpha1.ShardPool) {
		step.Annotate(&pool.Annotations, fleet.AnnotationReplaced, markWords(marks))
	})
}

// givenUp reports whether a shard still has the claim that was given up for spec.replace. The shard has no pod until
// that claim is deleted.
func givenUp(pool *v1alpha1.ShardPool, n int32, claim *corev1.PersistentVolumeClaim) bool {
	mark := fleet.ReplacedClaims(pool)[n]
	return mark != "" && claim != nil && claim.UID == mark && slices.Contains(pool.Spec.Replace, n)
}

// markWords formats marks for fleet.ReplacedClaims.
func markWords(marks map[int32]types.UID) string {
	parts := make([]string, 0, len(marks))
	for _, n := range slices.Sorted(maps.Keys(marks)) {
		parts = append(parts, fmt.Sprintf("%d=%s", n, marks[n]))
	}
	return strings.Join(parts, ",")
}
