package controllers

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// jsonOp is one operation of a JSON patch.
type jsonOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// edit is a manual change to an object. It has several patches, and uses the first one that the API server accepts.
type edit struct {
	name  string
	tries [][]jsonOp
}

// editsOf returns manual changes to an object. For each field, they change it, remove it, and add something to it.
// They also add fields that the operator does not set.
func editsOf(o client.Object) []edit {
	var e edits
	fields := fieldsOfObject(o)
	for _, part := range []string{"labels", "annotations"} {
		if meta, ok := fields["metadata"].(map[string]any); ok {
			e.walk("/metadata/"+part, meta[part])
		}
	}
	e.walk("/spec", fields["spec"])
	e.addExtras(o)
	return e
}

func fieldsOfObject(o client.Object) map[string]any {
	bytes, err := json.Marshal(o)
	if err != nil {
		panic(err) // cannot happen, because the object was read from the API server
	}
	var fields map[string]any
	if err := json.Unmarshal(bytes, &fields); err != nil {
		panic(err)
	}
	return fields
}

type edits []edit

func (e *edits) add(name string, tries ...[]jsonOp) { *e = append(*e, edit{name, tries}) }

// walk adds edits of a value and of everything within it.
func (e *edits) walk(path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			at := path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
			e.add("remove "+at, []jsonOp{{Op: "remove", Path: at}})
			e.walk(at, value[key])
		}
		if of := path[strings.LastIndex(path, "/")+1:]; of == "labels" && path != "/metadata/labels" ||
			of == "nodeSelector" || of == "limits" {
			e.add("add to "+path, []jsonOp{{Op: "add", Path: path + "/foreign", Value: "1"}})
		}
	case []any:
		for n := range value {
			at := fmt.Sprintf("%s/%d", path, n)
			e.add("remove "+at, []jsonOp{{Op: "remove", Path: at}})
			e.walk(at, value[n])
		}
		if len(value) > 0 {
			e.add("add to "+path, []jsonOp{{Op: "add", Path: path + "/-", Value: similarItem(value[0])}})
		}
	default:
		e.add("change "+path, otherValues(path, value)...)
	}
}

// similarItem returns a new list item that resembles the given one.
func similarItem(item any) any {
	switch item := item.(type) {
	case map[string]any:
		out := maps.Clone(item)
		for key, value := range item {
			switch value := value.(type) {
			case string:
				if key == "name" || key == "key" || key == "mountPath" {
					out[key] = value + "x"
				}
			case float64:
				out[key] = value + 1
			}
		}
		return out
	case string:
		return item + "x"
	}
	return item
}

// words holds sets of values. A field that has one of the values of a set may also accept the other values of that set.
var words = [][]string{
	{"ClusterIP", "NodePort", "None", "ClientIP"}, {"TCP", "UDP"}, {"HTTP", "HTTPS"}, {"Cluster", "Local"},
	{"ClusterFirst", "Default"},
	{"Always", "Never", "IfNotPresent", "OnRootMismatch"}, {"RollingUpdate", "Recreate", "OnDelete"},
	{"OrderedReady", "Parallel"},
	{"Retain", "Delete"}, {"DoNotSchedule", "ScheduleAnyway"}, {"Honor", "Ignore"}, {"RuntimeDefault", "Unconfined"},
	{"IfHealthyBudget", "AlwaysAllow"}, {"File", "FallbackToLogsOnError"}, {"Exists", "Equal"},
	{"NoSchedule", "NoExecute", "PreferNoSchedule"},
	{"metadata.name", "metadata.namespace", "status.podIP"},
}

// otherValues returns patches that set a scalar field to other values that it could have.
func otherValues(path string, value any) (tries [][]jsonOp) {
	replace := func(v any) { tries = append(tries, []jsonOp{{Op: "replace", Path: path, Value: v}}) }
	switch value := value.(type) {
	case bool:
		replace(!value)
	case float64:
		replace(value + 1)
		replace(value + 2)
		replace(max(0, value-1))
	case string:
		replace(value + "x")
		if _, err := resource.ParseQuantity(value); err == nil {
			replace("1Gi")
			replace("77m")
		}
		for _, family := range words {
			if !slices.Contains(family, value) {
				continue
			}
			for _, word := range family {
				if word != value {
					replace(word)
				}
			}
		}
	}
	return tries
}

// addExtras adds fields that the operator does not set.
func (e *edits) addExtras(o client.Object) {
	set := func(path string, value any, more ...jsonOp) {
		e.add("set "+path, append(more, jsonOp{Op: "add", Path: path, Value: value}))
	}
	switch o := o.(type) {
	case *corev1.Service:
		set("/spec/externalIPs", []string{"192.0.2.7"})
		set("/spec/sessionAffinity", "ClientIP")
		set("/spec/internalTrafficPolicy", "Local")
		set("/spec/ports", []any{map[string]any{"name": o.Spec.Ports[0].Name, "port": 9999, "targetPort": 9999}})
		if o.Spec.ClusterIP != corev1.ClusterIPNone {
			set("/spec/type", "ExternalName", jsonOp{Op: "add", Path: "/spec/externalName", Value: "elsewhere.example"},
				jsonOp{Op: "remove", Path: "/spec/clusterIP"}, jsonOp{Op: "remove", Path: "/spec/clusterIPs"})
			set("/spec/externalTrafficPolicy", "Local", jsonOp{Op: "replace", Path: "/spec/type", Value: "LoadBalancer"},
				jsonOp{Op: "add", Path: "/spec/loadBalancerSourceRanges", Value: []string{"192.0.2.0/24"}},
				jsonOp{Op: "add", Path: "/spec/ports/0/nodePort", Value: 30123})
		}
	case *policyv1.PodDisruptionBudget:
		set("/spec/maxUnavailable", 3, jsonOp{Op: "remove", Path: "/spec/minAvailable"})
	case *appsv1.Deployment:
		e.podExtras(&o.Spec.Template)
		set("/spec/paused", true)
		set("/spec/minReadySeconds", 7)
	case *appsv1.StatefulSet:
		e.podExtras(&o.Spec.Template)
		set("/spec/minReadySeconds", 7)
		set("/spec/ordinals", map[string]any{"start": 3})
		set("/spec/updateStrategy", map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"partition": 2}})
	}
	if _, ok := o.(*appsv1.StatefulSet); ok {
		// The admission plugin OwnerReferencesPermissionEnforcement is enabled in these tests. It lets a user set an owner
		// only if that user may delete the object. Of these objects, the operator may delete only StatefulSets, so only
		// their owners can be restored.
		e.add("take the owner away", []jsonOp{{Op: "remove", Path: "/metadata/ownerReferences"}})
	}
	e.add("forget who wrote what", []jsonOp{{Op: "replace", Path: "/metadata/managedFields",
		Value: []any{map[string]any{}}},
		{Op: "replace", Path: "/metadata/annotations/sheaf.dev~1applied", Value: "x"}})
}

// podExtras adds fields of a pod template that the operator does not set.
func (e *edits) podExtras(template *corev1.PodTemplateSpec) {
	pod, container := "/spec/template/spec", "/spec/template/spec/containers/0"
	set := func(path string, value any) { e.add("set "+path, []jsonOp{{Op: "add", Path: path, Value: value}}) }
	env := any(map[string]any{"name": "FOREIGN", "value": "1"})
	if len(template.Spec.Containers[0].Env) > 0 {
		set(container+"/env/-", env)
	} else {
		set(container+"/env", []any{env})
	}
	sidecar := map[string]any{"name": "sidecar", "image": "example.org/sidecar:1"}
	set(pod+"/containers/-", sidecar)
	set(pod+"/initContainers", []any{sidecar})
	set(pod+"/hostNetwork", true)
	set(pod+"/hostPID", true)
	set(pod+"/dnsPolicy", "Default")
	set(pod+"/serviceAccountName", "other")
	set(pod+"/nodeSelector", map[string]any{"foreign": "yes"})
	set(pod+"/tolerations", []any{map[string]any{"operator": "Exists"}})
	set(pod+"/priorityClassName", "system-cluster-critical")
	set(pod+"/volumes", []any{map[string]any{"name": "foreign", "emptyDir": map[string]any{}}})
	set(container+"/command", []string{"sh"})
	set(container+"/workingDir", "/tmp")
	set(container+"/securityContext/privileged", true)
	set(container+"/stdin", true)
	if template.Annotations == nil {
		set("/spec/template/metadata/annotations", map[string]any{"foreign": "yes"})
	} else {
		set("/spec/template/metadata/annotations/foreign", "yes")
	}
}
