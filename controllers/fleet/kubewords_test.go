package fleet

import "testing"

// These are messages of Kubernetes 1.36, and of tools whose messages Kubernetes passes on. They are built from the
// format strings in the named sources, with the device and volume names of the e2e suite. Not all of them have been
// seen in a cluster.
func TestMessagesOfKubernetes(t *testing.T) {
	for _, c := range []struct {
		source, message    string
		wants, taken, lost bool
	}{
		// From pkg/scheduler/framework/plugins/volumebinding:
		{"1.36.3 scheduler",
			"0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind. no new claims to " +
				"deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.", true, false, false},
		{"1.36.3 scheduler", "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found", true,
			false, false},
		{"1.36.3 scheduler", `persistentvolumeclaim "data-ssd-0-0" not found`, true, false, false},
		{"1.36.3 scheduler", "0/1 nodes are available: 1 node(s) did not have enough free storage.", true, false, false},
		{"1.36.3 scheduler", "0/3 nodes are available: 3 Insufficient memory.", false, false, false},
		{"1.36.3 scheduler",
			"0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match PersistentVolume's node " +
				"affinity.", false, false, false},
		// From k8s.io/mount-utils, mount_linux.go:
		{"mount-utils 0.36.3",
			`FailedMount: MountVolume.MountDevice failed for volume "disks-1" : local: failed to mount device /dev/disk/by-id/virtio-d at /var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts/disks-1 (fstype: xfs), error failed to mount the volume as "xfs", it already contains ext4. Mount error: mount failed: exit status 32`, false, true, true},
		{"mount-utils 0.36.3",
			`FailedMount: failed to mount the volume as "xfs", it already contains unknown data, probably partitions. Mount error: mount failed: exit status 32`, false, true, true},
		{"mount-utils 0.36.3",
			"FailedMount: format of disk \"/dev/loop3\" failed: type:(\"xfs\") target:(\"/mnt\") options:(\"defaults\") " +
				"errcode:(exit status 1) output:(mkfs.xfs: /dev/loop3 appears to contain an existing filesystem (ext4).\n)", false,
			true, true},
		{"mount-utils 0.36.3",
			"FailedMount: 'fsck' found errors on device /dev/loop1 but could not correct them: fsck from util-linux " +
				"2.38.1\n/dev/loop1: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.", false, true, true},
		// From mount(8) of util-linux, whose messages the kubelet repeats:
		{"util-linux 2.38",
			"FailedMount: mount failed: exit status 32 Output: mount: /mnt: wrong fs type, bad option, bad superblock on " +
				"/dev/loop3, missing codepage or helper program, or other error.", false, true, true},
		{"util-linux 2.38", "FailedMount: mount: /mnt: can't read superblock on /dev/loop3.", false, true, true},
		{"util-linux 2.38", "FailedMount: mount: /mnt: mount(2) system call failed: Structure needs cleaning.", false, true,
			true},
		{"util-linux 2.38",
			"FailedMount: mount: /mnt: special device /dev/disk/by-id/x does not exist: No such file or directory", false, false,
			true},
		// From pkg/volume/local:
		{"1.36.3 kubelet",
			`FailedMount: MountVolume.NewMounter initialization failed for volume "pv" : path "/dev/disk/by-id/a" does not exist`, false, false, true},
		{"1.36.3 kubelet", "FailedMount: blkid: /dev/loop3: Input/output error", false, false, true},
		// These messages have nothing to do with volumes.
		{"containerd 1.6", "FailedCreatePodSandBox: plugin type=\"bridge\" failed: open /run/cni: no such file or directory",
			false, false, false},
		{"1.36.3 kubelet", `FailedMount: MountVolume.SetUp failed for volume "config" : configmap "x" not found`, false,
			false, false},
	} {
		if wants, taken, lost := WantsVolume(c.message), DeviceTaken(c.message), DeviceLost(c.message); wants != c.wants ||
			taken != c.taken || lost != c.lost {
			t.Errorf("%s: %s: a volume is missing %t, the device is taken %t, lost %t", c.source, c.message, wants, taken, lost)
		}
	}
	for reason, want := range map[string]Waiting{
		"ContainerCreating": WaitingOther, "PodInitializing": WaitingOther, "": WaitingOther, "ErrImagePull": WaitingImage,
		"ImagePullBackOff": WaitingImage,
		"InvalidImageName": WaitingImage, "CrashLoopBackOff": WaitingRestart, "CreateContainerConfigError": WaitingRestart,
	} {
		if got := WaitingFor(reason); got != want {
			t.Errorf("%q: %d", reason, got)
		}
	}
}
