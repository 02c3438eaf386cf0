package diskset

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// assign assigns disks to the claims that have none.
func (d *diskDecision) assign() {
	// The claims that have a disk, and the number of disks by store and node.
	taken, perNode := map[string]bool{}, map[string]int{}
	for _, name := range d.order {
		status := d.states[name]
		if status.Claim == "" || d.after[name].Annotations[workload.AnnotationGivenUp] != "" {
			// The disk has no claim, or it was given up. A disk that was given up does not count, because its replacement
			// should be on the same node.
			continue
		}
		if status.State != v1alpha1.DiskReleased {
			taken[status.Claim] = true
		}
		perNode[d.after[name].Annotations[workload.AnnotationStoreUID]+"/"+status.Node]++
	}
	claims := slices.Clone(d.claims)
	slices.SortFunc(claims, func(a, b corev1.PersistentVolumeClaim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(len(a.Name), len(b.Name)),
			cmp.Compare(a.Name, b.Name))
	})
	for n := range claims {
		claim := &claims[n]
		key := claim.Namespace + "/" + claim.Name
		if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil || taken[key] || d.isOrphan(claim) {
			continue
		}
		store := d.storeOf(claim)
		if store == "" {
			continue // the UID of the store is not known yet
		}
		name := d.choose(claim, key, store, perNode)
		if name == "" {
			d.out.waiting = append(d.out.waiting, fmt.Sprintf("claim %s asks for %s, and %s", key,
				claim.Spec.Resources.Requests.Storage(), d.noneWords(key)))
			continue
		}
		d.give(name, claim, key, store)
		taken[key] = true
		perNode[store+"/"+d.states[name].Node]++
	}
}

// storeOf returns the UID of a claim's store, or "" while the UID is unknown.
func (d *diskDecision) storeOf(claim *corev1.PersistentVolumeClaim) string {
	if fleet.IsBench(claim) {
		return benchStore
	}
	return d.stores[claim.Namespace+"/"+claim.Labels[v1alpha1.LabelStore]]
}

// choose returns a disk that is large enough for a claim. It prefers the disk that the claim had before, and a disk
// that an administrator has reserved for the claim. Otherwise it takes a free disk on a node on which pods can start.
// Among these, it prefers nodes with the fewest disks of the store, and then the smallest disk. If no disk fits, the
// result is "".
func (d *diskDecision) choose(claim *corev1.PersistentVolumeClaim, key, store string, perNode map[string]int) string {
	best, kept := "", d.keptFor(key)
	for _, name := range d.order {
		status, pv := d.states[name], d.after[name]
		if pv == nil || pv.Spec.Capacity.Storage().Cmp(*claim.Spec.Resources.Requests.Storage()) < 0 {
			continue
		}
		if status.State == v1alpha1.DiskReleased && status.Claim == key &&
			pv.Annotations[workload.AnnotationStoreUID] == store &&
			pv.Annotations[workload.AnnotationGivenUp] == "" {
			return name
		}
		if status.State != v1alpha1.DiskFree || !d.usable(status.Node) {
			continue
		}
		if only := pv.Annotations[workload.AnnotationForClaim]; only == key {
			return name
		} else if only != "" || kept != "" {
			continue
		}
		if best == "" || d.less(name, best, store, perNode) {
			best = name
		}
	}
	return best
}

// keptFor returns the disk that an administrator has reserved for a claim by annotation, or "" if there is no such
// disk. A claim for which a disk is reserved gets no other disk.
func (d *diskDecision) keptFor(key string) string {
	for _, name := range d.order {
		if pv := d.after[name]; pv != nil && pv.Annotations[workload.AnnotationForClaim] == key {
			return name
		}
	}
	return ""
}

// noneWords explains why no disk fits a claim.
func (d *diskDecision) noneWords(key string) string {
	if kept := d.keptFor(key); kept != "" {
		return fmt.Sprintf("gets no other disk than that of PersistentVolume %s, which annotation %s keeps for it: the disk "+
			"is %s and has %s", kept, workload.AnnotationForClaim, d.states[kept].State, d.after[kept].Spec.Capacity.Storage())
	}
	free, looking, largest := 0, 0, ""
	var size resource.Quantity
	for _, name := range d.order {
		status, pv := d.states[name], d.after[name]
		if status.State == v1alpha1.DiskLooking {
			looking++
		}
		if pv == nil || status.State != v1alpha1.DiskFree || pv.Annotations[workload.AnnotationForClaim] != "" {
			continue
		}
		free++
		if d.usable(status.Node) && pv.Spec.Capacity.Storage().Cmp(size) > 0 {
			size, largest = *pv.Spec.Capacity.Storage(), fmt.Sprintf("%s on %s", status.Device, status.Node)
		}
	}
	switch {
	case free == 0 && looking > 0:
		return fmt.Sprintf("no disk is free before it is known whether %s blank", step.Count(looking, "disk is", "disks are"))
	case free == 0:
		return "no disk is free"
	case largest == "":
		return fmt.Sprintf("no free disk is on a node that is ready (%d free)", free)
	}
	return fmt.Sprintf("the largest free disk of a ready node, %s, has %s", largest, size.String())
}

func (d *diskDecision) less(a, b, store string, perNode map[string]int) bool {
	x, y := d.states[a], d.states[b]
	return cmp.Or(
		cmp.Compare(perNode[store+"/"+x.Node], perNode[store+"/"+y.Node]),
		d.after[a].Spec.Capacity.Storage().Cmp(*d.after[b].Spec.Capacity.Storage()),
		cmp.Compare(x.Node, y.Node), cmp.Compare(x.Device, y.Device)) < 0
}

// usable reports whether pods can start on a node.
func (d *diskDecision) usable(hostname string) bool {
	node, there := d.nodes[hostname]
	return there && node.DeletionTimestamp == nil && fleet.TakesPods(&node)
}

// give reserves a disk for a claim. If an administrator has reserved the disk for the claim by annotation, give keeps
// the annotation until the disk is bound, because its own reservation ends if the claim is deleted before that.
func (d *diskDecision) give(name string, claim *corev1.PersistentVolumeClaim, key, store string) {
	pv, status := d.after[name], d.states[name]
	pv.Spec.ClaimRef = &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
	}
	if pv.Annotations == nil {
		pv.Annotations = map[string]string{}
	}
	pv.Annotations[workload.AnnotationStoreUID] = store
	status.State, status.Claim, status.Message = v1alpha1.DiskReserved, key, ""
}
