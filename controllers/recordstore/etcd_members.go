package recordstore

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// A member whose disk was replaced repairs itself. Only the member can read its folder, and it asks a quorum of the
// other members before it changes anything (internal/placement/etcd, ADR 23). The operator only reports the state of
// the members.

// memberWordsMax is the maximum length of the text about one member.
const memberWordsMax = 400

// observedMember holds everything that was observed about one member of a managed etcd. Each part may be missing.
type observedMember struct {
	Now   time.Time
	Name  string
	Pod   *corev1.Pod
	Claim *corev1.PersistentVolumeClaim
	// ClassName is the class of the claim: the one in the spec, or else the cluster's default. It is empty if the
	// cluster has no default class.
	ClassName    string
	ClassMissing bool // the class does not exist
	// Cordoned is the node of the member's local volume if that node is cordoned, or "" otherwise.
	Cordoned string
	// Events are the warnings of the kubelet or the StatefulSet controller, the newest first.
	Events []string
	// Asked is true if the other members were asked about this member. Known is their answer. It is nil if they do not
	// list this member.
	Asked bool
	Known *fleet.EtcdMember
}

// well reports whether the member serves as a voter.
func (o *observedMember) well() bool { return o.Pod != nil && workload.PodReady(o.Pod) }

// why returns the reason why the member is unhealthy. If there are several problems, it names the one that has to be
// solved first. It handles every combination of inputs and does no I/O.
func (o *observedMember) why() string {
	words := o.cause()
	if len(words) > memberWordsMax { // keep the end of the process's output, which says why the process exited
		words = words[:memberWordsMax/4] + " ... " + words[len(words)-memberWordsMax*3/4:]
	}
	return o.Name + ": " + strings.ToValidUTF8(strings.Join(strings.Fields(words), " "), "?")
}

func (o *observedMember) cause() string {
	pod := o.Pod
	bound := o.Claim != nil && o.Claim.Status.Phase == corev1.ClaimBound
	switch {
	case pod == nil:
		return o.withEvent("it has no pod")
	case pod.DeletionTimestamp != nil:
		return "its pod is being replaced"
	case o.Claim != nil && !bound && o.ClassName == "":
		return fmt.Sprintf(
			"claim %s waits for a StorageClass: the cluster has no default one, and spec.etcd.managed.storage.storageClassName "+
				"names none. Mark a class as the default, or make the store again with that field", o.Claim.Name)
	case o.Claim != nil && !bound && o.ClassMissing:
		return fmt.Sprintf(
			"StorageClass %q of spec.etcd.managed.storage.storageClassName does not exist: create it, or a DiskSet of that name",
			o.ClassName)
	case pod.Spec.NodeName == "":
		return o.unscheduled(bound)
	}
	if words := podTrouble(pod); words != "" {
		return strings.TrimPrefix(words, pod.Name+": ")
	}
	if len(o.Events) > 0 && step.DeviceMissing(o.Events[0]) {
		return o.withEvent(fmt.Sprintf("node %s does not have its disk: bring it back, or give the member another disk",
			pod.Spec.NodeName))
	}
	return cmp.Or(o.joining(), o.withEvent(o.startWords()))
}

// unscheduled returns a text that explains why the pod has not been scheduled.
func (o *observedMember) unscheduled(bound bool) string {
	condition := workload.Unscheduled(o.Pod)
	words := condition.Message
	switch {
	case words == "":
		return "its pod waits for the scheduler"
	case !bound && fleet.WantsVolume(words) && o.Now.Sub(condition.LastTransitionTime.Time) < fleet.VolumeGrace:
		return fmt.Sprintf("claim %s waits for a PersistentVolume of StorageClass %q",
			workload.PodClaim(o.Name), o.ClassName)
	case !bound && fleet.WantsVolume(words):
		return fmt.Sprintf(
			"no free PersistentVolume of StorageClass %q fits claim %s. Add a disk to the DiskSet, or see to its class; the "+
				"scheduler says: %s",
			o.ClassName, workload.PodClaim(o.Name), words)
	case o.Cordoned != "":
		return fmt.Sprintf("node %s is cordoned, and its disk is there: kubectl uncordon %s when the node is to work again",
			o.Cordoned, o.Cordoned)
	}
	return "no node can take its pod: free some resources, or change spec.etcd.managed.resources or " +
		"spec.etcd.managed.scheduling; the scheduler says: " + words
}

// joining describes a running member as seen by the other members. The result is empty if they report no problem.
func (o *observedMember) joining() string {
	switch {
	case !o.Asked:
		return ""
	case o.Known == nil:
		return "the other members do not have it: it joins them as a new member"
	case o.Known.Trouble != "":
		return "it " + o.Known.Trouble
	}
	return ""
}

func (o *observedMember) startWords() string {
	if o.Pod.Status.Phase == corev1.PodRunning {
		return fmt.Sprintf("it runs, and does not serve yet: see kubectl logs %s", o.Pod.Name)
	}
	return "its volume is being mounted and its container started"
}

func (o *observedMember) withEvent(words string) string {
	if len(o.Events) == 0 {
		return words
	}
	return words + ": " + o.Events[0]
}

// etcdWell counts the healthy members.
func (seen *observed) etcdWell() (n int) {
	for _, o := range seen.members {
		if o.well() {
			n++
		}
	}
	return n
}

// etcdWords returns a text such as "2 of 3; quotes-etcd-1: why".
func (seen *observed) etcdWords() string {
	words := []string{fmt.Sprintf("%d of %d", seen.etcdWell(), len(seen.members))}
	for _, o := range seen.members {
		if !o.well() {
			words = append(words, o.why())
		}
	}
	return strings.Join(words, "; ")
}

func (seen *observed) setEtcdRedundant() {
	sayWhether(seen.store, v1alpha1.ConditionEtcdRedundant,
		seen.etcdWell() == len(seen.members),
		"Redundant", "MembersMissing", seen.etcdWords())
}

// awaitMembers waits until every member of a managed etcd serves.
func (seen *observed) awaitMembers() step.Outcome {
	if seen.etcdWell() == len(seen.members) {
		return step.Complete()
	}
	return step.Wait("EtcdMembersMissing", "members of etcd that serve: "+seen.etcdWords(), step.PauseShort)
}

// awaitMajority waits until a majority of the members of a managed etcd is ready.
func (seen *observed) awaitMajority() step.Outcome {
	store := seen.store
	ready, members := seen.etcdWell(), len(seen.members)
	if store.Spec.Etcd.Managed == nil || ready > members/2 {
		return step.Complete()
	}
	message := fmt.Sprintf("%s ready; %s needed",
		step.CountOf(ready, members, "member of etcd is", "members of etcd are"), step.Count(members/2+1, "is", "are"))
	for _, o := range seen.members {
		if !o.well() {
			message += ": " + o.why()
			break
		}
	}
	if seen.lostData() {
		message += fmt.Sprintf(
			". Where the data of etcd is lost for good, let it begin empty, and then rebuild the placement as "+
				"condition PlacementReady says: kubectl -n %s annotate recordstore/%s %s=%s", store.Namespace, store.Name,
			v1alpha1.AnnotationAllowNewEtcd, store.Status.StoreUID)
	}
	return etcdAway(store, "EtcdNotReady", message)
}

// learn records what the serving members report about the other members.
func (seen *observed) learn(known []fleet.EtcdMember) {
	for n, o := range seen.members {
		o.Asked = true
		for i := range known {
			for _, port := range []int{workload.PortEtcdPeer, workload.PortEtcdPeerTLS} { // the ports without and with TLS
				if known[i].PeerAddress == workload.EtcdAddress(seen.store.Namespace, seen.store.Name, int32(n),
					port) { //nolint:gosec // n is the number of a member, which is small
					o.Known = &known[i]
				}
			}
		}
	}
	seen.setEtcdRedundant()
}

// lostData reports whether a member has ended because its folder is empty although the cluster formed before.
func (seen *observed) lostData() bool {
	return slices.ContainsFunc(seen.members, func(o *observedMember) bool {
		return o.Pod != nil && !o.well() && workload.LostEtcdData(o.Pod)
	})
}

// podTrouble says why a pod does not run: the message of its last termination, the reason why its container waits, or
// the message of the scheduler. The result is empty if no reason is known.
func podTrouble(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if end := c.LastTerminationState.Terminated; end != nil && end.ExitCode != 0 && end.Message != "" {
			return fmt.Sprintf("%s: %s", pod.Name, lastWords(end.Message))
		}
		if end := c.State.Terminated; end != nil && end.ExitCode != 0 && end.Message != "" {
			return fmt.Sprintf("%s: %s", pod.Name, lastWords(end.Message))
		}
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return fmt.Sprintf("%s: %s: %s", pod.Name, w.Reason, w.Message)
		}
	}
	if c := workload.Unscheduled(pod); c.Type != "" {
		return fmt.Sprintf("%s: %s", pod.Name, c.Message)
	}
	return ""
}

// lastWords returns the final message of a program of Sheaf, without the log before it.
func lastWords(message string) string {
	if at := max(strings.LastIndex(message, "\nsheaf: "), strings.LastIndex(message, "\nsheaf-archive: ")); at >= 0 {
		message = message[at+1:]
	}
	return step.Tail(message, 512)
}
