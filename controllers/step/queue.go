package step

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// retryFirst and retryMost are the pauses after a failure: 1, 2, 4 ... 60 seconds, which makes 6 reconciles of an
// object in the first minute, and one or two in each later one. controller-runtime's own begins with 5 ms: 14 in the
// first minute.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// Failures is the rate limiter of a controller's queue.
func Failures() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryMost)
}

// Pacer gives the pauses where somebody else wrote meanwhile, or the cache was behind: that passes in a moment, and
// where it does not, the pauses grow as those of failures do. The zero value is ready. Safe for concurrent use.
type Pacer struct {
	once    sync.Once
	limiter workqueue.TypedRateLimiter[reconcile.Request]
}

func (p *Pacer) queue() workqueue.TypedRateLimiter[reconcile.Request] {
	p.once.Do(func() { p.limiter = Failures() })
	return p.limiter
}

// Again asks for another reconcile soon.
func (p *Pacer) Again(req ctrl.Request) ctrl.Result {
	return ctrl.Result{RequeueAfter: p.queue().When(req)}
}

// Done says that a reconcile came to its end.
func (p *Pacer) Done(req ctrl.Request) { p.queue().Forget(req) }
