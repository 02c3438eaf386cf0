package step

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// reconciles counts the reconciles of each existing object. The metrics of controller-runtime count only by kind, so
// they would not show that a single object is reconciled too often.
var reconciles = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "sheaf_operator_reconciles_total",
	Help: "Reconciles of an object, while it exists. Of each kind 100 objects are distinguished; those beyond have an " +
		"empty name together.",
}, []string{"kind", "namespace", "name"})

func init() { metrics.Registry.MustRegister(reconciles) }

// countedMax is the maximum number of objects of one kind that have a series of their own.
const countedMax = 100

// Counted counts the reconciles of each object of a kind.
func Counted(kind client.Object, name string, reader client.Reader, next reconcile.Reconciler) reconcile.Reconciler {
	var mu sync.Mutex
	known := map[reconcile.Request]bool{}
	// labels returns the labels of an object, and false for an object without a series of its own.
	labels := func(req reconcile.Request) ([]string, bool) {
		mu.Lock()
		defer mu.Unlock()
		if !known[req] && len(known) >= countedMax {
			return []string{name, "", ""}, false
		}
		known[req] = true
		return []string{name, req.Namespace, req.Name}, true
	}
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		of, alone := labels(req)
		reconciles.WithLabelValues(of...).Inc()
		result, err := next.Reconcile(ctx, req)
		object, ok := kind.DeepCopyObject().(client.Object)
		if alone && ok && apierrors.IsNotFound(reader.Get(ctx, req.NamespacedName, object)) {
			reconciles.DeleteLabelValues(of...)
			mu.Lock()
			delete(known, req)
			mu.Unlock()
		}
		return result, err
	})
}
