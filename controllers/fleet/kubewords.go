package fleet

import (
	"regexp"
	"strings"
	"time"

	"sheaf.dev/sheaf/controllers/step"
)

// The scheduler and the kubelet describe some states only in English messages, and in the reasons why containers
// wait. The operator has to rely on these texts, because Kubernetes offers no other interface. All of the texts are
// in this file, and kubewords_test.go contains messages of actual Kubernetes releases. An unknown message makes a
// status less precise but never wrong, because the shard is then Pending, with the message from Kubernetes.

var (
	noVolume = regexp.MustCompile(
		`(?i)available persistent volumes? to bind|unbound immediate PersistentVolumeClaims|persistentvolumeclaim "[^"]*" not found|did ?n[o']t have enough free storage`)
	cannotFormat = regexp.MustCompile(
		`(?i)wrong fs type|already contains|partition table|mkfs|failed to format|cannot format|bad superblock|already formatted`)
	broken = regexp.MustCompile(
		`(?i)unexpected inconsistency|run fsck|fsck found errors|can't read superblock|structure needs cleaning`)
	absent = regexp.MustCompile(
		`(?i)input/output error|path "[^"]*" does not exist|failed to stat file|no such (file|device)|invalid path`)
)

// failedMount is the beginning of an event about a volume, in the format of step.Warnings.
const failedMount = "FailedMount: "

// VolumeGrace is how long a claim may wait for its volume before the wait counts as a problem. A DiskSet or a
// provisioner normally takes less.
const VolumeGrace = 15 * time.Second

// WantsVolume reports whether the scheduler's message says that the pod lacks its volume.
func WantsVolume(message string) bool { return noVolume.MatchString(message) }

// DeviceTaken reports whether an event says that the device already has content: another file system, a partition
// table, or the remains of one. The kubelet neither formats nor mounts such a device.
func DeviceTaken(event string) bool {
	if step.DeviceMissing(event) { // mkfs also mentions partition tables when the device is missing
		return false
	}
	return cannotFormat.MatchString(event) || strings.HasPrefix(event, failedMount) && broken.MatchString(event)
}

// DeviceLost reports whether an event says that the volume's device is missing or no longer holds an intact file
// system.
func DeviceLost(event string) bool {
	return DeviceTaken(event) || strings.HasPrefix(event, failedMount) && absent.MatchString(event)
}

// Waiting classifies the reason why a container does not run yet.
type Waiting int

// Kinds of reasons why a container waits.
const (
	// WaitingOther means that the container is starting, or that Kubernetes gives a reason that this package does not
	// know.
	WaitingOther   Waiting = iota
	WaitingImage           // the image cannot be pulled
	WaitingRestart         // the container keeps exiting, or it cannot be created
)

// WaitingFor classifies the reason why a container is waiting.
func WaitingFor(reason string) Waiting {
	switch reason {
	case ReasonImagePullBackOff, "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
		"ImageInspectError", "SignatureValidationFailed":
		return WaitingImage
	case "CrashLoopBackOff", "CreateContainerError", "CreateContainerConfigError", "RunContainerError":
		return WaitingRestart
	}
	return WaitingOther
}

const (
	// ReasonImagePullBackOff is the waiting reason of a container whose image the kubelet will try to pull again
	// later.
	ReasonImagePullBackOff = "ImagePullBackOff"
	// ReasonOOMKilled is the termination reason of a container that the kernel killed because it ran out of memory.
	ReasonOOMKilled = "OOMKilled"
)
