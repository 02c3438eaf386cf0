package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/diskset"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/recordarchive"
	"sheaf.dev/sheaf/controllers/recordstore"
	"sheaf.dev/sheaf/controllers/shardpool"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// manage starts a manager that acts as the operator in one namespace. setup adds the controllers to the manager.
func manage(namespace string, elect bool, setup func(ctrl.Manager)) {
	GinkgoHelper()
	mgr, err := ctrl.NewManager(operatorConfig, ctrl.Options{
		Scheme: envScheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{},
			&corev1.Event{}}}},
		LeaderElection: elect, LeaderElectionID: "operator", LeaderElectionNamespace: namespace,
		LeaderElectionReleaseOnCancel: true,
		// The lease is long enough to survive a pause of the whole machine. The next leader need not wait until it expires,
		// because the previous leader releases it.
		LeaseDuration: new(4 * time.Minute), RenewDeadline: new(3 * time.Minute), RetryPeriod: new(2 * time.Second),
	})
	Expect(err).NotTo(HaveOccurred())
	setup(mgr)
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(running) }()
	DeferCleanup(func() {
		stop()
		Expect(<-ended).To(Succeed())
	})
}

// awaitAllowed waits until the API server allows the operator to perform an action.
func awaitAllowed(ctx context.Context, what authorizationv1.ResourceAttributes) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: operatorUser,
			ResourceAttributes: &what}}
		g.Expect(api.Create(ctx, review)).To(Succeed())
		g.Expect(review.Status.Allowed).To(BeTrue(), "%+v: %s", what, review.Status.Reason)
	}).Should(Succeed())
}

// setupAll adds four controllers to a manager, in the same way as cmd/sheaf-operator.
func (p *storePlay) setupAll(mgr ctrl.Manager, c client.Client) {
	GinkgoHelper()
	recorder := mgr.GetEventRecorder("sheaf-operator")
	groups := &fleet.GroupBook{}
	p.r = &recordstore.Reconciler{Client: c, Live: mgr.GetAPIReader(), Events: recorder, Placements: p.etcd,
		Groups: groups, Image: "sheaf:1"}
	p.pools = &shardpool.Reconciler{Client: c, Live: mgr.GetAPIReader(), Recorder: recorder, Shards: p.play,
		Groups: groups, Image: "sheaf:1"}
	disks := &diskset.Reconciler{Client: c, Events: recorder, Namespace: p.Namespace}
	backups := &recordarchive.BackupReconciler{Client: c, Recorder: recorder, Named: &recordarchive.NamedPoints{}}
	Expect(errors.Join(p.r.SetupWithManager(mgr), p.pools.SetupWithManager(mgr), disks.SetupWithManager(mgr),
		backups.SetupWithManager(mgr))).To(Succeed())
}

// diskSet creates a DiskSet with a single disk.
func (p *storePlay) diskSet(ctx context.Context) *v1alpha1.DiskSet {
	GinkgoHelper()
	set := &v1alpha1.DiskSet{ObjectMeta: metav1.ObjectMeta{Name: "disks-" + p.Namespace}}
	set.Spec.FileSystem.Type, set.Spec.Namespaces = v1alpha1.XFS, []string{p.Namespace}
	set.Spec.Disks = []v1alpha1.Disk{{Node: p.Node, Device: "/dev/disk/by-id/" + p.Namespace,
		Size: resource.MustParse("1Gi")}}
	Expect(api.Create(ctx, set)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { // runs after the controllers have stopped
		Expect(client.IgnoreNotFound(api.Delete(ctx, set))).To(Succeed())
		err := api.Get(ctx, client.ObjectKeyFromObject(set), set)
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		if err == nil {
			set.Finalizers = nil
			Expect(client.IgnoreNotFound(api.Update(ctx, set))).To(Succeed())
		}
	})
	return set
}

var _ = Describe("The whole operator", needs("managers reach it with the rights of the role"), func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) { p = newStorePlay(ctx) })

	It("is elected, makes everything and lets go of it, with its role alone", func(ctx context.Context) {
		runIn(ctx, p.Namespace)
		manage(p.Namespace, true, func(mgr ctrl.Manager) { p.setupAll(mgr, mgr.GetClient()) })
		p.create(ctx)
		p.pool(ctx, 2)
		set := p.diskSet(ctx)
		step := func() {
			p.step(ctx)
			p.playGateway(ctx)
			p.playShards(ctx)
		}
		pool := &v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "ssd"}}
		turn := 0
		Eventually(func() metav1.ConditionStatus {
			step()
			// The operator polls what it cannot watch, such as etcd and shards, only every ten seconds. A change of the object
			// makes it reconcile sooner.
			turn++
			nudge := client.RawPatch(types.MergePatchType, fmt.Appendf(nil,
				`{"metadata":{"annotations":{"example.org/nudge":"%d"}}}`, turn))
			for _, o := range []client.Object{p.get(ctx), pool.DeepCopy()} {
				Expect(api.Patch(ctx, o, nudge)).To(Succeed())
			}
			return conditionStatus(p.get(ctx).Status.Conditions, v1alpha1.ConditionReady)
		}).WithTimeout(3*time.Minute).WithPolling(500*time.Millisecond).Should(Equal(metav1.ConditionTrue), func() string {
			return strings.Join(p.words(ctx), "\n")
		})
		By("a person releases the disk, because no kubelet is there that could look at it")
		release := client.RawPatch(types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, workload.AnnotationRelease))
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: workload.DiskVolume(set.Name,
			set.Spec.Disks[0])}}
		Eventually(func() error { return api.Patch(ctx, volume, release) }).Should(Succeed())
		Eventually(func() metav1.ConditionStatus {
			Expect(api.Get(ctx, client.ObjectKeyFromObject(set), set)).To(Succeed())
			return conditionStatus(set.Status.Conditions, v1alpha1.ConditionReady)
		}).Should(Equal(metav1.ConditionTrue))

		By("telling of what happened to one object again by an event that is patched")
		Eventually(func() bool {
			// Deleting the StatefulSet makes the operator create it again and report the creation again. The pod remains, so
			// that the pool does not change: if the second event named another version of the pool, it would not be merged with
			// the first.
			set := &appsv1.StatefulSet{}
			if api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd-0"}, set) == nil {
				Expect(client.IgnoreNotFound(api.Delete(ctx, set))).To(Succeed())
			}
			usedRights.mu.Lock()
			defer usedRights.mu.Unlock()
			return usedRights.usedOwn[right{"events.k8s.io", "events", "patch"}]
		}).Should(BeTrue())

		By("deleting all of it")
		all := []client.Object{p.get(ctx), pool, set}
		for _, o := range all {
			Expect(api.Delete(ctx, o)).To(Succeed())
		}
		Eventually(func() (left []string) {
			step()
			for _, o := range all {
				if err := api.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
					left = append(left, fmt.Sprintf("%T %v %v", o, o.GetFinalizers(), err))
				}
			}
			return left
		}).WithTimeout(3 * time.Minute).Should(BeEmpty())
	})

	It("tries at most six times a minute while the API server refuses its writes", func(ctx context.Context) {
		p.create(ctx)
		p.pool(ctx, 1)
		set := p.diskSet(ctx)
		var mu sync.Mutex
		tried := map[string][]time.Time{}
		manage(p.Namespace, false, func(mgr ctrl.Manager) {
			direct, err := client.NewWithWatch(operatorConfig, client.Options{Scheme: envScheme})
			Expect(err).NotTo(HaveOccurred())
			cached := mgr.GetClient()
			p.setupAll(mgr, interceptor.NewClient(direct, interceptor.Funcs{
				Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object,
					opts ...client.GetOption) error {
					return cached.Get(ctx, key, o, opts...)
				},
				List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					return cached.List(ctx, list, opts...)
				},
				Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
					mu.Lock()
					defer mu.Unlock()
					name := fmt.Sprintf("%T %s", o, o.GetName())
					tried[name] = append(tried[name], time.Now()) // each reconcile tries to add the finalizer exactly once
					return errors.New("the API server refuses")
				},
			}))
		})
		ours := []string{"*v1alpha1.RecordStore quotes", "*v1alpha1.ShardPool ssd", "*v1alpha1.DiskSet " + set.Name}
		const window = 6 * time.Second
		// busiest returns, for each object, the largest number of attempts in any 6 s (the constant window).
		busiest := func() (of [3]int) {
			mu.Lock()
			defer mu.Unlock()
			for n, name := range ours {
				for first := range tried[name] {
					last := first
					for last < len(tried[name]) && tried[name][last].Sub(tried[name][first]) < window {
						last++
					}
					of[n] = max(of[n], last-first)
				}
			}
			return of
		}
		Eventually(busiest).Should(HaveEach(BeNumerically(">=", 2)), "failures are tried again")
		// controller-runtime's default pauses would allow eleven attempts in this time. The operator's pauses allow three,
		// and events during the start cause a few more.
		Consistently(busiest).WithTimeout(window).Should(HaveEach(BeNumerically("<=", 6)))
		var store v1alpha1.RecordStore
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes"}, &store)).To(Succeed())
		Expect(conditionStatus(store.Status.Conditions, v1alpha1.ConditionReady)).To(Equal(metav1.ConditionFalse))
	})
})

// conditionStatus returns the status of the condition of type kind, or "" if there is no such condition.
func conditionStatus(conditions []metav1.Condition, kind string) metav1.ConditionStatus {
	for _, c := range conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}
