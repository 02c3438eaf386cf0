package observed

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
)

var decideNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// serveWell returns a healthy shard. Each test then changes one of its properties.
func serveWell() *Shard {
	local := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	local.Spec.Local = &corev1.LocalVolumeSource{Path: "/dev/disk/by-id/x"}
	return &Shard{
		Name: "ssd-1", Number: 1, ClassName: "local-xfs", Set: &appsv1.StatefulSet{}, NodeName: "n1",
		Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
				Status: corev1.ConditionTrue}}},
		},
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "ssd-1-0", Annotations: map[string]string{workload.AnnotationTemplate: "t1"}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: []corev1.ContainerStatus{{
				Name: workload.ContainerShard, Image: "sheaf:1",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(decideNow.Add(
					-time.Hour))}},
			}}},
		},
		Claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data-ssd-1-0"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		Volume: local,
		Report: &recordv1.ShardStatus{
			Shard: &recordv1.Shard{Name: "ssd-1", State: recordv1.ShardState_SHARD_STATE_SERVING, Version: "v1",
				VolumeUuid: "vol-1", StoreUuid: "store-1", FileSystem: "xfs", CapacityBytes: 1000, FreeBytes: 900},
			Groups: []*recordv1.Group{{Group: "1", State: recordv1.GroupState_GROUP_STATE_SERVING},
				{Group: "2", State: recordv1.GroupState_GROUP_STATE_FAILED}},
		},
		Last:     v1alpha1.ShardStatus{Volume: &v1alpha1.VolumeStatus{UUID: "vol-1"}},
		StoreUID: "store-1", Template: "t1", Now: decideNow, MessageMax: 600,
	}
}

func waiting(o *Shard, reason, message string) {
	o.Report = nil
	o.Pod.Status.Phase = corev1.PodPending
	o.Pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason,
		Message: message}}
}

func unscheduled(o *Shard, message string) {
	o.Report, o.NodeName, o.Node, o.Volume = nil, "", nil, nil
	o.Pod.Spec.NodeName, o.Pod.Status = "", corev1.PodStatus{Phase: corev1.PodPending}
	if message != "" {
		o.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: "Unschedulable", Message: message}}
	}
	o.Claim.Spec.VolumeName, o.Claim.Status.Phase = "", corev1.ClaimPending
}

func says(state recordv1.ShardState, message string) func(*Shard) {
	return func(o *Shard) { o.Report.Shard.State, o.Report.Shard.Message = state, message }
}

var decideTests = []struct {
	name   string
	change func(*Shard)
	state  v1alpha1.ShardState
	says   []string // texts that the message has to contain
}{
	{"well", func(*Shard) {}, v1alpha1.ShardServing, nil},
	{"has problems, and serves", func(o *Shard) {
		o.Report.Shard.Problems = []string{"SSD asked for, rotational found"}
	}, v1alpha1.ShardServing, []string{"rotational found"}},
	{"loads", says(recordv1.ShardState_SHARD_STATE_LOADING, ""), v1alpha1.ShardLoading, nil},
	{"drains", says(recordv1.ShardState_SHARD_STATE_DRAINING, ""), v1alpha1.ShardDraining, nil},
	{"leaves", func(o *Shard) { o.Leaves = true }, v1alpha1.ShardDraining, []string{"to be removed", "2 groups"}},
	{"waits for etcd", says(recordv1.ShardState_SHARD_STATE_PENDING, "waits for etcd"), v1alpha1.ShardPending,
		[]string{"waits for etcd"}},
	{"says file system mismatch", says(recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH, "is ext3, asked for is ext4"),
		v1alpha1.ShardFileSystemMismatch, []string{"ext3", "ext4"}},
	{"says foreign", says(recordv1.ShardState_SHARD_STATE_FOREIGN, "volume of store A, wanted is B"),
		v1alpha1.ShardForeign,
		[]string{"store A"}},
	{"says disk lost", says(recordv1.ShardState_SHARD_STATE_DISK_LOST, "the volume is blank"), v1alpha1.ShardDiskLost,
		[]string{"blank", "spec.parked", v1alpha1.AnnotationForgetVolumes + "=vol-1"}},
	{"says memory", says(recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, "needs 3GiB, limit is 1GiB"),
		v1alpha1.ShardMemoryTooSmall,
		[]string{"3GiB", "1GiB"}},
	{"says what nobody knows", says(99, ""), v1alpha1.ShardUnreachable,
		[]string{"upgrade the operator"}},
	{"says nothing of its state", says(0, ""), v1alpha1.ShardUnreachable, []string{"upgrade the operator"}},
	{"serves another store", func(o *Shard) {
		o.Report.Shard.StoreUuid = "store-2"
	}, v1alpha1.ShardForeign, []string{"store-2", "store-1", "adoptStoreUID: store-2"}},
	{"says foreign, of another store", func(o *Shard) {
		says(recordv1.ShardState_SHARD_STATE_FOREIGN, "belongs to another store")(o)
		o.Report.Shard.StoreUuid = "store-2"
	}, v1alpha1.ShardForeign, []string{"belongs to another store", "make it again with adoptStoreUID: store-2"}},
	{"serves another volume", func(o *Shard) {
		o.Report.Shard.VolumeUuid = "vol-2"
	}, v1alpha1.ShardForeign, []string{"vol-1", "vol-2"}},

	{"parked", func(o *Shard) {
		o.Parked, o.Pod, o.Report = true, nil, nil
	}, v1alpha1.ShardParked, []string{"Take 1 out of spec.parked"}},
	{"being parked", func(o *Shard) { o.Parked = true }, v1alpha1.ShardParked, []string{"being stopped"}},
	{"parked on a lost node", func(o *Shard) { o.Parked, o.Node = true, nil }, v1alpha1.ShardParked, nil},

	{"node deleted", func(o *Shard) { o.Node = nil }, v1alpha1.ShardNodeLost, []string{"n1", "pv-1", "spec.remove"}},
	{"node deleted, pod waits", func(o *Shard) {
		unscheduled(o, "node(s) had volume node affinity conflict")
		o.NodeName, o.Claim.Status.Phase = "n1", corev1.ClaimBound
	}, v1alpha1.ShardNodeLost, []string{"n1"}},
	{"node fenced", func(o *Shard) {
		o.Node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	}, v1alpha1.ShardNodeLost, []string{corev1.TaintNodeOutOfService}},
	{"node not ready", func(o *Shard) {
		o.Node.Status.Conditions[0].Status = corev1.ConditionFalse
	}, v1alpha1.ShardNodeDown, []string{"n1", "waits"}},
	{"node silent", func(o *Shard) {
		o.Node.Status.Conditions[0].Status, o.Node.Status.Conditions[0].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
	}, v1alpha1.ShardNodeDown, []string{"NodeStatusUnknown"}},
	{"node without conditions", func(o *Shard) { o.Node.Status.Conditions = nil }, v1alpha1.ShardServing, nil},

	{"claim lost", func(o *Shard) {
		o.Claim.Status.Phase = corev1.ClaimLost
	}, v1alpha1.ShardDiskLost, []string{"pv-1", "data-ssd-1-0"}},
	{"volume deleted", func(o *Shard) { o.Volume = nil }, v1alpha1.ShardDiskLost, []string{"pv-1", "vol-1"}},
	{"no class", func(o *Shard) {
		unscheduled(o, "storageclass not found")
		o.ClassMissing = true
	}, v1alpha1.ShardNoStorageClass, []string{"local-xfs", "DiskSet"}},
	{"class deleted later", func(o *Shard) { o.ClassMissing = true }, v1alpha1.ShardServing, nil},
	{"no volume", func(o *Shard) {
		unscheduled(o, "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.")
	}, v1alpha1.ShardNoVolume, []string{"local-xfs", "DiskSet", "0/3 nodes"}},
	{"no volume yet", func(o *Shard) {
		unscheduled(o, "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.")
		o.Pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(o.Now.Add(-fleet.VolumeGrace + time.Second))
	}, v1alpha1.ShardPending, []string{"waits for a PersistentVolume", "local-xfs"}},
	{"no room", func(o *Shard) {
		unscheduled(o, "0/3 nodes are available: 3 Insufficient memory.")
	}, v1alpha1.ShardUnschedulable, []string{"Insufficient memory"}},
	{"bound volume, no room", func(o *Shard) {
		unscheduled(o, "didn't find available persistent volumes to bind")
		o.Claim.Status.Phase = corev1.ClaimBound
	}, v1alpha1.ShardUnschedulable, nil},
	{"its node is cordoned", func(o *Shard) {
		unscheduled(o, "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match PersistentVolume's "+
			"node affinity.")
		o.Claim.Status.Phase, o.NodeName, o.Node = corev1.ClaimBound, "n1", &corev1.Node{}
		o.Node.Spec.Unschedulable = true
	}, v1alpha1.ShardUnschedulable, []string{"node n1 is cordoned", "kubectl uncordon n1"}},
	{"not looked at by the scheduler", func(o *Shard) {
		unscheduled(o, "")
	}, v1alpha1.ShardPending, []string{"scheduler"}},

	{"nothing there", func(o *Shard) {
		*o = Shard{Name: "ssd-1", Number: 1}
	}, v1alpha1.ShardPending, []string{"StatefulSet is being made"}},
	{"no pod", func(o *Shard) {
		o.Pod, o.Report, o.NodeName = nil, nil, ""
		o.Events = []string{"FailedCreate: violates PodSecurity"}
	}, v1alpha1.ShardPending, []string{"violates PodSecurity"}},
	{"pod ends", func(o *Shard) {
		o.Pod.DeletionTimestamp = &metav1.Time{Time: decideNow}
	}, v1alpha1.ShardPending, []string{"replaced"}},
	{"pod failed", func(o *Shard) {
		o.Report, o.Pod.Status.Phase, o.Pod.Status.Reason = nil, corev1.PodFailed, "Evicted"
	}, v1alpha1.ShardPending, []string{"Evicted"}},

	{"image", func(o *Shard) {
		waiting(o, "ImagePullBackOff", "back-off")
	}, v1alpha1.ShardImagePull, []string{"sheaf:1", "back-off", "spec.image"}},
	{"image never pulled", func(o *Shard) {
		waiting(o, "ErrImageNeverPull", "")
	}, v1alpha1.ShardImagePull, []string{"n1"}},
	{"crashes", func(o *Shard) {
		waiting(o, "CrashLoopBackOff", "back-off 40s")
		o.Pod.Status.Phase = corev1.PodRunning
		o.Pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1,
			Reason: "Error", Message: "sheaf: no such flag\n"}
	}, v1alpha1.ShardCrashLooping, []string{"exit code 1", "no such flag", "kubectl logs ssd-1-0"}},
	{"is killed for memory", func(o *Shard) {
		waiting(o, "CrashLoopBackOff", "")
		o.Pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137,
			Reason: "OOMKilled"}
	}, v1alpha1.ShardCrashLooping, []string{"limits.memory"}},
	{"cannot be made", func(o *Shard) {
		waiting(o, "CreateContainerConfigError", "secret not found")
	}, v1alpha1.ShardCrashLooping, []string{"secret not found"}},
	{"has just ended", func(o *Shard) {
		waiting(o, "", "")
		o.Pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 2}}
	}, v1alpha1.ShardPending, []string{"exit code 2"}},
	{"is being made", func(o *Shard) { waiting(o, "ContainerCreating", "") }, v1alpha1.ShardPending, []string{"mounted"}},
	{"has no status yet", func(o *Shard) {
		waiting(o, "", "")
		o.Pod.Status.ContainerStatuses = nil
	}, v1alpha1.ShardPending, nil},
	{"mount fails", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Events = []string{"FailedMount: device is busy"}
	}, v1alpha1.ShardPending, []string{"device is busy"}},
	{"the device is gone", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Events = []string{"FailedMount: local: failed to mount device /dev/x: fsconfig: /dev/x: Can't open blockdev."}
	}, v1alpha1.ShardDiskMissing, []string{"node n1", "Can't open blockdev", "Nothing is given up"}},
	{"the device of a new shard has no size", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Last.Volume = nil
		o.Events = []string{"FailedMount: format of disk failed: mkfs.ext4: Device size reported to be zero. Invalid " +
			"partition specified, or partition table wasn't reread"}
	}, v1alpha1.ShardDiskMissing, []string{"node n1", "size reported to be zero"}},
	{"format: other file system", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Last.Volume = nil
		o.Events = []string{"FailedMount: other",
			"FailedMount: mount failed: wrong fs type, bad option, bad superblock on /dev/loop3"}
	}, v1alpha1.ShardFormatBlocked, []string{"/dev/loop3", "n1", "nothing was written", "wipefs"}},
	{"format: partition table", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Last.Volume = nil
		o.Events = []string{"FailedMount: failed to mount: unknown data, probably partitions or partition table"}
	}, v1alpha1.ShardFormatBlocked, nil},
	{"format: mkfs", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Last.Volume = nil
		o.Events = []string{
			"FailedMount: format of disk failed: mkfs.xfs: /dev/loop3 appears to contain an existing filesystem"}
	}, v1alpha1.ShardFormatBlocked, nil},
	{"unmountable, and what was there is given up", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Last.Volume = nil
		o.Events = []string{"FailedMount: /dev/loop1: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY"}
	}, v1alpha1.ShardFormatBlocked, []string{"what is left of one", "wipefs", "RUN fsck"}},
	{"unmountable, and there was a volume", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Events = []string{"FailedMount: /dev/loop1: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY"}
	}, v1alpha1.ShardDiskLost, []string{"vol-1", "n1", "RUN fsck", "spec.parked",
		v1alpha1.AnnotationForgetVolumes + "=vol-1"}},
	{"another file system where there was a volume", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Events = []string{"FailedMount: mount failed: wrong fs type, bad option, bad superblock on /dev/loop3"}
	}, v1alpha1.ShardDiskLost, []string{"vol-1"}},
	{"device gone", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Events = []string{
			`FailedMount: MountVolume.NewMounter initialization failed: path "/dev/disk/by-id/a" does not exist`}
	}, v1alpha1.ShardDiskMissing, []string{"vol-1", "/dev/disk/by-id/a"}},
	{"a sandbox is not made", func(o *Shard) {
		waiting(o, "ContainerCreating", "")
		o.Events = []string{"FailedCreatePodSandBox: /run/cni: no such file or directory"}
	}, v1alpha1.ShardPending, []string{"no such file"}},
	{"image, the kubelet waits to try again", func(o *Shard) {
		waiting(o, "ImagePullBackOff", "back-off")
		o.Last.State, o.Last.Message = v1alpha1.ShardImagePull, "image sheaf:1 cannot be had (ErrImagePull: not found)"
	}, v1alpha1.ShardImagePull, []string{"not found"}},
	{"image, another one", func(o *Shard) {
		waiting(o, "ImagePullBackOff", "back-off")
		o.Last.State, o.Last.Message = v1alpha1.ShardImagePull, "image sheaf:0 cannot be had (ErrImagePull: not found)"
	}, v1alpha1.ShardImagePull, []string{"sheaf:1", "back-off"}},
	{"format: events of an older try", func(o *Shard) {
		o.Events = []string{"FailedMount: wrong fs type"}
	}, v1alpha1.ShardServing, nil},

	{"its disk hangs", func(o *Shard) {
		o.Report, o.ReportErr = nil, fmt.Errorf("%w: the volume does not answer: a read takes more than 15s",
			fleet.ErrVolumeSilent)
	}, v1alpha1.ShardUnreachable, []string{"n1", "its disk does not answer", "15s", "spec.replace"}},
	{"silent", func(o *Shard) {
		o.Report, o.ReportErr = nil, errors.New("connection refused")
	}, v1alpha1.ShardUnreachable, []string{"connection refused", "7610"}},
	{"silent as it starts", func(o *Shard) {
		o.Report, o.ReportErr = nil, errors.New("connection refused")
		o.Pod.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(decideNow.Add(-time.Second))
	}, v1alpha1.ShardPending, []string{"just started"}},
	{"running without a status", func(o *Shard) {
		o.Report, o.Pod.Status.ContainerStatuses = nil, nil
	}, v1alpha1.ShardPending, nil},
}

func TestDecideShard(t *testing.T) {
	seen := map[v1alpha1.ShardState]bool{}
	for _, test := range decideTests {
		t.Run(test.name, func(t *testing.T) {
			o := serveWell()
			test.change(o)
			got := Decide(o)
			seen[got.State] = true
			if got.State != test.state {
				t.Fatalf("state %s (%s), want %s", got.State, got.Message, test.state)
			}
			for _, words := range test.says {
				if !strings.Contains(got.Message, words) {
					t.Errorf("message %q does not say %q", got.Message, words)
				}
			}
			if got.Name != "ssd-1" || got.Number != 1 {
				t.Errorf("status is of %s, number %d", got.Name, got.Number)
			}
			// Decisions are stable: with its own result as the last status, Decide returns the same result.
			o.Last = got
			if o.Last.Volume == nil {
				o.Last.Volume = &v1alpha1.VolumeStatus{}
			}
			if again := Decide(o); !equalStatus(again, got) {
				t.Errorf("decided again:\n got %+v\nwant %+v", again, got)
			}
		})
	}
	all := []v1alpha1.ShardState{
		v1alpha1.ShardPending, v1alpha1.ShardLoading, v1alpha1.ShardServing, v1alpha1.ShardDraining, v1alpha1.ShardParked,
		v1alpha1.ShardNodeDown,
		v1alpha1.ShardNodeLost, v1alpha1.ShardDiskLost, v1alpha1.ShardDiskMissing, v1alpha1.ShardForeign,
		v1alpha1.ShardFormatBlocked,
		v1alpha1.ShardFileSystemMismatch,
		v1alpha1.ShardMemoryTooSmall, v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume, v1alpha1.ShardUnschedulable,
		v1alpha1.ShardImagePull,
		v1alpha1.ShardCrashLooping, v1alpha1.ShardUnreachable,
	}
	for _, state := range all {
		if !seen[state] {
			t.Errorf("no test comes out at %s", state)
		}
	}
}

func equalStatus(a, b v1alpha1.ShardStatus) bool {
	return a.State == b.State && a.Message == b.Message && a.Groups == b.Groups && a.Load == b.Load &&
		a.MemoryNeedBytes == b.MemoryNeedBytes &&
		(a.Volume == nil) == (b.Volume == nil) && (a.Volume == nil || a.Volume.FreeBytes == b.Volume.FreeBytes &&
		a.Volume.UUID == b.Volume.UUID)
}

// A message that is too long is truncated, but never in the middle of a character.
func TestDecideShardBoundsMessages(t *testing.T) {
	o := serveWell()
	o.MessageMax = 50
	says(recordv1.ShardState_SHARD_STATE_PENDING, strings.Repeat("ß", 100))(o)
	if got := Decide(o).Message; len(got) > 50 || !strings.HasSuffix(got, "ß...") {
		t.Errorf("message %q", got)
	}
}

// The volume's UUID is taken only from a serving shard, and is kept while the shard does not answer.
func TestDecideShardVolume(t *testing.T) {
	o := serveWell()
	o.Last.Volume = &v1alpha1.VolumeStatus{}
	for _, state := range []recordv1.ShardState{recordv1.ShardState_SHARD_STATE_PENDING,
		recordv1.ShardState_SHARD_STATE_FOREIGN, recordv1.ShardState_SHARD_STATE_DISK_LOST,
		recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH} {
		o.Report.Shard.State = state
		if got := Decide(o); got.Volume.UUID != "" || got.Volume.FileSystem != "xfs" {
			t.Errorf("%s: volume %+v", state, got.Volume)
		}
	}
	o.Report.Shard.State = recordv1.ShardState_SHARD_STATE_SERVING
	o.Report.Shard.StoreUuid = "store-2"
	if got := Decide(o); got.Volume.UUID != "" {
		t.Errorf("another store's volume was recorded: %+v", got.Volume)
	}
	o.Report.Shard.StoreUuid = "STORE-1"
	got := Decide(o)
	if got.Volume.UUID != "vol-1" || got.Groups != 2 || got.ServingGroups != 1 || !got.Updated {
		t.Errorf("status %+v, volume %+v", got, got.Volume)
	}
	o.Last, o.Report, o.ReportErr = got, nil, errors.New("silent")
	if got := Decide(o); got.Volume.UUID != "vol-1" || got.Groups != 2 {
		t.Errorf("silent: status %+v, volume %+v", got, got.Volume)
	}
	// A shard that has opened no groups reports nothing about them.
	o.Report = &recordv1.ShardStatus{Shard: &recordv1.Shard{State: recordv1.ShardState_SHARD_STATE_PENDING}}
	if got := Decide(o); got.Groups != 2 {
		t.Errorf("pending: %d groups", got.Groups)
	}
}

// The status keeps the old value of a frequently changing number until the number has changed by at least one step.
func TestDecideShardSteps(t *testing.T) {
	o := serveWell()
	o.Report.Shard.CapacityBytes, o.Report.Shard.FreeBytes = 1000, 500
	o.Last = Decide(o)
	o.Report.Shard.FreeBytes = 460
	if got := Decide(o); got.Volume.FreeBytes != 500 {
		t.Errorf("4 %% less free: %d", got.Volume.FreeBytes)
	}
	o.Report.Shard.FreeBytes = 440
	if got := Decide(o); got.Volume.FreeBytes != 440 {
		t.Errorf("6 %% less free: %d", got.Volume.FreeBytes)
	}
	o.Report.Shard.FreeBytes, o.Report.Shard.ReserveBytes = 470, 480
	if got := Decide(o); got.Volume.FreeBytes > 480 {
		t.Errorf("full: %d", got.Volume.FreeBytes)
	}
	o = serveWell()
	o.Report.Shard.State, o.Report.Shard.Load = recordv1.ShardState_SHARD_STATE_LOADING,
		&recordv1.Load{BytesTotal: 100 << 20,
			BytesDone: 20 << 20, BytesPerSecond: 1 << 20, EtaSeconds: 80}
	o.Last = Decide(o)
	if o.Last.Load != "20% 1.0MiB/s ETA 1m" || o.Last.LoadPercent != 20 {
		t.Fatalf("load %q, %d%%", o.Last.Load, o.Last.LoadPercent)
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 1024: "1.0KiB", 1 << 30: "1.0GiB", 2040109465: "1.9GiB",
		300 << 20: "300MiB"} {
		if got := BytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
