package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// annotationApplied is a hash of what was applied last: where it is equal, nothing was taken out of the wanted object
// since, so that a live object which holds everything wanted needs no write.
const annotationApplied = "sheaf.dev/applied"

// Apply makes the live object have what the wanted one has, by server-side apply. It reads the live object from the
// client's cache and writes nothing where that has it already. owner may be nil. changed says that a write was made.
// A stale cache costs a write that changes nothing.
func Apply(ctx context.Context, c client.Client, owner, wanted client.Object) (changed bool, err error) {
	gvk, err := apiutil.GVKForObject(wanted, c.Scheme())
	if err != nil {
		return false, err
	}
	at := fmt.Sprintf("%s %s", gvk.Kind, client.ObjectKeyFromObject(wanted))
	if owner != nil {
		if err := controllerutil.SetControllerReference(owner, wanted, c.Scheme()); err != nil {
			return false, fmt.Errorf("apply %s: %w", at, err)
		}
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err != nil {
		return false, fmt.Errorf("apply %s: %w", at, err)
	}
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(gvk)
	unstructured.RemoveNestedField(fields, "status")
	prune(fields)
	if err := sign(u); err != nil {
		return false, fmt.Errorf("apply %s: %w", at, err)
	}
	equal, err := holds(ctx, c, u)
	if err != nil || equal {
		return false, err
	}
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	if err != nil {
		return false, fmt.Errorf("apply %s: %w", at, err)
	}
	logNews(ctx, news{reason: "Applied", action: "Apply", message: "applied " + at})
	return true, nil
}

// sign annotates the object with a hash of itself.
func sign(u *unstructured.Unstructured) error {
	bytes, err := json.Marshal(u.Object)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(bytes)
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationApplied] = hex.EncodeToString(sum[:12])
	u.SetAnnotations(annotations)
	return nil
}

// holds says whether the live object has everything that is wanted.
func holds(ctx context.Context, c client.Client, wanted *unstructured.Unstructured) (bool, error) {
	live, err := c.Scheme().New(wanted.GroupVersionKind())
	if err != nil {
		return false, err
	}
	err = c.Get(ctx, client.ObjectKeyFromObject(wanted), live.(client.Object))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s %s: %w", wanted.GetKind(), client.ObjectKeyFromObject(wanted), err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
	if err != nil {
		return false, err
	}
	want := wanted.DeepCopy().Object
	delete(want, "apiVersion") // a typed object read from the API does not carry them
	delete(want, "kind")
	return contains(fields, want), nil
}

// contains says whether live has every field of want. Lists have to be equal in length, each item containing the wanted.
func contains(live, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return len(want) == 0
		}
		for k, v := range want {
			if !contains(l[k], v) {
				return false
			}
		}
		return true
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(want) {
			return len(want) == 0 && !ok
		}
		for n := range want {
			if !contains(l[n], want[n]) {
				return false
			}
		}
		return true
	default:
		return equality.Semantic.DeepEqual(live, want)
	}
}

// prune takes out what an empty typed field leaves: nulls, and a creation time that nobody set.
func prune(fields map[string]any) {
	for k, v := range fields {
		switch v := v.(type) {
		case nil:
			delete(fields, k)
		case map[string]any:
			prune(v)
		case []any:
			for _, item := range v {
				if m, ok := item.(map[string]any); ok {
					prune(m)
				}
			}
		}
	}
}
