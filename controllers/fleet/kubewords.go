package fleet

import (
	"regexp"
	"strings"
)

// What the scheduler and the kubelet say in English, and in reasons of a container that waits, and decisions depend on:
// Kubernetes has no other way of telling these things. All of it stands here; kubewords_test.go has what releases of
// Kubernetes say. A message that is not known makes a status less exact, and never a wrong one: the shard is Pending
// then, with the words of Kubernetes.

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

// failedMount begins an event about a volume, as step.Warnings give it.
const failedMount = "FailedMount: "

// WantsVolume tells whether the scheduler's message says that it is the volume that is missing.
func WantsVolume(message string) bool { return noVolume.MatchString(message) }

// DeviceTaken tells whether an event is of a device on which something is already: another file system, a partition
// table, or what is left of one. The kubelet neither formats nor mounts it.
func DeviceTaken(event string) bool {
	return cannotFormat.MatchString(event) || strings.HasPrefix(event, failedMount) && broken.MatchString(event)
}

// DeviceLost tells whether an event is of a device that a volume was on, and that holds no whole file system any more
// or is not there.
func DeviceLost(event string) bool {
	return DeviceTaken(event) || strings.HasPrefix(event, failedMount) && absent.MatchString(event)
}

// Waiting is why a container does not run yet.
type Waiting int

// Why a container waits.
const (
	WaitingOther   Waiting = iota // it is on its way, or Kubernetes gives a reason that is not known here
	WaitingImage                  // its image cannot be had
	WaitingRestart                // it does not stay up, or cannot be made
)

// WaitingFor reads the reason of a container that waits.
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
	// ReasonImagePullBackOff is of a container whose image the kubelet tries to get again later.
	ReasonImagePullBackOff = "ImagePullBackOff"
	// ReasonOOMKilled is of a container that the kernel killed for want of memory.
	ReasonOOMKilled = "OOMKilled"
)
