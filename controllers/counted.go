package controllers

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// reconciles of each object, while it exists: what controller-runtime counts tells kinds apart only, and there one object
// that is looked at all the time hides among those that are not.
var reconciles = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "sheaf_operator_reconciles_total", Help: "Reconciles of an object, while it exists.",
}, []string{"kind", "namespace", "name"})

func init() { metrics.Registry.MustRegister(reconciles) }

// counted counts the reconciles of each object of a kind.
func counted(kind client.Object, name string, reader client.Reader, next reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		reconciles.WithLabelValues(name, req.Namespace, req.Name).Inc()
		result, err := next.Reconcile(ctx, req)
		object, ok := kind.DeepCopyObject().(client.Object)
		if ok && apierrors.IsNotFound(reader.Get(ctx, req.NamespacedName, object)) {
			reconciles.DeleteLabelValues(name, req.Namespace, req.Name)
		}
		return result, err
	})
}
