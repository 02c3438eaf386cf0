package step

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// retryFirst and retryMost bound the pauses after failures: 1, 2, 4 ... 60 seconds. They allow 6 reconciles of an
// object in the first minute, and one or two in each later minute. The default of controller-runtime starts with 5
// ms, which gives 14 reconciles in the first minute.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// Failures is the rate limiter of a controller's queue.
func Failures() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryMost)
}

// Pacer chooses the pause after a conflict with another writer or with a stale cache. Such a conflict usually
// disappears quickly; otherwise the pauses grow like the pauses after failures. The zero value is ready for use. Safe
// for concurrent use.
type Pacer struct {
	once    sync.Once
	limiter workqueue.TypedRateLimiter[reconcile.Request]
}

func (p *Pacer) queue() workqueue.TypedRateLimiter[reconcile.Request] {
	p.once.Do(func() { p.limiter = Failures() })
	return p.limiter
}

// Again requests another reconcile after the pause.
func (p *Pacer) Again(req ctrl.Request) ctrl.Result {
	return ctrl.Result{RequeueAfter: p.queue().When(req)}
}

// Done records that a reconcile was completed, which resets the pauses.
func (p *Pacer) Done(req ctrl.Request) { p.queue().Forget(req) }

// Changed passes an update of an object of type T only if the given function returns different values for the old and
// the new object. It passes all other events.
func Changed[T client.Object, V any](of func(T) V) predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(T)
		after, also := e.ObjectNew.(T)
		return !ok || !also || !equality.Semantic.DeepEqual(of(before), of(after))
	}}
}

// Requests returns an event handler for objects of type T. The given function returns the key to reconcile for an
// object. If the name in that key is empty, no reconcile is requested.
func Requests[T client.Object](of func(T) types.NamespacedName) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		object, ok := o.(T)
		if !ok {
			return nil
		}
		key := of(object)
		if key.Name == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: key}}
	})
}
