package controllers

import (
	"context"
	"errors"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// playedSource simulates the process from which a store is restored.
type playedSource struct {
	mu     sync.Mutex
	report *archiving.SourceReport // nil if the source does not answer
}

func (s *playedSource) SourceReport(context.Context, string) (*archiving.SourceReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.report == nil {
		return nil, errors.New("it does not answer")
	}
	report := *s.report
	return &report, nil
}

func (s *playedSource) says(report archiving.SourceReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report = &report
}

var _ = Describe("A store that is restored from an archive", func() {
	const archived = "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b"
	var p *storePlay
	var source *playedSource
	operator := func() {
		p.operator(acting)
		p.r.Sources, p.r.ArchiveImage = source, "sheaf-archive:1"
	}
	BeforeEach(func(ctx context.Context) {
		p, source = newStorePlay(ctx), &playedSource{}
		operator()
	})
	at := func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: p.Namespace, Name: name}
	}
	// there returns which objects of the source exist.
	there := func(ctx context.Context) (kinds []string) {
		for kind, o := range map[string]client.Object{"Deployment": &appsv1.Deployment{}, "Service": &corev1.Service{},
			"Secret": &corev1.Secret{}} {
			name := "quotes-restore"
			if kind == "Secret" {
				name = "quotes-restore-tls"
			}
			err := api.Get(ctx, at(name), o)
			if err == nil && o.GetDeletionTimestamp() == nil {
				Expect(metav1.IsControlledBy(o, p.get(ctx))).To(BeTrue())
				kinds = append(kinds, kind)
				continue
			}
			Expect(client.IgnoreNotFound(err)).To(Succeed())
		}
		return kinds
	}
	start := func(ctx context.Context) {
		d := &appsv1.Deployment{}
		Expect(api.Get(ctx, at("quotes-restore"), d)).To(Succeed())
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "quotes-restore-x",
			Labels: d.Spec.Template.Labels, Annotations: d.Spec.Template.Annotations}, Spec: d.Spec.Template.Spec}
		Expect(api.Create(ctx, pod)).To(Succeed())
		pod.Status.PodIP, pod.Status.PodIPs = "10.9.9.8", []corev1.PodIP{{IP: "10.9.9.8"}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: workload.ContainerRestore, Image: "i", ImageID: "i",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		Expect(api.Status().Update(ctx, pod)).To(Succeed())
	}

	It("begins when its source serves, and ends the source when no group waits",
		both("the API server has to accept its objects"), func(ctx context.Context) {
			store := p.create(ctx, func(s *v1alpha1.RecordStore) {
				s.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingNamed}
				s.Spec.Restore = &v1alpha1.Restore{URL: "s3://backups/quotes", StoreUID: archived,
					CredentialsSecretRef: &v1alpha1.ArchiveSecretReference{Name: "bucket"}}
			})
			p.pool(ctx, 2)
			By("no credentials")
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "SecretMissing", "spec.restore.credentialsSecretRef")
			p.expect(ctx, v1alpha1.ConditionRestored, metav1.ConditionFalse, "SecretMissing", "no Secret bucket")
			Expect(api.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "bucket"},
				Data: map[string][]byte{"AWS_ACCESS_KEY_ID": []byte("a"), "AWS_SECRET_ACCESS_KEY": []byte("b")}})).To(Succeed())
			By("no pod")
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRestored, metav1.ConditionFalse, "SourceMissing", "no pod")
			Expect(there(ctx)).To(HaveLen(3))
			Expect(api.Get(ctx, at("quotes-restore"), &networkingv1.NetworkPolicy{})).To(Succeed())
			By("it starts")
			start(ctx)
			into := string(store.UID)
			source.says(archiving.SourceReport{State: archiving.Starting, Store: into})
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRestored, metav1.ConditionFalse, "SourceStarts", "reads which groups")
			By("a group that cannot be restored")
			when := time.Date(2026, 11, 1, 12, 0, 0, 5, time.UTC)
			report := archiving.SourceReport{State: archiving.Serving, Store: into, Time: &when, Routing: "named", Groups: 2}
			bad := report
			bad.RefusedGroups, bad.Refused = 1, []archiving.RefusedGroup{{Group: "b", Error: "an object is missing"}}
			source.says(bad)
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRestored, metav1.ConditionFalse, "GroupsRefused",
				"group b: an object is missing", "has not begun")
			Expect(p.get(ctx).Status.PlacementInitialized).To(BeFalse())
			uid, _ := p.holds(ctx)
			Expect(uid).To(BeEmpty())

			By("the restore begins, as of a time that does not change any more")
			source.says(report)
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRestored, metav1.ConditionFalse, "Restoring", "a gateway writes the list")
			Expect(p.get(ctx).Status.Restore.Time).To(Equal("2026-11-01T12:00:00.000000005Z"))
			d := &appsv1.Deployment{}
			Expect(api.Get(ctx, at("quotes-restore"), d)).To(Succeed())
			Expect(d.Spec.Template.Spec.Containers[0].Args).To(ContainElements("source", "--store="+archived, "--into="+into,
				"--up-to=2026-11-01T12:00:00.000000005Z"))
			uid, _ = p.holds(ctx)
			Expect(uid).To(Equal(into))

			By("a group waits")
			Expect(p.etcd.Restoring(ctx, p.Namespace, "quotes", []string{"b"}, "a", "b")).To(Succeed())
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "Restoring", "1 of 2 groups wait")
			Expect(*p.get(ctx).Status.Restore.WaitingGroups).To(Equal(int32(1)))
			Expect(there(ctx)).To(HaveLen(3))

			By("no group waits")
			Expect(p.etcd.Restoring(ctx, p.Namespace, "quotes", nil)).To(Succeed())
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRestored, metav1.ConditionTrue, "Restored", "as of 2026-11-01T12:00:00")
			p.ready(ctx)
			Expect(there(ctx)).To(BeEmpty())
			By("another operator")
			operator()
			p.settle(ctx)
			Expect(there(ctx)).To(BeEmpty())

			By("an older etcd, in which a group waits")
			Expect(p.etcd.Restoring(ctx, p.Namespace, "quotes", []string{"b"}, "b")).To(Succeed())
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRestored, metav1.ConditionFalse, "Restoring", "1 of 2 groups wait")
			Expect(there(ctx)).To(HaveLen(3))
			Expect(p.etcd.Restoring(ctx, p.Namespace, "quotes", nil)).To(Succeed())
			p.settle(ctx)
			Expect(there(ctx)).To(BeEmpty())
		})

	It("does not forget groups that wait when etcd is lost", func(ctx context.Context) {
		store := p.create(ctx, func(s *v1alpha1.RecordStore) {
			s.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingNamed}
			s.Spec.Replication.Copies = 3
			s.Spec.Restore = &v1alpha1.Restore{URL: "s3://backups/quotes", StoreUID: archived, Point: "p"}
		})
		p.pool(ctx, 3)
		p.settle(ctx)
		start(ctx)
		when := time.Now()
		source.says(archiving.SourceReport{State: archiving.Serving, Store: string(store.UID), Time: &when,
			Routing: "named", Groups: 2})
		p.settle(ctx)
		Expect(p.etcd.Restoring(ctx, p.Namespace, "quotes", []string{"b"}, "a", "b")).To(Succeed())
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionRestored, metav1.ConditionFalse, "Restoring", "1 of 2 groups wait")
		Expect(p.etcd.Wipe(ctx)).To(Succeed())
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionPlacementReady, metav1.ConditionFalse, "PlacementLost", "was being restored")
		uid, _ := p.holds(ctx)
		Expect(uid).To(BeEmpty())
		Expect(there(ctx)).To(HaveLen(3))
	})
})
