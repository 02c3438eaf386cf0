package shardpool

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
)

// TestEventWordsKeepBothEnds uses a kubelet's message about a disk with a partition table, which ends with the reason.
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
