// Package finding says what is wrong with a store, from the Kubernetes objects that belong to it. It is one pure
// function: objects in, sentences out, no client and no clock.
package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Severity says how soon a person has to act.
type Severity string

// Severities, the worst first. A Problem means that calls fail, or that data is lost or about to be. A Warning means
// that the next fault can become a problem. A Note needs nobody.
const (
	Problem Severity = "problem"
	Warning Severity = "warning"
	Note    Severity = "note"
)

// rank orders severities, the worst first.
var rank = map[Severity]int{Problem: 0, Warning: 1, Note: 2}

// Finding is one thing that is not as it should be.
type Finding struct {
	Severity Severity `json:"severity"`
	// Object that it is about, such as "shard quotes-ssd-1".
	Object string `json:"object"`
	// Evidence is what was seen, in words.
	Evidence string `json:"evidence"`
	// Command to type next; empty: the evidence says what to do, or waiting does it.
	Command string `json:"command,omitempty"`
}

// Objects are what a store consists of. Each list may lack what the caller has no right to read.
type Objects struct {
	Now      time.Time
	Store    *v1alpha1.RecordStore
	Pools    []v1alpha1.ShardPool // that refer to the store
	Shards   []v1alpha1.Shard     // of these pools, and perhaps of others
	DiskSets []v1alpha1.DiskSet   // whose classes the store uses
	Pods     []corev1.Pod         // of the store
	Claims   []corev1.PersistentVolumeClaim
	Nodes    []corev1.Node
	Events   []corev1.Event // about any of these
}

// PodsOf a component, by name, and how many of them are ready.
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

// Limits of what is told.
const (
	evidenceMax = 600
	eventsMax   = 5
	eventAge    = 15 * time.Minute
	// slow is how long an object may take for its next step before that is worth a word.
	slow = 2 * time.Minute
)

// Find looks at all of it. The worst comes first; the order is the same each time. The list may be empty, and is never
// nil.
func Find(o Objects) []Finding {
	l := &look{Objects: o, found: []Finding{}, told: map[string]bool{}}
	l.operator()
	for i := range o.Pools {
		l.pool(&o.Pools[i])
	}
	l.store()
	l.groups()
	l.etcd()
	l.gateways()
	l.claims()
	for i := range o.DiskSets {
		l.diskSet(&o.DiskSets[i])
	}
	l.containers()
	l.events()
	slices.SortStableFunc(l.found, func(a, b Finding) int { return cmp.Compare(rank[a.Severity], rank[b.Severity]) })
	return l.found
}

// Count findings of a severity.
func Count(found []Finding, s Severity) int {
	n := 0
	for _, f := range found {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// look is one run of Find.
type look struct {
	Objects
	found []Finding
	told  map[string]bool // names of objects that a finding is about
}

// add a finding about an object, and its name.
func (l *look) add(s Severity, kind, name, command, format string, args ...any) {
	evidence := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	if len(evidence) > evidenceMax {
		evidence = strings.ToValidUTF8(evidence[:evidenceMax-3], "") + "..."
	}
	l.told[name] = true
	l.found = append(l.found, Finding{Severity: s, Object: strings.TrimSpace(kind + " " + name), Evidence: evidence,
		Command: command})
}

// kubectl is a command in the store's namespace.
func (l *look) kubectl(format string, args ...any) string {
	return fmt.Sprintf("kubectl -n %s ", l.Store.Namespace) + fmt.Sprintf(format, args...)
}

// worse is Problem where the store has a single copy of each group, and Warning where others serve.
func (l *look) worse() Severity {
	if l.Store.Spec.Replication.Copies > 1 {
		return Warning
	}
	return Problem
}

// old says whether something that began then has gone on for longer than it should.
func (l *look) old(since time.Time) bool { return !since.IsZero() && l.Now.Sub(since) > slow }

// operator looks whether anybody looks after the objects.
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
