package shardpool

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
)

// TestEventWordsKeepBothEnds uses a message of the kubelet about a disk with a partition table. Only the end of that
// message gives the reason.
func TestEventWordsKeepBothEnds(t *testing.T) {
	device := "/dev/disk/by-id/virtio-table"
	message := `MountVolume.MountDevice failed for volume "table" : local: failed to mount device ` + device + " at " +
		strings.Repeat("/var/lib/kubelet/plugins",
			30) + ": wrong fs type, bad option, bad superblock on /dev/loop7, missing codepage or " +
		"helper program, or other error.\n       dmesg(1) may have more information after failed mount system call.\n"
	words := step.EventWords([]corev1.Event{{Reason: "FailedMount", Message: message}})
	if len(words) != 1 || !strings.Contains(words[0], device) || !fleet.DeviceTaken(words[0]) || len(words[0]) > 1000 {
		t.Fatalf("%q", words)
	}
}

// If a device does not exist, the cause is in the middle of a long message. The shortened message omits paths and the
// usage text, but keeps the cause.
func TestEventWordsKeepTheCause(t *testing.T) {
	const mount = "/var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts/disks-1a2b3c4d5e6f"
	for _, cause := range []string{
		"/dev/loop9: Can't open blockdev",
		"mkfs.ext4: Device size reported to be zero. Invalid partition specified, or partition table wasn't reread",
		"mkfs.xfs: device size reported to be zero?",
	} {
		message := fmt.Sprintf(`MountVolume.MountDevice failed for volume "disks-1a2b3c4d5e6f" : local: failed to mount `+
			`device /dev/disk/by-id/virtio-a at %s (fstype: xfs), error format of disk "/dev/disk/by-id/virtio-a" failed: `+
			`type:("xfs") target:(%q) options:("defaults") errcode:(exit status 1) output:(%s`+"\n%s"+
			`<devicename> is required unless -d name=xxx is given.)`, mount, mount, cause,
			strings.Repeat("/* usage */ [-b n]\n", 40))
		words := step.EventWords([]corev1.Event{{Reason: "FailedMount", Message: message}})
		if len(words) != 1 || !strings.Contains(words[0], cause) || !step.DeviceMissing(words[0]) ||
			fleet.DeviceTaken(words[0]) || len(words[0]) > 500 {
			t.Errorf("%q", words)
		}
	}
}
