package diskset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// diskWorld is a small simulated cluster that carries out decisions.
type diskWorld struct {
	o observedDisks
	// ends holds, by device, the condition with which the Job that inspects the device ends. The Jobs for other devices
	// complete.
	ends map[string]batchv1.JobCondition
}

func newDiskWorld(disks ...v1alpha1.Disk) *diskWorld {
	w := &diskWorld{ends: map[string]batchv1.JobCondition{}, o: observedDisks{
		namespace: "sheaf-system", image: "sheaf:1", jobs: map[string]observedJob{},
		set: &v1alpha1.DiskSet{
			ObjectMeta: metav1.ObjectMeta{Name: "local", CreationTimestamp: metav1.NewTime(time.Unix(1000, 0))},
			Spec: v1alpha1.DiskSetSpec{
				FileSystem: v1alpha1.FileSystem{Type: v1alpha1.XFS}, Namespaces: []string{"prod"}, Disks: disks,
			},
		},
		nodes: map[string]corev1.Node{}, stores: map[string]string{"prod/quotes": "uid-1"}, pools: map[string]bool{},
		blocked: map[string]v1alpha1.ShardStatus{},
		givenUp: map[types.UID]bool{},
	}}
	for _, d := range disks {
		w.node(d.Node, true)
	}
	return w
}

func disk(node, device, size string) v1alpha1.Disk {
	return v1alpha1.Disk{Node: node, Device: "/dev/disk/by-id/" + device, Size: resource.MustParse(size)}
}

func (w *diskWorld) node(name string, ready bool) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	w.o.nodes[name] = corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}},
	}
}

func (w *diskWorld) claim(name, size string) {
	w.o.claims = append(w.o.claims, corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name,
			Labels: map[string]string{v1alpha1.LabelStore: "quotes"}},
		Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		}},
	})
}

// bindDisk creates a claim, and binds a disk to it.
func (w *diskWorld) bindDisk(name, size string) {
	w.claim(name, size)
	w.settle()
	w.bind()
}

// settle carries out decisions, as the API server would, until a decision has no actions.
func (w *diskWorld) settle() decidedDisks {
	for range 10 {
		d := decideDisks(&w.o)
		if len(d.actions) == 0 {
			return d
		}
		for _, a := range d.actions {
			switch {
			case a.make != nil || a.unmake != nil:
				w.job(a)
			case a.create != nil:
				a.create.Status.Phase = corev1.VolumeAvailable
				w.o.volumes = append(w.o.volumes, *a.create)
			case a.remove != nil:
				w.o.volumes = slices.DeleteFunc(w.o.volumes, func(pv corev1.PersistentVolume) bool {
					return pv.Name == a.remove.Name
				})
			default:
				*w.volume(a.after.Name) = *a.after
				if ref := a.after.Spec.ClaimRef; ref == nil || ref.UID == "" {
					w.volume(a.after.Name).Status.Phase = corev1.VolumeAvailable
				}
			}
		}
	}
	panic("decisions do not come to an end")
}

// job creates or deletes a Job or the claim of a Job. A Job ends as soon as it is created.
func (w *diskWorld) job(a diskAction) {
	for _, pv := range w.o.volumes {
		if pv.Spec.ClaimRef == nil {
			continue
		}
		seen := w.o.jobs[pv.Name]
		switch o := cmp.Or(a.make, a.unmake).(type) {
		case *batchv1.Job:
			if pv.Spec.ClaimRef.Name != o.Name {
				continue
			}
			seen.job = nil
			if a.make != nil {
				end, different := w.ends[pv.Spec.Local.Path]
				if !different {
					end = batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}
				}
				seen.job = o.DeepCopy()
				seen.job.Status.Conditions = append(seen.job.Status.Conditions, end)
			}
		case *corev1.PersistentVolumeClaim:
			if pv.Spec.ClaimRef.Name != o.Name {
				continue
			}
			if seen.claim = nil; a.make != nil {
				seen.claim = o
			}
		}
		w.o.jobs[pv.Name] = seen
	}
}

func (w *diskWorld) volume(name string) *corev1.PersistentVolume {
	for n := range w.o.volumes {
		if w.o.volumes[n].Name == name {
			return &w.o.volumes[n]
		}
	}
	return nil
}

// bind simulates Kubernetes' volume controller for reserved volumes.
func (w *diskWorld) bind() {
	for n := range w.o.volumes {
		pv := &w.o.volumes[n]
		for c := range w.o.claims {
			claim := &w.o.claims[c]
			if ref := pv.Spec.ClaimRef; ref != nil && ref.UID == "" && ref.Namespace == claim.Namespace &&
				ref.Name == claim.Name {
				claim.UID = types.UID("claim-" + claim.Name)
				ref.UID, claim.Spec.VolumeName, pv.Status.Phase = claim.UID, pv.Name, corev1.VolumeBound
			}
		}
	}
}

// forget deletes a claim, which releases its volume.
func (w *diskWorld) forget(claim string) {
	w.o.claims = slices.DeleteFunc(w.o.claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == claim })
	for n := range w.o.volumes {
		if ref := w.o.volumes[n].Spec.ClaimRef; ref.Name == claim && ref.UID != "" {
			w.o.volumes[n].Status.Phase = corev1.VolumeReleased
		}
	}
}

func wantState(t *testing.T, d decidedDisks, n int, state v1alpha1.DiskState, claim string) {
	t.Helper()
	if got := d.statuses[n]; got.State != state || got.Claim != claim {
		t.Fatalf("disk %d is %s for %q (%s), want %s for %q", n, got.State, got.Claim, got.Message, state, claim)
	}
}

func TestAFreeDiskIsHeldForNobody(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	wantState(t, w.settle(), 0, v1alpha1.DiskFree, "")
	pv := w.o.volumes[0]
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Namespace != "prod" || ref.Name != "sheaf-free-"+pv.Name ||
		ref.UID != "" {
		t.Fatalf("a claim of anybody could take it: %+v", ref)
	}
}

func TestShardsOfAStoreLandOnDifferentNodes(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"), disk("n1", "b", "1Gi"), disk("n2", "a", "2Gi"))
	w.claim("data-p-0-0", "512Mi")
	w.claim("data-p-1-0", "512Mi")
	d := w.settle()
	wantState(t, d, 0, v1alpha1.DiskReserved, "prod/data-p-0-0")
	wantState(t, d, 1, v1alpha1.DiskFree, "")
	wantState(t, d, 2, v1alpha1.DiskReserved, "prod/data-p-1-0")
	w.bind()
	wantState(t, w.settle(), 2, v1alpha1.DiskBound, "prod/data-p-1-0")
}

func TestSmallOrUnreachableDiskIsNotAssigned(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"), disk("n2", "a", "4Gi"))
	w.node("n2", false)
	w.claim("data-p-0-0", "2Gi")
	d := w.settle()
	if len(d.waiting) != 1 {
		t.Fatalf("waiting: %q", d.waiting)
	}
	w.node("n2", true)
	wantState(t, w.settle(), 1, v1alpha1.DiskReserved, "prod/data-p-0-0")
}

// The message of a claim that waits for a disk says why none of the existing disks fits.
func TestWaitingClaimExplainsWhyNoDiskFits(t *testing.T) {
	kept := workload.DiskVolume("local", disk("n1", "a", "10Gi"))
	for says, prepare := range map[string]func(*diskWorld){
		"claim prod/data-b asks for 20Gi, and no disk is free": func(w *diskWorld) {
			w.claim("data-a", "5Gi")
		},
		"claim prod/data-b asks for 20Gi, and no free disk is on a node that is ready (1 free)": func(w *diskWorld) {
			w.node("n1", false)
		},
		"claim prod/data-b asks for 20Gi, and the largest free disk of a ready node, /dev/disk/by-id/a on n1, has 10Gi": func(
			*diskWorld) {
		},
		"claim prod/data-b asks for 20Gi, and gets no other disk than that of PersistentVolume " + kept + ", which " +
			"annotation sheaf.dev/for-claim keeps for it: the disk is Free and has 10Gi": func(w *diskWorld) {
			w.o.set.Spec.Disks = append(w.o.set.Spec.Disks, disk("n2", "b", "30Gi"))
			w.node("n2", true)
			w.settle()
			step.Annotate(&w.volume(kept).Annotations, workload.AnnotationForClaim, "prod/data-b")
		},
	} {
		w := newDiskWorld(disk("n1", "a", "10Gi"))
		prepare(w)
		w.claim("data-b", "20Gi")
		if d := w.settle(); len(d.waiting) != 1 || d.waiting[0] != says {
			t.Errorf("%q, want %q", d.waiting, says)
		}
	}
}

// After a disk was measured, no store gets it until an administrator releases it. The same Job may measure it again.
func TestABenchJobGetsADisk(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	w.o.stores = nil // disks are measured before a store is created
	bench := func() {
		w.claim("sheaf-bench", "1Gi")
		w.o.claims[len(w.o.claims)-1].Labels = map[string]string{v1alpha1.LabelComponent: v1alpha1.ComponentBench}
	}
	bench()
	wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/sheaf-bench")
	w.bind()
	wantState(t, w.settle(), 0, v1alpha1.DiskBound, "prod/sheaf-bench")
	w.forget("sheaf-bench")
	w.o.stores = map[string]string{"prod/quotes": "uid-1"}
	w.claim("data-p-0-0", "1Gi")
	d := w.settle()
	wantState(t, d, 0, v1alpha1.DiskReleased, "prod/sheaf-bench")
	if message := d.statuses[0].Message; !strings.Contains(message, "kubectl annotate pv "+w.o.volumes[0].Name) ||
		!strings.Contains(message, "measured") {
		t.Errorf("message %q", message)
	}
	bench()
	wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/sheaf-bench")
	w.bind()
	w.forget("sheaf-bench")
	w.settle()
	w.o.volumes[0].Annotations[workload.AnnotationRelease] = "true"
	wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/data-p-0-0")
}

// A claim that a deleted pool left behind gets no disk and reserves none, and the DiskSet does not wait for it.
func TestOrphanedClaimGetsNoDisk(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	w.claim("data-p-0-0", "1Gi")
	w.o.claims[0].Labels[v1alpha1.LabelPool] = "p"
	d := w.settle()
	wantState(t, d, 0, v1alpha1.DiskFree, "")
	if len(d.waiting) > 0 {
		t.Errorf("waiting: %q", d.waiting)
	}
	w.o.pools = map[string]bool{"prod/p": true}
	wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/data-p-0-0")
	w.o.pools["prod/p"] = false // the pool is being deleted
	wantState(t, w.settle(), 0, v1alpha1.DiskFree, "")
	w.o.pools["prod/p"] = true
	w.settle()
	w.bind()
	w.o.pools = nil
	wantState(t, w.settle(), 0, v1alpha1.DiskBound, "prod/data-p-0-0") // the claim has data, so it keeps its disk
	w.claim("data-q-0-0", "1Gi")
	if d := w.settle(); len(d.waiting) != 1 || !strings.Contains(d.waiting[0], "no disk is free") {
		t.Errorf("waiting: %q", d.waiting)
	}
}

func TestAReservationEndsWithItsClaim(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	w.claim("data-p-0-0", "1Gi")
	w.settle()
	w.o.claims = nil
	wantState(t, w.settle(), 0, v1alpha1.DiskFree, "")
}

func TestAReleasedDiskComesBackOnlyToItsStore(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"), disk("n2", "a", "1Gi"))
	w.bindDisk("data-p-0-0", "1Gi")
	w.forget("data-p-0-0")
	wantState(t, w.settle(), 0, v1alpha1.DiskReleased, "prod/data-p-0-0")
	// A different store of the same name gets a different disk.
	w.o.stores["prod/quotes"] = "uid-2"
	w.claim("data-p-0-0", "1Gi")
	d := w.settle()
	wantState(t, d, 0, v1alpha1.DiskReleased, "prod/data-p-0-0")
	wantState(t, d, 1, v1alpha1.DiskReserved, "prod/data-p-0-0")
	// A store with the same UID gets its own disk back.
	w = newDiskWorld(disk("n1", "a", "1Gi"), disk("n2", "a", "1Gi"))
	w.bindDisk("data-p-0-0", "1Gi")
	w.forget("data-p-0-0")
	w.claim("data-p-0-0", "1Gi")
	wantState(t, w.settle(), 0, v1alpha1.DiskReserved, "prod/data-p-0-0")
}

// A replaced disk is not assigned again, even after every pool has removed its claim from the list of replaced claims.
// Another disk of the same node takes its place.
func TestReplacedDiskIsNotReused(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"), disk("n1", "b", "1Gi"), disk("n2", "a", "1Gi"), disk("n2", "b", "1Gi"))
	w.claim("data-p-0-0", "1Gi")
	w.bindDisk("data-p-1-0", "1Gi")
	wantState(t, w.settle(), 2, v1alpha1.DiskBound, "prod/data-p-1-0")
	w.o.givenUp["claim-data-p-1-0"] = true
	wantState(t, w.settle(), 2, v1alpha1.DiskBound, "prod/data-p-1-0") // the disk remains bound while the claim exists
	w.forget("data-p-1-0")
	w.claim("data-p-1-0", "1Gi")
	d := w.settle()
	wantState(t, d, 2, v1alpha1.DiskReleased, "prod/data-p-1-0")
	if !strings.Contains(d.statuses[2].Message, "it was replaced") {
		t.Errorf("it says %q", d.statuses[2].Message)
	}
	wantState(t, d, 3, v1alpha1.DiskReserved, "prod/data-p-1-0")
	w.bind()
	w.o.givenUp = map[types.UID]bool{}
	w.forget("data-p-1-0")
	w.claim("data-p-1-0", "1Gi")
	wantState(t, w.settle(), 3, v1alpha1.DiskReserved, "prod/data-p-1-0")
	// After an administrator has wiped the disk, the administrator may release it for any claim.
	w.volume(d.statuses[2].PersistentVolume).Annotations[workload.AnnotationRelease] = "true"
	wantState(t, w.settle(), 2, v1alpha1.DiskFree, "")
	if a := w.volume(d.statuses[2].PersistentVolume).Annotations; a[workload.AnnotationGivenUp] != "" {
		t.Errorf("annotations stay: %v", a)
	}
}

func TestAPersonFreesAReleasedDisk(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	w.bindDisk("data-p-0-0", "1Gi")
	w.forget("data-p-0-0")
	w.settle()
	w.o.volumes[0].Annotations[workload.AnnotationRelease] = "true"
	wantState(t, w.settle(), 0, v1alpha1.DiskFree, "")
	if a := w.o.volumes[0].Annotations; a[workload.AnnotationRelease] != "" || a[workload.AnnotationStoreUID] != "" {
		t.Fatalf("annotations stay: %v", a)
	}
	// The annotation has no effect on a bound disk.
	w.bindDisk("data-p-0-0", "1Gi")
	w.o.volumes[0].Annotations[workload.AnnotationRelease] = "true"
	wantState(t, w.settle(), 0, v1alpha1.DiskBound, "prod/data-p-0-0")
}

func TestTheOlderSetKeepsADisk(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	other := v1alpha1.DiskSet{ObjectMeta: metav1.ObjectMeta{Name: "other",
		CreationTimestamp: metav1.NewTime(time.Unix(10, 0))}}
	other.Spec.Disks = []v1alpha1.Disk{disk("n1", "a", "1Gi")}
	w.o.others = []v1alpha1.DiskSet{other}
	wantState(t, w.settle(), 0, v1alpha1.DiskConflict, "")
	if len(w.o.volumes) != 0 {
		t.Fatal("a second volume was made of the disk")
	}
	w.o.others[0].CreationTimestamp = metav1.NewTime(time.Unix(2000, 0))
	wantState(t, w.settle(), 0, v1alpha1.DiskFree, "")
}

func TestForeignVolumeIsAConflict(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	foreign := workload.DiskPersistentVolume(w.o.set, disk("n1", "a", "1Gi"))
	foreign.Name, foreign.Labels = "mine", nil
	w.o.volumes = []corev1.PersistentVolume{*foreign}
	wantState(t, w.settle(), 0, v1alpha1.DiskConflict, "")
}

func TestADiskTakenOutOfTheSpecStaysWhileItIsBound(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"), disk("n2", "b", "1Gi"))
	w.bindDisk("data-p-0-0", "1Gi")
	w.o.set.Spec.Disks = w.o.set.Spec.Disks[1:]
	d := w.settle()
	wantState(t, d, 1, v1alpha1.DiskRemoved, "prod/data-p-0-0")
	w.o.set.Spec.Disks = []v1alpha1.Disk{disk("n1", "a", "1Gi")}
	d = w.settle()
	wantState(t, d, 0, v1alpha1.DiskBound, "prod/data-p-0-0")
	if len(w.o.volumes) != 1 {
		t.Fatalf("%d volumes, want the free one gone", len(w.o.volumes))
	}
}

// If a disk was moved to another node with its data, a message says so. Once an administrator confirms the move, the
// claim of the disk gets the disk on the new node. The claim gets no other disk, and no other claim gets this disk.
func TestMovedDiskKeepsItsClaim(t *testing.T) {
	const claim, key = "data-p-0-0", "prod/data-p-0-0"
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	w.claim(claim, "1Gi")
	w.settle()
	w.bind()
	old := w.o.volumes[0].Name
	w.ends = map[string]batchv1.JobCondition{"/dev/disk/by-id/a": notBlank}
	w.node("n2", true)
	w.node("n3", true)
	// The free disk on n0 would be the better choice, because of its node and its size.
	w.node("n0", true)
	w.o.set.Spec.Disks = []v1alpha1.Disk{disk("n2", "a", "2Gi"), disk("n0", "b", "1Gi")}
	d := w.settle()
	wantState(t, d, 0, v1alpha1.DiskNotBlank, "")
	wantState(t, d, 1, v1alpha1.DiskFree, "")
	wantState(t, d, 2, v1alpha1.DiskRemoved, key)
	moved := d.statuses[0].PersistentVolume
	for _, says := range []string{"disk of claim " + key + ", carried here from node n1: then do not wipe it",
		"Move a disk to another node"} {
		if !strings.Contains(d.statuses[0].Message, says) {
			t.Errorf("%q does not say %q", d.statuses[0].Message, says)
		}
	}
	for _, says := range []string{"for node n2 now, as PersistentVolume " + moved, "claim " + key, "only run on node n1",
		"Move a disk to another node", "put the disk back"} {
		if !strings.Contains(d.statuses[2].Message, says) {
			t.Errorf("%q does not say %q", d.statuses[2].Message, says)
		}
	}

	w.forget(claim)
	w.o.volumes = slices.DeleteFunc(w.o.volumes, func(pv corev1.PersistentVolume) bool { return pv.Name == old })
	step.Annotate(&w.volume(moved).Annotations, workload.AnnotationForClaim, key)
	step.Annotate(&w.volume(moved).Annotations, workload.AnnotationRelease, "true")
	w.claim("data-p-10-0", "2Gi")
	d = w.settle()
	wantState(t, d, 0, v1alpha1.DiskFree, "")
	if !strings.Contains(d.statuses[0].Message, "kept for claim "+key) || len(d.waiting) != 1 ||
		!strings.Contains(d.waiting[0], "/dev/disk/by-id/b on n0, has 1Gi") {
		t.Errorf("%q; %q", d.statuses[0].Message, d.waiting)
	}
	w.claim(claim, "1Gi")
	d = w.settle()
	wantState(t, d, 0, v1alpha1.DiskReserved, key)
	wantState(t, d, 1, v1alpha1.DiskFree, "")
}

// A disk that an administrator has reserved for a claim remains reserved until it is bound, because the claim may be
// deleted before that.
func TestADiskIsKeptForItsClaimUntilItIsBound(t *testing.T) {
	const claim, key = "data-p-0-0", "prod/data-p-0-0"
	for name, c := range map[string]struct {
		then  func(*diskWorld)
		state v1alpha1.DiskState
		of    string
		kept  bool
	}{
		"reserved": {func(*diskWorld) {}, v1alpha1.DiskReserved, key, true},
		"given up": {func(w *diskWorld) { w.forget(claim) }, v1alpha1.DiskFree, "", true},
		"given up, and another claim asks": {func(w *diskWorld) {
			w.forget(claim)
			w.claim("data-p-10-0", "1Gi")
		}, v1alpha1.DiskFree, "", true},
		"given up, and made again": {func(w *diskWorld) {
			w.forget(claim)
			w.settle()
			w.claim(claim, "1Gi")
		}, v1alpha1.DiskReserved, key, true},
		"bound": {(*diskWorld).bind, v1alpha1.DiskBound, key, false},
		"bound and released": {func(w *diskWorld) {
			w.bind()
			w.settle()
			w.forget(claim)
		}, v1alpha1.DiskReleased, key, false},
	} {
		w := newDiskWorld(disk("n1", "a", "1Gi"))
		w.settle()
		step.Annotate(&w.o.volumes[0].Annotations, workload.AnnotationForClaim, key)
		w.claim(claim, "1Gi")
		w.settle()
		c.then(w)
		got := w.settle().statuses[0]
		_, kept := w.o.volumes[0].Annotations[workload.AnnotationForClaim]
		if got.State != c.state || got.Claim != c.of || kept != c.kept {
			t.Errorf("%s: it is %s for %q, and kept is %v", name, got.State, got.Claim, kept)
		}
	}
}

// If the spec has the same device path on several nodes, the path does not identify a moved disk.
func TestSameDevicePathOnOtherNodeIsAnotherDisk(t *testing.T) {
	w := newDiskWorld(disk("n1", "a", "1Gi"))
	w.bindDisk("data-p-0-0", "1Gi")
	w.node("n2", true)
	w.node("n3", true)
	w.ends = map[string]batchv1.JobCondition{"/dev/disk/by-id/a": notBlank}
	w.o.set.Spec.Disks = []v1alpha1.Disk{disk("n2", "a", "1Gi"), disk("n3", "a", "1Gi")}
	d := w.settle()
	wantState(t, d, 0, v1alpha1.DiskNotBlank, "")
	if strings.Contains(d.statuses[0].Message, "carried") {
		t.Errorf("%q", d.statuses[0].Message)
	}
	wantState(t, d, 2, v1alpha1.DiskRemoved, "prod/data-p-0-0")
	if !strings.Contains(d.statuses[2].Message, "no longer in spec.disks") {
		t.Errorf("%q", d.statuses[2].Message)
	}
}

func TestANodeThatDoesNotExistIsNamed(t *testing.T) {
	w := newDiskWorld(disk("n9", "a", "1Gi"))
	delete(w.o.nodes, "n9")
	wantState(t, w.settle(), 0, v1alpha1.DiskNodeMissing, "")
}

// In whatever order claims are created and deleted, no disk has two claims, no claim has two disks, and no bound disk
// is taken from its claim.
func TestDisksAreNeverGivenTwice(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		var disks []v1alpha1.Disk
		for n := range rapid.IntRange(1, 6).Draw(t, "disks") {
			disks = append(disks, disk(fmt.Sprintf("n%d", n%3), fmt.Sprintf("d%d", n), fmt.Sprintf("%dGi", 1+n%3)))
		}
		w := newDiskWorld(disks...)
		bound := map[string]types.UID{}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			name := fmt.Sprintf("data-p-%d-0", rapid.IntRange(0, 7).Draw(t, "claim"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				if !slices.ContainsFunc(w.o.claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == name }) {
					w.claim(name, fmt.Sprintf("%dGi", rapid.IntRange(1, 4).Draw(t, "size")))
				}
			case 1:
				w.forget(name)
				delete(bound, name)
			case 2:
				w.bind()
			case 3:
				w.node(fmt.Sprintf("n%d", rapid.IntRange(0, 2).Draw(t, "node")), rapid.Bool().Draw(t, "ready"))
			}
			d := w.settle()
			holders := map[string]int{}
			for _, s := range d.statuses {
				if s.State == v1alpha1.DiskBound || s.State == v1alpha1.DiskReserved {
					holders[s.Claim]++
				}
			}
			for claim, n := range holders {
				if n > 1 {
					t.Fatalf("claim %s holds %d disks", claim, n)
				}
			}
			for _, c := range w.o.claims {
				if c.Spec.VolumeName == "" {
					continue
				}
				if ref := w.volume(c.Spec.VolumeName).Spec.ClaimRef; ref.UID != c.UID || ref.Name != c.Name {
					t.Fatalf("volume %s of claim %s was given to %s", c.Spec.VolumeName, c.Name, ref.Name)
				}
			}
		}
	})
}
