package step

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Server-side apply owns only the fields that it names. Therefore a container, a variable or a port that somebody else
// adds would remain, and the API server would refuse a Service with two ports of the same name. metadata.managedFields
// records the writer of each field. The operator first takes ownership of the fields that others wrote, and the next
// apply, which does not name those fields, removes them. Defaults of the API server and additions of admission webhooks
// have no owner and remain.
//
// The operator leaves other writers the labels, annotations, finalizers and owners of the object itself, its status,
// and the fields that the function keeps allows.

// restartedAt is the path of the annotation that `kubectl rollout restart` sets in a pod template.
const restartedAt = ".spec.template.metadata.annotations.kubectl.kubernetes.io/restartedAt"

// These are fields of a Service that a RecordStore does not specify, because the cluster or its administrator chooses
// them. They apply only to some types of Service, and the API server refuses them for the other types.
var (
	serviceAddresses = []string{".spec.clusterIP", ".spec.clusterIPs", ".spec.ipFamilies", ".spec.ipFamilyPolicy"}
	serviceOutside   = []string{".spec.externalTrafficPolicy"}
	serviceBalancer  = []string{".spec.loadBalancerIP", ".spec.loadBalancerSourceRanges", ".spec.loadBalancerClass",
		".spec.healthCheckNodePort", ".spec.allocateLoadBalancerNodePorts"}
)

// CacheTransform removes managed fields from cached objects, except for the kinds that Apply writes, because Apply
// reads them. It also removes the list of images from nodes, which the operator does not read.
func CacheTransform() toolscache.TransformFunc {
	strip := cache.TransformStripManagedFields()
	return func(o any) (any, error) {
		switch o := o.(type) {
		case *corev1.Node:
			o.Status.Images = nil // up to 50 images, whose names take up most of a node's bytes
		case *appsv1.StatefulSet, *appsv1.Deployment, *corev1.Service, *policyv1.PodDisruptionBudget, *storagev1.StorageClass,
			*networkingv1.NetworkPolicy:
			return o, nil
		}
		return strip(o)
	}
}

// takeOver returns a JSON patch that makes the operator the owner of the fields that others wrote to a live object. It
// returns nil if there are none. The patch also marks the object as not applied, so that a crash before the following
// apply loses nothing.
func takeOver(live client.Object, wanted *unstructured.Unstructured) ([]byte, error) {
	entries := slices.Clone(live.GetManagedFields())
	mine := slices.IndexFunc(entries, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == v1alpha1.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == ""
	})
	ours, err := fieldsOf(entries, mine)
	if err != nil {
		return nil, err
	}
	before, kept := ours.Size(), entries[:0:0]
	for n, e := range entries {
		if n == mine || e.Manager == v1alpha1.FieldManager || e.Subresource == "status" ||
			e.APIVersion != wanted.GetAPIVersion() || onlyMetadata(e) {
			kept = append(kept, e)
			continue
		}
		theirs, err := fieldsOf(entries, n)
		if err != nil {
			return nil, err
		}
		taken := foreign(theirs, ours, wanted)
		if taken.Empty() {
			kept = append(kept, e)
			continue
		}
		ours = ours.Union(taken)
		if left := theirs.Difference(taken); !left.Empty() {
			kept = append(kept, withFields(e, left))
		}
	}
	if ours.Size() == before {
		return nil, nil
	}
	entry := metav1.ManagedFieldsEntry{
		Manager: v1alpha1.FieldManager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: wanted.GetAPIVersion(),
		FieldsType: "FieldsV1",
	}
	if mine < 0 {
		kept = append(kept, withFields(entry, ours))
	} else {
		i := slices.IndexFunc(kept, func(e metav1.ManagedFieldsEntry) bool {
			return e.Manager == entry.Manager && e.Operation == entry.Operation && e.Subresource == ""
		})
		kept[i] = withFields(kept[i], ours)
	}
	return takeOverPatch(live, kept)
}

// learnWriters makes the API server record the writers of an object whose managed fields somebody removed, and reads
// the object again. It applies a configuration without fields, and the API server then assigns all existing fields to a
// special manager (before-first-apply). The apply uses a field manager other than the operator's, because with a stale
// cache an apply by the operator's manager would remove all fields that the operator wrote.
func learnWriters(ctx context.Context, c client.Client, live client.Object, wanted *unstructured.Unstructured) error {
	bare := &unstructured.Unstructured{}
	bare.SetGroupVersionKind(wanted.GroupVersionKind())
	bare.SetNamespace(wanted.GetNamespace())
	bare.SetName(wanted.GetName())
	bare.SetUID(live.GetUID()) // prevents the creation of a new object if this one was deleted in the meantime
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(bare),
		client.FieldOwner(v1alpha1.FieldManager+"-learns"))
	if err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(bare.Object, live)
}

func takeOverPatch(live client.Object, entries []metav1.ManagedFieldsEntry) ([]byte, error) {
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	ops := []op{
		{"replace", "/metadata/managedFields", entries},
		// The write fails with a conflict if the cache is stale.
		{"replace", "/metadata/resourceVersion", live.GetResourceVersion()},
	}
	if _, there := live.GetAnnotations()[annotationApplied]; there {
		ops = append(ops, op{"replace", "/metadata/annotations/" + strings.ReplaceAll(annotationApplied, "/", "~1"), ""})
	}
	return json.Marshal(ops)
}

// fieldsOf returns the fields of entry n. The set is empty if entry n does not exist.
func fieldsOf(entries []metav1.ManagedFieldsEntry, n int) (*fieldpath.Set, error) {
	set := fieldpath.NewSet()
	if n < 0 || entries[n].FieldsV1 == nil {
		return set, nil
	}
	if err := set.FromJSON(entries[n].FieldsV1.GetRawReader()); err != nil {
		return nil, fmt.Errorf("managed fields of %s: %w", entries[n].Manager, err)
	}
	return set, nil
}

func withFields(e metav1.ManagedFieldsEntry, set *fieldpath.Set) metav1.ManagedFieldsEntry {
	raw, err := set.ToJSON()
	if err != nil { // the set was decoded from JSON, so only a bug can make this fail
		panic(err)
	}
	e.FieldsV1 = metav1.NewFieldsV1(string(raw))
	return e
}

// onlyMetadata reports whether an entry has only fields of metadata and status, as most entries do. This check is
// cheap.
func onlyMetadata(e metav1.ManagedFieldsEntry) bool {
	var top map[string]json.RawMessage
	if e.FieldsV1 == nil || json.Unmarshal(e.FieldsV1.GetRawBytes(), &top) != nil {
		return true
	}
	for field := range top {
		if field != "f:metadata" && field != "f:status" {
			return false
		}
	}
	return true
}

// foreign returns the fields that other writers must give up and that the operator does not own yet.
func foreign(theirs, ours *fieldpath.Set, wanted *unstructured.Unstructured) *fieldpath.Set {
	taken := fieldpath.NewSet()
	theirs.Iterate(func(p fieldpath.Path) {
		if top := p[0].FieldName; top != nil && (*top == "metadata" || *top == "status") {
			return
		}
		if ours.Has(p) || keeps(p, ours, wanted) {
			return
		}
		taken.Insert(p.Copy())
	})
	return taken
}

// keeps reports whether a field below spec may remain if it belongs to another writer.
func keeps(p fieldpath.Path, ours *fieldpath.Set, wanted *unstructured.Unstructured) bool {
	path := p.String()
	if path == restartedAt {
		return true
	}
	if wanted.GetKind() != "Service" {
		return false
	}
	under := func(roots []string) bool {
		return slices.ContainsFunc(roots, func(root string) bool {
			return path == root || strings.HasPrefix(path, root+".") || strings.HasPrefix(path, root+"[")
		})
	}
	kind, _, _ := unstructured.NestedString(wanted.Object, "spec", "type")
	switch corev1.ServiceType(kind) {
	case corev1.ServiceTypeLoadBalancer:
		if under(serviceBalancer) {
			return true
		}
		fallthrough
	case corev1.ServiceTypeNodePort:
		// Others may choose the node port of a port that the operator has set. Ports that others have added are removed.
		if under(serviceOutside) || strings.HasSuffix(path, ".nodePort") && ours.Has(p[:len(p)-1]) {
			return true
		}
	}
	return under(serviceAddresses)
}
