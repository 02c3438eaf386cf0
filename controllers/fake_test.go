package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/applyconfigurations"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// These finalizers simulate how an API server keeps a deleted object until a controller or a kubelet removes it. A
// terminating pod on a real API server has no finalizer, but controller-runtime's fake keeps a deleted object only if
// it has one.
const (
	finalizerOrphan     = "orphan"
	finalizerForeground = "foregroundDeletion"
	finalizerEnding     = "sheaf.dev/played-end"
)

// newFake returns controller-runtime's fake client, extended by properties of an API server that the specs need:
// UIDs, generations, times, the defaults that the CRDs of Sheaf's kinds define, a status that can be changed only
// through its subresource, no new version for an unchanged object, deleted pods that remain until their kubelet ends
// them, and preconditions. The specs of "What an API server answers" run on this fake and on a real server. The fake
// does not validate objects (neither by CEL nor by the rules of Kubernetes), and does not check permissions.
func newFake(crds string) (client.WithWatch, error) {
	objects, err := newFakeObjects(crds)
	if err != nil {
		return nil, err
	}
	base := fake.NewClientBuilder().WithScheme(envScheme).WithObjectTracker(objects).WithReturnManagedFields().
		WithGlobalResourceVersionCounter().
		WithStatusSubresource(&v1alpha1.RecordStore{}, &v1alpha1.ShardPool{}, &v1alpha1.Shard{}, &v1alpha1.DiskSet{},
			&v1alpha1.RecordGrant{}, &v1alpha1.RecordTenant{}, &v1alpha1.RecordArchive{}, &v1alpha1.RecordBackup{}).
		Build()
	return interceptor.NewClient(base, interceptor.Funcs{
		Get:  objects.read,
		List: objects.list,
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return counted(c.Create(ctx, o, opts...))
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return counted(c.Update(ctx, o, opts...))
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			return counted(objects.patch(ctx, c, o, patch, opts...))
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return counted(c.Apply(ctx, o, opts...))
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return counted(deleteAsServer(ctx, c, o, opts...))
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			return counted(c.SubResource(sub).Update(ctx, o, opts...))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			return counted(objects.patchStatus(ctx, c, o, patch, opts...))
		},
	}), nil
}

// counted counts a write if it was accepted. For the real API server, memo does this.
func counted(err error) error {
	if err == nil {
		writeCount.Add(1)
	}
	return err
}

// deleteAsServer checks the preconditions that controller-runtime's fake ignores, and keeps the objects that an API
// server keeps.
func deleteAsServer(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	live := o.DeepCopyObject().(client.Object)
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), live); err != nil {
		return err
	}
	gvk, err := c.GroupVersionKindFor(live)
	if err != nil {
		return err
	}
	if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != live.GetUID() || p.ResourceVersion != nil &&
		*p.ResourceVersion != live.GetResourceVersion()) {
		resource, _ := meta.UnsafeGuessKindToResource(gvk)
		return apierrors.NewConflict(resource.GroupResource(), live.GetName(),
			errors.New("the precondition of the deletion does not hold"))
	}
	finalizers := slices.Clone(live.GetFinalizers())
	if policy := options.PropagationPolicy; live.GetDeletionTimestamp() == nil && policy != nil {
		switch *policy {
		case metav1.DeletePropagationOrphan:
			finalizers = append(finalizers, finalizerOrphan)
		case metav1.DeletePropagationForeground:
			finalizers = append(finalizers, finalizerForeground)
		}
	}
	if pod, ok := live.(*corev1.Pod); ok {
		at := slices.Index(finalizers, finalizerEnding)
		atOnce := options.GracePeriodSeconds != nil && *options.GracePeriodSeconds == 0
		switch {
		case at >= 0 && atOnce:
			finalizers = slices.Delete(finalizers, at, at+1)
		case at < 0 && !atOnce && pod.Spec.NodeName != "":
			finalizers = append(finalizers, finalizerEnding)
		}
	}
	if !slices.Equal(finalizers, live.GetFinalizers()) {
		gone := live.GetDeletionTimestamp() != nil && len(finalizers) == 0
		live.SetFinalizers(finalizers)
		if err := c.Update(ctx, live); err != nil || gone {
			return err
		}
	}
	return c.Delete(ctx, live)
}

// fakeObjects holds the objects of a fake API server, including the fields that an API server sets.
type fakeObjects struct {
	testing.ObjectTracker
	defaults map[schema.GroupVersionKind]crdSchema

	mu       sync.Mutex
	managers map[schema.GroupVersionKind]*managedfields.FieldManager
}

func newFakeObjects(crds string) (*fakeObjects, error) {
	t := &fakeObjects{
		ObjectTracker: testing.NewObjectTracker(envScheme, serializer.NewCodecFactory(envScheme).UniversalDecoder()),
		defaults:      map[schema.GroupVersionKind]crdSchema{},
		managers:      map[schema.GroupVersionKind]*managedfields.FieldManager{},
	}
	files, err := filepath.Glob(filepath.Join(crds, "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, errors.New("no CRDs in "+crds))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema crdSchema }
				}
			}
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return nil, err
		}
		version := crd.Spec.Versions[0]
		t.defaults[schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name,
			Kind: crd.Spec.Names.Kind}] = version.Schema.OpenAPIV3Schema
	}
	return t, nil
}

// read copies an object directly. controller-runtime's fake would encode the object as JSON and decode it again, which
// would take most of a spec's time.
func (t *fakeObjects) read(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
	opts ...client.GetOption) error {
	if _, ok := o.(runtime.Unstructured); ok {
		return c.Get(ctx, key, o, opts...)
	}
	gvk, err := kindOf(o)
	if err != nil {
		return err
	}
	resource, _ := meta.UnsafeGuessKindToResource(gvk)
	found, err := t.Get(resource, key.Namespace, key.Name)
	if err != nil {
		return err
	}
	reflect.ValueOf(o).Elem().Set(reflect.ValueOf(found).Elem())
	return nil
}

// list copies a list of objects directly, for the reason given at read.
func (t *fakeObjects) list(ctx context.Context, c client.WithWatch, list client.ObjectList,
	opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	gvk, err := kindOf(list)
	if _, ok := list.(runtime.Unstructured); ok || err != nil {
		return c.List(ctx, list, opts...)
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	resource, _ := meta.UnsafeGuessKindToResource(gvk)
	found, err := t.List(resource, gvk, options.Namespace)
	if err != nil {
		return err
	}
	all, err := meta.ExtractList(found)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(o runtime.Object) bool {
		at, err := meta.Accessor(o)
		return err != nil || options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(at.GetLabels())) ||
			options.FieldSelector != nil && !selected(o, options.FieldSelector)
	})
	list.SetResourceVersion("1")
	return meta.SetList(list, all)
}

// patch reads, patches and updates an object once. controller-runtime's fake would do this twice, and would inspect
// the call stack to find its caller.
func (t *fakeObjects) patch(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
	opts ...client.PatchOption) error {
	var options client.PatchOptions
	options.ApplyOptions(opts)
	return t.patched(o, patch, func(fresh client.Object) error {
		return c.Update(ctx, fresh, client.FieldOwner(options.FieldManager))
	})
}

// patchStatus patches the status, which is the only subresource that these specs patch.
func (t *fakeObjects) patchStatus(ctx context.Context, c client.Client, o client.Object, patch client.Patch,
	opts ...client.SubResourcePatchOption) error {
	var options client.SubResourcePatchOptions
	options.ApplyOptions(opts)
	return t.patched(o, patch, func(fresh client.Object) error {
		return c.Status().Update(ctx, fresh, client.FieldOwner(options.FieldManager))
	})
}

// patched applies a patch to the live object, updates the live object, and copies the result into o.
func (t *fakeObjects) patched(o client.Object, patch client.Patch, update func(client.Object) error) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	for {
		empty, gvk, err := blank(o)
		if err != nil {
			return err
		}
		resource, _ := meta.UnsafeGuessKindToResource(gvk)
		live, err := t.Get(resource, o.GetNamespace(), o.GetName())
		if err != nil {
			return err
		}
		before, err := json.Marshal(live)
		if err != nil {
			return err
		}
		after, err := applyPatch(patch.Type(), before, data)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		fresh := empty.(client.Object)
		if err := json.Unmarshal(after, fresh); err != nil {
			return err
		}
		version := live.(client.Object).GetResourceVersion()
		asked := fresh.GetResourceVersion()
		if asked == "" {
			fresh.SetResourceVersion(version)
		}
		switch err := update(fresh); {
		// Another client wrote the object after this one read it. The request does not insist on a version, so try again
		// with the current object.
		case apierrors.IsConflict(err) && (asked == "" || asked == version):
			continue
		case err != nil:
			return err
		}
		return assign(fresh, o)
	}
}

// assign copies the contents of an object to another object of the same kind.
func assign(from, to client.Object) error {
	if _, ok := to.(runtime.Unstructured); ok {
		return copyInto(from, to)
	}
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
	return nil
}

// applyPatch applies a patch of one of the types that the specs use.
func applyPatch(kind types.PatchType, object, patch []byte) ([]byte, error) {
	switch kind {
	case types.MergePatchType:
		return jsonpatch.MergePatch(object, patch)
	case types.JSONPatchType:
		ops, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, err
		}
		return ops.Apply(object)
	default:
		return nil, fmt.Errorf("the fake knows no %s", kind)
	}
}

// selected reports whether the fields of an object match a selector. The API server supports few fields of each kind;
// this function supports all text fields.
func selected(o runtime.Object, selector fields.Selector) bool {
	all, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return false
	}
	set := fields.Set{}
	for _, r := range selector.Requirements() {
		set[r.Field], _, _ = unstructured.NestedString(all, strings.Split(r.Field, ".")...)
	}
	return selector.Matches(set)
}

// crdSchema is the part of a CRD's schema that defines the defaults of absent fields.
type crdSchema struct {
	Default              any
	Properties           map[string]crdSchema
	Items                *crdSchema
	AdditionalProperties *crdSchema
}

// fill sets the defaults of absent fields.
func (s crdSchema) fill(value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, part := range s.Properties {
			if value[name] == nil && part.Default != nil {
				value[name] = runtime.DeepCopyJSONValue(part.Default)
			}
			part.fill(value[name])
		}
		if s.AdditionalProperties != nil {
			for _, item := range value {
				s.AdditionalProperties.fill(item)
			}
		}
	case []any:
		if s.Items != nil {
			for _, item := range value {
				s.Items.fill(item)
			}
		}
	}
}

// kindOf returns the kind of an object that the scheme knows.
func kindOf(o runtime.Object) (schema.GroupVersionKind, error) {
	kinds, _, err := envScheme.ObjectKinds(o)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return kinds[0], nil
}

// typesOfFake returns a converter that knows the field types of the built-in kinds.
var typesOfFake = sync.OnceValue(func() managedfields.TypeConverter {
	known := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(known)).To(Succeed())
	return applyconfigurations.NewTypeConverter(known)
})

type noDefaults struct{}

func (noDefaults) Default(runtime.Object) {}

// manager returns the field manager that records who wrote which field.
func (t *fakeObjects) manager(gvk schema.GroupVersionKind) (*managedfields.FieldManager, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.managers[gvk]; m != nil {
		return m, nil
	}
	types := typesOfFake()
	if t.defaults[gvk].Properties != nil { // the field types of Sheaf's kinds are deduced from the objects
		types = managedfields.NewDeducedTypeConverter()
	}
	m, err := managedfields.NewDefaultFieldManager(types, envScheme, noDefaults{}, envScheme, gvk, gvk.GroupVersion(), "",
		nil)
	if err == nil {
		t.managers[gvk] = m
	}
	return m, err
}

// blank returns an empty object of the same kind as o.
func blank(o runtime.Object) (runtime.Object, schema.GroupVersionKind, error) {
	gvk, err := kindOf(o)
	if err != nil {
		return nil, gvk, err
	}
	empty, err := envScheme.New(gvk)
	if err == nil {
		empty.GetObjectKind().SetGroupVersionKind(gvk)
	}
	return empty, gvk, err
}

func (t *fakeObjects) Create(gvr schema.GroupVersionResource, o runtime.Object, ns string,
	opts ...metav1.CreateOptions) error {
	empty, gvk, err := blank(o)
	if err != nil {
		return err
	}
	m, err := t.manager(gvk)
	if err != nil {
		return err
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	if err := t.setServerFields(gvk, o); err != nil {
		return err
	}
	made, err := m.Update(empty, o, writer(opts[0].FieldManager))
	if err != nil {
		return err
	}
	return t.ObjectTracker.Create(gvr, made, ns, opts...)
}

// writer returns a writer's name, or the name that the API server uses for a writer without one.
func writer(name string) string {
	if name == "" {
		return "controllers.test"
	}
	return name
}

// setServerFields sets the fields that the API server sets in a new object, and removes a status that the client set.
func (t *fakeObjects) setServerFields(gvk schema.GroupVersionKind, o runtime.Object) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	delete(fields, "status")
	t.defaults[gvk].fill(fields)
	fresh, err := envScheme.New(gvk)
	if err != nil {
		return err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, fresh); err != nil {
		return err
	}
	switch o := fresh.(type) {
	case *corev1.Pod:
		o.Status.Phase = corev1.PodPending
	case *corev1.PersistentVolumeClaim:
		o.Status.Phase = corev1.ClaimPending
		o.Finalizers = append(o.Finalizers, "kubernetes.io/pvc-protection")
	case *corev1.PersistentVolume:
		o.Status.Phase = corev1.VolumePending
		o.Finalizers = append(o.Finalizers, "kubernetes.io/pv-protection")
	}
	at, err := meta.Accessor(fresh)
	if err != nil {
		return err
	}
	at.SetUID(uuid.NewUUID())
	at.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	at.SetGeneration(1)
	return copyInto(fresh, o)
}

// copyInto copies the contents of an object to another object of the same kind.
func copyInto(from, to runtime.Object) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(from)
	if err != nil {
		return err
	}
	if u, ok := to.(runtime.Unstructured); ok {
		kind := to.GetObjectKind().GroupVersionKind()
		u.SetUnstructuredContent(maps.Clone(fields))
		to.GetObjectKind().SetGroupVersionKind(kind)
		return nil
	}
	kind := to.GetObjectKind().GroupVersionKind()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, to); err != nil {
		return err
	}
	to.GetObjectKind().SetGroupVersionKind(kind)
	return nil
}

func (t *fakeObjects) Update(gvr schema.GroupVersionResource, o runtime.Object, ns string,
	opts ...metav1.UpdateOptions) error {
	return t.change(gvr, o, ns, opts[0].FieldManager)
}

func (t *fakeObjects) Patch(gvr schema.GroupVersionResource, o runtime.Object, ns string,
	opts ...metav1.PatchOptions) error {
	return t.change(gvr, o, ns, opts[0].FieldManager)
}

func (t *fakeObjects) change(gvr schema.GroupVersionResource, o runtime.Object, ns, who string) error {
	gvk, err := kindOf(o)
	if err != nil {
		return err
	}
	at, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	old, err := t.Get(gvr, ns, at.GetName())
	if err != nil {
		return err
	}
	m, err := t.manager(gvk)
	if err != nil {
		return err
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	changed, err := m.Update(old, o, writer(who))
	if err != nil {
		return err
	}
	return t.store(gvr, old, changed, o, ns)
}

// store stores a changed object. It also copies the fields that the API server sets into o, where the writer finds
// them. An object that did not actually change keeps its version.
func (t *fakeObjects) store(gvr schema.GroupVersionResource, old, changed, o runtime.Object, ns string) error {
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
	if err != nil {
		return err
	}
	after, err := runtime.DefaultUnstructuredConverter.ToUnstructured(changed)
	if err != nil {
		return err
	}
	was, err := meta.Accessor(old)
	if err != nil {
		return err
	}
	is, err := meta.Accessor(changed)
	if err != nil {
		return err
	}
	told, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	is.SetUID(was.GetUID())
	is.SetCreationTimestamp(was.GetCreationTimestamp())
	is.SetGeneration(was.GetGeneration())
	if !equality.Semantic.DeepEqual(before["spec"], after["spec"]) {
		is.SetGeneration(was.GetGeneration() + 1)
	}
	if asBefore(old, changed) {
		is.SetResourceVersion(was.GetResourceVersion())
		is.SetManagedFields(was.GetManagedFields())
	}
	told.SetUID(is.GetUID())
	told.SetCreationTimestamp(is.GetCreationTimestamp())
	told.SetGeneration(is.GetGeneration())
	told.SetResourceVersion(is.GetResourceVersion())
	told.SetManagedFields(is.GetManagedFields())
	return t.ObjectTracker.Update(gvr, changed, ns)
}

// asBefore reports whether an object is unchanged, apart from its version and the times in its managed fields.
func asBefore(old, changed runtime.Object) bool {
	plain := func(o runtime.Object) runtime.Object {
		o = o.DeepCopyObject()
		at, err := meta.Accessor(o)
		Expect(err).NotTo(HaveOccurred())
		at.SetResourceVersion("")
		fields := at.GetManagedFields()
		for n := range fields {
			fields[n].Time = nil
		}
		at.SetManagedFields(fields)
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		return o
	}
	return equality.Semantic.DeepEqual(plain(old), plain(changed))
}

func (t *fakeObjects) Apply(gvr schema.GroupVersionResource, wanted runtime.Object, ns string,
	opts ...metav1.PatchOptions) error {
	at, err := meta.Accessor(wanted)
	if err != nil {
		return err
	}
	if u, ok := wanted.(runtime.Unstructured); ok {
		delete(u.UnstructuredContent(), "status") // controller-runtime's fake copies the live status into this object
	}
	old, err := t.Get(gvr, ns, at.GetName())
	fresh := apierrors.IsNotFound(err)
	empty, gvk, err2 := blank(wanted)
	if err2 != nil || err != nil && !fresh {
		return errors.Join(err, err2)
	}
	m, err := t.manager(gvk)
	if err != nil {
		return err
	}
	if fresh {
		old = empty
	}
	made, err := m.Apply(old, wanted, opts[0].FieldManager, opts[0].Force != nil && *opts[0].Force)
	if err != nil {
		return err
	}
	if !fresh {
		return t.store(gvr, old, made, wanted, ns)
	}
	fields, err := meta.Accessor(made)
	if err != nil {
		return err
	}
	managed := fields.GetManagedFields()
	if err := t.setServerFields(gvk, made); err != nil {
		return err
	}
	fields.SetManagedFields(managed)
	return t.ObjectTracker.Create(gvr, made, ns)
}
