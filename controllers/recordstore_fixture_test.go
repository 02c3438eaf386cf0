package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/recordgrant"
	"sheaf.dev/sheaf/controllers/recordstore"
	"sheaf.dev/sheaf/controllers/shardpool"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// EtcdPlay is a real etcd, accessed through the operator's own adapter. It also plays the part of the shards in that
// etcd.
type EtcdPlay interface {
	fleet.Placements
	Serve(ctx context.Context, namespace, store string, shards []string) (map[string][]string, error)
	Holds(ctx context.Context, namespace, store string) (uid string, groups int, err error)
	Leave(ctx context.Context, namespace, store, shard string) error
	Register() fleet.ShardRegister
	Tables() recordgrant.Tables
	Shards() fleet.ShardClient
	Credentials() trust.Credentials
	Endpoints() []string
	Stick(stuck bool)
	SayMembers(key string, members []fleet.EtcdMember)
	Volume(shard string) string
	Wipe(ctx context.Context) error
	Restoring(ctx context.Context, namespace, store string, wait []string, groups ...string) error
	Rebuild(ctx context.Context, namespace, name string, of *v1alpha1.RecordStore) error
	Stop()
}

// NewEtcdPlay starts an EtcdPlay. The external test package sets it, because only that package can import the
// adapter.
var NewEtcdPlay func(dir string) (EtcdPlay, error)

// sharedEtcd starts the etcd that all tests share. The stores of different namespaces do not conflict in it. stopEtcd
// stops it.
var sharedEtcd = sync.OnceValues(func() (EtcdPlay, error) {
	dir, err := os.MkdirTemp("", "sheaf-etcd-play-") // the path of a socket must be short, and it begins with this name
	if err != nil {
		return nil, err
	}
	etcd, err := NewEtcdPlay(dir)
	stopEtcd = func() error {
		if err == nil {
			etcd.Stop()
		}
		return os.RemoveAll(dir)
	}
	return etcd, err
})

var stopEtcd = func() error { return nil }

// storePlay simulates a cluster in which the controllers of stores and pools run.
type storePlay struct {
	*play
	etcd    EtcdPlay
	certs   *simulatedTransports
	clock   func() time.Time // the operator's clock
	r       *recordstore.Reconciler
	pools   *shardpool.Reconciler
	events  *events.FakeRecorder
	issuers *issuers // simulate cert-manager; nil if cert-manager is not installed
	away    bool     // the shards do not register
	bad     string   // name of an image that cannot be pulled
	// reported modifies the report of a shard, after its groups have been set.
	reported func(shard string, r *recordv1.ShardStatus)
}

func newStorePlay(ctx context.Context) *storePlay {
	makeClasses(ctx)
	etcd, err := sharedEtcd()
	Expect(err).NotTo(HaveOccurred())
	p := &storePlay{play: newPlay(ctx), etcd: etcd, events: events.NewFakeRecorder(10000), clock: time.Now}
	p.certs = &simulatedTransports{play: p.play, now: func() time.Time {
		return p.clock()
	}, has: map[types.UID]deliveredFiles{}, held: map[string]bool{}}
	p.uuidOf = etcd.Volume
	DeferCleanup(func() { etcd.Close(p.Namespace + "/quotes") })
	p.operator(acting)
	return p
}

// operator starts a new operator, which remembers nothing from earlier reconciles.
func (p *storePlay) operator(c client.Client) {
	groups := &fleet.GroupBook{}
	now := func() time.Time { return p.clock() }
	keeper := &trust.Keeper{Client: c, Live: operatorClient, Now: now}
	p.r = &recordstore.Reconciler{
		Client: c, Live: operatorClient, Events: p.events, Placements: p.etcd, Groups: groups, Image: "sheaf:1",
		Namespace: "sheaf-system",
		Trust:     keeper, Transports: p.certs, Now: now,
	}
	p.pools = &shardpool.Reconciler{Client: c, Live: operatorClient, Shards: p.play, Image: "sheaf:1",
		Register: p.etcd.Register(), Groups: groups, Trust: keeper}
}

// create creates a store with a managed etcd of one member.
func (p *storePlay) create(ctx context.Context, changes ...func(*v1alpha1.RecordStore)) *v1alpha1.RecordStore {
	store := &v1alpha1.RecordStore{ObjectMeta: metav1.ObjectMeta{Name: "quotes", Namespace: p.Namespace}}
	store.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingHash, Count: new(int32(8))}
	store.Spec.Etcd.Managed = &v1alpha1.ManagedEtcd{Members: 1,
		Storage: v1alpha1.EtcdStorage{StorageClassName: new(classGrows), Size: resource.MustParse("1Gi")}}
	for _, change := range changes {
		change(store)
	}
	Expect(api.Create(ctx, store)).To(Succeed())
	return store
}

// running creates the store and its pool, and returns when both are ready.
func (p *storePlay) running(ctx context.Context, shards int32,
	changes ...func(*v1alpha1.RecordStore)) *v1alpha1.RecordStore {
	GinkgoHelper()
	store := p.create(ctx, changes...)
	p.pool(ctx, shards)
	p.settle(ctx)
	p.ready(ctx)
	return store
}

// pool creates the pool of the store.
func (p *storePlay) pool(ctx context.Context, shards int32) { p.poolNamed(ctx, "ssd", shards) }

func (p *storePlay) getPool(ctx context.Context) *v1alpha1.ShardPool {
	pool := &v1alpha1.ShardPool{}
	Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd"}, pool)).To(Succeed())
	return pool
}

func (p *storePlay) poolNamed(ctx context.Context, name string, shards int32) {
	pool := &v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: p.Namespace}}
	pool.Spec.StoreRef.Name, pool.Spec.Shards = "quotes", &shards
	pool.Spec.Storage = v1alpha1.Storage{StorageClassName: classGrows, Size: resource.MustParse("1Gi")}
	Expect(api.Create(ctx, pool)).To(Succeed())
}

func (p *storePlay) get(ctx context.Context) *v1alpha1.RecordStore {
	store := &v1alpha1.RecordStore{}
	Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes"}, store)).To(Succeed())
	return store
}

func (p *storePlay) change(ctx context.Context, change func(*v1alpha1.RecordStore)) {
	store := p.get(ctx)
	change(store)
	Expect(api.Update(ctx, store)).To(Succeed())
}

// reconcile reconciles the store once.
func (p *storePlay) reconcile(ctx context.Context) (ctrl.Result, error) {
	return p.r.Reconcile(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: "quotes"}})
}

// round lets every component act once. It treats each status as due for a write, as if enough time had passed since
// the previous round.
func (p *storePlay) round(ctx context.Context) error {
	p.pools.ForgetWrites()
	_, failed := p.reconcile(ctx)
	var pools v1alpha1.ShardPoolList
	Expect(api.List(ctx, &pools, client.InNamespace(p.Namespace))).To(Succeed())
	for _, pool := range pools.Items {
		if _, err := p.pools.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&pool)}); err != nil {
			failed = err
		}
	}
	if p.issuers != nil {
		p.issuers.issue(ctx)
	}
	p.step(ctx)
	p.playGateway(ctx)
	p.playShards(ctx)
	return failed
}

// playGateway simulates the Deployment controller.
func (p *storePlay) playGateway(ctx context.Context) {
	var all appsv1.DeploymentList
	Expect(api.List(ctx, &all, client.InNamespace(p.Namespace))).To(Succeed())
	for n := range all.Items {
		d := &all.Items[n]
		want := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: *d.Spec.Replicas,
			UpdatedReplicas: *d.Spec.Replicas,
			ReadyReplicas:   *d.Spec.Replicas, AvailableReplicas: *d.Spec.Replicas}
		if fleet.ImageOf(&d.Spec.Template.Spec) == p.bad { // the new pod cannot start, so the old pods remain
			want.Replicas, want.UpdatedReplicas, want.UnavailableReplicas = want.Replicas+1, 1, 1
		}
		if d.Status.ObservedGeneration != d.Generation {
			d.Status = want
			Expect(api.Status().Update(ctx, d)).To(Succeed())
		}
	}
}

// playShards registers the shards whose pods run, and creates their groups.
func (p *storePlay) playShards(ctx context.Context) {
	if p.away {
		return
	}
	var pods corev1.PodList
	Expect(api.List(ctx, &pods, client.InNamespace(p.Namespace),
		client.MatchingLabels{v1alpha1.LabelComponent: workload.ContainerShard})).To(Succeed())
	var shards []string
	for n := range pods.Items {
		if slices.ContainsFunc(pods.Items[n].Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			shards = append(shards, strings.TrimSuffix(pods.Items[n].Name, "-0"))
		}
	}
	has, err := p.etcd.Serve(ctx, p.Namespace, "quotes", shards)
	Expect(err).NotTo(HaveOccurred())
	for _, shard := range shards {
		groups := has[shard]
		p.setReport(shard, func(r *recordv1.ShardStatus) {
			// Each shard claims to lead all of its groups; this is harmless, because these tests do not count records.
			for _, g := range groups {
				r.Groups = append(r.Groups, &recordv1.Group{Group: g, State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true})
			}
			if p.reported != nil {
				p.reported(shard, r)
			}
		})
	}
}

// settle runs rounds until two in a row write nothing.
func (p *storePlay) settle(ctx context.Context) {
	GinkgoHelper()
	for n, quiet := 0, 0; quiet < 2; n++ {
		Expect(n).To(BeNumerically("<", 100), "it does not settle: %v", p.words(ctx))
		before := writeCount.Load()
		if quiet++; p.round(ctx) != nil || writeCount.Load() != before {
			quiet = 0
		}
	}
}

func (p *storePlay) words(ctx context.Context) (words []string) {
	for _, c := range p.get(ctx).Status.Conditions {
		words = append(words, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return words
}

// expect checks that the store's condition of type kind has the given status and reason, and that its message
// contains all the words.
func (p *storePlay) expect(ctx context.Context, kind string, status metav1.ConditionStatus, reason string,
	words ...string) {
	GinkgoHelper()
	c := meta.FindStatusCondition(p.get(ctx).Status.Conditions, kind)
	Expect(c).NotTo(BeNil(), "%s: %v", kind, p.words(ctx))
	Expect(fmt.Sprintf("%s %s", c.Status, c.Reason)).To(Equal(fmt.Sprintf("%s %s", status, reason)), "%s: %s\n%v", kind,
		c.Message, p.words(ctx))
	for _, w := range words {
		Expect(c.Message).To(ContainSubstring(w), kind)
	}
}

// expectAbsent checks that conditions are absent.
func (p *storePlay) expectAbsent(ctx context.Context, kinds ...string) {
	GinkgoHelper()
	for _, kind := range kinds {
		Expect(meta.FindStatusCondition(p.get(ctx).Status.Conditions, kind)).To(BeNil(), "%s: %v", kind, p.words(ctx))
	}
}

func (p *storePlay) ready(ctx context.Context) {
	GinkgoHelper()
	p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
	p.expectAbsent(ctx, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled)
}

// holds returns the UID and the number of groups that etcd holds for the store.
func (p *storePlay) holds(ctx context.Context) (string, int) {
	GinkgoHelper()
	uid, groups, err := p.etcd.Holds(ctx, p.Namespace, "quotes")
	Expect(err).NotTo(HaveOccurred())
	return uid, groups
}

// picture returns a text for each object that the store owns, by kind and name. The texts omit the API server's
// counters.
func (p *storePlay) picture(ctx context.Context) map[string]string {
	GinkgoHelper()
	pictures := map[string]string{}
	add := func(o client.Object, spec any) {
		bytes, err := json.Marshal(map[string]any{"labels": o.GetLabels(), "annotations": o.GetAnnotations(), "spec": spec})
		Expect(err).NotTo(HaveOccurred())
		pictures[fmt.Sprintf("%T %s", o, o.GetName())] = string(bytes)
	}
	var (
		sets        appsv1.StatefulSetList
		deployments appsv1.DeploymentList
		services    corev1.ServiceList
		budgets     policyv1.PodDisruptionBudgetList
		policies    networkingv1.NetworkPolicyList
	)
	for _, list := range []client.ObjectList{&sets, &deployments, &services, &budgets, &policies} {
		Expect(api.List(ctx, list, client.InNamespace(p.Namespace))).To(Succeed())
	}
	for n := range sets.Items {
		add(&sets.Items[n], sets.Items[n].Spec)
	}
	for n := range deployments.Items {
		deployments.Items[n].Annotations["deployment.kubernetes.io/revision"] = ""
		add(&deployments.Items[n], deployments.Items[n].Spec)
	}
	for n := range services.Items {
		services.Items[n].Spec.ClusterIP, services.Items[n].Spec.ClusterIPs = "", nil
		add(&services.Items[n], services.Items[n].Spec)
	}
	for n := range budgets.Items {
		add(&budgets.Items[n], budgets.Items[n].Spec)
	}
	for n := range policies.Items {
		add(&policies.Items[n], policies.Items[n].Spec)
	}
	return pictures
}

// takeEvents returns the events that were reported since the previous call.
func (p *storePlay) takeEvents() (lines []string) {
	for {
		select {
		case line := <-p.events.Events:
			lines = append(lines, line)
		default:
			return lines
		}
	}
}

// alteringClient returns a client that applies change to each object that it reads.
func alteringClient(base client.WithWatch, change func(client.Object)) client.Client {
	return interceptor.NewClient(base, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if err := c.Get(ctx, key, o, opts...); err != nil {
				return err
			}
			change(o)
			return nil
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := c.List(ctx, list, opts...); err != nil {
				return err
			}
			return meta.EachListItem(list, func(o runtime.Object) error {
				change(o.(client.Object))
				return nil
			})
		},
	})
}
