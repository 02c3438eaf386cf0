// Package finding lists a store's problems. It evaluates the Kubernetes objects that belong to the store, and a
// gateway's response. The package internal/status/finding, which sheaf doctor uses as well, evaluates that response.
// Find is a pure function from objects to sentences: it has no client and no clock.
package finding

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/status/finding"
)

// These are the severities of `sheaf doctor`, whose findings have the same type. A Problem means that calls fail, or
// that data is lost or about to be lost. A Warning means that the next fault can cause a Problem. A Note requires no
// action.
const (
	Problem = finding.Problem
	Warning = finding.Warning
	Note    = finding.Note
)

// Finding is one deviation from the healthy state. The field Where names the affected object, such as "shard
// quotes-ssd-1". The field Do is the next command to type; it is empty if the field What already names the command, or
// if waiting is enough.
type Finding = finding.Finding

// Objects holds a store's objects. A list may be incomplete if the caller lacks permissions.
type Objects struct {
	Now      time.Time
	Store    *v1alpha1.RecordStore
	Pools    []v1alpha1.ShardPool // pools that refer to the store
	Shards   []v1alpha1.Shard     // the shards of these pools, and perhaps of other pools
	DiskSets []v1alpha1.DiskSet   // DiskSets whose classes the store uses
	Archives []v1alpha1.RecordArchive
	Pods     []corev1.Pod // pods of the store
	Claims   []corev1.PersistentVolumeClaim
	Nodes    []corev1.Node
	Events   []corev1.Event // events about any of these objects
	// Answer is a gateway's response about shards and groups. It is nil if no gateway was asked or none responded.
	Answer *finding.Facts
}

// PodsOf returns the pods of a component, by name, and the number of ready ones.
func (o *Objects) PodsOf(component string) (pods []corev1.Pod, ready int) {
	for i := range o.Pods {
		if o.Pods[i].Labels[v1alpha1.LabelComponent] != component {
			continue
		}
		pods = append(pods, o.Pods[i])
		if PodReady(&o.Pods[i]) {
			ready++
		}
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, ready
}

// These constants limit the length of evidence, and the number and age of reported events.
const (
	evidenceMax = 600
	eventsMax   = 5
	eventAge    = 15 * time.Minute
	// slow is how long an object may take to make progress before the delay is reported.
	slow = 2 * time.Minute
)

// Find checks all objects. The worst finding comes first, and the order is deterministic. The result may be empty but
// is never nil.
func Find(o Objects) []Finding {
	l := &look{
		Objects: o, found: []Finding{}, told: map[string]bool{}, explained: map[string]int{},
		states: map[string]v1alpha1.ShardState{}, absent: map[string]bool{}, pools: map[string]int{},
	}
	l.operator()
	for i := range o.Pools {
		l.pool(&o.Pools[i])
	}
	l.etcd()
	l.store()
	l.groups()
	l.gateways()
	l.archives()
	l.restore()
	l.claims()
	for i := range o.DiskSets {
		l.diskSet(&o.DiskSets[i])
	}
	l.containers()
	l.answer()
	l.redundant()
	l.events()
	slices.SortStableFunc(l.found, func(a, b Finding) int { return finding.BySeverity(a.Severity, b.Severity) })
	return l.found
}

// look collects the findings of one call to Find.
type look struct {
	Objects
	found []Finding
	told  map[string]bool // names of objects that already have a finding

	// The following fields record which findings about objects explain findings in a gateway's response. Numbers are
	// indexes into found.

	explained map[string]int                 // by shard: the finding about why it does not serve all its groups
	states    map[string]v1alpha1.ShardState // for each shard, the state that this finding is about
	absent    map[string]bool                // shards that are silent or refuse to serve according to a gateway
	pools     map[string]int                 // by pool: the finding which says that its drain cannot end or has ended
	lostDisks []int                          // the findings about shards whose disk is lost
	domains   *int                           // the finding about too few failure domains; nil if there is none
	paused    bool                           // whether a pool's update is paused
	etcdWords string                         // beginning of the gateway messages that a finding explains; may be empty
}

// one returns a pointer to the index of the finding that was added last.
func (l *look) one() *int { return new(len(l.found) - 1) }

// merge adds a consequence to a finding, and raises the finding's severity at least to the given one.
func (l *look) merge(n int, severity finding.Severity, consequence string) {
	f := &l.found[n]
	if finding.BySeverity(severity, f.Severity) < 0 {
		f.Severity = severity
	}
	f.What = strings.TrimSuffix(f.What, ".") + "; " + consequence
}

// add adds a finding about an object, and records that the object has a finding.
func (l *look) add(s finding.Severity, kind, name, command, format string, args ...any) {
	evidence := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	if len(evidence) > evidenceMax {
		evidence = strings.ToValidUTF8(evidence[:evidenceMax-3], "") + "..."
	}
	l.told[name] = true
	l.found = append(l.found, Finding{Severity: s, Where: strings.TrimSpace(kind + " " + name), What: evidence,
		Do: command})
}

// kubectl returns a kubectl command that runs in the store's namespace.
func (l *look) kubectl(format string, args ...any) string {
	return fmt.Sprintf("kubectl -n %s ", l.Store.Namespace) + fmt.Sprintf(format, args...)
}

// worse returns the severity of losing one copy: Problem if each group has a single copy, and Warning if other copies
// serve.
func (l *look) worse() finding.Severity {
	if l.Store.Spec.Replication.Copies > 1 {
		return Warning
	}
	return Problem
}

// old reports whether a state that began at the given time has lasted for too long.
func (l *look) old(since time.Time) bool { return !since.IsZero() && l.Now.Sub(since) > slow }

// operator checks whether an operator reconciles the store.
func (l *look) operator() {
	const command = "kubectl get pods -A -l app.kubernetes.io/component=operator,app.kubernetes.io/part-of=sheaf"
	ready := meta.FindStatusCondition(l.Store.Status.Conditions, v1alpha1.ConditionReady)
	behind := l.Store.Generation > l.Store.Status.ObservedGeneration
	if (ready == nil || ready.Reason == v1alpha1.ReasonPending) && l.old(l.Store.CreationTimestamp.Time) {
		l.add(Problem, "RecordStore", l.Store.Name, command,
			"no operator has looked at it since it was made: none runs, or none watches namespace %s", l.Store.Namespace)
		return
	}
	if behind && ready != nil && l.old(ready.LastTransitionTime.Time) && ready.Reason != v1alpha1.ReasonPending {
		l.add(Warning, "RecordStore", l.Store.Name, command,
			"the operator has not yet looked at the last change of spec (generation %d, it saw %d)",
			l.Store.Generation, l.Store.Status.ObservedGeneration)
	}
}
