package observed

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// startGrace is how long a running container may fail to answer before it counts as unreachable.
const startGrace = 30 * time.Second

// Decide determines the state of a shard. It handles every combination of inputs and does no I/O. If there are several
// problems, it names the one that has to be solved first.
func Decide(o *Shard) v1alpha1.ShardStatus {
	s := v1alpha1.ShardStatus{Name: o.Name, Number: o.Number}
	s.State, s.Message = o.state()
	o.describe(&s)
	if o.MessageMax > 3 && len(s.Message) > o.MessageMax {
		s.Message = strings.ToValidUTF8(s.Message[:o.MessageMax-3], "") + "..."
	}
	return s
}

func (o *Shard) state() (v1alpha1.ShardState, string) {
	if o.Parked {
		if o.Pod != nil {
			return v1alpha1.ShardParked, "the pod is being stopped, as spec.parked names this shard"
		}
		return v1alpha1.ShardParked, fmt.Sprintf(
			"spec.parked names this shard: it has no pod and its volume stays. Take %d out of spec.parked to start it", o.Number)
	}
	if o.Refused != "" {
		return v1alpha1.ShardFileSystemMismatch, o.Refused
	}
	for _, look := range []func() (v1alpha1.ShardState, string){o.nodeState, o.volumeState, o.podState, o.waitingState,
		o.reportedState} {
		if state, message := look(); state != "" {
			return state, message
		}
	}
	return v1alpha1.ShardPending, "starts"
}

// nodeState checks the node that holds the volume.
func (o *Shard) nodeState() (v1alpha1.ShardState, string) {
	if o.NodeName == "" {
		return "", ""
	}
	if o.Node == nil {
		return v1alpha1.ShardNodeLost, fmt.Sprintf(
			"node %s was deleted%s. %sIf it comes back, add it with its name and the shard goes on; "+
				"if not, list %d in spec.remove and raise spec.shards for a new shard", o.NodeName, o.localWords(), o.copiesWords(),
			o.Number)
	}
	for _, taint := range o.Node.Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService {
			return v1alpha1.ShardNodeLost, fmt.Sprintf("node %s has the taint %s%s. %sRemove the taint when the node is back; "+
				"if it never will be, list %d in spec.remove and raise spec.shards for a new shard", o.NodeName, taint.Key,
				o.localWords(), o.copiesWords(), o.Number)
		}
	}
	for _, condition := range o.Node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return v1alpha1.ShardNodeDown, fmt.Sprintf(
				"node %s is not ready (%s). The shard waits for it and its data stays there. "+
					"Repair the node; or delete it, or taint it %s, if it will not come back", o.NodeName,
				cmp.Or(condition.Reason, condition.Message, "no reason given"), corev1.TaintNodeOutOfService)
		}
	}
	return "", ""
}

// copiesWords says how the groups on a lost node recover automatically.
func (o *Shard) copiesWords() string {
	if o.Copies <= 1 {
		return ""
	}
	return "Where every group that had a copy there has a majority without it, copies are made on other shards, as far " +
		"as there are failure domains for them. "
}

// adoptWords says what to do after a store was deleted and created again while its claims, and therefore the volumes of
// the first store, were kept.
func (o *Shard) adoptWords() string {
	if theirs := o.Report.GetShard().GetStoreUuid(); theirs != "" && o.StoreUID != "" && !strings.EqualFold(theirs,
		o.StoreUID) {
		return fmt.Sprintf(
			". Where that store was deleted and this one is to have its data: delete this one, and make it again with "+
				"adoptStoreUID: %s", theirs)
	}
	return ""
}

func (o *Shard) localWords() string {
	if o.Volume != nil && o.Volume.Spec.Local != nil {
		return fmt.Sprintf(", and with it the local volume %s", o.Volume.Name)
	}
	return ""
}

// volumeState checks the claim and the volume.
func (o *Shard) volumeState() (v1alpha1.ShardState, string) {
	claim := o.Claim
	if claim == nil {
		return "", ""
	}
	if claim.Status.Phase == corev1.ClaimLost || (claim.Spec.VolumeName != "" && claim.Status.Phase == corev1.ClaimBound &&
		o.Volume == nil) {
		return v1alpha1.ShardDiskLost, fmt.Sprintf(
			"PersistentVolume %s of claim %s is gone. Make it again with the same name and disk if the disk is "+
				"whole; otherwise park the shard (spec.parked), delete the claim, %s", claim.Spec.VolumeName, claim.Name,
			o.forgetWords())
	}
	if o.Running() || claim.Status.Phase == corev1.ClaimBound {
		return "", ""
	}
	if o.ClassMissing {
		return v1alpha1.ShardNoStorageClass, fmt.Sprintf(
			"StorageClass %q does not exist: create it, or a DiskSet of that name", o.ClassName)
	}
	return "", ""
}

// forgetWords says how an administrator lets a shard start on another volume.
func (o *Shard) forgetWords() string {
	if o.Last.Volume == nil || o.Last.Volume.UUID == "" {
		return "and unpark it"
	}
	return fmt.Sprintf("annotate the pool %s=%s to accept that this copy is lost, and unpark it",
		v1alpha1.AnnotationForgetVolumes, o.Last.Volume.UUID)
}

// Running reports whether the pod runs. Its shard may still not answer.
func (o *Shard) Running() bool {
	return o.Pod != nil && o.Pod.Status.Phase == corev1.PodRunning
}

// podState checks the pod up to the start of its container.
func (o *Shard) podState() (v1alpha1.ShardState, string) {
	pod := o.Pod
	switch {
	case pod == nil && o.Set == nil:
		return v1alpha1.ShardPending, "its StatefulSet is being made"
	case pod == nil:
		return v1alpha1.ShardPending, o.withEvent("its StatefulSet has no pod yet")
	case pod.DeletionTimestamp != nil:
		return v1alpha1.ShardPending, "the pod is being replaced"
	case pod.Spec.NodeName == "":
		return o.unscheduled()
	case pod.Status.Phase == corev1.PodFailed:
		return v1alpha1.ShardPending, fmt.Sprintf("the pod failed (%s) and is being replaced",
			cmp.Or(pod.Status.Reason, pod.Status.Message, "no reason given"))
	}
	return "", ""
}

func (o *Shard) unscheduled() (v1alpha1.ShardState, string) {
	condition := workload.Unscheduled(o.Pod)
	words, since := condition.Message, condition.LastTransitionTime.Time
	bound := o.Claim != nil && o.Claim.Status.Phase == corev1.ClaimBound
	if words == "" {
		return v1alpha1.ShardPending, o.withEvent("the pod waits for the scheduler")
	}
	if !bound && fleet.WantsVolume(words) && o.Now.Sub(since) < fleet.VolumeGrace {
		return v1alpha1.ShardPending, fmt.Sprintf("claim %s waits for a PersistentVolume of StorageClass %q",
			workload.ShardClaim(o.Name), o.ClassName)
	}
	if !bound && fleet.WantsVolume(words) {
		return v1alpha1.ShardNoVolume, fmt.Sprintf(
			"no free PersistentVolume of StorageClass %q fits the claim %s. Add a disk to the DiskSet, see that its "+
				"namespaces hold this one and that a disk is as large as storage.size; the scheduler says: %s", o.ClassName,
			workload.ShardClaim(o.Name), words)
	}
	if o.Node != nil && o.Node.Spec.Unschedulable { // a pod with a local volume cannot run on any other node
		return v1alpha1.ShardUnschedulable, fmt.Sprintf("node %s is cordoned, and the shard's disk is there: kubectl "+
			"uncordon %s when the node is to work again; the scheduler says: %s", o.NodeName, o.NodeName, words)
	}
	return v1alpha1.ShardUnschedulable,
		"no node can take the pod: free some resources, or change spec.resources or spec.scheduling; the scheduler " +
			"says: " + words
}

// waitingState checks a container that does not run.
func (o *Shard) waitingState() (v1alpha1.ShardState, string) {
	status := o.containerStatus()
	if status != nil && status.State.Running != nil {
		return "", ""
	}
	waiting := ""
	if status != nil && status.State.Waiting != nil {
		waiting = status.State.Waiting.Reason
	}
	switch fleet.WaitingFor(waiting) {
	case fleet.WaitingImage:
		// The kubelet waits before it tries again. Keep the message of its last attempt, so that the status does not
		// alternate between two texts.
		if waiting == fleet.ReasonImagePullBackOff && o.Last.State == v1alpha1.ShardImagePull &&
			strings.Contains(o.Last.Message, status.Image+" ") {
			return o.Last.State, o.Last.Message
		}
		return v1alpha1.ShardImagePull, fmt.Sprintf(
			"image %s cannot be had (%s: %s). Correct the store's spec.image or imagePullSecrets, or load the "+
				"image onto node %s", status.Image, waiting, status.State.Waiting.Message, o.NodeName)
	case fleet.WaitingRestart:
		return v1alpha1.ShardCrashLooping, fmt.Sprintf(
			"the container does not stay up (%s, %s): %s. See kubectl logs %s --previous", waiting,
			step.Count(status.RestartCount, "restart", "restarts"),
			cmp.Or(ended(status), status.State.Waiting.Message, "no reason given"),
			workload.ShardPod(o.Name))
	}
	if status != nil && status.State.Terminated != nil {
		return v1alpha1.ShardPending, "the container ended and is being restarted: " + cmp.Or(ended(status),
			"no reason given")
	}
	for _, event := range o.Events {
		if step.DeviceMissing(event) {
			return v1alpha1.ShardDiskMissing, fmt.Sprintf(
				"node %s does not have the device of the volume, or it has no size. Nothing is given up, and the kubelet "+
					"tries again: bring the device back under its name. If it is gone for good: park the shard (spec.parked), "+
					"replace the disk, %s. The kubelet says: %s", o.NodeName, o.forgetWords(), event)
		}
		if v := o.Last.Volume; v != nil && v.UUID != "" && fleet.DeviceLost(event) {
			return v1alpha1.ShardDiskLost, fmt.Sprintf(
				"the device held volume %s, and the kubelet cannot mount it any more; nothing is served. If the disk can be "+
					"repaired (fsck) or brought back, do that on node %s; otherwise park the shard (spec.parked), replace the disk, "+
					"%s. The kubelet says: %s", v.UUID, o.NodeName, o.forgetWords(), event)
		}
		if fleet.DeviceTaken(event) {
			return v1alpha1.ShardFormatBlocked, fmt.Sprintf(
				"the kubelet does not format or mount the volume, and nothing was written to it. Something is on the device "+
					"already (a partition table, another file system, or what is left of one): if it can go, wipe it (wipefs -a) on "+
					"node %s; otherwise name another disk. The kubelet says: %s", o.NodeName, event)
		}
	}
	return v1alpha1.ShardPending, o.withEvent("the pod's volume is being mounted and its container started")
}

func (o *Shard) containerStatus() *corev1.ContainerStatus {
	for n := range o.Pod.Status.ContainerStatuses {
		if status := &o.Pod.Status.ContainerStatuses[n]; status.Name == workload.ContainerShard {
			return status
		}
	}
	return nil
}

// ended returns words about the last exit of the container.
func ended(status *corev1.ContainerStatus) string {
	last := status.State.Terminated
	if last == nil {
		last = status.LastTerminationState.Terminated
	}
	if last == nil {
		return ""
	}
	words := fmt.Sprintf("it ended with exit code %d (%s)", last.ExitCode, cmp.Or(last.Reason, "no reason given"))
	if last.Reason == fleet.ReasonOOMKilled {
		words += ": raise resources.limits.memory"
	}
	if last.Message != "" {
		words += ": " + strings.TrimSpace(last.Message)
	}
	return words
}

// reportedState derives the state from the shard's own report, once the volume of the shard has been identified.
func (o *Shard) reportedState() (v1alpha1.ShardState, string) {
	if o.Report == nil {
		return o.silent()
	}
	if o.AwaitsEtcd() {
		return v1alpha1.ShardPending, fmt.Sprintf("%s. RecordStore, condition %s: %s", o.Report.GetShard().GetMessage(),
			// The shard's own message, followed by what the store says about its etcd.
			o.EtcdTrouble.Type, o.EtcdTrouble.Message)
	}
	r, state := o.Report.GetShard(), fleet.StateOf(o.Report)
	switch state {
	case v1alpha1.ShardPending, v1alpha1.ShardFileSystemMismatch, v1alpha1.ShardMemoryTooSmall:
		return state, r.GetMessage()
	case v1alpha1.ShardForeign:
		return state, r.GetMessage() + o.adoptWords()
	case v1alpha1.ShardDiskLost:
		return state, fmt.Sprintf(
			"%s. If the volume cannot be brought back: park the shard (spec.parked), replace the disk, %s",
			strings.TrimSuffix(r.GetMessage(), "."), o.forgetWords())
	case v1alpha1.ShardLoading, v1alpha1.ShardServing, v1alpha1.ShardDraining:
	default:
		return v1alpha1.ShardUnreachable, fmt.Sprintf(
			"the shard says that it is %q, which this operator does not know: the shard is of version %q; upgrade the operator",
			state, r.GetVersion())
	}
	if r.GetStoreUuid() != "" && o.StoreUID != "" && !strings.EqualFold(r.GetStoreUuid(), o.StoreUID) {
		return v1alpha1.ShardForeign, fmt.Sprintf(
			"the volume is of store %s, this is store %s: give the shard its own volume%s", r.GetStoreUuid(), o.StoreUID,
			o.adoptWords())
	}
	if was := o.Last.Volume; was != nil && was.UUID != "" && r.GetVolumeUuid() != "" &&
		!strings.EqualFold(was.UUID, r.GetVolumeUuid()) {
		return v1alpha1.ShardForeign, fmt.Sprintf("the shard runs on volume %s, its own is %s: bring that back; or %s",
			r.GetVolumeUuid(), was.UUID, o.forgetWords())
	}
	if o.Leaves && state != v1alpha1.ShardLoading {
		return v1alpha1.ShardDraining, fmt.Sprintf("is to be removed, and holds %s",
			step.Count(len(o.Report.GetGroups()), "group", "groups"))
	}
	return state, cmp.Or(r.GetMessage(), strings.Join(r.GetProblems(), "; "))
}

// silent returns the state for a running container whose shard does not answer.
func (o *Shard) silent() (v1alpha1.ShardState, string) {
	if errors.Is(o.ReportErr, fleet.ErrVolumeSilent) {
		return v1alpha1.ShardUnreachable, fmt.Sprintf(
			"the pod runs on node %s, but %v. Nothing is given up for that, as it may only be slow: see to the "+
				"disk; or, with several copies, put %d into spec.replace, and restart the node if the pod does not end", o.NodeName,
			o.ReportErr, o.Number)
	}
	if status := o.containerStatus(); status != nil && o.Now.Sub(status.State.Running.StartedAt.Time) < startGrace {
		return v1alpha1.ShardPending, "the container has just started"
	}
	reason := "it was not asked yet"
	if o.ReportErr != nil {
		reason = o.ReportErr.Error()
	}
	return v1alpha1.ShardUnreachable, fmt.Sprintf(
		"the pod runs on node %s, but the shard does not answer: %s. See kubectl logs %s, and that network "+
			"policies let the operator reach port %d", o.NodeName, reason, workload.ShardPod(o.Name), workload.PortShard)
}

func (o *Shard) withEvent(words string) string {
	if len(o.Events) == 0 {
		return words
	}
	return words + ": " + o.Events[0]
}

// AwaitsEtcd reports whether the shard runs but is waiting, while its store reports a problem with etcd or with the
// placement.
func (o *Shard) AwaitsEtcd() bool {
	return o.EtcdTrouble != nil && fleet.StateOf(o.Report) == v1alpha1.ShardPending
}
