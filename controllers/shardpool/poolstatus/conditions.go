package poolstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
)

// nearlyFull sets a threshold: a volume counts as nearly full if less than 1/nearlyFull of its capacity is free above
// the reserve.
const nearlyFull = 20

// conditions returns the conditions that cover all shards. Each one names the shards concerned, their state and the
// wanted state. A condition without a status does not currently apply to this pool. The argument load is the progress
// of the shards that load.
func conditions(f *Found, load string) []metav1.Condition {
	fileSystems := fileSystemWords(f.Seen.Pool.Spec.FileSystem)
	all := append(make([]metav1.Condition, 0, 9),
		loaded(f, load),
		ofState(f, v1alpha1.ConditionFileSystemMatches, "FileSystemsMatch", fileSystems, v1alpha1.ShardFileSystemMismatch),
		ofState(f, v1alpha1.ConditionMemoryFits, "MemoryFits", "every shard's need is below its limit",
			v1alpha1.ShardMemoryTooSmall),
		volumes(f), space(f), grown(f), updated(f),
	)
	if reason, message := noShards(f.Seen.Shards); reason != "" {
		for n := range all {
			if all[n].Status == metav1.ConditionTrue {
				all[n] = isUnknown(all[n].Type, reason, message)
			}
		}
	}
	return append(all, drained(f), etcdReady(f.Seen.Store))
}

// noShards returns a reason and a message if the pool has no shard that could be queried. Conditions about all shards
// are then Unknown instead of trivially True. The reason is empty if at least one shard should run.
func noShards(shards []*observed.Shard) (reason, message string) {
	switch {
	case len(shards) == 0:
		return fleet.ReasonNoShards, "the pool has no shard that could be asked"
	case !slices.ContainsFunc(shards, func(o *observed.Shard) bool { return !o.Parked }):
		return fleet.ReasonAllParked, "every shard is parked, so that none can be asked"
	}
	return "", ""
}

func isTrue(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func isFalse(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func isUnknown(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: reason, Message: message}
}

// etcdReady returns the condition EtcdReady of the store for the pool, because starting shards wait for etcd.
func etcdReady(store *v1alpha1.RecordStore) metav1.Condition {
	c := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionEtcdReady)
	if c == nil {
		return metav1.Condition{Type: v1alpha1.ConditionEtcdReady}
	}
	return metav1.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason,
		Message: fmt.Sprintf("RecordStore %s: %s", store.Name, c.Message)}
}

// updated returns the condition Updated. It is Unknown while a shard that should run has no pod, because the template
// of that pod is not known yet.
func updated(f *Found) metav1.Condition {
	without := slices.IndexFunc(f.Seen.Shards, func(o *observed.Shard) bool { return o.Pod == nil && !o.Parked })
	switch {
	case f.Update.Reason != "":
		return isFalse(v1alpha1.ConditionUpdated, f.Update.Reason, f.Update.Message)
	case without >= 0:
		return isUnknown(v1alpha1.ConditionUpdated, "NoPod", fmt.Sprintf("shard %s has no pod yet",
			f.Seen.Shards[without].Name))
	default:
		return isTrue(v1alpha1.ConditionUpdated, "Updated", "every pod runs the wanted template")
	}
}

// inStates names the shards that are in one of these states.
func (f *Found) inStates(states ...v1alpha1.ShardState) (words []string, reason string) {
	for _, s := range f.Statuses {
		if slices.Contains(states, s.State) {
			words = append(words, fmt.Sprintf("shard %s is %s: %s", s.Name, s.State, s.Message))
			reason = cmp.Or(reason, string(s.State))
		}
	}
	return words, reason
}

// ofState returns a condition that is False while a shard is in the state bad, and Unknown while a shard that should
// run has not reported.
func ofState(f *Found, kind, good, words string, bad v1alpha1.ShardState) metav1.Condition {
	if found, reason := f.inStates(bad); len(found) > 0 {
		return isFalse(kind, reason, step.ShardWords(found))
	}
	if silent := f.silent(); silent != "" {
		return isUnknown(kind, reasonShardSilent, silent)
	}
	return isTrue(kind, good, words)
}

const reasonShardSilent = "ShardSilent"

// silent names a shard that should run and does not answer. The result is empty if there is none.
func (f *Found) silent() string {
	for _, o := range f.Seen.Shards {
		if o.Report == nil && !o.Parked {
			return fmt.Sprintf("shard %s does not answer yet", o.Name)
		}
	}
	return ""
}

func fileSystemWords(asked *v1alpha1.FileSystem) string {
	if asked == nil {
		return "spec.fileSystem asks for none; kubectl get shards -o yaml shows what there is"
	}
	words := fmt.Sprintf("every volume is %s", asked.Type)
	if len(asked.MountOptions) > 0 {
		words += " mounted with " + strings.Join(asked.MountOptions, ",")
	}
	return words
}

func loaded(f *Found, load string) metav1.Condition {
	if found, _ := f.inStates(v1alpha1.ShardLoading); len(found) > 0 {
		return isFalse(v1alpha1.ConditionLoaded, fleet.ReasonLoading,
			step.Count(len(found), "shard loads", "shards load")+": "+load)
	}
	var words, unasked []string
	for _, s := range f.Statuses {
		switch s.State {
		case v1alpha1.ShardServing, v1alpha1.ShardDraining, v1alpha1.ShardParked:
		case v1alpha1.ShardUnreachable: // the shard runs, and may still be serving
			unasked = append(unasked, fmt.Sprintf("shard %s is %s", s.Name, s.State))
		default:
			words = append(words, fmt.Sprintf("shard %s is %s", s.Name, s.State))
		}
	}
	switch {
	case len(words) > 0:
		return isFalse(v1alpha1.ConditionLoaded, "NotServing", step.ShardWords(words))
	case len(unasked) > 0:
		return isUnknown(v1alpha1.ConditionLoaded, reasonShardSilent, step.ShardWords(unasked))
	}
	return isTrue(v1alpha1.ConditionLoaded, "Loaded", "every shard that is not parked has loaded its groups")
}

func volumes(f *Found) metav1.Condition {
	found, reason := f.inStates(v1alpha1.ShardNodeLost, v1alpha1.ShardDiskLost, v1alpha1.ShardDiskMissing,
		v1alpha1.ShardForeign, v1alpha1.ShardFormatBlocked, v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume)
	if len(found) > 0 {
		return isFalse(v1alpha1.ConditionVolumesReady, reason, step.ShardWords(found))
	}
	for i := range f.Statuses {
		if s := &f.Statuses[i]; fleet.IsSilent(s) {
			found = append(found, fmt.Sprintf("shard %s is %s: %s", s.Name, s.State, s.Message))
		}
	}
	if len(found) > 0 {
		return isFalse(v1alpha1.ConditionVolumesReady, "VolumeSilent", step.ShardWords(found))
	}
	for _, s := range f.Statuses {
		if s.Volume == nil || s.Volume.UUID == "" {
			return isUnknown(v1alpha1.ConditionVolumesReady, "VolumeUnknown",
				fmt.Sprintf("shard %s has not reported its volume yet", s.Name))
		}
	}
	return isTrue(v1alpha1.ConditionVolumesReady, "VolumesReady", "every shard has its volume")
}

// space returns the condition SpaceAvailable. It uses the numbers in the status, which do not follow every small
// change.
func space(f *Found) metav1.Condition {
	var fullWords, nearlyWords []string
	unknown := f.silent()
	reports := map[int32]*recordv1.Shard{}
	for _, o := range f.Seen.Shards {
		reports[o.Number] = o.Report.GetShard()
	}
	for _, s := range f.Statuses {
		if s.Volume == nil || s.Volume.CapacityBytes == 0 {
			if s.State != v1alpha1.ShardParked {
				unknown = cmp.Or(unknown, fmt.Sprintf("shard %s is %s, and has not said how much free space its volume has", s.Name,
					s.State))
			}
			continue
		}
		words := fmt.Sprintf("shard %s has %s of %s free", s.Name, observed.BytesText(s.Volume.FreeBytes),
			observed.BytesText(s.Volume.CapacityBytes))
		reserve := int64(0)
		if r := reports[s.Number]; r != nil {
			reserve = r.GetReserveBytes()
			words += fmt.Sprintf(", of which it keeps %s for deletes and compaction", observed.BytesText(reserve))
		}
		if r := reports[s.Number]; r != nil && observed.Full(r.GetFreeBytes(), reserve) {
			fullWords = append(fullWords, words)
		} else if s.Volume.FreeBytes < reserve+s.Volume.CapacityBytes/nearlyFull {
			nearlyWords = append(nearlyWords, words)
		}
	}
	const what = ". Delete records and compact their groups (sheaf group compact GROUP --all), raise spec.storage.size " +
		"where the class allows it, or add shards"
	switch {
	case len(fullWords) > 0:
		return isFalse(v1alpha1.ConditionSpaceAvailable, "VolumeFull", "puts are refused: "+step.ShardWords(fullWords)+what)
	case len(nearlyWords) > 0:
		return isFalse(v1alpha1.ConditionSpaceAvailable, "VolumeNearlyFull", step.ShardWords(nearlyWords)+what)
	case unknown != "":
		return isUnknown(v1alpha1.ConditionSpaceAvailable, reasonShardSilent, unknown)
	default:
		return isTrue(v1alpha1.ConditionSpaceAvailable, "SpaceAvailable", "no volume is full or nearly so")
	}
}

func grown(f *Found) metav1.Condition {
	// An unbound claim does not have a size yet.
	unbound := slices.IndexFunc(f.Seen.Shards, func(o *observed.Shard) bool {
		return !o.Parked && (o.Claim == nil || o.Claim.Status.Phase != corev1.ClaimBound)
	})
	switch {
	case f.Growth.Reason != "":
		return isFalse(v1alpha1.ConditionVolumesGrown, f.Growth.Reason, f.Growth.Message)
	case unbound >= 0:
		return isUnknown(v1alpha1.ConditionVolumesGrown, "NoVolume",
			fmt.Sprintf("shard %s has no volume yet", f.Seen.Shards[unbound].Name))
	default:
		return isTrue(v1alpha1.ConditionVolumesGrown, "Grown", fmt.Sprintf("every claim has the %s asked for",
			f.Seen.Pool.Spec.Storage.Size.String()))
	}
}

func drained(f *Found) metav1.Condition {
	if f.Seen.Pool.Spec.State != v1alpha1.PoolDrained {
		return metav1.Condition{Type: v1alpha1.ConditionDrained}
	}
	var words []string
	for _, s := range f.Statuses {
		// The number in etcd takes precedence over the one that the shard reports. However, a running shard may still have to
		// release groups.
		held := int(s.Groups)
		if f.Held != nil && (f.Held[s.Name] > held || !fleet.Serving(s.State)) {
			held = f.Held[s.Name]
		}
		if held > 0 {
			words = append(words, fmt.Sprintf("shard %s holds %s", s.Name, step.Count(held, "group", "groups")))
		}
	}
	if len(words) > 0 {
		return isFalse(v1alpha1.ConditionDrained, "HoldsGroups", step.ShardWords(words))
	}
	silent := slices.IndexFunc(f.Seen.Shards, func(o *observed.Shard) bool { return o.Report == nil })
	if silent >= 0 && f.Held == nil {
		return isUnknown(v1alpha1.ConditionDrained, reasonShardSilent, fmt.Sprintf(
			"neither etcd nor shard %s says which groups the shard holds", f.Seen.Shards[silent].Name))
	}
	return isTrue(v1alpha1.ConditionDrained, "Drained", "no shard holds a group")
}
