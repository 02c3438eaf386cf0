package controllers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/must"
)

// perMinuteMax is how often a failing object may be reconciled per minute.
const perMinuteMax = 6

// reconcilesPerMinute runs a reconciler on a simulated clock, in the same way as controller-runtime's queue. It
// counts the reconciles in each minute. It returns an error if a reconcile after the second one writes, because
// writing a watched object starts another reconcile.
func reconcilesPerMinute(ctx context.Context, r reconcile.Reconciler, req ctrl.Request, minutes int) ([]int, error) {
	limiter, counts, settled := step.Failures(), make([]int, minutes), int64(0)
	for at, n := time.Duration(0), 0; at < time.Duration(minutes)*time.Minute; n++ {
		counts[at/time.Minute]++
		result, err := r.Reconcile(ctx, req)
		switch {
		case err != nil:
			at += limiter.When(req)
		case result.RequeueAfter > 0:
			limiter.Forget(req)
			at += result.RequeueAfter
		default:
			return counts, nil
		}
		if n == 1 {
			settled = writeCount.Load()
		} else if n > 1 && writeCount.Load() != settled {
			return counts, fmt.Errorf("reconcile %d has written something", n+1)
		}
	}
	return counts, nil
}

func TestFailuresAndChangesAreTriedSixTimesAMinute(t *testing.T) {
	for name, r := range map[string]reconcile.Reconciler{
		"failures": reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
			return ctrl.Result{}, errors.New("away")
		}),
		"changes": func() reconcile.Reconciler {
			var p step.Pacer
			return reconcile.Func(func(_ context.Context, req ctrl.Request) (ctrl.Result, error) { return p.Again(req), nil })
		}(),
	} {
		counts, err := reconcilesPerMinute(t.Context(), r, ctrl.Request{}, 5)
		must.OK(t, err)
		for minute, n := range counts {
			if n > perMinuteMax || n < 1 {
				t.Errorf("%s: %d reconciles in minute %d", name, n, minute+1)
			}
		}
	}
	var p step.Pacer
	first := p.Again(ctrl.Request{}).RequeueAfter
	p.Again(ctrl.Request{})
	p.Done(ctrl.Request{})
	if again := p.Again(ctrl.Request{}).RequeueAfter; first != time.Second || again != first {
		t.Errorf("first pause %v, after success %v: want a second", first, again)
	}
}

// failingClient returns a client whose writes fail.
func failingClient(err error) client.Client {
	return interceptor.NewClient(acting, interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return err },
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return err
		},
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			return err
		},
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return err },
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch,
			...client.SubResourcePatchOption) error {
			return err
		},
	})
}

// noListClient returns a client that cannot list.
func noListClient() client.Client {
	return interceptor.NewClient(acting, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("the API server does not answer")
		},
	})
}

var (
	errRefused  = errors.New("the API server refuses")
	errConflict = apierrors.NewConflict(schema.GroupResource{Resource: "objects"}, "object",
		errors.New("somebody else wrote"))
)

// A failing object of any kind is reconciled at most six times a minute.
var _ = Describe("What fails is looked at six times a minute", func() {
	count := func(ctx context.Context, r reconcile.Reconciler, key types.NamespacedName) {
		GinkgoHelper()
		counts, err := reconcilesPerMinute(ctx, r, ctrl.Request{NamespacedName: key}, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(counts).To(HaveEach(And(BeNumerically("<=", perMinuteMax), BeNumerically(">=", 1))))
	}

	DescribeTable("a RecordStore", func(ctx context.Context, reason string, prepare func(context.Context, *storePlay)) {
		p := newStorePlay(ctx)
		p.create(ctx)
		prepare(ctx, p)
		count(ctx, p.r, types.NamespacedName{Namespace: p.Namespace, Name: "quotes"})
		if reason != "" {
			p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, reason)
		}
	},
		Entry("whose writes are refused", "",
			func(_ context.Context, p *storePlay) { p.operator(failingClient(errRefused)) }),
		Entry("whose writes conflict", "", func(_ context.Context, p *storePlay) { p.operator(failingClient(errConflict)) }),
		Entry("whose pools cannot be read", "APIError", func(_ context.Context, p *storePlay) { p.operator(noListClient()) }),
		Entry("whose etcd is not there", "EtcdNotReady", func(context.Context, *storePlay) {}),
		Entry("whose etcd does not answer", "EtcdUnreachable", func(ctx context.Context, p *storePlay) {
			p.settle(ctx)
			p.r.Placements = unreachablePlacements{}
		}),
		Entry("without a pool", "NoShards", func(ctx context.Context, p *storePlay) { p.settle(ctx) }),
		Entry("that lost its placement", "PlacementLost", func(ctx context.Context, p *storePlay) {
			p.settle(ctx)
			p.away = true
			Expect(p.etcd.Wipe(ctx)).To(Succeed())
		}),
		Entry("whose shards do not start", "Pending", func(ctx context.Context, p *storePlay) {
			p.settle(ctx)
			p.NoKubelet = true
			p.pool(ctx, 1)
			p.settle(ctx)
		}),
	)

	DescribeTable("a ShardPool", func(ctx context.Context, reason string, prepare func(context.Context, *poolPlay)) {
		p := newPoolPlay(ctx)
		p.pool(ctx, "ssd", 1)
		prepare(ctx, p)
		count(ctx, p.r, types.NamespacedName{Namespace: p.Namespace, Name: "ssd"})
		if reason != "" {
			p.expect(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, reason)
		}
	},
		Entry("whose writes are refused", "", func(_ context.Context, p *poolPlay) {
			p.r = p.reconciler(failingClient(errRefused))
		}),
		Entry("whose writes conflict", "",
			func(_ context.Context, p *poolPlay) { p.r = p.reconciler(failingClient(errConflict)) }),
		Entry("whose objects cannot be read", "APIError", func(_ context.Context, p *poolPlay) {
			p.r = p.reconciler(noListClient())
		}),
		Entry("without a store", "StoreNotFound", func(ctx context.Context, p *poolPlay) {
			Expect(api.Delete(ctx, p.store)).To(Succeed())
		}),
		Entry("whose pods are not made", "Pending", func(context.Context, *poolPlay) {}),
		Entry("with the disk of another store", "Foreign", func(ctx context.Context, p *poolPlay) {
			p.setReport("ssd-0", func(r *recordv1.ShardStatus) { r.Shard.State = recordv1.ShardState_SHARD_STATE_FOREIGN })
			p.settle(ctx, 0)
		}),
		Entry("with a shard that does not answer", "Unreachable", func(ctx context.Context, p *poolPlay) {
			p.settle(ctx, 0)
			p.silent["ssd-0"] = true
		}),
		Entry("whose node is away", "NodeDown", func(ctx context.Context, p *poolPlay) {
			p.settle(ctx, 0)
			p.nodeReady(ctx, p.Node, corev1.ConditionUnknown)
		}),
	)

	DescribeTable("a DiskSet", func(ctx context.Context, reason string, prepare func(context.Context, *diskPlay)) {
		p := newDiskPlay(ctx)
		p.create(ctx, p.disk("a"))
		prepare(ctx, p)
		count(ctx, p.r, types.NamespacedName{Name: p.name})
		if reason != "" {
			p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, reason, "")
		}
		p.r.Client = acting // the cleanup reconciles once more, to delete the object
	},
		Entry("whose writes are refused", "",
			func(_ context.Context, p *diskPlay) { p.r.Client = failingClient(errRefused) }),
		Entry("whose writes conflict", "", func(_ context.Context, p *diskPlay) { p.r.Client = failingClient(errConflict) }),
		Entry("whose objects cannot be read", "APIError",
			func(_ context.Context, p *diskPlay) { p.r.Client = noListClient() }),
		Entry("whose class is somebody else's", "StorageClassTaken", func(ctx context.Context, p *diskPlay) {
			Expect(api.Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: p.name},
				Provisioner: "example.org/theirs"})).To(Succeed())
		}),
		Entry("with a claim that no disk is for", "ClaimsWaiting", func(ctx context.Context, p *diskPlay) {
			p.settle(ctx) // a Job inspects the disk
			p.claim(ctx, p.Namespace, "data-ssd-0-0")
			p.claim(ctx, p.Namespace, "data-ssd-1-0")
		}),
		Entry("whose disk nobody looks at", "Looking", func(ctx context.Context, p *diskPlay) {
			for range 4 { // the Job exists, but its pod does not start
				_, err := p.reconcile(ctx)
				Expect(err).NotTo(HaveOccurred())
			}
		}),
		Entry("whose disk is not blank", "NotBlank", func(ctx context.Context, p *diskPlay) {
			p.notBlank[p.disk("a").Device] = true
			p.settle(ctx)
		}),
		Entry("whose node is not there", "NodeMissing", func(ctx context.Context, p *diskPlay) {
			Expect(api.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.Node}})).To(Succeed())
		}),
	)
})

// unreachablePlacements simulates an etcd that does not answer.
type unreachablePlacements struct{}

func (unreachablePlacements) Open(string, workload.EtcdAccess, fleet.EtcdCredentials) (fleet.Placement, error) {
	return nil, errors.New("connection refused")
}

func (unreachablePlacements) Close(string) {}
