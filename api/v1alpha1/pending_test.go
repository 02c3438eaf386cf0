package v1alpha1_test

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/must"
)

// read returns the stored object, including its default status.
func read(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	got, err := client(object.GetKind()).Get(context.Background(), object.GetName(), metav1.GetOptions{})
	must.OK(t, err)
	return got
}

// conditionsOf returns the status and reason of each condition by its type.
func conditionsOf(t *testing.T, object *unstructured.Unstructured) map[string]string {
	t.Helper()
	list, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	must.OK(t, err)
	all := map[string]string{}
	for _, item := range list {
		c := item.(map[string]any)
		all[c["type"].(string)] = c["status"].(string) + " " + c["reason"].(string)
	}
	return all
}

// The default status of an object says that the operator has not seen the object yet. Clients that wait for readiness
// (helm --wait, kubectl wait, GitOps tools) must not consider such an object ready. With an empty status they would,
// because kstatus treats an object without conditions as ready.
func TestANewObjectIsPending(t *testing.T) {
	kubetest.Only(t)
	for kind := range kinds {
		if kind == "Shard" {
			continue // no client waits for a Shard, because the operator creates it only after it has observed the shard
		}
		t.Run(kind, func(t *testing.T) {
			object := create(t, build(t, kind, fields{"status": fields{"conditions": []fields{{
				"type": "Ready", "status": "True", "reason": "Mine", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
			}}}}))
			got := read(t, object)
			all := conditionsOf(t, got)
			if len(all) != 2 || all[v1alpha1.ConditionReady] != "Unknown "+v1alpha1.ReasonPending ||
				all[v1alpha1.ConditionReconciling] != "True "+v1alpha1.ReasonPending {
				t.Fatalf("a new object has the conditions %v", all)
			}
			decode(t, got)
			if row := kubectl(t, "get", kind, object.GetName(), "--no-headers"); !strings.Contains(row, "Unknown") ||
				strings.Contains(row, "<invalid>") {
				t.Errorf("kubectl get shows %s", row)
			}

			// The operator's first write may concern another part of the status. The pending conditions remain until
			// the operator writes its own conditions, and then disappear.
			patch := func(body string) {
				t.Helper()
				if _, err := client(kind).Patch(context.Background(), object.GetName(), types.MergePatchType, []byte(body),
					metav1.PatchOptions{}, "status"); err != nil {
					t.Fatal(err)
				}
			}
			patch(`{"status":{"observedGeneration":1}}`)
			if after := conditionsOf(t, read(t, object)); len(after) != 2 {
				t.Errorf("after a write that is not about conditions they are %v", after)
			}
			patch(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Ready","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
			got = read(t, object)
			if after := conditionsOf(t, got); len(after) != 1 || after[v1alpha1.ConditionReady] != "True Ready" {
				t.Errorf("after the operator has said that all is well the conditions are %v", after)
			}

			// A later update by a user does not restore the pending conditions.
			apply(t, got, fields{"status": nil, "metadata/labels": fields{"a": "b"}})
			if after := conditionsOf(t, update(t, got)); len(after) != 1 {
				t.Errorf("after an update of the object the conditions are %v", after)
			}
		})
	}
}
