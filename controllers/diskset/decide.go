package diskset

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// observedDisks holds the inputs of a decision about a DiskSet. Its maps and slices must not be changed.
type observedDisks struct {
	set     *v1alpha1.DiskSet
	others  []v1alpha1.DiskSet        // all other DiskSets
	volumes []corev1.PersistentVolume // all volumes of the cluster
	nodes   map[string]corev1.Node    // keyed by the label kubernetes.io/hostname
	// claims holds the claims of stores and of bench Jobs that ask for this class in an allowed namespace.
	claims []corev1.PersistentVolumeClaim
	// stores maps the namespace/name of each store that is not being deleted to its status.storeUID.
	stores map[string]string
	// pools holds the pools that are not being deleted, by namespace/name.
	pools   map[string]bool
	blocked map[string]v1alpha1.ShardStatus // maps a volume to the shard that waits until the volume is formatted
	givenUp map[types.UID]bool              // claims whose disks were replaced
	// jobs holds the Jobs and claims for disks that are being wiped or looked at, by the name of the raw volume.
	jobs map[string]observedJob

	namespace, image string   // namespace of the operator and its Jobs, and image of the Jobs; empty if unknown
	pullSecrets      []string // names of the Secrets in the operator's namespace with which the Jobs pull their image
}

// diskAction is one write.
type diskAction struct {
	create *corev1.PersistentVolume
	// change is the volume as it was read, and after is its wanted state. The write fails if the volume has changed
	// since it was read.
	change, after *corev1.PersistentVolume
	remove        *corev1.PersistentVolume
	// make is the object to create, and unmake is the object to delete. Each is a Job that inspects or wipes a disk,
	// or the claim of such a Job.
	make, unmake client.Object
}

// decidedDisks holds the actions and the messages of a decision.
type decidedDisks struct {
	actions  []diskAction
	statuses []v1alpha1.DiskStatus
	waiting  []string    // claims that no disk fits, and the reasons
	said     []step.News // events to report once the actions are done
}

// decideDisks decides the writes for a DiskSet. It is deterministic and does no I/O.
func decideDisks(o *observedDisks) decidedDisks {
	d := &diskDecision{observedDisks: o, live: map[string]*corev1.PersistentVolume{},
		after: map[string]*corev1.PersistentVolume{}, lookedAt: map[string]bool{}}
	for n := range o.volumes {
		d.live[o.volumes[n].Name] = &o.volumes[n]
	}
	wanted := map[string]bool{}
	for _, disk := range o.set.Spec.Disks {
		name := workload.DiskVolume(o.set.Name, disk)
		wanted[name], wanted[workload.WipeVolumeName(name)] = true, true
		d.decideDisk(disk)
	}
	d.assign()
	byName := func(a, b corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) }
	for _, pv := range slices.SortedFunc(slices.Values(o.volumes), byName) {
		switch {
		case pv.Labels[v1alpha1.LabelDiskSet] != o.set.Name || wanted[pv.Name]:
		case standsInFor(&pv) != "":
			d.standIn(&pv, nil)
		case inspectedVolume(&pv) != "":
			if !d.lookedAt[pv.Name] {
				d.tidy(&pv, d.jobs[pv.Name])
			}
		default:
			d.decideRemoved(pv)
		}
	}
	return d.finish()
}

// diskDecision holds the intermediate state of decideDisks.
type diskDecision struct {
	*observedDisks
	live   map[string]*corev1.PersistentVolume
	after  map[string]*corev1.PersistentVolume // the wanted volumes of this set, by name
	order  []string
	states map[string]*v1alpha1.DiskStatus
	// inspections is the number of disks that are being inspected. lookedAt holds the names of the raw volumes whose
	// Jobs are still needed.
	inspections int
	lookedAt    map[string]bool
	out         decidedDisks
}

// decideDisk decides the state of one disk, without regard to claims.
func (d *diskDecision) decideDisk(disk v1alpha1.Disk) {
	name := workload.DiskVolume(d.set.Name, disk)
	status := &v1alpha1.DiskStatus{Node: disk.Node, Device: disk.Device, State: v1alpha1.DiskFree, PersistentVolume: name}
	if d.states == nil {
		d.states = map[string]*v1alpha1.DiskStatus{}
	}
	d.states[name], d.order = status, append(d.order, name)
	live := d.live[name]
	if standIn := d.live[workload.WipeVolumeName(name)]; live == nil && standIn != nil && standsInFor(standIn) == name {
		d.standIn(standIn, status)
		return
	}
	if live == nil {
		if why := d.conflict(disk); why != "" {
			status.State, status.Message, status.PersistentVolume = v1alpha1.DiskConflict, why, ""
			return
		}
		if _, there := d.nodes[disk.Node]; !there {
			status.State, status.PersistentVolume = v1alpha1.DiskNodeMissing, ""
			status.Message = fmt.Sprintf(
				"no node has the label kubernetes.io/hostname=%s: correct spec.disks[].node, or add the node", disk.Node)
			return
		}
		d.after[name] = workload.DiskPersistentVolume(d.set, disk)
		status.State, status.Message = v1alpha1.DiskLooking, lookBegins
		return
	}
	if live.Labels[v1alpha1.LabelDiskSet] != d.set.Name || live.Spec.Local == nil {
		status.State = v1alpha1.DiskConflict
		status.Message = fmt.Sprintf(
			"a PersistentVolume %s is there that this DiskSet did not make: delete it, or give the DiskSet another name", name)
		return
	}
	after := live.DeepCopy()
	want := workload.DiskPersistentVolume(d.set, disk)
	after.Spec.Capacity = want.Spec.Capacity
	after.Spec.MountOptions = want.Spec.MountOptions
	d.after[name] = after
	d.holder(after, status)
	if status.State == v1alpha1.DiskFree {
		d.look(live, after, status)
	}
	if only := after.Annotations[workload.AnnotationForClaim]; only != "" && status.State == v1alpha1.DiskFree {
		status.Message = fmt.Sprintf("it is kept for claim %s, as its annotation %s says", only,
			workload.AnnotationForClaim)
	}
	d.wipe(live, after, status)
	if _, there := d.nodes[disk.Node]; !there && slices.Contains([]v1alpha1.DiskState{v1alpha1.DiskFree,
		v1alpha1.DiskLooking}, status.State) {
		status.State = v1alpha1.DiskNodeMissing
		status.Message = fmt.Sprintf("no node has the label kubernetes.io/hostname=%s now", disk.Node)
	}
}

// conflict says which DiskSet or volume already uses the disk, and how to resolve the conflict. The result is empty if
// there is no conflict.
func (d *diskDecision) conflict(disk v1alpha1.Disk) string {
	for n := range d.others {
		other := &d.others[n]
		older := cmp.Or(other.CreationTimestamp.Compare(d.set.CreationTimestamp.Time),
			cmp.Compare(other.Name, d.set.Name)) < 0
		for _, theirs := range other.Spec.Disks {
			if older && theirs.Node == disk.Node && theirs.Device == disk.Device {
				return fmt.Sprintf("DiskSet %s, which is older, has this disk too: take it out of one of them", other.Name)
			}
		}
	}
	for n := range d.volumes {
		pv := &d.volumes[n]
		if pv.Spec.Local != nil && pv.Spec.Local.Path == disk.Device && workload.DiskNode(pv) == disk.Node &&
			pv.Name != workload.DiskVolume(d.set.Name, disk) && inspectedVolume(pv) != workload.DiskVolume(d.set.Name, disk) {
			return fmt.Sprintf(
				"PersistentVolume %s uses this device: delete it when its data is no longer needed, or take the disk out of "+
					"spec.disks", pv.Name)
		}
	}
	return ""
}

// holder records in the status which claim holds a volume, and removes a reservation whose claim no longer exists.
func (d *diskDecision) holder(pv *corev1.PersistentVolume, status *v1alpha1.DiskStatus) {
	ref := pv.Spec.ClaimRef
	free := workload.FreeClaim(d.set, pv.Name)
	if ref == nil {
		pv.Spec.ClaimRef = free
		return
	}
	claim := ref.Namespace + "/" + ref.Name
	switch {
	case ref.UID != "" && pv.Status.Phase == corev1.VolumeReleased && pv.Annotations[workload.AnnotationRelease] == "true":
		pv.Spec.ClaimRef = free
		step.Annotate(&pv.Annotations, workload.AnnotationLooked, workload.LookedReleased)
		for _, past := range []string{workload.AnnotationRelease, workload.AnnotationStoreUID, workload.AnnotationGivenUp,
			workload.AnnotationWipe, workload.AnnotationWipeAsked, workload.AnnotationWipeConfirm} {
			delete(pv.Annotations, past)
		}
	case ref.UID != "" && pv.Status.Phase == corev1.VolumeReleased:
		if d.givenUp[ref.UID] && pv.Annotations[workload.AnnotationGivenUp] == "" {
			step.Annotate(&pv.Annotations, workload.AnnotationGivenUp, "true")
		}
		status.State, status.Claim = v1alpha1.DiskReleased, claim
		status.Message = releasedWords(pv)
	case ref.UID != "":
		status.State, status.Claim = v1alpha1.DiskBound, claim
		if pv.Annotations[workload.AnnotationForClaim] == claim {
			delete(pv.Annotations, workload.AnnotationForClaim)
		}
		if s, there := d.blocked[pv.Name]; there {
			status.State, status.Message = v1alpha1.DiskFormatBlocked, s.Message
		}
	case ref.Name == free.Name:
		pv.Spec.ClaimRef = free // reserve it for the namespace that is now the first allowed one
	case d.claimOf(ref) != nil:
		status.State, status.Claim = v1alpha1.DiskReserved, claim
	default:
		pv.Spec.ClaimRef = free
		delete(pv.Annotations, workload.AnnotationStoreUID)
	}
}

// releasedWords says how a disk can be assigned to another claim.
func releasedWords(pv *corev1.PersistentVolume) string {
	release := releaseCommand(pv.Name)
	store := pv.Annotations[workload.AnnotationStoreUID]
	if store == benchStore {
		return "it was measured, and the claim of that was deleted. Where the Job ended well the file system is empty: " +
			release
	}
	if pv.Annotations[workload.AnnotationGivenUp] != "" {
		return "it was replaced (spec.replace of a ShardPool), and nobody gets it by itself: take it out of the DiskSet; " +
			"or, where it is whole, have it wiped: " + wipeCommand(pv.Name)
	}
	return fmt.Sprintf(
		"its claim was deleted and the data is still there (store %s). A claim of that name of the same store gets it back; "+
			"to use the disk otherwise, have it wiped: %s", store, wipeCommand(pv.Name))
}

func (d *diskDecision) claimOf(ref *corev1.ObjectReference) *corev1.PersistentVolumeClaim {
	for n := range d.claims {
		if c := &d.claims[n]; c.Namespace == ref.Namespace && c.Name == ref.Name && c.DeletionTimestamp == nil &&
			!d.isOrphan(c) {
			return c
		}
	}
	return nil
}

// isOrphan reports whether a claim was left behind by a pool that is being deleted or no longer exists. Such a claim
// gets no disk. Claims of etcd refer to no pool, and get a disk while their store exists.
func (d *diskDecision) isOrphan(claim *corev1.PersistentVolumeClaim) bool {
	pool := claim.Labels[v1alpha1.LabelPool]
	return pool != "" && !fleet.IsBench(claim) && !d.pools[claim.Namespace+"/"+pool]
}

// benchStore stands for the store UID on a disk that is assigned to a bench Job.
const benchStore = "bench"

// decideRemoved decides what happens to the volume of a disk that was removed from the spec.
func (d *diskDecision) decideRemoved(pv corev1.PersistentVolume) {
	status := v1alpha1.DiskStatus{Node: workload.DiskNode(&pv), PersistentVolume: pv.Name}
	if pv.Spec.Local != nil {
		status.Device = pv.Spec.Local.Path
	}
	if pv.DeletionTimestamp != nil {
		return
	}
	after := pv.DeepCopy()
	state := v1alpha1.DiskStatus{State: v1alpha1.DiskFree}
	d.holder(after, &state)
	if state.State == v1alpha1.DiskFree {
		d.out.actions = append(d.out.actions, diskAction{remove: &pv})
		return
	}
	status.State, status.Claim = v1alpha1.DiskRemoved, state.Claim
	status.Message = fmt.Sprintf(
		"the disk is no longer in spec.disks, but holds the data of claim %s: delete the claim and then PersistentVolume "+
			"%s, or put the disk back",
		state.Claim, pv.Name)
	if node, now := d.carriedTo(&status); now != "" {
		status.Message = fmt.Sprintf(
			"the device is in spec.disks for node %s now, as PersistentVolume %s, but this volume holds claim %s, whose pod "+
				"can only run on node %s. If the disk was carried there with its data, move the claim to it (%s). If not, put the "+
				"disk back", node, now, state.Claim, status.Node, moveWords)
	}
	d.out.statuses = append(d.out.statuses, status)
}

// moveWords names the page with the steps for a disk that was moved to another node.
const moveWords = `docs/operations/disks.md, "Move a disk to another node"`

// carriedFrom returns the volume of a disk that may have been moved to where pv is. That volume belongs to a claim and
// is on another node. It has the same device path as pv, and its disk is no longer in the spec. The result is nil if
// there is no such volume.
func (d *diskDecision) carriedFrom(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	for n := range d.volumes {
		was := &d.volumes[n]
		if was.Labels[v1alpha1.LabelDiskSet] != d.set.Name || was.Spec.Local == nil || was.Spec.ClaimRef == nil ||
			was.Spec.ClaimRef.UID == "" || was.Spec.Local.Path != pv.Spec.Local.Path {
			continue
		}
		if _, now := d.carriedTo(&v1alpha1.DiskStatus{Device: was.Spec.Local.Path}); now == pv.Name && was.Name != now {
			return was
		}
	}
	return nil
}

// carriedTo looks for the new place of a disk that is no longer in the spec, because the disk may have been moved to
// another node. If exactly one disk in the spec has the same device path, carriedTo returns that disk's node and
// volume. Otherwise, both results are empty, because the path does not identify the disk.
func (d *diskDecision) carriedTo(was *v1alpha1.DiskStatus) (node, volume string) {
	for _, disk := range d.set.Spec.Disks {
		if disk.Device != was.Device {
			continue
		}
		if node != "" {
			return "", ""
		}
		node, volume = disk.Node, workload.DiskVolume(d.set.Name, disk)
	}
	return node, volume
}

// finish converts the wanted state to writes.
func (d *diskDecision) finish() decidedDisks {
	statuses := make([]v1alpha1.DiskStatus, 0, len(d.order)+len(d.out.statuses))
	for _, name := range d.order {
		statuses = append(statuses, *d.states[name])
		after, live := d.after[name], d.live[name]
		switch {
		case after == nil:
		case live == nil:
			d.out.actions = append(d.out.actions, diskAction{create: after})
		case !equality.Semantic.DeepEqual(live, after):
			d.out.actions = append(d.out.actions, diskAction{change: live, after: after})
		}
	}
	d.out.statuses = append(statuses, d.out.statuses...)
	return d.out
}
