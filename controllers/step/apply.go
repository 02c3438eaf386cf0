package step

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// annotationApplied is a hash of the wanted object that was last applied. If the hash has not changed, no field was
// removed from the wanted object, and a live object that contains all wanted fields needs no write.
const annotationApplied = "sheaf.dev/applied"

// Apply updates the live object to the wanted one by server-side apply, and reverts additions by others (foreign.go).
// It reads the live object from the client's cache, and writes nothing if the live object matches. The result changed
// is true if it has written. The argument owner may be nil. A stale cache causes a write that changes nothing, or a
// conflict.
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
	live, err := liveOf(ctx, c, u)
	if err != nil {
		return false, err
	}
	if live != nil && !ofAnother(live, owner) {
		hash := u.GetAnnotations()[annotationApplied]
		if asWanted.is(live, hash) {
			return false, nil
		}
		if len(live.GetManagedFields()) == 0 && live.GetUID() != "" {
			if err := learnWriters(ctx, c, live, u); err != nil {
				return false, fmt.Errorf("learn who wrote %s: %w", at, err)
			}
		}
		patch, err := takeOver(live, u)
		if err != nil {
			return false, fmt.Errorf("apply %s: %w", at, err)
		}
		if patch != nil {
			err := c.Patch(ctx, live, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
			if err != nil {
				return false, fmt.Errorf("take over what others wrote to %s: %w", at, err)
			}
		} else if equal, err := holds(live, u); err != nil || equal {
			if equal {
				asWanted.note(live, hash)
			}
			return false, err
		}
	}
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager),
		client.ForceOwnership)
	if err != nil {
		return false, fmt.Errorf("apply %s: %w", at, err)
	}
	LogNews(ctx, News{Reason: "Applied", Action: "Apply", Message: "applied " + at})
	return true, nil
}

// ofAnother reports whether the live object is controlled by another owner. Apply then takes over no fields from other
// writers, and the API server refuses the apply.
func ofAnother(live, owner client.Object) bool {
	controller := metav1.GetControllerOf(live)
	return controller != nil && (owner == nil || controller.UID != owner.GetUID())
}

// sign adds an annotation with the object's own hash.
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

// liveOf returns a copy of the live object from the cache, or nil if it does not exist.
func liveOf(ctx context.Context, c client.Client, wanted *unstructured.Unstructured) (client.Object, error) {
	o, err := c.Scheme().New(wanted.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	live, ok := o.(client.Object)
	if !ok {
		return nil, fmt.Errorf("%s is no kind of object", wanted.GetKind())
	}
	if there, err := Read(ctx, c, wanted.GetKind(), client.ObjectKeyFromObject(wanted), live); !there {
		return nil, err
	}
	return live, nil
}

// holds reports whether the live object contains all wanted fields. The live object may have additional owners.
func holds(live client.Object, wanted *unstructured.Unstructured) (bool, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
	if err != nil {
		return false, err
	}
	owners := live.GetOwnerReferences()
	for _, owner := range wanted.GetOwnerReferences() {
		if !slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return equality.Semantic.DeepEqual(o, owner) }) {
			return false, nil
		}
	}
	want := wanted.DeepCopy()
	want.SetOwnerReferences(nil)
	delete(want.Object, "apiVersion") // typed objects that were read from the API server lack these two fields
	delete(want.Object, "kind")
	return contains(fields, want.Object), nil
}

// contains reports whether the value live contains every field of the value want. Lists must have the same length, and
// each item of a list must contain the corresponding wanted item.
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

// prune removes what encoding leaves behind for empty fields of a Go type: null values, and a creation time that is
// not set.
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

// appliedMax is the maximum number of remembered objects: several for each of a few thousand shards, in about 1 MB.
const appliedMax = 1 << 14

// appliedMemory remembers which live objects matched the wanted ones. Without this memory, an idle operator with a
// thousand shards spent most of its CPU time comparing the same objects. Objects with the same UID and resource version
// are unchanged, and so are wanted objects with the same hash, so the earlier result is still valid. The memory only
// saves work: an object that is not remembered is compared. Safe for concurrent use.
type appliedMemory struct {
	mu      sync.Mutex
	objects map[types.UID]appliedObject
}

// appliedObject identifies a compared pair.
type appliedObject struct{ resourceVersion, wanted string }

// asWanted remembers the live objects that are as wanted, for the whole process.
var asWanted = &appliedMemory{objects: map[types.UID]appliedObject{}}

// is reports whether the live object is already known to match the wanted object with the given hash.
func (s *appliedMemory) is(live client.Object, wanted string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.objects[live.GetUID()]
	return ok && found == appliedObject{live.GetResourceVersion(), wanted}
}

// note records that a live object matches the wanted object with this hash. It ignores objects without a UID or a
// resource version, which exist only in tests.
func (s *appliedMemory) note(live client.Object, wanted string) {
	if live.GetUID() == "" || live.GetResourceVersion() == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.objects) >= appliedMax {
		clear(s.objects) // the only effect is that each object is compared once more
	}
	s.objects[live.GetUID()] = appliedObject{live.GetResourceVersion(), wanted}
}
