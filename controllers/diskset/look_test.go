package diskset

import (
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// notBlank is the condition of a Job that has found something on a disk.
var notBlank = batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue,
	Reason: batchv1.JobReasonPodFailurePolicy}

// No claim gets a disk before a Job has found the disk blank, and afterwards all objects of the Job are deleted.
func TestDiskIsInspectedBeforeItIsAssigned(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	w.ends["/dev/disk/by-id/a"] = batchv1.JobCondition{} // the Job is running
	w.claim("data-p-0-0", "1Gi")
	d := w.settle()
	wantState(t, d, 0, v1alpha1.DiskLooking, "")
	if len(d.waiting) != 1 || !strings.Contains(d.waiting[0], "before it is known whether 1 disk is blank") {
		t.Errorf("the claim waits because %q", d.waiting)
	}
	looking := workload.LookVolumeName(d.statuses[0].PersistentVolume)
	job := w.o.jobs[looking].job
	pod := job.Spec.Template.Spec
	if !pod.Volumes[0].PersistentVolumeClaim.ReadOnly || pod.SecurityContext.FSGroup != nil {
		t.Errorf("the Job can change the disk: %+v", pod)
	}
	job.Status.Conditions[0] = batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}
	wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/data-p-0-0")
	if seen := w.o.jobs[looking]; seen.job != nil || seen.claim != nil || w.volume(looking) != nil {
		t.Errorf("the Job is still there: %+v", seen)
	}
}

// If a disk already has contents when it is added to the DiskSet, it remains untouched until an administrator decides
// what to do with it.
func TestDiskWithDataIsNotAssigned(t *testing.T) {
	newWorld := func() (*diskWorld, *corev1.PersistentVolume) {
		w := newDiskWorld(disk("n1", "a", "1Gi"))
		w.ends["/dev/disk/by-id/a"] = notBlank
		w.claim("data-p-0-0", "1Gi")
		d := w.settle()
		wantState(t, d, 0, v1alpha1.DiskNotBlank, "")
		pv := w.volume(d.statuses[0].PersistentVolume)
		for _, says := range []string{"logs job/" + workload.LookName(pv.Name), wipeCommand(pv.Name),
			releaseCommand(pv.Name)} {
			if !strings.Contains(d.statuses[0].Message, says) {
				t.Errorf("%q does not say %q", d.statuses[0].Message, says)
			}
		}
		return w, pv
	}
	looking := func(w *diskWorld, pv *corev1.PersistentVolume) bool {
		name := workload.LookVolumeName(pv.Name)
		return w.volume(name) != nil || w.o.jobs[name].job != nil || w.o.jobs[name].claim != nil
	}

	w, pv := newWorld()
	pv.Annotations[workload.AnnotationRelease] = "true"
	wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/data-p-0-0")
	if pv = w.volume(pv.Name); pv.Annotations[workload.AnnotationRelease] != "" || looking(w, pv) {
		t.Errorf("after it was released: annotations %v, looking %t", pv.Annotations, looking(w, pv))
	}

	w, pv = newWorld()
	w.ends = nil // an administrator has wiped the disk without the operator
	w.o.jobs[workload.LookVolumeName(pv.Name)] = observedJob{}
	wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/data-p-0-0")

	w, pv = newWorld()
	pv.Annotations[workload.AnnotationWipe] = "true"
	d := w.settle()
	wantState(t, d, 0, v1alpha1.DiskNotBlank, "")
	if !strings.Contains(d.statuses[0].Message, "data that was there before the DiskSet on this disk is lost") {
		t.Errorf("the question is %q", d.statuses[0].Message)
	}
	name := d.statuses[0].PersistentVolume
	w.volume(name).Annotations[workload.AnnotationWipeConfirm] = workload.WipeToken(w.volume(name))
	w.ends = nil // the wiping Job completes, and the next inspection finds the disk blank
	wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/data-p-0-0")
	if pv = w.volume(name); looking(w, pv) || w.volume(workload.WipeVolumeName(pv.Name)) != nil {
		t.Error("what wiped it, or looked at it, is still there")
	}

	w, pv = newWorld()
	name = pv.Name
	w.o.set.Spec.Disks = []v1alpha1.Disk{disk("n1", "b", "1Gi")}
	w.settle()
	if w.volume(name) != nil || w.volume(workload.LookVolumeName(name)) != nil {
		t.Errorf("volumes of a disk that was taken out of the spec remain: %v", w.o.volumes)
	}
}

// If the operator cannot inspect a disk, no claim gets the disk.
func TestUninspectedDiskIsNotAssigned(t *testing.T) {
	for says, prepare := range map[string]func(*diskWorld){
		"does not know its own namespace": func(w *diskWorld) { w.o.namespace = "" },
		"the image of Sheaf":              func(w *diskWorld) { w.o.image = "" },
		"could not be checked": func(w *diskWorld) {
			w.ends["/dev/disk/by-id/a"] = batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue,
				Reason: batchv1.JobReasonBackoffLimitExceeded}
		},
		"did not make: delete it": func(w *diskWorld) {
			theirs := workload.LookVolume(workload.DiskPersistentVolume(w.o.set, disk("n1", "a", "1Gi")), "theirs", "theirs")
			theirs.Spec.Local.Path = "/dev/theirs"
			w.o.volumes = append(w.o.volumes, *theirs)
		},
	} {
		w := newDiskWorld(disk("n1", "a", "1Gi"))
		prepare(w)
		w.claim("data-p-0-0", "1Gi")
		d := w.settle()
		wantState(t, d, 0, v1alpha1.DiskLookFailed, "")
		if !strings.Contains(d.statuses[0].Message, says) {
			t.Errorf("%q does not say %q", d.statuses[0].Message, says)
		}
		w.volume(d.statuses[0].PersistentVolume).Annotations[workload.AnnotationRelease] = "true"
		wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/data-p-0-0")
	}
}

// Disks that a claim has or had before an upgrade of the operator are not inspected, because they are not blank.
func TestDiskInUseIsNotInspected(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	w.bindDisk("data-p-0-0", "1Gi")
	delete(w.o.volumes[0].Annotations, workload.AnnotationLooked)
	wantState(t, w.settle(), 0, v1alpha1.DiskBound, "prod/data-p-0-0")
	w.forget("data-p-0-0")
	wantState(t, w.settle(), 0, v1alpha1.DiskReleased, "prod/data-p-0-0")
	w.o.volumes[0].Annotations[workload.AnnotationRelease] = "true"
	w.ends["/dev/disk/by-id/a"] = notBlank
	wantState(t, w.settle(), 0, v1alpha1.DiskFree, "")
	if len(w.o.volumes) != 1 {
		t.Errorf("%d volumes", len(w.o.volumes))
	}
}

// The number of Jobs that run for a DiskSet at the same time is limited, even if it has many disks.
func TestConcurrentInspectionsAreLimited(t *testing.T) {
	var disks []v1alpha1.Disk
	for n := range inspectionsMax + 5 {
		disks = append(disks, disk("n1", fmt.Sprintf("d%d", n), "1Gi"))
	}
	w := newDiskWorld(disks...)
	for _, d := range disks {
		w.ends[d.Device] = batchv1.JobCondition{}
	}
	w.settle()
	if jobs := len(w.o.jobs); jobs != inspectionsMax {
		t.Errorf("%d Jobs, want %d", jobs, inspectionsMax)
	}
	w.ends = nil
	w.o.jobs = map[string]observedJob{}
	for n, s := range w.settle().statuses {
		if s.State != v1alpha1.DiskFree {
			t.Errorf("disk %d is %s", n, s.State)
		}
	}
}

// If a volume has content that the operator would never write, the other disks of the DiskSet are assigned
// nevertheless.
func TestUnexpectedVolumeDoesNotBlockOtherDisks(t *testing.T) {
	pvOf := func(w *diskWorld, device string) *corev1.PersistentVolume {
		return w.volume(workload.DiskVolume(w.o.set.Name, disk("n1", device, "1Gi")))
	}
	raw := func(w *diskWorld, make func(*corev1.PersistentVolume, string, string) *corev1.PersistentVolume) {
		pv := make(workload.DiskPersistentVolume(w.o.set, disk("n1", "a", "1Gi")), "local", "sheaf-system")
		pv.Spec.ClaimRef = nil
		w.o.volumes = append(w.o.volumes, *pv)
	}
	for name, c := range map[string]struct {
		prepare func(*diskWorld)
		state   v1alpha1.DiskState
		says    string
	}{
		"not of a local disk": {func(w *diskWorld) {
			pv := workload.DiskPersistentVolume(w.o.set, disk("n1", "a", "1Gi"))
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}
			pv.Spec.NodeAffinity, pv.Spec.ClaimRef = nil, nil
			w.o.volumes = append(w.o.volumes, *pv)
		}, v1alpha1.DiskConflict, "that this DiskSet did not make"},
		"a look for nobody, of an earlier DiskSet": {func(w *diskWorld) { raw(w, workload.LookVolume) },
			v1alpha1.DiskFree, ""},
		"a look for nobody": {func(w *diskWorld) {
			w.ends["/dev/disk/by-id/a"] = batchv1.JobCondition{}
			w.settle()
			w.volume(workload.LookVolumeName(pvOf(w, "a").Name)).Spec.ClaimRef = nil
		}, v1alpha1.DiskLookFailed, "was changed by hand"},
		"a wipe for nobody": {func(w *diskWorld) { raw(w, workload.WipeVolume) }, v1alpha1.DiskWipeFailed,
			"was changed by hand"},
		"without a node": {func(w *diskWorld) {
			pv := workload.DiskPersistentVolume(w.o.set, disk("n1", "a", "1Gi"))
			pv.Spec.NodeAffinity, pv.Annotations, pv.Spec.ClaimRef = nil, nil, nil
			w.o.volumes = append(w.o.volumes, *pv)
		}, v1alpha1.DiskFree, ""},
		"annotations of a person": {func(w *diskWorld) {
			w.settle()
			for _, key := range []string{workload.AnnotationWipe, workload.AnnotationWipeConfirm, workload.AnnotationWipes,
				workload.AnnotationLooks, workload.AnnotationStoreUID, workload.AnnotationGivenUp} {
				pvOf(w, "a").Annotations[key] = "?"
			}
		}, v1alpha1.DiskFree, ""},
	} {
		w := newDiskWorld(disk("n1", "a", "1Gi"), disk("n1", "b", "1Gi"))
		c.prepare(w)
		d := w.settle()
		wantState(t, d, 0, c.state, "")
		if !strings.Contains(d.statuses[0].Message, c.says) {
			t.Errorf("%s: %q does not say %q", name, d.statuses[0].Message, c.says)
		}
		wantState(t, d, 1, v1alpha1.DiskFree, "")
	}
}
