package v1alpha1_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/must"
)

// fields maps paths, such as "spec/disks/0/node", to values; a nil value removes the field.
type fields map[string]any

// minimal has an object of each kind with only the required fields.
var minimal = map[string]string{
	"RecordStore": `
apiVersion: sheaf.dev/v1alpha1
kind: RecordStore
metadata: {name: quotes}
spec:
  groups: {routing: Hash, count: 256}
`,
	"ShardPool": `
apiVersion: sheaf.dev/v1alpha1
kind: ShardPool
metadata: {name: quotes-ssd}
spec:
  storeRef: {name: quotes}
  storage: {storageClassName: local-xfs, size: 500Gi}
`,
	"Shard": `
apiVersion: sheaf.dev/v1alpha1
kind: Shard
metadata: {name: quotes-ssd-0}
spec: {pool: quotes-ssd, number: 0}
`,
	"DiskSet": `
apiVersion: sheaf.dev/v1alpha1
kind: DiskSet
metadata: {name: local-xfs}
spec:
  fileSystem: {type: xfs}
  namespaces: [prod]
  disks: [{node: n1, device: /dev/disk/by-id/nvme-1, size: 500Gi}]
`,
	"RecordGrant": `
apiVersion: sheaf.dev/v1alpha1
kind: RecordGrant
metadata: {name: team-a}
spec:
  storeRef: {name: quotes}
  subjects: [{kind: ServiceAccounts, namespace: team-a}]
  verbs: [get, put]
  groups: {prefixes: [team-a-]}
`,
	"RecordTenant": `
apiVersion: sheaf.dev/v1alpha1
kind: RecordTenant
metadata: {name: team-a}
spec:
  storeRef: {name: quotes}
  prefix: team-a-
  quotas: {storedBytes: 500Gi}
`,
	"RecordArchive": `
apiVersion: sheaf.dev/v1alpha1
kind: RecordArchive
metadata: {name: quotes}
spec:
  storeRef: {name: quotes}
  url: s3://backups/quotes
`,
	"RecordBackup": `
apiVersion: sheaf.dev/v1alpha1
kind: RecordBackup
metadata: {name: quotes}
spec:
  archiveRef: {name: quotes}
`,
}

// build returns a minimal object with the given fields set.
func build(t *testing.T, kind string, edits ...fields) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	must.OK(t, yaml.Unmarshal([]byte(minimal[kind]), &object.Object))
	for _, edit := range edits {
		apply(t, object, edit)
	}
	return object
}

func apply(t *testing.T, object *unstructured.Unstructured, edit fields) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(edit)) {
		value := edit[path]
		changed, err := set(object.Object, strings.Split(path, "/"), value)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		object.Object = changed.(map[string]any)
	}
}

// set returns the node with the value set at a path. It creates missing maps and lists on the way. In a path, ~1 stands
// for /.
func set(node any, path []string, value any) (any, error) {
	if len(path) == 0 {
		return toJSONTypes(value), nil
	}
	step := strings.ReplaceAll(path[0], "~1", "/")
	if number, err := strconv.Atoi(step); err == nil {
		list, _ := node.([]any)
		if number > len(list) {
			return nil, fmt.Errorf("item %d of a list of %d", number, len(list))
		}
		if number == len(list) {
			list = append(list, nil)
		}
		item, err := set(list[number], path[1:], value)
		list[number] = item
		return list, err
	}
	fields, _ := node.(map[string]any)
	if fields == nil {
		fields = map[string]any{}
	}
	if len(path) == 1 && value == nil {
		delete(fields, step)
		return fields, nil
	}
	item, err := set(fields[step], path[1:], value)
	fields[step] = item
	return fields, err
}

// toJSONTypes converts a value to the types that decoding JSON produces.
func toJSONTypes(value any) any {
	switch v := value.(type) {
	case int:
		return int64(v)
	case []string:
		out := make([]any, len(v))
		for i := range v {
			out[i] = v[i]
		}
		return out
	case []int:
		out := make([]any, len(v))
		for i := range v {
			out[i] = int64(v[i])
		}
		return out
	case fields:
		out := map[string]any{}
		for key, item := range v {
			out[key] = toJSONTypes(item)
		}
		return out
	case []fields:
		out := make([]any, len(v))
		for i := range v {
			out[i] = toJSONTypes(v[i])
		}
		return out
	default:
		return value
	}
}

func client(kind string) dynamic.ResourceInterface {
	if kind == "DiskSet" {
		return cluster.Resource(kinds[kind])
	}
	return cluster.Resource(kinds[kind]).Namespace("default")
}

// tryCreate checks in a dry run whether the API server would accept a new object. It validates fields as strictly as
// kubectl.
func tryCreate(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	return client(object.GetKind()).Create(context.Background(), object, options)
}

// tryUpdate checks in a dry run whether the API server would accept a change to a stored object.
func tryUpdate(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	options := metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	return client(object.GetKind()).Update(context.Background(), object, options)
}

// tryStatus checks in a dry run whether the API server would accept a change to the status of a stored object.
func tryStatus(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	options := metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	return client(object.GetKind()).UpdateStatus(context.Background(), object, options)
}

var stored atomic.Int32

// create stores an object under a unique name. The object is deleted when the test ends.
func create(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	object.SetName(fmt.Sprintf("stored-%d", stored.Add(1)))
	got, err := client(object.GetKind()).Create(context.Background(), object,
		metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	must.OK(t, err)
	t.Cleanup(func() {
		if err := client(object.GetKind()).Delete(context.Background(), object.GetName(),
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return got
}

// complaint is one error that the API server reports about an object.
type complaint struct{ field, message string }

// fieldErrors returns the field errors in an error from the API server. It fails the test if the API server reported a
// different kind of error.
func fieldErrors(t *testing.T, err error) []complaint {
	t.Helper()
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Reason != metav1.StatusReasonInvalid ||
		status.ErrStatus.Details == nil {
		t.Fatalf("want an error that says which field is invalid, got %v", err)
	}
	var all []complaint
	for _, cause := range status.ErrStatus.Details.Causes {
		all = append(all, complaint{cause.Field, cause.Message})
	}
	return all
}

// decode fails the test if an accepted object does not decode into the Go type, because such an object would stop every
// watch of its kind.
func decode(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	types := map[string]any{
		"RecordStore": &v1alpha1.RecordStore{}, "ShardPool": &v1alpha1.ShardPool{}, "Shard": &v1alpha1.Shard{},
		"DiskSet":     &v1alpha1.DiskSet{},
		"RecordGrant": &v1alpha1.RecordGrant{}, "RecordTenant": &v1alpha1.RecordTenant{},
		"RecordArchive": &v1alpha1.RecordArchive{}, "RecordBackup": &v1alpha1.RecordBackup{},
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, types[object.GetKind()],
		true); err != nil {
		t.Errorf("accepted, but does not decode: %v", err)
	}
}
