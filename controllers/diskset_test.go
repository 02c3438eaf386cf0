package controllers

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/diskset"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// diskPlay simulates a cluster with one DiskSet. The name of the DiskSet is that of its namespace.
type diskPlay struct {
	*play
	name   string
	r      *diskset.Reconciler
	events *events.FakeRecorder
	// notBlank holds the devices on which the inspecting Jobs find data.
	notBlank map[string]bool
}

func newDiskPlay(ctx context.Context) *diskPlay {
	p := &diskPlay{play: newPlay(ctx), events: events.NewFakeRecorder(1000), notBlank: map[string]bool{}}
	runIn(ctx, p.Namespace)
	p.name = "disks-" + p.Namespace
	p.r = &diskset.Reconciler{Client: acting, Live: operatorClient, Events: p.events, Namespace: p.Namespace,
		Image: "localhost/sheaf:1", PullSecrets: []string{"registry"}}
	store := &v1alpha1.RecordStore{ObjectMeta: metav1.ObjectMeta{Name: "quotes", Namespace: p.Namespace}}
	store.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingHash, Count: new(int32(8))}
	Expect(api.Create(ctx, store)).To(Succeed())
	store.Status.StoreUID = string(store.UID)
	Expect(api.Status().Update(ctx, store)).To(Succeed())
	return p
}

func (p *diskPlay) disk(name string) v1alpha1.Disk {
	return v1alpha1.Disk{Node: p.Node, Device: "/dev/disk/by-id/" + p.Namespace + "-" + name,
		Size: resource.MustParse("1Gi")}
}

func (p *diskPlay) create(ctx context.Context, disks ...v1alpha1.Disk) {
	set := &v1alpha1.DiskSet{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
	set.Spec.FileSystem = v1alpha1.FileSystem{Type: v1alpha1.XFS, MountOptions: []string{"noatime"}}
	set.Spec.Namespaces, set.Spec.Disks = []string{p.Namespace}, disks
	Expect(api.Create(ctx, set)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		for _, o := range []client.Object{set, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: p.name}}} {
			Expect(client.IgnoreNotFound(api.Delete(ctx, o))).To(Succeed())
		}
		_, err := p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
	})
}

func (p *diskPlay) get(ctx context.Context) *v1alpha1.DiskSet {
	set := &v1alpha1.DiskSet{}
	Expect(api.Get(ctx, types.NamespacedName{Name: p.name}, set)).To(Succeed())
	return set
}

func (p *diskPlay) reconcile(ctx context.Context) (ctrl.Result, error) {
	return p.r.Reconcile(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Name: p.name}})
}

// volumes returns the volumes of the set by device, except those through which Jobs inspect disks. It completes the
// deletion of volumes that are being deleted.
func (p *diskPlay) volumes(ctx context.Context) map[string]*corev1.PersistentVolume {
	var list corev1.PersistentVolumeList
	Expect(api.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelDiskSet: p.name})).To(Succeed())
	volumes := map[string]*corev1.PersistentVolume{}
	for n := range list.Items {
		pv := &list.Items[n]
		if pv.DeletionTimestamp != nil { // no controller runs that would remove the finalizer of a protected volume
			pv.Finalizers = nil
			Expect(client.IgnoreNotFound(api.Update(ctx, pv))).To(Succeed())
			continue
		}
		if pv.Annotations[workload.AnnotationLooks] == "" {
			volumes[pv.Spec.Local.Path] = pv
		}
	}
	return volumes
}

// settle reconciles until a reconcile changes nothing.
func (p *diskPlay) settle(ctx context.Context) {
	GinkgoHelper()
	versions := func() map[string]string {
		all := map[string]string{"set": p.get(ctx).ResourceVersion, "looks": p.finishInspections(ctx)}
		for device, pv := range p.volumes(ctx) {
			all[device] = pv.ResourceVersion
		}
		return all
	}
	before := versions()
	for range 20 {
		_, err := p.reconcile(ctx)
		now := versions()
		if err == nil && maps.Equal(before, now) {
			return
		}
		before = now
	}
	Expect(p.get(ctx).Status).To(BeNil(), "it does not settle")
}

// finishInspections ends the Jobs that inspect disks. It also completes the deletion of Jobs and claims, because no
// controller runs that would do this. It returns the versions of the Jobs and of their volumes.
func (p *diskPlay) finishInspections(ctx context.Context) (versions string) {
	GinkgoHelper()
	var volumes corev1.PersistentVolumeList
	Expect(api.List(ctx, &volumes, client.MatchingLabels{v1alpha1.LabelDiskSet: p.name})).To(Succeed())
	for _, pv := range volumes.Items {
		if pv.Annotations[workload.AnnotationLooks] != "" {
			versions += pv.Name + pv.ResourceVersion
		}
	}
	var jobs batchv1.JobList
	Expect(api.List(ctx, &jobs, client.InNamespace(p.Namespace))).To(Succeed())
	for n := range jobs.Items {
		job := &jobs.Items[n]
		claim := &corev1.PersistentVolumeClaim{}
		err := api.Get(ctx, client.ObjectKeyFromObject(job), claim)
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		if err == nil && claim.DeletionTimestamp != nil {
			claim.Finalizers = nil
			Expect(client.IgnoreNotFound(api.Update(ctx, claim))).To(Succeed())
		}
		switch {
		case !strings.HasPrefix(job.Name, "sheaf-look-"):
			continue
		case job.DeletionTimestamp != nil:
			job.Finalizers = nil
			Expect(client.IgnoreNotFound(api.Update(ctx, job))).To(Succeed())
		case len(job.Status.Conditions) == 0:
			pv := &corev1.PersistentVolume{}
			if api.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, pv) != nil {
				continue
			}
			if p.notBlank[pv.Spec.Local.Path] {
				endJob(ctx, job, batchv1.JobFailed, batchv1.JobReasonPodFailurePolicy)
			} else {
				endJob(ctx, job, batchv1.JobComplete, "")
			}
		}
		versions += job.Name + job.ResourceVersion
	}
	return versions
}

// endJob sets the result of a Job.
func endJob(ctx context.Context, job *batchv1.Job, kind batchv1.JobConditionType, reason string) {
	GinkgoHelper()
	now := metav1.Now()
	job.Status.StartTime = &now
	before := batchv1.JobSuccessCriteriaMet
	if kind == batchv1.JobFailed {
		before = batchv1.JobFailureTarget
	} else {
		job.Status.CompletionTime = &now
		job.Status.Succeeded = 1
	}
	for _, c := range []batchv1.JobConditionType{before, kind} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: c, Status: corev1.ConditionTrue,
			Reason: reason, LastTransitionTime: now})
	}
	Expect(api.Status().Update(ctx, job)).To(Succeed())
}

// claim creates a claim that belongs to a store.
func (p *diskPlay) claim(ctx context.Context, namespace, name string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelStore: "quotes"},
	}}
	claim.Spec.AccessModes, claim.Spec.StorageClassName = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		&p.name
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	Expect(api.Create(ctx, claim)).To(Succeed())
	return claim
}

// bindTo simulates the volume controller: it binds a volume to the claim that the volume is reserved for.
func (p *diskPlay) bindTo(ctx context.Context, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	GinkgoHelper()
	for _, pv := range p.volumes(ctx) {
		if ref := pv.Spec.ClaimRef; ref.Namespace == claim.Namespace && ref.Name == claim.Name {
			ref.UID = claim.UID
			Expect(api.Update(ctx, pv)).To(Succeed())
			pv.Status.Phase = corev1.VolumeBound
			Expect(api.Status().Update(ctx, pv)).To(Succeed())
			claim.Spec.VolumeName = pv.Name
			Expect(api.Update(ctx, claim)).To(Succeed())
			return pv
		}
	}
	Expect(claim.Name).To(BeNil(), "no volume is meant for this claim")
	return nil
}

func (p *diskPlay) expect(ctx context.Context, kind string, status metav1.ConditionStatus, reason, words string) {
	GinkgoHelper()
	c := meta.FindStatusCondition(p.get(ctx).Status.Conditions, kind)
	Expect(c).NotTo(BeNil(), "%+v", p.get(ctx).Status)
	Expect(fmt.Sprintf("%s %s", c.Status, c.Reason)).To(Equal(fmt.Sprintf("%s %s", status, reason)), c.Message)
	Expect(c.Message).To(ContainSubstring(words))
}

var _ = Describe("A DiskSet", func() {
	var p *diskPlay
	BeforeEach(func(ctx context.Context) { p = newDiskPlay(ctx) })

	It("makes a class and a volume for each disk, and then writes nothing", both("what is made of a DiskSet is accepted"),
		func(ctx context.Context) {
			p.create(ctx, p.disk("a"), p.disk("b"))
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", "2 disks, 2 free")
			var class storagev1.StorageClass
			Expect(api.Get(ctx, types.NamespacedName{Name: p.name}, &class)).To(Succeed())
			volumes := p.volumes(ctx)
			Expect(volumes).To(HaveLen(2))
			set := p.get(ctx)
			for range 3 {
				_, err := p.reconcile(ctx)
				Expect(err).NotTo(HaveOccurred())
			}
			Expect(p.volumes(ctx)).To(Equal(volumes))
			Expect(p.get(ctx).ResourceVersion).To(Equal(set.ResourceVersion))
			var again storagev1.StorageClass
			Expect(api.Get(ctx, types.NamespacedName{Name: p.name}, &again)).To(Succeed())
			Expect(again.ResourceVersion).To(Equal(class.ResourceVersion))
		})

	It("looks at a disk before a claim gets it, and waits for a person where the disk is not blank",
		both("the Job that looks is accepted"), func(ctx context.Context) {
			p.create(ctx, p.disk("a"))
			p.notBlank[p.disk("a").Device] = true
			claim := p.claim(ctx, p.Namespace, "data-ssd-0-0")
			p.settle(ctx)
			disk := p.get(ctx).Status.Disks[0]
			Expect(disk.State).To(Equal(v1alpha1.DiskNotBlank))
			p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "NotBlank", p.disk("a").Device)
			p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "NotBlank", "")
			Expect(p.volumes(ctx)[p.disk("a").Device].Spec.ClaimRef.Name).To(HavePrefix("sheaf-free-"))
			release := regexp.MustCompile(`annotate pv (\S+) (\S+)=true; to look again`).FindStringSubmatch(disk.Message)
			Expect(release).To(HaveLen(3), disk.Message)
			pv := p.volumes(ctx)[p.disk("a").Device]
			Expect(pv.Name).To(Equal(release[1]))
			pv.Annotations[release[2]] = "true"
			Expect(api.Update(ctx, pv)).To(Succeed())
			p.settle(ctx)
			p.bindTo(ctx, claim)
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", "1 disk, 0 free")
			Expect(p.finishInspections(ctx)).To(BeEmpty(), "the Job is still there")
		})

	It("leaves a StorageClass alone that it did not make", func(ctx context.Context) {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: p.name}, Provisioner: "example.org/theirs"}
		Expect(api.Create(ctx, class)).To(Succeed())
		p.create(ctx, p.disk("a"))
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "StorageClassTaken",
			"delete it, or give the DiskSet another name")
		result, err := p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(result.RequeueAfter).To(BeNumerically(">=", 10*time.Second))
		Expect(p.volumes(ctx)).To(BeEmpty())
		Expect(p.events.Events).To(HaveLen(1), "told once")
		By("also when it is deleted")
		Expect(api.Delete(ctx, p.get(ctx))).To(Succeed())
		_, err = p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(api.Get(ctx, client.ObjectKeyFromObject(class), class)).To(Succeed())
		Expect(class.Provisioner).To(Equal("example.org/theirs"))
	})

	It("gives a disk to a claim of a listed namespace, and to no other", func(ctx context.Context) {
		other := newDiskPlay(ctx)
		p.create(ctx, p.disk("a"))
		theirs := p.claim(ctx, other.Namespace, "data-ssd-0-0")
		p.settle(ctx)
		free := p.volumes(ctx)[p.disk("a").Device]
		Expect(free.Spec.ClaimRef.Name).To(HavePrefix("sheaf-free-"))
		ours := p.claim(ctx, p.Namespace, "data-ssd-0-0")
		p.settle(ctx)
		pv := p.bindTo(ctx, ours)
		p.settle(ctx)
		Expect(p.get(ctx).Status.Disks[0].State).To(Equal(v1alpha1.DiskBound))
		Expect(pv.Spec.ClaimRef.Namespace).NotTo(Equal(theirs.Namespace))
	})

	It("gives a disk to a Job that measures its class, but to no claim of somebody else", func(ctx context.Context) {
		p.create(ctx, p.disk("a"))
		for name, label := range map[string]string{"theirs": "database", "sheaf-bench": v1alpha1.ComponentBench} {
			claim := p.claim(ctx, p.Namespace, name)
			claim.Labels = map[string]string{v1alpha1.LabelName: v1alpha1.NameSheaf, v1alpha1.LabelComponent: label}
			Expect(api.Update(ctx, claim)).To(Succeed())
		}
		p.settle(ctx)
		Expect(p.get(ctx).Status.Disks[0]).To(And(HaveField("State", v1alpha1.DiskReserved),
			HaveField("Claim", p.Namespace+"/sheaf-bench")))
	})

	It("keeps volumes with data when it is deleted, and takes them up again", both("rights on volumes"),
		func(ctx context.Context) {
			p.create(ctx, p.disk("a"), p.disk("b"))
			p.settle(ctx)
			claim := p.claim(ctx, p.Namespace, "data-ssd-0-0")
			p.settle(ctx)
			pv := p.bindTo(ctx, claim)
			p.settle(ctx)
			Expect(api.Delete(ctx, p.get(ctx))).To(Succeed())
			_, err := p.reconcile(ctx)
			Expect(err).NotTo(HaveOccurred())
			Expect(apierrors.IsNotFound(api.Get(ctx, types.NamespacedName{Name: p.name}, &v1alpha1.DiskSet{}))).
				To(BeTrue(), "gone after one reconcile")
			Expect(apierrors.IsNotFound(api.Get(ctx, types.NamespacedName{Name: p.name}, &storagev1.StorageClass{}))).
				To(BeTrue())
			left := p.volumes(ctx)
			Expect(left).To(HaveLen(1))
			Expect(left).To(HaveKey(pv.Spec.Local.Path))
			p.create(ctx, p.disk("a"), p.disk("b"))
			p.settle(ctx)
			Expect(p.get(ctx).Status).To(HaveField("Bound", int32(1)))
			Expect(p.get(ctx).Status).To(HaveField("Free", int32(1)))
		})

	It("says which volume of somebody else has its disk", func(ctx context.Context) {
		set := &v1alpha1.DiskSet{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
		set.Spec.FileSystem.Type, set.Spec.Namespaces = v1alpha1.XFS, []string{p.Namespace}
		theirs := workload.DiskPersistentVolume(set, p.disk("a"))
		theirs.Labels = nil
		Expect(api.Create(ctx, theirs)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(api.Delete(ctx, theirs)).To(Succeed()) })
		p.create(ctx, p.disk("a"))
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "Conflict", theirs.Name)
		var now corev1.PersistentVolume
		Expect(api.Get(ctx, client.ObjectKeyFromObject(theirs), &now)).To(Succeed())
		Expect(now.ResourceVersion).To(Equal(theirs.ResourceVersion))
	})
})
