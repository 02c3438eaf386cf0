package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"sheaf.dev/sheaf/client/recordv1"
)

// calls counts the requests that a reconcile sends to the API server. In the real operator, only the reads through
// Live reach the API server, because all others are answered by a cache.
type calls struct{ reads, lists, writes, live int }

// countsMutex guards the counts, because several StatefulSets may be written at the same time.
var countsMutex sync.Mutex

func count(n *int) {
	countsMutex.Lock()
	defer countsMutex.Unlock()
	*n++
}

func (c *calls) client() client.Client {
	return interceptor.NewClient(acting, interceptor.Funcs{
		Get: func(ctx context.Context, k client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			count(&c.reads)
			return k.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, k client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			count(&c.lists)
			return k.List(ctx, list, opts...)
		},
		Apply: func(ctx context.Context, k client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			count(&c.writes)
			return k.Apply(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, k client.WithWatch, o client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			count(&c.writes)
			return k.Patch(ctx, o, patch, opts...)
		},
		Delete: func(ctx context.Context, k client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			count(&c.writes)
			return k.Delete(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, k client.Client, sub string, o client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			count(&c.writes)
			return k.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
}

// liveReader counts the reads that bypass the cache.
type liveReader struct {
	client.Reader
	count *calls
}

func (l liveReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	count(&l.count.live)
	return l.Reader.Get(ctx, key, o, opts...)
}

func (l liveReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	count(&l.count.live)
	return l.Reader.List(ctx, list, opts...)
}

var _ = Describe("Forty shards in one pool", func() {
	// measure counts the calls from the creation of the pool until it is ready, and the calls of one reconcile when
	// nothing changes.
	measure := func(ctx context.Context, shards int32, trouble bool) (rise, peace calls, status []byte) {
		p := newPoolPlay(ctx)
		var made calls
		p.r = p.reconciler(made.client())
		p.r.Live = liveReader{operatorClient, &made}
		for n := range shards {
			p.setReport(fmt.Sprintf("ssd-%d", n), func(r *recordv1.ShardStatus) {
				r.Groups = make([]*recordv1.Group, 256)
				for g := range r.Groups {
					r.Groups[g] = &recordv1.Group{Group: fmt.Sprint(256*int(n) + g),
						State: recordv1.GroupState_GROUP_STATE_DAMAGED, Leader: true, Records: 1e9, StoredBytes: 1e12,
						Message: strings.Repeat("x", 1000)}
				}
				if trouble {
					r.Shard.State, r.Shard.Message = recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH, strings.Repeat(
						"the file system is not what was asked for. ", 200)
				}
			})
		}
		p.settledPool(ctx, "ssd", shards)
		rise, made = made, calls{}
		_, err := p.reconcile(ctx, "ssd")
		Expect(err).NotTo(HaveOccurred())
		status, err = json.Marshal(p.get(ctx, "ssd").Status)
		Expect(err).NotTo(HaveOccurred())
		return rise, made, status
	}

	It("cost as many calls each as ten, none in peace, and their status stays small", func(ctx context.Context) {
		rise10, peace10, _ := measure(ctx, 10, false)
		rise40, peace40, status := measure(ctx, 40, false)
		Expect(string(status)).To(ContainSubstring(`"damaged":10240`))
		Expect(peace10.writes + peace40.writes + peace10.live + peace40.live).To(BeZero())
		Expect(peace40.lists).To(Equal(peace10.lists), "lists do not grow with the shards")
		Expect(peace40.reads-peace10.reads).To(BeNumerically("<=", 30*2), "set and volume of each shard")
		// There are five writes for each shard: its StatefulSet, the StatefulSet again with the UUID of the volume, the pod
		// with that UUID, the Shard, and the status of the Shard.
		Expect(rise40.writes-rise10.writes).To(BeNumerically("<=", 30*5), "%+v, %+v", rise10, rise40)
		Expect(rise40.live-rise10.live).To(BeNumerically("<=", 4), "events of many shards are read at once: %+v, %+v", rise10,
			rise40)
		Expect(len(status)).To(BeNumerically("<", 100<<10))
	})

	It("say what is complained of, each of its own set", func(ctx context.Context) {
		p := newPoolPlay(ctx)
		p.pool(ctx, "ssd", 40)
		for range 2 { // one reconcile for the finalizer, and one for the StatefulSets
			_, err := p.reconcile(ctx, "ssd")
			Expect(err).NotTo(HaveOccurred())
		}
		var sets appsv1.StatefulSetList
		Expect(api.List(ctx, &sets, client.InNamespace(p.Namespace))).To(Succeed())
		Expect(sets.Items).To(HaveLen(40))
		for i := range sets.Items {
			set := &sets.Items[i]
			Expect(api.Create(ctx, &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: p.Namespace, GenerateName: "event-"},
				InvolvedObject: corev1.ObjectReference{Kind: "StatefulSet", Name: set.Name, Namespace: p.Namespace, UID: set.UID},
				Type:           corev1.EventTypeWarning, Reason: "FailedCreate", LastTimestamp: metav1.Now(),
				Message: "no quota for " + set.Name + ".",
			})).To(Succeed())
		}
		_, err := p.reconcile(ctx, "ssd")
		Expect(err).NotTo(HaveOccurred())
		for _, s := range p.get(ctx, "ssd").Status.ShardStatuses {
			Expect(s.Message).To(ContainSubstring("no quota for " + s.Name + "."))
		}
	})

	It("stay small when all are in trouble", func(ctx context.Context) {
		_, _, status := measure(ctx, 40, true)
		Expect(len(status)).To(BeNumerically("<", 100<<10))
		Expect(string(status)).To(And(ContainSubstring(`{"state":"FileSystemMismatch","shards":40}`),
			ContainSubstring(`"ssd-19"`)))
	})
})
