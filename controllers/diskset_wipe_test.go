package controllers

import (
	"context"
	"strings"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// wipePlay simulates a cluster with one disk, whose claim was deleted.
type wipePlay struct {
	*diskPlay
	device, volume string
}

func newWipePlay(ctx context.Context) *wipePlay {
	GinkgoHelper()
	p := &wipePlay{diskPlay: newDiskPlay(ctx)}
	p.create(ctx, p.disk("a"))
	p.device, p.volume = p.disk("a").Device, workload.DiskVolume(p.name, p.disk("a"))
	p.settle(ctx)
	p.bind(ctx, "data-ssd-0-0")
	p.release(ctx, "data-ssd-0-0")
	return p
}

// bind creates a claim, and binds the disk to it.
func (p *wipePlay) bind(ctx context.Context, name string) {
	GinkgoHelper()
	claim := p.claim(ctx, p.Namespace, name)
	p.settle(ctx)
	p.bindTo(ctx, claim)
	p.settle(ctx)
	p.expectState(ctx, v1alpha1.DiskBound)
}

// release deletes the claim, which releases the disk.
func (p *wipePlay) release(ctx context.Context, name string) {
	GinkgoHelper()
	claim := &corev1.PersistentVolumeClaim{}
	Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, claim)).To(Succeed())
	claim.Finalizers = nil
	Expect(api.Update(ctx, claim)).To(Succeed())
	Expect(client.IgnoreNotFound(api.Delete(ctx, claim))).To(Succeed())
	pv := p.pv(ctx)
	pv.Status.Phase = corev1.VolumeReleased
	Expect(api.Status().Update(ctx, pv)).To(Succeed())
	p.settle(ctx)
	p.expectState(ctx, v1alpha1.DiskReleased)
}

func (p *wipePlay) pv(ctx context.Context) *corev1.PersistentVolume {
	GinkgoHelper()
	pv := &corev1.PersistentVolume{}
	Expect(api.Get(ctx, types.NamespacedName{Name: p.volume}, pv)).To(Succeed())
	return pv
}

// mark writes annotations, as an administrator does. An empty value removes the annotation.
func (p *wipePlay) mark(ctx context.Context, values map[string]string) {
	GinkgoHelper()
	pv := p.pv(ctx)
	if pv.Annotations == nil {
		pv.Annotations = map[string]string{}
	}
	for key, value := range values {
		pv.Annotations[key] = value
		if value == "" {
			delete(pv.Annotations, key)
		}
	}
	Expect(api.Update(ctx, pv)).To(Succeed())
}

// annotate marks the volume, and reconciles until nothing changes.
func (p *wipePlay) annotate(ctx context.Context, values map[string]string) {
	GinkgoHelper()
	p.mark(ctx, values)
	p.settle(ctx)
}

// ask performs the first of the two acts that a wipe requires. It returns the token that the second act has to
// repeat.
func (p *wipePlay) ask(ctx context.Context) (token string) {
	GinkgoHelper()
	p.annotate(ctx, map[string]string{workload.AnnotationWipe: "true"})
	disk := p.expectState(ctx, v1alpha1.DiskReleased)
	_, after, found := strings.Cut(disk.Message, workload.AnnotationWipeConfirm+"=")
	Expect(found).To(BeTrue(), disk.Message)
	token, _, _ = strings.Cut(after, ";")
	Expect(token).To(HavePrefix(p.Namespace + "/data-"))
	return token
}

// expectState checks that the disk is in the given state, and returns the disk's status.
func (p *wipePlay) expectState(ctx context.Context, state v1alpha1.DiskState) v1alpha1.DiskStatus {
	GinkgoHelper()
	disk := p.get(ctx).Status.Disks[0]
	Expect(disk.State).To(Equal(state), "%+v", disk)
	return disk
}

// expectEvents checks that each of these texts appears in an event.
func (p *wipePlay) expectEvents(words ...string) {
	GinkgoHelper()
	var all []string
	for {
		select {
		case event := <-p.events.Events:
			all = append(all, event)
			continue
		default:
		}
		break
	}
	for _, w := range words {
		Expect(all).To(ContainElement(ContainSubstring(w)))
	}
}

// wipeObjects returns the wiping Job, its claim, and the volume that replaces the disk's own volume. A result is nil if
// the object does not exist.
func (p *wipePlay) wipeObjects(ctx context.Context) (job *batchv1.Job, claim *corev1.PersistentVolumeClaim,
	standIn *corev1.PersistentVolume) {
	GinkgoHelper()
	find := func(o client.Object, namespace, name string) bool {
		err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, o)
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		return err == nil
	}
	name := workload.WipeName(p.volume)
	if job = (&batchv1.Job{}); !find(job, p.Namespace, name) {
		job = nil
	}
	if claim = (&corev1.PersistentVolumeClaim{}); !find(claim, p.Namespace, name) {
		claim = nil
	}
	if standIn = (&corev1.PersistentVolume{}); !find(standIn, "", workload.WipeVolumeName(p.volume)) {
		standIn = nil
	}
	return job, claim, standIn
}

// expectNoWipe checks that no wipe runs and that the disk's own volume is unchanged.
func (p *wipePlay) expectNoWipe(ctx context.Context) {
	GinkgoHelper()
	job, claim, standIn := p.wipeObjects(ctx)
	Expect(job).To(BeNil())
	Expect(claim).To(BeNil())
	Expect(standIn).To(BeNil())
	Expect(p.pv(ctx).DeletionTimestamp).To(BeNil())
}

// ends sets the result of the Job.
func (p *wipePlay) ends(ctx context.Context, kind batchv1.JobConditionType) {
	GinkgoHelper()
	job, _, _ := p.wipeObjects(ctx)
	Expect(job).NotTo(BeNil())
	endJob(ctx, job, kind, "")
	p.settleAll(ctx)
}

// settleAll reconciles until nothing changes. It also completes deletions, because these tests run no controllers
// that would remove the finalizers of deleted objects.
func (p *wipePlay) settleAll(ctx context.Context) {
	GinkgoHelper()
	for range 10 {
		p.settle(ctx)
		job, claim, _ := p.wipeObjects(ctx)
		if job != nil && job.DeletionTimestamp != nil {
			job.Finalizers = nil
			Expect(client.IgnoreNotFound(api.Update(ctx, job))).To(Succeed())
		}
		if claim != nil && claim.DeletionTimestamp != nil {
			claim.Finalizers = nil
			Expect(client.IgnoreNotFound(api.Update(ctx, claim))).To(Succeed())
		}
	}
}

var _ = Describe("A released disk", func() {
	var p *wipePlay
	BeforeEach(func(ctx context.Context) { p = newWipePlay(ctx) })

	It("is wiped by a Job after two acts, and is free then", both("the Job is accepted"), func(ctx context.Context) {
		Expect(p.expectState(ctx, v1alpha1.DiskReleased).Message).To(ContainSubstring("kubectl annotate pv " + p.volume +
			" sheaf.dev/wipe=true"))
		token := p.ask(ctx)
		p.expectEvents("WipeAsked", "all data of claim "+p.Namespace+"/data-ssd-0-0")
		p.expectNoWipe(ctx)
		before := p.pv(ctx)

		p.annotate(ctx, map[string]string{workload.AnnotationWipeConfirm: token})
		p.expectEvents("WipeBegun")
		Expect(apierrors.IsNotFound(api.Get(ctx, types.NamespacedName{Name: p.volume}, &corev1.PersistentVolume{}))).
			To(BeTrue(),
				"a claim could get it while it is wiped")
		job, claim, standIn := p.wipeObjects(ctx)
		Expect(standIn.Spec.Local.Path).To(Equal(p.device))
		Expect(*standIn.Spec.VolumeMode).To(Equal(corev1.PersistentVolumeBlock))
		Expect(standIn.Spec.NodeAffinity).To(Equal(before.Spec.NodeAffinity))
		Expect(claim.Spec.VolumeName).To(Equal(standIn.Name))
		pod := job.Spec.Template.Spec
		Expect(pod.Containers).To(HaveLen(1))
		Expect(pod.Containers[0].SecurityContext.Privileged).To(BeNil())
		Expect(pod.ImagePullSecrets).To(Equal([]corev1.LocalObjectReference{{Name: "registry"}}))
		Expect(pod.Containers[0].Resources.Limits).To(And(HaveKey(corev1.ResourceCPU), HaveKey(corev1.ResourceMemory)),
			"a ResourceQuota may ask for limits")
		Expect(pod.Containers[0].SecurityContext.Capabilities.Drop).To(ConsistOf(corev1.Capability("ALL")))
		Expect(*pod.AutomountServiceAccountToken).To(BeFalse())
		Expect(pod.Volumes).To(ConsistOf(HaveField("VolumeSource", Equal(corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}))), "it sees more than the disk")
		p.expectState(ctx, v1alpha1.DiskWiping)
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "Wiping", "1 disk is")

		p.ends(ctx, batchv1.JobComplete)
		p.expectEvents("WipeDone")
		p.expectState(ctx, v1alpha1.DiskFree)
		p.expectNoWipe(ctx)
		after := p.pv(ctx)
		Expect(after.UID).NotTo(Equal(before.UID))
		Expect(after.Annotations).To(Equal(map[string]string{workload.AnnotationDevice: p.device,
			workload.AnnotationLooked: workload.LookedBlank}))
		Expect(after.Spec.ClaimRef.Name).To(HavePrefix("sheaf-free-"))
		p.bind(ctx, "data-ssd-1-0")
	})

	It("is not wiped by one act, however it is put", func(ctx context.Context) {
		token := workload.WipeToken(p.pv(ctx))
		By("an answer without a question")
		p.annotate(ctx, map[string]string{workload.AnnotationWipeConfirm: token})
		p.expectEvents("WipeRefused")
		Expect(p.pv(ctx).Annotations).NotTo(HaveKey(workload.AnnotationWipeConfirm))
		By("both at once, and rightly guessed")
		p.annotate(ctx, map[string]string{workload.AnnotationWipe: "true", workload.AnnotationWipeConfirm: token})
		p.expectEvents("WipeAsked", "the answer came before the question")
		Expect(p.pv(ctx).Annotations).NotTo(HaveKey(workload.AnnotationWipeConfirm))
		By("something that nobody asked for")
		p.annotate(ctx, map[string]string{workload.AnnotationWipe: "true", workload.AnnotationWipeConfirm: "true"})
		p.expectEvents("is not what was asked for")
		By("taken back")
		p.annotate(ctx, map[string]string{workload.AnnotationWipe: "", workload.AnnotationWipeConfirm: token})
		p.expectEvents("it was taken back")
		By("another value")
		p.annotate(ctx, map[string]string{workload.AnnotationWipe: "yes"})
		p.expectEvents("begin with")
		p.expectState(ctx, v1alpha1.DiskReleased)
		p.expectNoWipe(ctx)
	})

	It("is not wiped where its volume changed between the two acts", func(ctx context.Context) {
		token := p.ask(ctx)
		By("its claim came back, and the answer is to a disk that is used")
		p.bind(ctx, "data-ssd-0-0")
		p.annotate(ctx, map[string]string{workload.AnnotationWipe: "true", workload.AnnotationWipeConfirm: token})
		p.expectEvents("WipeRefused", "the disk is Bound")
		for _, key := range []string{workload.AnnotationWipe, workload.AnnotationWipeAsked, workload.AnnotationWipeConfirm} {
			Expect(p.pv(ctx).Annotations).NotTo(HaveKey(key))
		}
		p.expectNoWipe(ctx)
		By("and went again: what is on the disk is not what was asked about")
		p.release(ctx, "data-ssd-0-0")
		Expect(p.ask(ctx)).NotTo(Equal(token))
		p.annotate(ctx, map[string]string{workload.AnnotationWipeConfirm: token})
		p.expectEvents("is not what was asked for")
		p.expectNoWipe(ctx)
	})

	It("is not wiped where its volume changes while that begins", func(ctx context.Context) {
		token := p.ask(ctx)
		p.mark(ctx, map[string]string{workload.AnnotationWipeConfirm: token})
		raced := 0
		p.r.Client = interceptor.NewClient(acting, interceptor.Funcs{
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				if pv, ok := o.(*corev1.PersistentVolume); ok && pv.Name == p.volume && raced == 0 {
					raced++
					now := p.pv(ctx)
					now.Annotations["example.org/changed"] = "true"
					delete(now.Annotations, workload.AnnotationWipe)
					Expect(api.Update(ctx, now)).To(Succeed())
				}
				return c.Delete(ctx, o, opts...)
			},
		})
		p.settleAll(ctx)
		Expect(raced).To(Equal(1))
		p.expectState(ctx, v1alpha1.DiskReleased)
		p.expectNoWipe(ctx)
	})

	It("is not wiped while it is free or meant for a claim", func(ctx context.Context) {
		p.annotate(ctx, map[string]string{workload.AnnotationRelease: "true", workload.AnnotationWipe: "true"})
		p.expectState(ctx, v1alpha1.DiskFree)
		p.annotate(ctx, map[string]string{workload.AnnotationWipe: "true"})
		p.expectEvents("the disk is Free")
		p.claim(ctx, p.Namespace, "data-ssd-1-0")
		p.settle(ctx)
		p.annotate(ctx, map[string]string{workload.AnnotationWipe: "true",
			workload.AnnotationWipeConfirm: workload.WipeToken(p.pv(ctx))})
		p.expectEvents("the disk is Reserved")
		p.expectState(ctx, v1alpha1.DiskReserved)
		p.expectNoWipe(ctx)
	})

	It("is left alone by an operator that does not know where to run the Job, and beside a volume of somebody else",
		func(ctx context.Context) {
			p.r.Namespace = ""
			p.annotate(ctx, map[string]string{workload.AnnotationWipe: "true"})
			p.expectEvents("does not know its own namespace")
			p.r.Namespace = p.Namespace
			theirs := workload.WipeVolume(p.pv(ctx), p.name, p.Namespace)
			theirs.Labels, theirs.Annotations = nil, nil
			theirs.Spec.Local.Path += "-other"
			Expect(api.Create(ctx, theirs)).To(Succeed())
			DeferCleanup(func(ctx context.Context) {
				theirs.Finalizers = nil
				Expect(api.Update(ctx, theirs)).To(Succeed())
				Expect(api.Delete(ctx, theirs)).To(Succeed())
			})
			p.annotate(ctx, map[string]string{workload.AnnotationWipe: "true"})
			p.expectEvents("did not make: delete it")
			Expect(p.pv(ctx).DeletionTimestamp).To(BeNil())
		})

	It("says so where it could not be wiped, and tries again when the Job is deleted", func(ctx context.Context) {
		p.annotate(ctx, map[string]string{workload.AnnotationWipeConfirm: p.ask(ctx)})
		p.ends(ctx, batchv1.JobFailed)
		name := workload.WipeName(p.volume)
		Expect(p.expectState(ctx, v1alpha1.DiskWipeFailed).Message).To(ContainSubstring("delete job " + name))
		p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "WipeFailed", "logs job/"+name)
		job, _, _ := p.wipeObjects(ctx)
		job.Finalizers = nil
		Expect(api.Update(ctx, job)).To(Succeed())
		Expect(api.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		p.settle(ctx)
		p.expectState(ctx, v1alpha1.DiskWiping)
		p.ends(ctx, batchv1.JobComplete)
		p.expectState(ctx, v1alpha1.DiskFree)
		p.expectNoWipe(ctx)
	})

	It("is wiped to the end where its disk is taken out of the DiskSet meanwhile", func(ctx context.Context) {
		p.annotate(ctx, map[string]string{workload.AnnotationWipeConfirm: p.ask(ctx)})
		set := p.get(ctx)
		set.Spec.Disks = []v1alpha1.Disk{p.disk("b")}
		Expect(api.Update(ctx, set)).To(Succeed())
		p.settle(ctx)
		p.ends(ctx, batchv1.JobComplete)
		job, claim, standIn := p.wipeObjects(ctx)
		Expect(job).To(BeNil())
		Expect(claim).To(BeNil())
		Expect(standIn).To(BeNil())
		Expect(p.volumes(ctx)).To(HaveLen(1))
	})

	It("leaves no Job behind where its DiskSet is deleted meanwhile", func(ctx context.Context) {
		p.annotate(ctx, map[string]string{workload.AnnotationWipeConfirm: p.ask(ctx)})
		Expect(api.Delete(ctx, p.get(ctx))).To(Succeed())
		_, err := p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		job, claim, standIn := p.wipeObjects(ctx)
		Expect(job == nil || job.DeletionTimestamp != nil).To(BeTrue())
		Expect(claim == nil || claim.DeletionTimestamp != nil).To(BeTrue())
		Expect(standIn == nil || standIn.DeletionTimestamp != nil).To(BeTrue())
		Expect(p.volumes(ctx)).To(BeEmpty())
	})
})
