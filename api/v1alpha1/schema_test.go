package v1alpha1_test

import (
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/test/must"
)

// node is one node of a CRD's schema.
type node struct {
	// path is the field's path in the schema. It contains [] for the items of a list and * for the values of a map.
	path  string
	typ   string
	enum  bool
	leaf  bool
	rules []string // messages of the CEL rules
}

// crdSchema reads the schema of a kind from its CRD file.
func crdSchema(t *testing.T, kind string) map[string]any {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(crdFolder, "sheaf.dev_"+kinds[kind].Resource+".yaml"))
	must.OK(t, err)
	var crd map[string]any
	must.OK(t, yaml.Unmarshal(raw, &crd))
	versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
	if err != nil || len(versions) != 1 {
		t.Fatalf("%d versions, %v", len(versions), err)
	}
	root, _, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema")
	must.OK(t, err)
	return root
}

// schemaOf lists the nodes of a kind's schema below spec and status, and the rules of the object itself.
func schemaOf(t *testing.T, kind string) (nodes []node, rootRules []string) {
	t.Helper()
	root := crdSchema(t, kind)
	for name, part := range root["properties"].(map[string]any) {
		if name == "spec" || name == "status" {
			nodes = walk(nodes, name, part.(map[string]any))
		}
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].path < nodes[j].path })
	return nodes, rulesOf(root)
}

func walk(nodes []node, path string, part map[string]any) []node {
	n := node{path: path, leaf: true, rules: rulesOf(part)}
	n.typ, _ = part["type"].(string)
	if part["x-kubernetes-int-or-string"] == true {
		n.typ = "int-or-string"
	}
	_, n.enum = part["enum"]
	if strings.HasSuffix(path, "/scheduling/affinity") || strings.HasSuffix(path,
		"/scheduling/topologySpreadConstraints") {
		return append(nodes, n) // Kubernetes defines the fields below this path
	}
	if properties, ok := part["properties"].(map[string]any); ok {
		n.leaf = false
		for name, child := range properties {
			nodes = walk(nodes, path+"/"+name, child.(map[string]any))
		}
	}
	if items, ok := part["items"].(map[string]any); ok {
		n.leaf = false
		nodes = walk(nodes, path+"/[]", items)
	}
	if values, ok := part["additionalProperties"].(map[string]any); ok {
		n.leaf = false
		nodes = walk(nodes, path+"/*", values)
	}
	return append(nodes, n)
}

func rulesOf(part map[string]any) (messages []string) {
	rules, _ := part["x-kubernetes-validations"].([]any)
	for _, rule := range rules {
		message, _ := rule.(map[string]any)["message"].(string)
		messages = append(messages, message)
	}
	return messages
}

// objectPath converts a path of a schema to a path into an object. It takes the first item of each list, and a key that
// the map allows.
func objectPath(path string) string {
	switch {
	case strings.Contains(path, "resources/"):
		path = strings.ReplaceAll(path, "*", "memory")
	default:
		path = strings.ReplaceAll(path, "*", "key")
	}
	return strings.ReplaceAll(path, "[]", "0")
}

// schemaPath converts a path into an object to the path of its schema.
func schemaPath(nodes []node, path string) string {
	known := map[string]bool{}
	for _, n := range nodes {
		known[n.path] = true
	}
	at := ""
	for step := range strings.SplitSeq(path, "/") {
		for _, name := range []string{step, "[]", "*"} {
			next := strings.TrimPrefix(at+"/"+name, "/")
			if known[next] || next == "metadata" || strings.HasPrefix(next, "metadata/") {
				at = next
				break
			}
		}
	}
	return at
}

// formatPath formats a path into an object as the API server does.
func formatPath(path string) string {
	var b strings.Builder
	for i, step := range strings.Split(path, "/") {
		switch {
		case strings.Trim(step, "0123456789") == "":
			b.WriteString("[" + step + "]")
		case i > 0:
			b.WriteString("." + strings.ReplaceAll(step, "~1", "/"))
		default:
			b.WriteString(step)
		}
	}
	return b.String()
}

// The default of spec.groups.max, which routing defines, is a value that spec.groups.max may have.
func TestTheDefaultNumberOfGroupsCanBeSet(t *testing.T) {
	most, _, err := unstructured.NestedFieldNoCopy(crdSchema(t, "RecordStore"), "properties", "spec", "properties",
		"groups", "properties", "max", "maximum")
	must.OK(t, err)
	if most != int64(routing.GroupsMaxDefault) && most != float64(routing.GroupsMaxDefault) {
		t.Errorf("spec.groups.max is at most %v, its default is %d", most, routing.GroupsMaxDefault)
	}
}
