package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// snapshot returns a client with all objects that a cache would hold at this moment.
func (p *play) snapshot(ctx context.Context) client.Client {
	objects := p.objects(ctx)
	for _, list := range []client.ObjectList{&corev1.NodeList{}, &corev1.PersistentVolumeList{},
		&storagev1.StorageClassList{}, &corev1.NamespaceList{}} {
		Expect(api.List(ctx, list)).To(Succeed())
		Expect(meta.EachListItem(list, func(o runtime.Object) error {
			objects = append(objects, o.(client.Object))
			return nil
		})).To(Succeed())
	}
	for _, o := range objects {
		if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 {
			// The fake refuses an object that is being deleted and has no finalizer.
			o.SetFinalizers([]string{"sheaf.dev/played"})
		}
	}
	// Apply reads managed fields, so they must be returned, as the operator's cache does.
	return fake.NewClientBuilder().WithScheme(envScheme).WithObjects(objects...).WithReturnManagedFields().Build()
}

// cachedReader returns a client that reads from a cache and writes to the API server. Secrets and ConfigMaps are not
// cached.
func cachedReader(cache func() client.Client) client.Client {
	return interceptor.NewClient(acting, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			switch o.(type) {
			case *corev1.Secret, *corev1.ConfigMap:
				return operatorClient.Get(ctx, key, o, opts...)
			}
			return cache().Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return cache().List(ctx, list, opts...)
		},
	})
}

// frozenClient returns a client that always reads the state at the time of this call.
func (p *play) frozenClient(ctx context.Context) client.Client {
	cache := p.snapshot(ctx)
	return cachedReader(func() client.Client { return cache })
}

// errKilled is the error of every write after the operator was killed.
var errKilled = errors.New("the operator was killed")

// killer is a client that simulates the death of its operator. The operator dies after a given number of writes (the
// field at), and all later writes fail. If at is 0, the operator never dies.
type killer struct {
	mu         sync.Mutex // serializes the writes, so that the operator dies after exactly the intended write
	writes, at int
}

// killPlan returns the number of the write after which the next operator dies, or 0 if it survives.
type killPlan func() int

// killOnce kills one operator after the given number of writes. The next operator survives.
func killOnce(at int) killPlan {
	return func() int {
		next := at
		at = 0
		return next
	}
}

// killAlways kills each operator after its first write.
func killAlways() int { return 1 }

// roundsMax limits the number of rounds in one part of a story. It allows for operators that die after their first
// write.
const roundsMax = 300

// aliveUntil returns the runs to make for a story that takes the given number of writes. In one run, every operator
// dies after its first write. In each of the other runs, only one operator dies: after write 1, 11, 21 and so on. On a
// real API server, a run costs ten times as much, so the operator dies only after a quarter, a half or three quarters
// of the writes. A soak makes one run for every single write.
func aliveUntil(writes int) map[string]killPlan {
	all := map[string]killPlan{"killed after each write": killAlways}
	after := func(at int) { all[fmt.Sprintf("killed after write %d", at)] = killOnce(at) }
	switch {
	case soaktest.Long():
		for at := 1; at <= writes; at++ {
			after(at)
		}
	case kubetest.Wanted():
		for quarter := 1; quarter <= 3; quarter++ {
			after(max(1, writes*quarter/4))
		}
	default:
		for at := 1; at <= writes; at += 10 {
			after(at)
		}
	}
	return all
}

func (k *killer) dead() bool { return k.at > 0 && k.writes >= k.at }

// write counts a write and performs it if the operator is alive.
func (k *killer) write(do func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead() {
		return errKilled
	}
	k.writes++
	if err := do(); err != nil {
		return err
	}
	if k.dead() {
		return errKilled
	}
	return nil
}

func (k *killer) client() client.Client {
	return interceptor.NewClient(acting, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return k.write(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return k.write(func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			return k.write(func() error { return c.Patch(ctx, o, patch, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return k.write(func() error { return c.Apply(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return k.write(func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			return k.write(func() error { return c.SubResource(sub).Patch(ctx, o, patch, opts...) })
		},
	})
}

// story takes a pool through everything that can happen to it before its deletion. The function wait lets the pool
// settle.
func story(ctx context.Context, p *poolPlay, wait func()) {
	p.pool(ctx, "ssd", 2)
	wait()
	p.changeStore(ctx, func(store *v1alpha1.RecordStore) { store.Spec.Image = "sheaf:2" })
	wait()
	p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) {
		pool.Spec.Storage.Size, *pool.Spec.Shards = resource.MustParse("2Gi"), 3
	})
	wait()
	p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) {
		pool.Spec.Parked, *pool.Spec.Shards, pool.Spec.Remove = []int32{0}, 2, []int32{1}
	})
	wait()
}

// picture describes the namespace, without the parts that differ between runs.
func (p *poolPlay) picture(ctx context.Context) (lines []string) {
	for _, o := range p.objects(ctx) {
		switch o := o.(type) {
		case *appsv1.StatefulSet:
			size := claimSize(o)
			lines = append(lines, fmt.Sprintf("set %s replicas %d size %s template %s volume %s", o.Name, *o.Spec.Replicas,
				size.String(), o.Spec.Template.Annotations[workload.AnnotationTemplate],
				o.Spec.Template.Annotations["sheaf.dev/volume"]))
		case *corev1.Pod:
			lines = append(lines, fmt.Sprintf("pod %s image %s volume %s owned %t", o.Name, o.Spec.Containers[0].Image,
				o.Annotations["sheaf.dev/volume"], metav1.GetControllerOf(o) != nil))
		case *corev1.PersistentVolumeClaim:
			size := o.Spec.Resources.Requests[corev1.ResourceStorage]
			lines = append(lines, fmt.Sprintf("claim %s size %s", o.Name, size.String()))
		case *v1alpha1.ShardPool:
			for _, s := range o.Status.ShardStatuses {
				lines = append(lines, fmt.Sprintf("shard %s %s updated %t volume %s", s.Name, s.State, s.Updated, s.Volume.UUID))
			}
			for _, c := range o.Status.Conditions {
				lines = append(lines, fmt.Sprintf("condition %s %s %s", c.Type, c.Status, c.Reason))
			}
		case *corev1.Service:
			lines = append(lines, "service "+o.Name)
		}
	}
	slices.Sort(lines)
	return lines
}

// withoutHashes removes the hashes of templates, which differ between namespaces because a template contains addresses
// and the store's UID.
func withoutHashes(lines []string) []string {
	out := make([]string, 0, len(lines))
	for _, line := range lines {
		var name, size, hash, volume string
		var replicas int
		if n, _ := fmt.Sscanf(line, "set %s replicas %d size %s template %s volume %s", &name, &replicas, &size, &hash,
			&volume); n == 5 {
			line = fmt.Sprintf("set %s replicas %d size %s volume %s", name, replicas, size, volume)
		}
		out = append(out, line)
	}
	return out
}

var _ = Describe("The pool's controller", func() {
	run := func(ctx context.Context, die killPlan) (picture []string, writes int, started map[string]int) {
		p := newPoolPlay(ctx)
		k := &killer{at: die()}
		p.r = p.reconciler(k.client())
		story(ctx, p, func() {
			for n := 0; k.dead() || !p.settled(ctx); n++ {
				Expect(n).To(BeNumerically("<", roundsMax), "it does not settle: %v", p.words(ctx))
				if k.dead() {
					writes, k = writes+k.writes, &killer{at: die()}
					p.r = p.reconciler(k.client())
				}
			}
		})
		return withoutHashes(p.picture(ctx)), writes + k.writes, p.started
	}

	It("comes to the same end when it is killed after any of its writes", func(ctx context.Context) {
		want, writes, started := run(ctx, killOnce(0))
		Expect(writes).To(BeNumerically(">", 20))
		Expect(started).To(Equal(map[string]int{"ssd-0": 2, "ssd-1": 2, "ssd-2": 1}))
		Expect(want).To(ContainElement(HavePrefix("set ssd-2 replicas 1 size 2Gi")))
		for how, die := range aliveUntil(writes) {
			got, _, restarts := run(ctx, die)
			Expect(got).To(Equal(want), how)
			Expect(restarts).To(Equal(started), "%s: pods made", how)
		}
	})

	It("comes to the same end with a cache that is behind", func(ctx context.Context) {
		want, _, started := run(ctx, killOnce(0))
		const behind = 3
		p := newPoolPlay(ctx)
		history := []client.Client{p.snapshot(ctx)}
		p.after = func(ctx context.Context) {
			history = append(history, p.snapshot(ctx))
			history = history[max(0, len(history)-behind-1):]
		}
		p.r = p.reconciler(cachedReader(func() client.Client { return history[0] }))
		story(ctx, p, func() { p.settle(ctx, 2*behind) })
		Expect(withoutHashes(p.picture(ctx))).To(Equal(want))
		Expect(p.started).To(Equal(started))
	})
})

// settled runs one round, and reports whether the round wrote nothing.
func (p *poolPlay) settled(ctx context.Context) bool {
	before := writeCount.Load()
	return p.round(ctx) == nil && writeCount.Load() == before
}

// claimSize returns the size that a set's claim template requests.
func claimSize(set *appsv1.StatefulSet) resource.Quantity {
	return set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests[corev1.ResourceStorage]
}
