package finding

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/finding"
)

// isFalse returns the condition of the given kind if its status is False, and nil otherwise.
func isFalse(conditions []metav1.Condition, kind string) *metav1.Condition {
	if c := meta.FindStatusCondition(conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
		return c
	}
	return nil
}

// pool checks one pool and its shards.
func (l *look) pool(pool *v1alpha1.ShardPool) {
	before := len(l.found)
	shards := v1alpha1.ShardsOf(pool, l.Shards)
	for i := range shards {
		l.shard(pool, &shards[i])
	}
	describe := l.kubectl("describe shardpool %s", pool.Name)
	// The condition Stalled repeats the findings about shards, so it is reported only if there are no such findings.
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionStalled); c != nil &&
		c.Status == metav1.ConditionTrue && len(l.found) == before {
		l.add(Problem, "ShardPool", pool.Name, describe, "%s: %s", c.Reason, c.Message)
		if c.Reason == "NowhereToGo" {
			l.pools[pool.Name] = *l.one()
		}
	}
	if c := isFalse(pool.Status.Conditions, v1alpha1.ConditionSpaceAvailable); c != nil && l.Answer == nil {
		severity := Warning
		if c.Reason == "VolumeFull" {
			severity = Problem
		}
		l.add(severity, "ShardPool", pool.Name, describe, "%s", c.Message)
	}
	if c := isFalse(pool.Status.Conditions, v1alpha1.ConditionVolumesGrown); c != nil && c.Reason == "ResizeInfeasible" {
		l.add(Warning, "ShardPool", pool.Name, describe, "%s", c.Message)
	}
	if pool.Spec.State == v1alpha1.PoolDrained && meta.IsStatusConditionTrue(pool.Status.Conditions,
		v1alpha1.ConditionDrained) {
		l.add(Note, "ShardPool", pool.Name, l.kubectl("delete shardpool %s", pool.Name),
			"it is drained: no shard of it holds a group, and it can be deleted")
		l.pools[pool.Name] = *l.one()
	}
	if pool.Spec.Update.Mode == v1alpha1.UpdatePaused && pool.Status.Updated < pool.Status.Shards {
		l.add(Note, "ShardPool", pool.Name, l.kubectl("patch shardpool %s --type=merge -p '%s'", pool.Name,
			`{"spec":{"update":{"mode":"OneByOne"}}}`),
			"spec.update.mode is Paused, and %d of %d shards run an older template", pool.Status.Shards-pool.Status.Updated,
			pool.Status.Shards)
		l.paused = true
	}
}

// shard adds a finding about one shard if its state needs one.
func (l *look) shard(pool *v1alpha1.ShardPool, s *v1alpha1.ShardStatus) {
	pod := workload.ShardPod(s.Name)
	describe := l.kubectl("describe pod %s", pod)
	explain := func() { l.explained[s.Name], l.states[s.Name] = *l.one(), s.State }
	add := func(severity finding.Severity, command string) {
		l.told[pod] = true
		l.add(severity, "shard", s.Name, command, "%s: %s", s.State, s.Message)
		explain()
	}
	switch s.State {
	case v1alpha1.ShardServing, v1alpha1.ShardDraining:
		if s.DamagedGroups > 0 && l.Answer == nil {
			l.add(Problem, "shard", s.Name, fmt.Sprintf("kubectl sheaf -n %s report %s", l.Store.Namespace, l.Store.Name),
				"%d of its %d groups hold damaged entries: %s", s.DamagedGroups, s.Groups, s.Message)
		}
	case v1alpha1.ShardLoading:
		l.add(Note, "shard", s.Name, l.kubectl("get shardpool %s --watch", pool.Name), "it loads: %s",
			orElse(s.Load, s.Message))
		explain()
	case v1alpha1.ShardPending:
		severity := Note
		if l.podOld(pod) {
			severity = Warning
		}
		add(severity, describe)
	case v1alpha1.ShardParked:
		rest := slices.DeleteFunc(slices.Clone(pool.Spec.Parked), func(n int32) bool { return n == s.Number })
		add(Note, l.patch(pool, map[string]any{"parked": rest}))
	case v1alpha1.ShardNodeDown, v1alpha1.ShardNodeLost:
		add(l.worse(), "kubectl describe node "+s.Node)
	case v1alpha1.ShardDiskLost, v1alpha1.ShardDiskMissing:
		command := describe
		if l.Store.Spec.Replication.Copies > 1 && !slices.Contains(pool.Spec.Replace, s.Number) {
			command = l.patch(pool, map[string]any{"replace": append(slices.Clone(pool.Spec.Replace), s.Number)})
		}
		add(l.worse(), command)
		if s.State == v1alpha1.ShardDiskLost {
			l.told[workload.ShardClaim(s.Name)] = true
			l.lostDisks = append(l.lostDisks, *l.one())
		}
	case v1alpha1.ShardForeign, v1alpha1.ShardFileSystemMismatch:
		add(l.worse(), l.kubectl("get pvc %s -o wide", workload.ShardClaim(s.Name)))
	case v1alpha1.ShardMemoryTooSmall:
		add(l.worse(), l.patch(pool, map[string]any{"resources": map[string]any{"limits": map[string]string{
			"memory": memoryFor(s.MemoryNeedBytes)}}}))
	case v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume:
		add(l.worse(), "kubectl get disksets,storageclasses,pv")
	case v1alpha1.ShardCrashLooping:
		add(l.worse(), l.kubectl("logs %s --previous", pod))
	case v1alpha1.ShardUnreachable:
		add(l.worse(), l.kubectl("logs %s", pod))
	default: // FormatBlocked, Unschedulable, ImagePull, and states that later versions add
		add(l.worse(), describe)
	}
}

// patch returns a command that changes a pool's spec.
func (l *look) patch(pool *v1alpha1.ShardPool, spec map[string]any) string {
	text, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return l.kubectl("edit shardpool %s", pool.Name)
	}
	return l.kubectl("patch shardpool %s --type=merge -p '%s'", pool.Name, text)
}

// memoryFor returns a memory limit in whole MiB. The limit leaves room for a shard's groups, which take the number of
// bytes in the argument need. A shard reserves a quarter of its limit, but at least 128 MiB and at most 1 GiB, for
// the rest of its process.
func memoryFor(need int64) string {
	const mib = 1 << 20
	rest := min(max(need/3, 128*mib), 1024*mib)
	return fmt.Sprintf("%dMi", (need+rest+mib-1)/mib)
}

// podOld reports whether a pod has existed for longer than a start takes.
func (l *look) podOld(name string) bool {
	for i := range l.Pods {
		if l.Pods[i].Name == name {
			return l.old(l.Pods[i].CreationTimestamp.Time)
		}
	}
	return false
}

// diskSet adds findings about unusable disks.
func (l *look) diskSet(set *v1alpha1.DiskSet) {
	describe := "kubectl describe diskset " + set.Name
	bad := false
	for _, d := range set.Status.Disks {
		object := fmt.Sprintf("%s of node %s", d.Device, d.Node)
		switch d.State {
		case v1alpha1.DiskFree, v1alpha1.DiskReserved, v1alpha1.DiskBound, v1alpha1.DiskLooking:
		case v1alpha1.DiskReleased, v1alpha1.DiskRemoved:
			l.add(Note, "disk", object, describe, "%s: %s", d.State, d.Message)
		default:
			bad = true
			l.add(Warning, "disk", object, describe, "%s: %s", d.State, d.Message)
		}
	}
	if c := meta.FindStatusCondition(set.Status.Conditions, v1alpha1.ConditionStalled); c != nil &&
		c.Status == metav1.ConditionTrue && !bad {
		l.add(Warning, "DiskSet", set.Name, describe, "%s: %s", c.Reason, c.Message)
	}
	if c := isFalse(set.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Reason == "ClaimsWaiting" {
		l.add(Warning, "DiskSet", set.Name, describe, "%s", c.Message)
	}
}

// orElse returns the first non-empty string.
func orElse(texts ...string) string {
	for _, t := range texts {
		if strings.TrimSpace(t) != "" {
			return t
		}
	}
	return "no reason given"
}
