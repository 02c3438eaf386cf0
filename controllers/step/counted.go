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

// reconciles of each object, while it exists: what controller-runtime counts tells kinds apart only, and there one
// object that is looked at all the time hides among those that are not.
var reconciles = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "sheaf_operator_reconciles_total",
	Help: "Reconciles of an object, while it exists. Of each kind 100 objects are told apart; those beyond have an " +
		"empty name together.",
}, []string{"kind", "namespace", "name"})

func init() { metrics.Registry.MustRegister(reconciles) }

// countedMax bounds the objects of one kind that are told apart, and so the series.
const countedMax = 100

// Counted counts the reconciles of each object of a kind.
func Counted(kind client.Object, name string, reader client.Reader, next reconcile.Reconciler) reconcile.Reconciler {
	var mu sync.Mutex
	known := map[reconcile.Request]bool{}
	// labels of an object; false: it is one of those that are not told apart.
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
