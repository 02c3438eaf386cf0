package shardpool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// nearlyFull: a volume with less free above its reserve than one part of so many counts as nearly full.
const nearlyFull = 20

// summary ends a reconcile: with the worst that was found of shards, or that steps noted.
func (w *poolWork) summary(context.Context) step.Outcome {
	var trouble, waits []string
	worst, soon := step.Outcome{}, step.PauseLong
	for _, s := range w.statuses {
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
				worst = step.Wait(w.waitReason(s), "", soon)
			}
		}
	}
	worst = worst.Saying(step.ShardWords(slices.Concat(trouble, waits)))
	for _, note := range w.notes {
		if note.Rank() > worst.Rank() {
			worst = note
		}
		if note.Err() != nil {
			soon = min(soon, step.PauseShort)
		}
	}
	if worst.IsComplete() {
		worst = w.servesNothing()
	}
	// What is still on its way up is looked at soon, whatever else a person has to do.
	if soon < step.PauseLong && !worst.IsComplete() {
		worst = worst.Again(soon)
	}
	return worst
}

// Reasons of Ready of a pool that serves nothing because its spec says so.
const (
	reasonAllParked = "AllParked"
)

// servesNothing is the outcome of a pool without a shard that is to run: it is as its spec wants it, and not ready for
// anything.
func (w *poolWork) servesNothing() step.Outcome {
	switch {
	case len(w.statuses) == 0:
		return step.Rest(fleet.ReasonNoShards, "spec.shards is 0: the pool keeps no groups. Raise it, or delete the pool")
	case !slices.ContainsFunc(w.statuses, func(s v1alpha1.ShardStatus) bool { return s.State != v1alpha1.ShardParked }):
		return step.Rest(reasonAllParked, fmt.Sprintf("spec.parked names all %d shards: none serves. Take those that are to serve out of it", len(w.statuses)))
	}
	return step.Complete()
}

// conditions fills in the status. Where the reconcile did not come to look at shards, what is said of them stays.
func (w *poolWork) conditions(out step.Outcome) {
	status := &w.pool.Status
	generation := w.pool.Generation
	status.ObservedGeneration = generation
	if w.decided {
		w.shardStatus(status)
		w.shardConditions(status, generation)
		w.etcdReady()
	}
	ready := fmt.Sprintf("all %d shards serve", status.Serving)
	if w.pool.Spec.Shards != nil && *w.pool.Spec.Shards != status.Serving {
		ready = fmt.Sprintf("%d of %d shards serve, the others are parked", status.Serving, *w.pool.Spec.Shards)
	}
	if w.update.reason == "Paused" {
		ready += "; " + w.update.message
	}
	step.Summarize(&status.Conditions, generation, out, ready)
}

func (w *poolWork) shardStatus(status *v1alpha1.ShardPoolStatus) {
	slices.SortFunc(w.statuses, func(a, b v1alpha1.ShardStatus) int { return int(a.Number - b.Number) })
	status.ShardStatuses, status.States = worstShards(w.statuses), countStates(w.statuses)
	status.Selector = workload.SelectorText(workload.PoolSelector(w.store.Name, w.pool.Name))
	status.Shards, status.Serving, status.Updated, status.HighestNumber = int32(len(w.statuses)), 0, 0, nil
	for _, s := range w.statuses { // by number
		status.HighestNumber = new(s.Number)
		if s.State == v1alpha1.ShardServing || s.State == v1alpha1.ShardDraining {
			status.Serving++
		}
		if s.Updated {
			status.Updated++
		}
	}
	byName := map[string]v1alpha1.ShardStatus{}
	for _, s := range w.statuses {
		byName[s.Name] = s
	}
	status.Nodes, status.Version = fleet.NodeWords(w.statuses), fleet.VersionWords(byName)
	w.poolLoad(status)
	w.poolGroups(status)
}

// poolLoad sums the progress of the shards that load.
func (w *poolWork) poolLoad(status *v1alpha1.ShardPoolStatus) {
	var sum fleet.LoadReport
	loading, known := false, true
	for _, o := range w.shards {
		if o.Report == nil || o.Report.State != v1alpha1.ShardLoading {
			continue
		}
		l := o.load()
		loading, known = true, known && l.DeviceBytesPerSecond > 0
		sum.DeviceBytesPerSecond += l.DeviceBytesPerSecond
		sum.BytesTotal, sum.BytesDone, sum.BytesPerSecond = sum.BytesTotal+l.BytesTotal, sum.BytesDone+l.BytesDone, sum.BytesPerSecond+l.BytesPerSecond
		sum.ETA = max(sum.ETA, l.ETA)
	}
	if !loading {
		status.Load = ""
		return
	}
	if !known {
		sum.DeviceBytesPerSecond = 0
	}
	status.Load = loadText(sum)
}

// shardConditions are about all shards together. Each names the shards, what is and what was asked for.
func (w *poolWork) shardConditions(status *v1alpha1.ShardPoolStatus, generation int64) {
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		step.SetCondition(&status.Conditions, generation, kind, value, reason, message)
	}
	w.loaded(set, status.Load)
	w.ofStates(set, v1alpha1.ConditionFileSystemMatches, "FileSystemsMatch", w.fileSystemWords(), v1alpha1.ShardFileSystemMismatch)
	w.ofStates(set, v1alpha1.ConditionMemoryFits, "MemoryFits", "every shard's need is below its limit", v1alpha1.ShardMemoryTooSmall)
	w.volumes(set)
	w.space(set)
	w.grownCondition(set)
	w.updated(set)
	w.drained(status, set)
}

// updated is Unknown while a shard that is to run has no pod: nobody knows yet what that will run.
func (w *poolWork) updated(set setter) {
	without := slices.IndexFunc(w.shards, func(o *observedShard) bool { return o.Pod == nil && !o.Parked })
	switch {
	case w.update.reason != "":
		set(v1alpha1.ConditionUpdated, metav1.ConditionFalse, w.update.reason, w.update.message)
	case without >= 0:
		set(v1alpha1.ConditionUpdated, metav1.ConditionUnknown, "NoPod", fmt.Sprintf("shard %s has no pod yet", w.shards[without].Name))
	default:
		set(v1alpha1.ConditionUpdated, metav1.ConditionTrue, "Updated", "every pod runs the wanted template")
	}
}

type setter func(kind string, value metav1.ConditionStatus, reason, message string)

// inStates says which shards are in one of these states.
func (w *poolWork) inStates(states ...v1alpha1.ShardState) (words []string, reason string) {
	for _, s := range w.statuses {
		if slices.Contains(states, s.State) {
			words = append(words, fmt.Sprintf("shard %s is %s: %s", s.Name, s.State, s.Message))
			reason = cmp.Or(reason, string(s.State))
		}
	}
	return words, reason
}

// ofStates is False while a shard is in a state, and Unknown while a shard that is to run has said nothing.
func (w *poolWork) ofStates(set setter, kind, good, words string, bad v1alpha1.ShardState) {
	if found, reason := w.inStates(bad); len(found) > 0 {
		set(kind, metav1.ConditionFalse, reason, step.ShardWords(found))
		return
	}
	for _, o := range w.shards {
		if o.Report == nil && !o.Parked {
			set(kind, metav1.ConditionUnknown, "ShardSilent", fmt.Sprintf("shard %s does not answer yet", o.Name))
			return
		}
	}
	set(kind, metav1.ConditionTrue, good, words)
}

func (w *poolWork) fileSystemWords() string {
	if w.pool.Spec.FileSystem == nil {
		return "spec.fileSystem asks for none; kubectl get shards -o yaml shows what there is"
	}
	words := fmt.Sprintf("every volume is %s", w.pool.Spec.FileSystem.Type)
	if options := w.pool.Spec.FileSystem.MountOptions; len(options) > 0 {
		words += " mounted with " + strings.Join(options, ",")
	}
	return words
}

func (w *poolWork) loaded(set setter, load string) {
	if found, _ := w.inStates(v1alpha1.ShardLoading); len(found) > 0 {
		set(v1alpha1.ConditionLoaded, metav1.ConditionFalse, fleet.ReasonLoading, fmt.Sprintf("%d shards load: %s", len(found), load))
		return
	}
	var words []string
	for _, s := range w.statuses {
		if s.State != v1alpha1.ShardServing && s.State != v1alpha1.ShardDraining && s.State != v1alpha1.ShardParked {
			words = append(words, fmt.Sprintf("shard %s is %s", s.Name, s.State))
		}
	}
	if len(words) > 0 {
		set(v1alpha1.ConditionLoaded, metav1.ConditionFalse, "NotServing", step.ShardWords(words))
		return
	}
	set(v1alpha1.ConditionLoaded, metav1.ConditionTrue, "Loaded", "every shard that is not parked has loaded its groups")
}

func (w *poolWork) volumes(set setter) {
	found, reason := w.inStates(v1alpha1.ShardNodeLost, v1alpha1.ShardDiskLost, v1alpha1.ShardForeign, v1alpha1.ShardFormatBlocked, v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume)
	if len(found) > 0 {
		set(v1alpha1.ConditionVolumesReady, metav1.ConditionFalse, reason, step.ShardWords(found))
		return
	}
	for i := range w.statuses {
		if s := &w.statuses[i]; fleet.IsSilent(s) {
			found = append(found, fmt.Sprintf("shard %s is %s: %s", s.Name, s.State, s.Message))
		}
	}
	if len(found) > 0 {
		set(v1alpha1.ConditionVolumesReady, metav1.ConditionFalse, "VolumeSilent", step.ShardWords(found))
		return
	}
	for _, s := range w.statuses {
		if s.Volume == nil || s.Volume.UUID == "" {
			set(v1alpha1.ConditionVolumesReady, metav1.ConditionUnknown, "VolumeUnknown", fmt.Sprintf("shard %s has not reported its volume yet", s.Name))
			return
		}
	}
	set(v1alpha1.ConditionVolumesReady, metav1.ConditionTrue, "VolumesReady", "every shard has its volume")
}

// space goes by what status shows, which moves in steps.
func (w *poolWork) space(set setter) {
	var fullWords, nearlyWords []string
	reports := map[int32]*fleet.ShardReport{}
	for _, o := range w.shards {
		reports[o.Number] = o.Report
	}
	for _, s := range w.statuses {
		if s.Volume == nil || s.Volume.CapacityBytes == 0 {
			continue
		}
		words := fmt.Sprintf("shard %s has %s of %s free", s.Name, bytesText(s.Volume.FreeBytes), bytesText(s.Volume.CapacityBytes))
		reserve := int64(0)
		if r := reports[s.Number]; r != nil {
			reserve = r.Volume.ReserveBytes
			words += fmt.Sprintf(", of which it keeps %s for deletes and compaction", bytesText(reserve))
		}
		if r := reports[s.Number]; r != nil && full(r.Volume.FreeBytes, reserve) {
			fullWords = append(fullWords, words)
		} else if s.Volume.FreeBytes < reserve+s.Volume.CapacityBytes/nearlyFull {
			nearlyWords = append(nearlyWords, words)
		}
	}
	const what = ". Delete records and compact their groups (sheaf group compact GROUP --all), raise spec.storage.size where the class allows it, or add shards"
	switch {
	case len(fullWords) > 0:
		set(v1alpha1.ConditionSpaceAvailable, metav1.ConditionFalse, "VolumeFull", "puts are refused: "+step.ShardWords(fullWords)+what)
	case len(nearlyWords) > 0:
		set(v1alpha1.ConditionSpaceAvailable, metav1.ConditionFalse, "VolumeNearlyFull", step.ShardWords(nearlyWords)+what)
	default:
		set(v1alpha1.ConditionSpaceAvailable, metav1.ConditionTrue, "SpaceAvailable", "no volume is full or nearly so")
	}
}

func (w *poolWork) grownCondition(set setter) {
	// A claim that is not bound has no size of its own yet.
	unbound := slices.IndexFunc(w.shards, func(o *observedShard) bool {
		return !o.Parked && (o.Claim == nil || o.Claim.Status.Phase != corev1.ClaimBound)
	})
	switch {
	case w.growth.reason != "":
		set(v1alpha1.ConditionVolumesGrown, metav1.ConditionFalse, w.growth.reason, w.growth.message)
	case unbound >= 0:
		set(v1alpha1.ConditionVolumesGrown, metav1.ConditionUnknown, "NoVolume", fmt.Sprintf("shard %s has no volume yet", w.shards[unbound].Name))
	default:
		set(v1alpha1.ConditionVolumesGrown, metav1.ConditionTrue, "Grown", fmt.Sprintf("every claim has the %s asked for", w.pool.Spec.Storage.Size.String()))
	}
}

func (w *poolWork) drained(status *v1alpha1.ShardPoolStatus, set setter) {
	if w.pool.Spec.State != v1alpha1.PoolDrained {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionDrained)
		return
	}
	var words []string
	for _, s := range w.statuses {
		// Etcd knows best; a shard that runs may have to let go yet.
		held := int(s.Groups)
		if w.held != nil && (w.held[s.Name] > held || !fleet.Serving(s.State)) {
			held = w.held[s.Name]
		}
		if held > 0 {
			words = append(words, fmt.Sprintf("shard %s holds %d groups", s.Name, held))
		}
	}
	if len(words) > 0 {
		set(v1alpha1.ConditionDrained, metav1.ConditionFalse, "HoldsGroups", step.ShardWords(words))
		return
	}
	set(v1alpha1.ConditionDrained, metav1.ConditionTrue, "Drained", "no shard holds a group")
}
