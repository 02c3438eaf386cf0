package diskset

import (
	"encoding/json"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

// Whatever objects a cluster contains, a decision has an outcome with a reason, each disk has a state, and each
// action can be carried out.
func TestAbsurdObjectsHaveAnOutcome(t *testing.T) {
	disks := []v1alpha1.Disk{disk("n1", "a", "1Gi"), disk("n2", "b", "2Gi")}
	words := []string{"local", "prod", "n1", "n2", "true", "True", "data-p-0-0", "prod/data-p-0-0", "quotes",
		"sheaf-system",
		"/dev/disk/by-id/a", "Released", "Bound", "Complete", "Failed", batchv1.JobReasonPodFailurePolicy,
		v1alpha1.LabelDiskSet, v1alpha1.LabelStore, v1alpha1.LabelPool, corev1.LabelHostname, corev1.ResourceStorage.String(),
		"PersistentVolumeClaim", "In", "FormatBlocked",
		workload.AnnotationWipe, workload.AnnotationWipeAsked, workload.AnnotationWipeConfirm, workload.AnnotationWipes,
		workload.AnnotationWipeHeld, workload.AnnotationLooked, workload.AnnotationLooks, workload.AnnotationRelease,
		workload.AnnotationForClaim, workload.AnnotationGivenUp, workload.AnnotationStoreUID}
	var names []string // names of the volumes of the set
	for _, d := range disks {
		name := workload.DiskVolume("local", d)
		names = append(names, name, workload.WipeVolumeName(name), workload.LookVolumeName(name))
		words = append(words, names[len(names)-3:]...)
		words = append(words, workload.WipeName(name), workload.LookName(name))
	}
	fleettest.Absurdly(t, words, func(a *fleettest.Absurd) {
		w := newDiskWorld(disks...)
		maybe := func(do func()) {
			if a.IntN(2) == 0 {
				do()
			}
		}
		maybe(func() { w.ends["/dev/disk/by-id/a"] = notBlank })
		maybe(func() { w.claim("data-p-0-0", "1Gi") })
		maybe(func() { w.settle() })
		maybe(w.bind)
		maybe(func() { w.settle() })
		o := &w.o
		// Now replace random parts of the cluster's state with absurd values.
		maybe(func() { w.forget("data-p-0-0") })
		maybe(func() { w.claim("data-p-0-0", "1Gi") })
		for _, part := range []any{&o.set.Spec.Namespaces, &o.set.Spec.FileSystem, &o.set.ObjectMeta, &o.others, &o.claims,
			&o.stores, &o.pools, &o.blocked, &o.givenUp, &o.pullSecrets} {
			maybe(func() {
				if a.IntN(3) == 0 {
					a.Fill(part)
				}
			})
		}
		o.set.Name = "local"
		for _, name := range append([]string{"stranger"}, names...) {
			if w.volume(name) == nil && a.IntN(3) == 0 {
				pv := corev1.PersistentVolume{}
				a.Fill(&pv)
				pv.Name = name
				maybe(func() { pv.Labels = map[string]string{v1alpha1.LabelDiskSet: "local"} })
				o.volumes = append(o.volumes, pv)
			}
		}
		for i := range o.volumes {
			pv := &o.volumes[i]
			for _, part := range []any{&pv.Spec, &pv.Status, &pv.Spec.ClaimRef, &pv.Spec.Local, &pv.Spec.NodeAffinity,
				&pv.Spec.Capacity, &pv.Annotations, &pv.DeletionTimestamp} {
				if a.IntN(8) == 0 {
					a.Fill(part)
				}
			}
			for range a.IntN(4) {
				step.Annotate(&pv.Annotations, a.Text(), a.Text())
			}
			if token := workload.WipeToken(pv); a.IntN(8) == 0 {
				step.Annotate(&pv.Annotations, workload.AnnotationWipe, "true")
				step.Annotate(&pv.Annotations, workload.AnnotationWipeAsked, token)
				step.Annotate(&pv.Annotations, workload.AnnotationWipeConfirm, token)
				pv.Status.Phase = corev1.VolumeReleased
			}
			seen := o.jobs[pv.Name]
			maybe(func() {
				seen.job = &batchv1.Job{}
				a.Fill(&seen.job.Status)
			})
			maybe(func() { seen.claim = &corev1.PersistentVolumeClaim{} })
			o.jobs[pv.Name] = seen
		}
		run := &diskRun{set: o.set, observed: o}
		r := &Reconciler{}
		out := r.decide(t.Context(), run)
		if out.IsComplete() {
			out = r.judge(t.Context(), run)
		}
		if !out.IsComplete() && (out.Reason() == "" || out.Message() == "") {
			t.Fatalf("an outcome without a reason: %+v", out)
		}
		for _, s := range run.decided.statuses {
			if _, err := json.Marshal(s); s.State == "" || err != nil {
				t.Fatalf("a disk without a state: %+v: %v", s, err)
			}
		}
		for _, action := range run.decided.actions {
			kinds := 0
			for _, is := range []bool{action.create != nil, action.after != nil && action.change != nil, action.remove != nil,
				action.make != nil, action.unmake != nil} {
				if is {
					kinds++
				}
			}
			if kinds != 1 {
				t.Fatalf("an action of %d kinds: %+v", kinds, action)
			}
		}
	})
}
