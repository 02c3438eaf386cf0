package step

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/must"
)

// readsNothing simulates a reader that finds every object or, if gone is set, none.
type readsNothing struct {
	client.Reader
	gone bool
}

func (r *readsNothing) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	if r.gone {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "shardpools"}, key.Name)
	}
	return nil
}

// countOf returns the number of reconciles counted for the given kind, or -1 if the kind has no series.
func countOf(t *testing.T, kind string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	must.OK(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if family.GetName() == "sheaf_operator_reconciles_total" && label.GetName() == "kind" && label.GetValue() == kind {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return -1
}

// seriesOfKind counts the series of the given kind.
func seriesOfKind(t *testing.T, kind string) (n int) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	must.OK(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if family.GetName() == "sheaf_operator_reconciles_total" && label.GetName() == "kind" && label.GetValue() == kind {
					n++
				}
			}
		}
	}
	return n
}

func TestReconcilesAreCountedWhileAnObjectExists(t *testing.T) {
	reader := &readsNothing{}
	calls := 0
	r := Counted(&v1alpha1.ShardPool{}, "test", reader, reconcile.Func(func(context.Context,
		reconcile.Request) (reconcile.Result, error) {
		calls++
		return reconcile.Result{}, nil
	}))
	req := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "prod", Name: "counted"}}
	for range 3 {
		if _, err := r.Reconcile(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if n := countOf(t, "test"); n != 3 || calls != 3 {
		t.Errorf("%v counted, %d calls", n, calls)
	}
	for n := range countedMax + 10 {
		other := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "prod", Name: fmt.Sprint("other-", n)}}
		if _, err := r.Reconcile(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	if n := seriesOfKind(t, "test"); n != countedMax+1 {
		t.Errorf("%d series of one kind, want %d and one for the others", n, countedMax)
	}
	for n := range countedMax + 10 {
		reader.gone = true
		other := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "prod", Name: fmt.Sprint("other-", n)}}
		if _, err := r.Reconcile(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	reconciles.DeleteLabelValues("test", "", "")
	if _, err := r.Reconcile(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if n := countOf(t, "test"); n != -1 {
		t.Errorf("an object that is gone is still counted: %v", n)
	}
}
