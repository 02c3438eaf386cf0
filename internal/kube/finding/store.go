package finding

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/finding"
)

// store checks the store's own conditions except Redundant, whether it has pools, and whether it keeps more than one
// copy.
func (l *look) store() {
	conditions, name := l.Store.Status.Conditions, l.Store.Name
	describe := l.kubectl("describe recordstore %s", name)
	stalled := meta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
	if stalled != nil && stalled.Status == metav1.ConditionTrue {
		l.add(Problem, "RecordStore", name, describe, "%s: %s", stalled.Reason, stalled.Message)
		if stalled.Reason == reasonTooFewDomains || stalled.Reason == reasonDomainUnknown {
			l.domains = l.one()
		}
	}
	for _, kind := range []string{v1alpha1.ConditionPlacementReady, v1alpha1.ConditionEtcdReady} {
		c := isFalse(conditions, kind)
		// The problem that stalls a store is reported only once. If a managed etcd has no majority, the findings
		// about its members are more precise.
		if c == nil || stalled != nil && stalled.Reason == c.Reason || kind == v1alpha1.ConditionEtcdReady &&
			l.etcdWords != "" {
			continue
		}
		l.add(Problem, "RecordStore", name, describe, "%s is False, %s: %s", kind, c.Reason, c.Message)
		if kind == v1alpha1.ConditionEtcdReady {
			if l.etcdWords = finding.EtcdSilent; c.Reason == "EtcdRolledBack" {
				l.etcdWords = finding.EtcdHeld
			}
		}
	}
	if len(l.Pools) == 0 {
		l.add(Problem, "RecordStore", name, l.kubectl("get shardpools"),
			"no ShardPool gives this store shards: create one with spec.storeRef.name: %s", name)
	}
	if l.Store.Spec.Replication.Copies == 1 && l.Store.Status.Groups.Total > 0 {
		l.add(Note, "RecordStore", name, "",
			"each group has a single copy: the loss of a disk loses the records on it. Keep a backup (sheaf export)")
	}
}

// These are reasons for the condition Redundant.
const (
	reasonTooFewDomains = "TooFewDomains"
	reasonDomainUnknown = "DomainUnknown"
	reasonCopiesMissing = "CopiesMissing"
)

// redundant checks the condition Redundant. Missing copies are not reported if findings about shards explain all of
// them.
func (l *look) redundant() {
	conditions, name := l.Store.Status.Conditions, l.Store.Name
	c := isFalse(conditions, v1alpha1.ConditionRedundant)
	stalled := meta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
	if c == nil || stalled != nil && stalled.Status == metav1.ConditionTrue && stalled.Reason == c.Reason ||
		c.Reason == reasonCopiesMissing && l.haveCauses(c.Message) {
		return
	}
	l.add(Warning, "RecordStore", name, fmt.Sprintf("kubectl sheaf -n %s moves %s", l.Store.Namespace, name), "%s: %s",
		c.Reason, c.Message)
}

// haveCauses reports whether findings about shards cover each cause in the message of a condition with the reason
// CopiesMissing. The message is like "2 of 8 groups have fewer than 3 copies: groups 1, 2; not registered in etcd: a;
// b; on a disk that does not answer: c". A part that is not the name of an absent shard is another cause, such as
// "group 1: no space", or shards of which the message gives only the number, such as "and 2 more".
func (l *look) haveCauses(message string) bool {
	_, causes, _ := strings.Cut(message, "; ")
	for part := range strings.SplitSeq(causes, "; ") {
		shard := strings.TrimPrefix(strings.TrimPrefix(part, "not registered in etcd: "), "on a disk that does not answer: ")
		if !l.isAbsent(shard) {
			return false
		}
	}
	return true
}

// groups checks the numbers of groups in the store's status.
func (l *look) groups() {
	g, name := l.Store.Status.Groups, l.Store.Name
	describe := l.kubectl("get recordstore %s -o jsonpath='{.status.groups.notWell}'", name)
	isElsewhere := func(t v1alpha1.GroupTrouble) bool {
		return t.State == "DataLost" && "shard "+t.Shard != l.found[l.lostDisks[0]].Where
	}
	switch lost := groups(g.DataLost, "group", "groups"); {
	case g.DataLost == 0:
	case len(l.lostDisks) == 1 && !slices.ContainsFunc(g.NotWell, isElsewhere):
		named := ""
		if l.Answer == nil {
			named = examples(g.NotWell)
		}
		l.merge(l.lostDisks[0], Problem, fmt.Sprintf("the data of %s are lost, as every copy is on a disk that is lost: "+
			"bring it back, or restore the records from a backup%s", lost, named))
	case l.Answer != nil && l.Answer.HasLost(): // a finding about the gateway's response names each lost group
	default:
		l.add(Problem, "RecordStore", name, describe,
			"the data of %s are lost: every copy is on a volume that is gone. Bring one back, or restore "+
				"the records from a backup%s", lost, examples(g.NotWell))
	}
	if l.Answer != nil { // the rows of the response name each group
		return
	}
	if g.Damaged > 0 {
		l.add(Problem, "RecordStore", name, describe,
			"%s damaged entries, whose records answer DATA_LOSS until they are repaired from another copy "+
				"or put again (sheaf group verify)%s", groups(g.Damaged, "group has", "groups have"), examples(g.NotWell))
	}
	waiting := g.Total - g.Serving - g.DataLost
	if r := l.Store.Status.Restore; r != nil && r.WaitingGroups != nil {
		waiting -= *r.WaitingGroups // another finding reports the restore
	}
	if waiting > 0 {
		severity := Problem
		if g.Loading >= waiting {
			severity = Note
		}
		l.add(severity, "RecordStore", name, describe, "%d of %d groups do not serve%s", waiting, g.Total,
			examples(g.NotWell))
	}
}

// groups returns the number n, followed by the word in the argument one if n is 1, and otherwise by the word in the
// argument many.
func groups(n int32, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// examples returns descriptions of the first unhealthy groups.
func examples(list []v1alpha1.GroupTrouble) string {
	const show = 3
	words := ""
	for _, t := range list[:min(show, len(list))] {
		words += fmt.Sprintf("; group %s is %s", t.Group, t.State)
		if t.Shard != "" {
			words += " on shard " + t.Shard
		}
		if t.Message != "" {
			words += ": " + t.Message
		}
	}
	return words
}

// etcd checks each member of a managed etcd.
func (l *look) etcd() {
	wanted := workload.EtcdMembers(l.Store)
	if wanted == 0 {
		return
	}
	there := map[string]*corev1.Pod{}
	pods, ready := l.PodsOf(workload.ContainerEtcd)
	for i := range pods {
		there[pods[i].Name] = &pods[i]
	}
	severity, majority := Warning, ready > int(wanted/2)
	if !majority {
		severity, l.etcdWords = Problem, finding.EtcdSilent
	}
	for n := range wanted {
		name := workload.EtcdMember(l.Store.Name, n)
		pod := there[name]
		what := fmt.Sprintf("%d of %d members are ready", ready, wanted)
		if !majority {
			what += ", and no majority: groups go on, but nothing moves, starts or is placed"
		}
		switch {
		case pod == nil:
			l.add(severity, "etcd member", name, l.kubectl("describe statefulset %s", workload.Etcd(l.Store.Name)),
				"it has no pod; %s", what)
		case !PodReady(pod):
			s := severity
			if majority && !l.old(pod.CreationTimestamp.Time) {
				s = Note // the pod has only just been created
			}
			l.add(s, "etcd member", name, podCommand(l, pod), "%s; %s", Cause(pod), what)
		}
	}
}

// gateways checks the pods that clients call.
func (l *look) gateways() {
	pods, ready := l.PodsOf(workload.ContainerGateway)
	nodes := map[string]bool{}
	for i := range pods {
		if PodReady(&pods[i]) {
			nodes[pods[i].Spec.NodeName] = true
		}
	}
	wanted := int(workload.GatewayReplicas(l.Store))
	if wanted > 0 && len(pods) == 0 {
		l.add(Problem, "gateway", workload.Gateway(l.Store.Name), l.kubectl("describe deployment %s",
			workload.Gateway(l.Store.Name)), "it has no pod: calls fail")
	}
	for i := range pods {
		pod := &pods[i]
		if PodReady(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		severity := Warning
		if ready == 0 {
			severity = Problem
		} else if !l.old(pod.CreationTimestamp.Time) {
			severity = Note
		}
		l.add(severity, "gateway", pod.Name, podCommand(l, pod), "%s; %d of %d gateways are ready", Cause(pod), ready, wanted)
	}
	if ready > 1 && len(nodes) == 1 && schedulable(l.Nodes) > 1 {
		l.add(Warning, "gateway", workload.Gateway(l.Store.Name), l.kubectl("rollout restart deployment %s",
			workload.Gateway(l.Store.Name)),
			"all %d gateways are on node %s: if it is lost, calls wait until they run elsewhere", ready, pods[0].Spec.NodeName)
	}
}

// schedulable returns the number of nodes that accept pods.
func schedulable(nodes []corev1.Node) int {
	n := 0
	for _, node := range nodes {
		if !node.Spec.Unschedulable {
			n++
		}
	}
	return n
}

// podCommand returns a command that shows why a pod is not ready.
func podCommand(l *look, pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if c.RestartCount > 0 {
			return l.kubectl("logs %s --previous", pod.Name)
		}
		if c.State.Running != nil {
			return l.kubectl("logs %s", pod.Name)
		}
	}
	return l.kubectl("describe pod %s", pod.Name)
}

// PodReady reports whether a pod is ready according to the kubelet, and is not being deleted.
func PodReady(pod *corev1.Pod) bool { return workload.PodReady(pod) && pod.DeletionTimestamp == nil }

// Cause explains why a pod is not ready, in the words of Kubernetes.
func Cause(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "its pod is being stopped"
	}
	if c := workload.Unscheduled(pod); c.Type != "" {
		return "no node takes its pod: " + orElse(c.Message, c.Reason)
	}
	for _, c := range pod.Status.ContainerStatuses {
		ended := c.State.Terminated
		if ended == nil {
			ended = c.LastTerminationState.Terminated
		}
		last := ""
		if ended != nil {
			last = fmt.Sprintf("; it ended with exit code %d (%s)", ended.ExitCode, orElse(ended.Reason))
			if words := strings.TrimSpace(ended.Message); words != "" {
				last += ": " + tail(words, 200)
			}
		}
		switch {
		case c.State.Waiting != nil:
			return fmt.Sprintf("its container waits: %s, %d restarts%s", orElse(c.State.Waiting.Reason), c.RestartCount, last)
		case c.State.Terminated != nil || c.RestartCount > 0 && last != "":
			return fmt.Sprintf("its container is not ready, %d restarts%s", c.RestartCount, last)
		}
	}
	return fmt.Sprintf("its pod is %s and not ready", orElse(string(pod.Status.Phase)))
}

// tail returns the end of a text. The end of a process's output is the useful part, because the last words usually
// explain why the process ended.
func tail(text string, size int) string {
	if len(text) <= size {
		return text
	}
	return "..." + strings.ToValidUTF8(text[len(text)-size+3:], "")
}

// claims adds findings about claims with a problem that no condition mentions.
func (l *look) claims() {
	pools := map[string]bool{}
	for i := range l.Pools {
		pools[l.Pools[i].Name] = true
	}
	for i := range l.Claims {
		claim := &l.Claims[i]
		pool := claim.Labels[v1alpha1.LabelPool]
		switch {
		case claim.Status.Phase == corev1.ClaimLost && !l.told[claim.Name]:
			l.add(l.worse(), "claim", claim.Name, l.kubectl("describe pvc %s", claim.Name), "its PersistentVolume %s is gone",
				claim.Spec.VolumeName)
		case claim.DeletionTimestamp != nil:
			l.add(Warning, "claim", claim.Name, l.kubectl("describe pvc %s", claim.Name),
				"somebody has deleted it. It goes when its pod stops, and the next pod then gets another volume or waits for one")
		case pool != "" && !pools[pool] && claim.Status.Phase == corev1.ClaimPending:
			l.add(Warning, "claim", claim.Name, l.kubectl("delete pvc %s", claim.Name),
				"its pool %s is gone, and it still waits for a volume: it would take the next free disk", pool)
		}
	}
}

// containers adds findings about containers that failed recently in pods that are ready again.
func (l *look) containers() {
	for i := range l.Pods {
		pod := &l.Pods[i]
		if l.told[pod.Name] {
			continue
		}
		for _, c := range pod.Status.ContainerStatuses {
			last := c.LastTerminationState.Terminated
			if last == nil || last.ExitCode == 0 || l.Now.Sub(last.FinishedAt.Time) > time.Hour {
				continue
			}
			severity, more := Note, ""
			if last.Reason == "OOMKilled" {
				severity, more = Warning, ": raise its memory limit"
			}
			l.add(severity, "pod", pod.Name, l.kubectl("logs %s --previous", pod.Name),
				"it ended with exit code %d (%s) %s ago, and runs again%s",
				last.ExitCode, orElse(last.Reason), l.Now.Sub(last.FinishedAt.Time).Round(time.Second), more)
		}
	}
}

// events reports the latest warnings about objects that have no other finding.
func (l *look) events() {
	type key struct{ kind, name, reason string }
	newest := map[key]*corev1.Event{}
	for i := range l.Events {
		e := &l.Events[i]
		k := key{e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason}
		if e.Type != corev1.EventTypeWarning || l.told[k.name] || l.Now.Sub(when(e)) > eventAge ||
			l.started(e) {
			continue
		}
		if old := newest[k]; old == nil || when(old).Before(when(e)) {
			newest[k] = e
		}
	}
	list := slices.SortedFunc(maps.Values(newest), func(a, b *corev1.Event) int {
		return cmp.Or(when(b).Compare(when(a)),
			strings.Compare(a.InvolvedObject.Name+a.Reason, b.InvolvedObject.Name+b.Reason))
	})
	for _, e := range list[:min(eventsMax, len(list))] {
		l.add(Note, "event of "+e.InvolvedObject.Kind, e.InvolvedObject.Name,
			l.kubectl("events --for %s/%s", strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name),
			"%s, %s ago: %s", e.Reason, l.Now.Sub(when(e)).Round(time.Second), e.Message)
	}
}

// started reports whether an event is harmless because it belongs to the start of a container: a readiness or startup
// probe fails until its container has started, and the pod is ready now. A failed liveness probe, or an event from an
// earlier container, is a sign of a fault.
func (l *look) started(e *corev1.Event) bool {
	if e.Reason != "Unhealthy" || !strings.HasPrefix(e.Message, "Readiness probe ") &&
		!strings.HasPrefix(e.Message, "Startup probe ") {
		return false
	}
	i := slices.IndexFunc(l.Pods, func(p corev1.Pod) bool { return p.Name == e.InvolvedObject.Name })
	return i >= 0 && PodReady(&l.Pods[i]) &&
		slices.ContainsFunc(l.Pods[i].Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			if c.State.Running == nil {
				return false
			}
			after := when(e).Sub(c.State.Running.StartedAt.Time)
			return after >= 0 && after < slow
		})
}

// when returns the time at which an event last occurred.
func when(e *corev1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.FirstTimestamp.Time, e.EventTime.Time, e.LastTimestamp.Time} {
		if t.After(at) {
			at = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}
