package controllers

import (
	"context"
	"errors"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/recordarchive"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// fakeArchiver simulates the pod of an archive.
type fakeArchiver struct {
	mu     sync.Mutex
	report *archiving.Report // nil if the archiver does not answer
}

func (a *fakeArchiver) Report(context.Context, string) (*archiving.Report, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.report == nil {
		return nil, errors.New("it does not answer")
	}
	return a.report, nil
}

// setReport sets the report of the archiver.
func (a *fakeArchiver) setReport(lag time.Duration, trouble *archiving.Trouble) {
	a.mu.Lock()
	defer a.mu.Unlock()
	seconds, through := lag.Seconds(), time.Now().Add(-lag)
	a.report = &archiving.Report{State: archiving.Archiving, IntervalSeconds: 10, Groups: 8, LagSeconds: &seconds,
		ArchivedThrough: &through, Trouble: trouble}
}

// archivePlay simulates a cluster that has a store with an archive.
type archivePlay struct {
	*storePlay
	archiver *fakeArchiver
	archives *recordarchive.Reconciler
}

func newArchivePlay(ctx context.Context) *archivePlay {
	p := &archivePlay{storePlay: newStorePlay(ctx), archiver: &fakeArchiver{}}
	p.archives = &recordarchive.Reconciler{Client: acting, Live: operatorClient, Archives: p.archiver,
		Recorder: events.NewFakeRecorder(1000), Image: "sheaf-archive:1",
		Trust: &trust.Keeper{Client: acting, Live: operatorClient, Now: time.Now}}
	return p
}

func (p *archivePlay) archive(ctx context.Context, name string,
	changes ...func(*v1alpha1.RecordArchive)) *v1alpha1.RecordArchive {
	GinkgoHelper()
	a := &v1alpha1.RecordArchive{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name}}
	a.Spec.StoreRef.Name, a.Spec.URL = "quotes", "s3://backups/quotes"
	for _, change := range changes {
		change(a)
	}
	Expect(api.Create(ctx, a)).To(Succeed())
	return a
}

// reconcileConditions reconciles an archive, and returns its conditions as "Status Reason".
func (p *archivePlay) reconcileConditions(ctx context.Context, a *v1alpha1.RecordArchive) map[string]string {
	GinkgoHelper()
	p.archives.ForgetWrites()
	_, err := p.archives.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(a)})
	Expect(err).NotTo(HaveOccurred())
	Expect(api.Get(ctx, client.ObjectKeyFromObject(a), a)).To(Succeed())
	all := map[string]string{}
	for _, c := range a.Status.Conditions {
		all[c.Type] = string(c.Status) + " " + c.Reason
	}
	return all
}

func (p *archivePlay) deployment(ctx context.Context) *appsv1.Deployment {
	GinkgoHelper()
	d := &appsv1.Deployment{}
	Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-archive"}, d)).To(Succeed())
	return d
}

// start creates the archive's pod, as the Deployment controller would.
func (p *archivePlay) start(ctx context.Context) {
	GinkgoHelper()
	template := p.deployment(ctx).Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "quotes-archive-x",
		Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec}
	Expect(api.Create(ctx, pod)).To(Succeed())
	pod.Status.PodIP = "10.9.9.9"
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.9.9.9"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: workload.ContainerArchive, Image: "i", ImageID: "i",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	Expect(api.Status().Update(ctx, pod)).To(Succeed())
}

var _ = Describe("The archive of a store", func() {
	var p *archivePlay
	BeforeEach(func(ctx context.Context) { p = newArchivePlay(ctx) })

	secret := func(key string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "bucket"},
			Data: map[string][]byte{"AWS_ACCESS_KEY_ID": []byte("id"), "AWS_SECRET_ACCESS_KEY": []byte(key)}}
	}
	withSecret := func(a *v1alpha1.RecordArchive) {
		a.Spec.CredentialsSecretRef = &v1alpha1.ArchiveSecretReference{Name: "bucket"}
	}

	It("is kept by a pod of its own, with its own certificate", both("the API server has to accept its objects"),
		func(ctx context.Context) {
			a := p.archive(ctx, "offsite", withSecret)
			By("no store")
			Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("Stalled", "True StoreUnknown"))
			p.running(ctx, 2)
			By("no Secret")
			Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("Stalled", "True SecretMissing"))
			Expect(api.Create(ctx, secret("first"))).To(Succeed())
			By("a pod that nobody has started yet")
			Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("Archiving", "False PodMissing"))
			template := p.deployment(ctx).Spec.Template
			Expect(template.Spec.Containers[0].Args).To(ContainElements("run", "s3://backups/quotes", "--stay",
				"--interval=10s", "--tls-dir=/etc/sheaf/tls"))
			Expect(*template.Spec.AutomountServiceAccountToken).To(BeFalse())
			wanted := &corev1.ConfigMap{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-archive-points"},
				wanted)).To(Succeed())
			Expect(metav1.IsControlledBy(wanted, a)).To(BeTrue())
			facts, err := archiving.ParseWanted([]byte(wanted.Data["wanted.json"]))
			Expect(err).NotTo(HaveOccurred())
			Expect(facts.Points).To(BeEmpty())
			var names []string
			for _, f := range facts.Facts {
				names = append(names, f.Name)
			}
			Expect(names).To(ContainElements("RecordStore/quotes", "RecordArchive/offsite", "ShardPool/ssd"))
			leaf := &corev1.Secret{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-archive-tls"}, leaf)).To(Succeed())
			Expect(metav1.IsControlledBy(leaf, a)).To(BeTrue())

			By("it archives")
			p.start(ctx)
			p.archiver.setReport(4*time.Second, nil)
			Expect(p.reconcileConditions(ctx, a)).To(And(HaveKeyWithValue("Ready", "True Ready"),
				HaveKeyWithValue("Archiving", "True Archiving"), HaveKeyWithValue("ArchiveCurrent", "True Current")))
			Expect(a.Status.Groups).To(HaveValue(Equal(int32(8))))
			Expect(a.Status.ArchivedThrough.Time).To(BeTemporally("~", time.Now(), time.Minute))

			By("the bucket is away")
			p.archiver.setReport(2*time.Minute, &archiving.Trouble{Reason: "Away", Message: "nothing answers"})
			Expect(p.reconcileConditions(ctx, a)).To(And(HaveKeyWithValue("Ready", "False Away"),
				HaveKeyWithValue("Archiving", "False Away"), HaveKeyWithValue("ArchiveCurrent", "False Behind")))

			By("new credentials replace the pod")
			changed := &corev1.Secret{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "bucket"}, changed)).To(Succeed())
			changed.Data = secret("second").Data
			Expect(api.Update(ctx, changed)).To(Succeed())
			p.reconcileConditions(ctx, a)
			Expect(p.deployment(ctx).Spec.Template.Annotations).NotTo(Equal(template.Annotations))

			By("encryption, whose Secret is missing, wrong, right and changed")
			Expect(api.Get(ctx, client.ObjectKeyFromObject(a), a)).To(Succeed())
			a.Spec.Encryption = &v1alpha1.ArchiveEncryption{SecretRef: v1alpha1.ArchiveSecretReference{Name: "keys"}}
			Expect(api.Update(ctx, a)).To(Succeed())
			Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("Stalled", "True SecretMissing"))
			keys := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "keys"},
				Data: map[string][]byte{"2026": []byte("no-key-but-a-password")}}
			Expect(api.Create(ctx, keys)).To(Succeed())
			Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("Stalled", "True EncryptionKeysInvalid"))
			Expect(meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionStalled).Message).To(
				And(ContainSubstring("Secret keys"), ContainSubstring("2026: it has 21 bytes"),
					Not(ContainSubstring("password"))))
			Expect(p.deployment(ctx).Spec.Template.Spec.Containers[0].Args).NotTo(
				ContainElement(HavePrefix("--encryption-keys")))
			keys.Data["2026"] = []byte("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n")
			Expect(api.Update(ctx, keys)).To(Succeed())
			p.reconcileConditions(ctx, a)
			encrypts := p.deployment(ctx).Spec.Template
			Expect(encrypts.Spec.Containers[0].Args).To(ContainElement("--encryption-keys=/etc/sheaf/keys"))
			keys.Data["2027"] = []byte("AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
			Expect(api.Update(ctx, keys)).To(Succeed())
			p.reconcileConditions(ctx, a)
			Expect(p.deployment(ctx).Spec.Template.Annotations).NotTo(Equal(encrypts.Annotations))

			By("another account")
			Expect(api.Get(ctx, client.ObjectKeyFromObject(a), a)).To(Succeed())
			a.Spec.CredentialsSecretRef, a.Spec.ServiceAccountName = nil, "sheaf-archive-quotes"
			Expect(api.Update(ctx, a)).To(Succeed())
			p.reconcileConditions(ctx, a)
			spec := p.deployment(ctx).Spec.Template.Spec
			Expect(spec.ServiceAccountName).To(Equal("sheaf-archive-quotes"))
			Expect(spec.Containers[0].Env).To(BeEmpty())
			By("and none again")
			a.Spec.ServiceAccountName = ""
			Expect(api.Update(ctx, a)).To(Succeed())
			p.reconcileConditions(ctx, a)
			Expect(p.deployment(ctx).Spec.Template.Spec.ServiceAccountName).To(Equal("default"))
		})

	It("keeps the points of RecordBackups", both("the API server has to accept their finalizer and status"),
		func(ctx context.Context) {
			p.running(ctx, 1)
			a := p.archive(ctx, "offsite")
			named := &recordarchive.NamedPoints{}
			p.archives.Named = named
			backups := &recordarchive.BackupReconciler{Client: acting, Recorder: events.NewFakeRecorder(100), Named: named}
			b := &v1alpha1.RecordBackup{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "before-1.2"}}
			b.Spec.ArchiveRef.Name, b.Spec.TTL = "offsite", &metav1.Duration{Duration: time.Hour}
			Expect(api.Create(ctx, b)).To(Succeed())
			reconcile := func() string {
				GinkgoHelper()
				_, err := backups.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(b)})
				Expect(err).NotTo(HaveOccurred())
				if apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(b), b)) {
					return "gone"
				}
				return meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionReady).Reason
			}
			wanted := func() []archiving.WantedPoint {
				GinkgoHelper()
				p.reconcileConditions(ctx, a)
				m := &corev1.ConfigMap{}
				Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-archive-points"}, m)).To(Succeed())
				w, err := archiving.ParseWanted([]byte(m.Data["wanted.json"]))
				Expect(err).NotTo(HaveOccurred())
				return w.Points
			}
			Expect(reconcile()).To(Equal("PointPending"))
			Expect(wanted()).To(HaveLen(1))
			Expect(wanted()[0].Name).To(Equal(b.Status.Point))

			By("the pod has made it")
			p.start(ctx)
			p.archiver.setReport(4*time.Second, nil)
			at := time.Now()
			p.archiver.report.Upkeep = &archiving.Upkeep{Named: []archiving.NamedPoint{{Name: b.Status.Point, Time: &at}}}
			wanted()
			Expect(reconcile()).To(Equal("Ready"))
			Expect(b.Status.Time).NotTo(BeNil())
			Expect(wanted()).To(BeEmpty())

			By("somebody deletes it")
			Expect(api.Delete(ctx, b)).To(Succeed())
			Expect(reconcile()).To(Equal("Deleting"))
			Expect(meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionReady).Message).To(
				ContainSubstring("remove finalizer"))
			Expect(wanted()[0].Drop).To(BeTrue())
			p.archiver.report.Upkeep.Named[0].Dropped = true
			wanted()
			Expect(reconcile()).To(Equal("gone"))

			By("the archive is gone, so nobody can remove a point")
			b = &v1alpha1.RecordBackup{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "late"}}
			b.Spec.ArchiveRef.Name = "offsite"
			Expect(api.Create(ctx, b)).To(Succeed())
			Expect(reconcile()).To(Equal("PointPending"))
			Expect(api.Delete(ctx, a)).To(Succeed())
			Expect(reconcile()).To(Equal("ArchiveUnknown"))
			Expect(api.Delete(ctx, b)).To(Succeed())
			Expect(reconcile()).To(Equal("gone"))
		})

	It("is the only one of its store", func(ctx context.Context) {
		p.running(ctx, 1)
		first := p.archive(ctx, "a")
		Expect(p.reconcileConditions(ctx, first)).To(HaveKeyWithValue("Archiving", "False PodMissing"))
		second := p.archive(ctx, "b")
		Expect(p.reconcileConditions(ctx, second)).To(And(HaveKeyWithValue("Stalled", "True StoreHasArchive"),
			HaveKeyWithValue("Archiving", "False StoreHasArchive")))
		Expect(metav1.IsControlledBy(p.deployment(ctx), first)).To(BeTrue())
		Expect(meta.FindStatusCondition(second.Status.Conditions, v1alpha1.ConditionStalled).Message).To(
			ContainSubstring("RecordArchive a archives this store"))
	})

	It("proves by drills that it can be restored", both("the API server has to accept the Job"),
		func(ctx context.Context) {
			p.running(ctx, 1)
			a := p.archive(ctx, "a", func(a *v1alpha1.RecordArchive) {
				a.Spec.Drill = &v1alpha1.ArchiveDrill{Schedule: "0 * * * *",
					Storage: v1alpha1.ArchiveDrillStorage{Size: resource.MustParse("50Gi")}}
			})
			p.reconcileConditions(ctx, a)
			p.start(ctx)
			p.archiver.setReport(4*time.Second, nil)
			key := types.NamespacedName{Namespace: p.Namespace, Name: "quotes-drill"}
			clock := func(after time.Duration) { // since the archive was made, whatever the hour is
				p.archives.Now = func() time.Time { return a.CreationTimestamp.Add(after) }
			}

			By("no drill is due yet")
			clock(0)
			Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("RestoreProven", "Unknown NotTried"))
			Expect(api.Get(ctx, key, &batchv1.Job{})).NotTo(Succeed())

			By("one is due, but the Secret with the keys is missing")
			a.Spec.Encryption = &v1alpha1.ArchiveEncryption{SecretRef: v1alpha1.ArchiveSecretReference{Name: "keys"}}
			Expect(api.Update(ctx, a)).To(Succeed())
			clock(time.Hour)
			Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("Stalled", "True SecretMissing"))
			Expect(apierrors.IsNotFound(api.Get(ctx, key, &batchv1.Job{}))).To(BeTrue())
			a.Spec.Encryption = nil
			Expect(api.Update(ctx, a)).To(Succeed())

			By("one is due within an hour")
			Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("RestoreProven", "Unknown NotTried"))
			job := &batchv1.Job{}
			Expect(api.Get(ctx, key, job)).To(Succeed())
			Expect(metav1.IsControlledBy(job, a)).To(BeTrue())
			Expect(a.Status.DrillStarted).NotTo(BeNil())
			Expect(job.Spec.Template.Spec.Containers[0].Args).To(ContainElements("drill", "--groups=8", "--scratch=/scratch"))

			By("it is not started again")
			Expect(p.reconcileConditions(ctx, a)).To(HaveKey("RestoreProven"))
			again := &batchv1.Job{}
			Expect(api.Get(ctx, key, again)).To(Succeed())
			Expect(again.UID).To(Equal(job.UID))

			By("it proves the archive")
			p.archiver.report.Drill = &archiving.Drill{Time: time.Now(), Result: archiving.DrillProven, Groups: 8,
				Records: 1000, Proven: new(time.Now())}
			Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("RestoreProven", "True Proven"))
			Expect(a.Status.Drill.Records).To(Equal(int64(1000)))
		})

	It("restarts shards only for its own limit of what they keep", func(ctx context.Context) {
		p.running(ctx, 1)
		args := func() []string {
			set := &appsv1.StatefulSet{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd-0"}, set)).To(Succeed())
			return set.Spec.Template.Spec.Containers[0].Args
		}
		before := args()
		a := p.archive(ctx, "a")
		p.reconcileConditions(ctx, a)
		p.settle(ctx)
		Expect(args()).To(Equal(before))
		a.Spec.Hold = &v1alpha1.ArchiveHold{MaxBytes: new(resource.MustParse("20Gi"))}
		Expect(api.Update(ctx, a)).To(Succeed())
		p.settle(ctx)
		Expect(args()).To(ContainElement("--archive-hold-max=21474836480"))
		Expect(api.Delete(ctx, a)).To(Succeed())
		p.settle(ctx)
		Expect(args()).To(Equal(before))
	})

	It("does without an image only until somebody names one", func(ctx context.Context) {
		p.running(ctx, 1)
		p.archives.Image = ""
		a := p.archive(ctx, "a")
		Expect(p.reconcileConditions(ctx, a)).To(HaveKeyWithValue("Stalled", "True NoImage"))
		d := &appsv1.Deployment{}
		err := api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-archive"}, d)
		Expect(apierrors.IsNotFound(err)).To(BeTrue())
		a.Spec.Image = "mine:1"
		Expect(api.Update(ctx, a)).To(Succeed())
		p.reconcileConditions(ctx, a)
		Expect(p.deployment(ctx).Spec.Template.Spec.Containers[0].Image).To(Equal("mine:1"))
	})
})
