package controllers

import (
	"context"
	"errors"
	"fmt"

	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/shardpool"
	"sheaf.dev/sheaf/internal/placement"
)

// These are the StorageClasses of the tests. Only volumes of the first one can grow.
const (
	classGrows = "grows"
	classFixed = "fixed"
)

func makeClasses(ctx context.Context) {
	for name, grows := range map[string]bool{classGrows: true, classFixed: false} {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Provisioner: "kubernetes.io/no-provisioner", AllowVolumeExpansion: &grows}
		Expect(client.IgnoreAlreadyExists(api.Create(ctx, class))).To(Succeed())
	}
}

// poolPlay simulates a cluster with a store and the reconciler of its pools.
type poolPlay struct {
	*play
	store *v1alpha1.RecordStore
	r     *shardpool.Reconciler
	// after is called after each reconcile and after each step. It checks conditions that must always hold.
	after func(context.Context)
	undo  func() // reverts the change made by the method back
}

func newPoolPlay(ctx context.Context) *poolPlay {
	makeClasses(ctx)
	p := &poolPlay{play: newPlay(ctx)}
	p.store = &v1alpha1.RecordStore{ObjectMeta: metav1.ObjectMeta{Name: "quotes", Namespace: p.Namespace}}
	count := int32(8)
	p.store.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingHash, Count: &count}
	Expect(api.Create(ctx, p.store)).To(Succeed())
	p.store.Status.StoreUID = string(p.store.UID)
	p.storeID = p.store.Status.StoreUID
	Expect(api.Status().Update(ctx, p.store)).To(Succeed())
	p.r = p.reconciler(acting)
	return p
}

// reconciler returns a new operator, which has nothing in memory.
func (p *poolPlay) reconciler(c client.Client) *shardpool.Reconciler {
	return &shardpool.Reconciler{Client: c, Live: operatorClient, Shards: p.play, Image: "sheaf:1"}
}

func (p *poolPlay) pool(ctx context.Context, name string, shards int32,
	changes ...func(*v1alpha1.ShardPool)) *v1alpha1.ShardPool {
	pool := &v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: p.Namespace}}
	pool.Spec.StoreRef.Name, pool.Spec.Shards = p.store.Name, &shards
	pool.Spec.Storage = v1alpha1.Storage{StorageClassName: classGrows, Size: resource.MustParse("1Gi")}
	for _, change := range changes {
		change(pool)
	}
	Expect(api.Create(ctx, pool)).To(Succeed())
	return pool
}

func (p *poolPlay) get(ctx context.Context, name string) *v1alpha1.ShardPool {
	pool := &v1alpha1.ShardPool{}
	Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, pool)).To(Succeed())
	return pool
}

// change changes a pool's spec or annotations.
func (p *poolPlay) change(ctx context.Context, name string, change func(*v1alpha1.ShardPool)) {
	pool := p.get(ctx, name)
	change(pool)
	Expect(api.Update(ctx, pool)).To(Succeed())
}

func (p *poolPlay) changeStore(ctx context.Context, change func(*v1alpha1.RecordStore)) {
	Expect(api.Get(ctx, client.ObjectKeyFromObject(p.store), p.store)).To(Succeed())
	change(p.store)
	Expect(api.Update(ctx, p.store)).To(Succeed())
}

// reconcile reconciles a pool once.
func (p *poolPlay) reconcile(ctx context.Context, name string) (ctrl.Result, error) {
	result, err := p.r.Reconcile(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: p.Namespace,
		Name: name}})
	if p.after != nil {
		p.after(ctx)
	}
	return result, err
}

// round reconciles every pool, and lets each simulated component perform one step. It treats each status as due for a
// write, as if enough time had passed since the previous round.
func (p *poolPlay) round(ctx context.Context) error {
	p.r.ForgetWrites()
	var pools v1alpha1.ShardPoolList
	Expect(api.List(ctx, &pools, client.InNamespace(p.Namespace))).To(Succeed())
	var failed error
	for _, pool := range pools.Items {
		_, err := p.reconcile(ctx, pool.Name)
		failed = errors.Join(failed, err)
		p.step(ctx)
		if p.after != nil {
			p.after(ctx)
		}
	}
	if len(pools.Items) == 0 {
		p.step(ctx)
	}
	return failed
}

// settledPool creates a pool, and runs rounds until nothing changes.
func (p *poolPlay) settledPool(ctx context.Context, name string, shards int32,
	changes ...func(*v1alpha1.ShardPool)) *v1alpha1.ShardPool {
	GinkgoHelper()
	pool := p.pool(ctx, name, shards, changes...)
	p.settle(ctx, 0)
	return pool
}

// settle runs rounds until nothing is written any more. The argument behind is the number of rounds by which the
// cache lags, so settle waits for behind+1 rounds in a row without a write.
func (p *poolPlay) settle(ctx context.Context, behind int) {
	GinkgoHelper()
	for n, quiet := 0, 0; quiet <= behind; n++ {
		Expect(n).To(BeNumerically("<", 150), "it does not settle: %v", p.words(ctx))
		if quiet++; !p.settled(ctx) {
			quiet = 0
		}
	}
}

// words returns the messages of all pools, for a failure message.
func (p *poolPlay) words(ctx context.Context) (words []string) {
	var pools v1alpha1.ShardPoolList
	Expect(api.List(ctx, &pools, client.InNamespace(p.Namespace))).To(Succeed())
	for _, pool := range pools.Items {
		for _, c := range pool.Status.Conditions {
			words = append(words, fmt.Sprintf("%s %s=%s %s: %s", pool.Name, c.Type, c.Status, c.Reason, c.Message))
		}
	}
	return words
}

// expect checks that the pool's condition of type kind has the given status and reason, and that its message contains
// all the words.
func (p *poolPlay) expect(ctx context.Context, pool, kind string, status metav1.ConditionStatus, reason string,
	words ...string) {
	GinkgoHelper()
	c := meta.FindStatusCondition(p.get(ctx, pool).Status.Conditions, kind)
	Expect(c).NotTo(BeNil(), "%s of %s: %v", kind, pool, p.words(ctx))
	Expect(fmt.Sprintf("%s %s", c.Status, c.Reason)).To(Equal(fmt.Sprintf("%s %s", status, reason)), "%s: %s\n%v", kind,
		c.Message, p.words(ctx))
	for _, w := range words {
		Expect(c.Message).To(ContainSubstring(w), kind)
	}
}

func (p *poolPlay) ready(ctx context.Context, pool string) {
	GinkgoHelper()
	p.expect(ctx, pool, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
}

// state returns the status of a shard.
func (p *poolPlay) state(ctx context.Context, pool string, n int32) v1alpha1.ShardStatus {
	GinkgoHelper()
	for _, s := range p.get(ctx, pool).Status.ShardStatuses {
		if s.Number == n {
			return s
		}
	}
	ginkgo.Fail(fmt.Sprintf("pool %s has no shard %d", pool, n))
	return v1alpha1.ShardStatus{}
}

// uids returns the UIDs of the existing pods, by name.
func (p *poolPlay) uids(ctx context.Context) map[string]types.UID {
	var pods corev1.PodList
	Expect(api.List(ctx, &pods, client.InNamespace(p.Namespace))).To(Succeed())
	uids := map[string]types.UID{}
	for _, pod := range pods.Items {
		uids[pod.Name] = pod.UID
	}
	return uids
}

// fakeRegister simulates a placement in which group 7 is still on certain shards.
type fakeRegister struct {
	needs   map[string]bool
	emptied []string
}

func (r *fakeRegister) Empty(_ context.Context, _ *v1alpha1.RecordStore, shard string) error {
	r.emptied = append(r.emptied, shard)
	return nil
}

func (r *fakeRegister) Look(context.Context, *v1alpha1.RecordStore) (placement.Planned, error) {
	v := placement.View{Meta: placement.Meta{Copies: 1}, Groups: map[string]placement.Group{},
		Targets: map[string]placement.Target{}}
	for shard, needs := range r.needs {
		if needs {
			v.Shards = map[string]placement.Shard{shard: {}}
			v.Groups["7"] = placement.Group{Members: []placement.Member{{Shard: shard}}}
			v.Targets["7"] = placement.Target{Shards: []string{"elsewhere"}}
		}
	}
	return placement.Planned{View: v}, nil
}

func (r *fakeRegister) Forget(_ context.Context, _ *v1alpha1.RecordStore, shard string) error {
	if r.needs[shard] {
		return errors.New("group 7 names it")
	}
	return nil
}
