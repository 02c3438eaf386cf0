package recordstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// A member with a replaced disk repairs itself. Only the member knows what is in its folder, and it asks a quorum of
// the other members before it changes anything (internal/placement/etcd, ADR 23). The operator only reports the state
// of the members.

// memberWordsMax is the maximum length of the text about one member.
const memberWordsMax = 400

// observedMember holds everything that was observed about one member of a managed etcd. Each part may be missing.
type observedMember struct {
	Now   time.Time
	Name  string
	Pod   *corev1.Pod
	Claim *corev1.PersistentVolumeClaim
	// ClassName is the class of the claim from the spec or the cluster's default; empty: there is no default class.
	ClassName    string
	ClassMissing bool // the class does not exist
	// Cordoned is the node of the member's local volume, if that node is cordoned; else empty.
	Cordoned string
	// Events are the complaints of the kubelet or the StatefulSet controller, newest first.
	Events []string
	// Asked is true if the other members were asked about this member. Known is their answer; nil: they do not know
	// it.
	Asked bool
	Known *fleet.EtcdMember
}

// well reports whether the member serves as a voter.
func (o *observedMember) well() bool { return o.Pod != nil && fleet.PodReady(o.Pod) }

// why says why the member is unhealthy, naming the problem that has to be fixed first. It covers all inputs and does no
// I/O.
func (o *observedMember) why() string {
	words := o.cause()
	if len(words) > memberWordsMax { // the end of a process's output says why it ended
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
			"claim %s waits for a StorageClass: the cluster has no default one, and "+
				"spec.etcd.managed.storage.storageClassName names none. "+
				"Mark a class as the default, or make the store again with that field", o.Claim.Name)
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
	condition := fleet.Unscheduled(o.Pod)
	words := condition.Message
	switch {
	case words == "":
		return "its pod waits for the scheduler"
	case !bound && fleet.WantsVolume(words) && o.Now.Sub(condition.LastTransitionTime.Time) < fleet.VolumeGrace:
		return fmt.Sprintf("claim %s waits for a PersistentVolume of StorageClass %q",
			workload.ClaimTemplate+"-"+o.Name, o.ClassName)
	case !bound && fleet.WantsVolume(words):
		return fmt.Sprintf(
			"no free PersistentVolume of StorageClass %q fits claim %s. Add a disk to the DiskSet, or see to its class; the "+
				"scheduler says: %s",
			o.ClassName, workload.ClaimTemplate+"-"+o.Name, words)
	case o.Cordoned != "":
		return fmt.Sprintf("node %s is cordoned, and its disk is there: kubectl uncordon %s when the node is to work again",
			o.Cordoned, o.Cordoned)
	}
	return "no node can take its pod: free some resources, or change spec.etcd.managed.resources or " +
		"spec.etcd.managed.scheduling; " +
		"the scheduler says: " + words
}

// joining describes a running member as the other members see it. It is empty if they have nothing to report.
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

// gatherMembers reads the state of the members of a managed etcd, with more detail for those that are unhealthy.
func (r *Reconciler) gatherMembers(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if store.Spec.Etcd.Managed == nil {
		meta.RemoveStatusCondition(&store.Status.Conditions, v1alpha1.ConditionEtcdRedundant)
		return step.Complete()
	}
	for n := range workload.EtcdMembers(store) {
		o := &observedMember{Now: r.now(), Name: workload.EtcdMember(store.Name, n)}
		for i := range run.etcdPods {
			if run.etcdPods[i].Name == o.Name {
				o.Pod = &run.etcdPods[i]
			}
		}
		if !o.well() {
			if err := r.lookCloser(ctx, store, o); err != nil {
				return step.Retry(err)
			}
		}
		run.members = append(run.members, o)
	}
	run.setEtcdRedundant()
	return step.Complete()
}

// lookCloser reads the possible reasons why a member cannot start.
func (r *Reconciler) lookCloser(ctx context.Context, store *v1alpha1.RecordStore, o *observedMember) error {
	var claim corev1.PersistentVolumeClaim
	key := client.ObjectKey{Namespace: store.Namespace, Name: workload.ClaimTemplate + "-" + o.Name}
	switch err := r.Client.Get(ctx, key, &claim); {
	case err == nil:
		o.Claim = &claim
		if err := errors.Join(r.classOf(ctx, o), r.cordonedOf(ctx, o)); err != nil {
			return err
		}
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read claim %s: %w", key, err)
	}
	var about client.Object
	switch {
	case o.Pod == nil:
		var set appsv1.StatefulSet
		key := client.ObjectKey{Namespace: store.Namespace, Name: workload.Etcd(store.Name)}
		if err := r.Client.Get(ctx, key, &set); err != nil {
			if apierrors.IsNotFound(err) { // it was created just now
				return nil
			}
			return fmt.Errorf("read StatefulSet %s: %w", key, err)
		}
		about = &set
	case o.Pod.Spec.NodeName != "" && o.Pod.Status.Phase == corev1.PodPending:
		about = o.Pod
	default:
		return nil
	}
	var err error
	o.Events, err = step.Warnings(ctx, r.Live, about)
	// The events of the StatefulSet are about all its pods and claims.
	if o.Pod == nil {
		o.Events = eventsAbout(o.Events, o.Name)
	}
	return err
}

// eventsAbout returns the events that name a member, or all events if none names it.
func eventsAbout(events []string, name string) []string {
	var out []string
	for _, e := range events {
		if strings.Contains(e, name) {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return events
	}
	return out
}

// classOf finds the class of the claim, and whether that class exists.
func (r *Reconciler) classOf(ctx context.Context, o *observedMember) error {
	if name := o.Claim.Spec.StorageClassName; name != nil {
		o.ClassName = *name
		err := r.Client.Get(ctx, types.NamespacedName{Name: *name}, &storagev1.StorageClass{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read StorageClass %s: %w", *name, err)
		}
		o.ClassMissing = err != nil
		return nil
	}
	var classes storagev1.StorageClassList
	if err := r.Client.List(ctx, &classes); err != nil {
		return fmt.Errorf("list StorageClasses: %w", err)
	}
	for _, class := range classes.Items {
		if class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			o.ClassName = class.Name
		}
	}
	return nil
}

// cordonedOf sets o.Cordoned if the member's pod is not scheduled yet and the node of its local volume is cordoned.
func (r *Reconciler) cordonedOf(ctx context.Context, o *observedMember) error {
	if o.Pod == nil || o.Pod.Spec.NodeName != "" || o.Claim.Spec.VolumeName == "" {
		return nil
	}
	var volume corev1.PersistentVolume
	if err := r.Client.Get(ctx, client.ObjectKey{Name: o.Claim.Spec.VolumeName}, &volume); err != nil {
		return client.IgnoreNotFound(err)
	}
	var node corev1.Node
	name := workload.DiskNode(&volume)
	if name == "" {
		return nil
	}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return client.IgnoreNotFound(err)
	}
	if node.Spec.Unschedulable {
		o.Cordoned = name
	}
	return nil
}

// askMembers asks the members that serve about those that do not.
func (run *storeRun) askMembers(ctx context.Context) {
	if run.etcdWell() == len(run.members) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, fleet.EtcdPatience)
	defer cancel()
	known, err := run.placement.EtcdMembers(ctx)
	if err != nil {
		return // the next step asks etcd too, and reports the error
	}
	for n, o := range run.members {
		o.Asked = true
		for i := range known {
			for _, port := range []int{workload.PortEtcdPeer, workload.PortEtcdPeerTLS} { // without or with TLS
				if known[i].PeerAddress == workload.EtcdAddress(run.store.Namespace, run.store.Name, int32(n),
					port) { //nolint:gosec // at most 3
					o.Known = &known[i]
				}
			}
		}
	}
	run.setEtcdRedundant()
}

// etcdWell counts the healthy members.
func (run *storeRun) etcdWell() (n int) {
	for _, o := range run.members {
		if o.well() {
			n++
		}
	}
	return n
}

// lacksMembers reports whether etcd serves without some of its members.
func (run *storeRun) lacksMembers() bool {
	well := run.etcdWell()
	return well > len(run.members)/2 && well < len(run.members)
}

// etcdWords returns a text such as "2 of 3; quotes-etcd-1: why".
func (run *storeRun) etcdWords() string {
	words := []string{fmt.Sprintf("%d of %d", run.etcdWell(), len(run.members))}
	for _, o := range run.members {
		if !o.well() {
			words = append(words, o.why())
		}
	}
	return strings.Join(words, "; ")
}

func (run *storeRun) setEtcdRedundant() {
	setTruth(&run.store.Status.Conditions, run.store.Generation, v1alpha1.ConditionEtcdRedundant,
		run.etcdWell() == len(run.members),
		"Redundant", "MembersMissing", run.etcdWords())
}

// awaitMembers waits until every member of a managed etcd serves.
func (r *Reconciler) awaitMembers(_ context.Context, run *storeRun) step.Outcome {
	if run.etcdWell() == len(run.members) {
		return step.Complete()
	}
	return step.Wait("EtcdMembersMissing", "members of etcd that serve: "+run.etcdWords(), step.PauseShort)
}
