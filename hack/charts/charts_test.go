package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const crdText = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations:
    controller-gen.kubebuilder.io/version: v1
  name: things.sheaf.dev
spec:
  group: sheaf.dev
  names:
    kind: Thing
  versions:
  - name: v1alpha1
    schema:
      openAPIV3Schema:
        description: "{{ not code }}"
        type: object
`

func TestCRDTemplateIsNeverCode(t *testing.T) {
	out, err := crdTemplate(crdText)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`description: "{{ "{{" }} not code {{ "}}" }}"`,
		"  annotations:\n    {{- if .Values.crds.keep }}\n    helm.sh/resource-policy: keep\n    {{- end }}\n    " +
			"controller-gen",
		"  labels:\n    {{- include",
		"  name: things.sheaf.dev\nspec:",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if _, err := crdTemplate("kind: CustomResourceDefinition\nmetadata:\n  name: x\n"); err == nil {
		t.Error("a CRD without annotations was taken")
	}
}

func TestParseCRDRefusesOtherKinds(t *testing.T) {
	if c, err := parseCRD([]byte(crdText)); err != nil || c.kind != "Thing" || c.group != "sheaf.dev" ||
		c.versions["v1alpha1"] == nil {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := parseCRD([]byte("kind: Pod\n")); err == nil {
		t.Error("a Pod was taken for a CRD")
	}
}

func TestSplitRules(t *testing.T) {
	get, all := []string{"get", "list", "watch"}, []string{"get", "list", "patch", "watch"}
	s, err := splitRules(roles{everywhere: []rule{
		{APIGroups: []string{""}, Resources: []string{"nodes", "pods"}, Verbs: get},
		{APIGroups: []string{""}, Resources: []string{"services", "persistentvolumes"}, Verbs: all},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}},
		{APIGroups: []string{"sheaf.dev"}, Resources: []string{"disksets", "disksets/status", "shardpools/status",
			"shards/status", "recordarchives/status", "recordbackups/status", "recordgrants/status", "recordstores/status",
			"recordtenants/status"}, Verbs: all},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create"}},
		{APIGroups: []string{"cert-manager.io"}, Resources: []string{"certificates"}, Verbs: []string{"create", "get"}},
	}, own: []rule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: all},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"create", "delete", "get"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := split{
		namespaced: []rule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: get},
			{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: all},
			{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}},
			{APIGroups: []string{"sheaf.dev"}, Resources: []string{"shardpools/status", "shards/status", "recordarchives/status",
				"recordbackups/status", "recordgrants/status", "recordstores/status", "recordtenants/status"}, Verbs: all},
			{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
			{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create"}},
		},
		certs: []rule{{APIGroups: []string{"cert-manager.io"}, Resources: []string{"certificates"},
			Verbs: []string{"create", "get"}}},
		read: []rule{{APIGroups: []string{""}, Resources: []string{"nodes", "persistentvolumes"}, Verbs: get}},
		diskSets: []rule{
			{APIGroups: []string{""}, Resources: []string{"persistentvolumes"}, Verbs: []string{"patch"}},
			{APIGroups: []string{"sheaf.dev"}, Resources: []string{"disksets", "disksets/status"}, Verbs: all},
		},
		election: []rule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: all},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
		},
		wipe: []rule{
			{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"create", "delete", "get"}},
		},
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
	text, err := rulesTemplate(s)
	if err != nil {
		t.Fatal(err)
	}
	body := strings.SplitN(strings.SplitN(text, `"sheaf-operator.rules.read" -}}`, 2)[1], "{{-", 2)[0]
	var read []rule
	if err := yaml.Unmarshal([]byte(body), &read); err != nil || !reflect.DeepEqual(read, want.read) {
		t.Errorf("template holds %+v, %v", read, err)
	}
}

func TestSplitRulesRefuses(t *testing.T) {
	status := rule{
		APIGroups: []string{"sheaf.dev"}, Resources: []string{"disksets/status", "shardpools/status", "shards/status",
			"recordarchives/status", "recordbackups/status", "recordgrants/status", "recordstores/status",
			"recordtenants/status"}, Verbs: []string{"patch"},
	}
	leases := rule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"update"}}
	jobs := rule{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create"}}
	certificates := rule{APIGroups: []string{"cert-manager.io"}, Resources: []string{"certificates"},
		Verbs: []string{"create"}}
	all := []rule{status, jobs, certificates}
	own := []rule{leases, jobs}
	if _, err := splitRules(roles{all, own}); err != nil {
		t.Fatal(err)
	}
	pods := rule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}
	verb, resource, group := pods, pods, pods
	verb.Verbs, resource.Resources, group.APIGroups = []string{"*"}, []string{"*"}, []string{"*"}
	onlyReads := status
	onlyReads.Verbs = []string{"get"}
	url := rule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}
	for name, r := range map[string]roles{
		"wildcard verb":             {append(all, verb), own},
		"wildcard resource":         {append(all, resource), own},
		"wildcard group":            {append(all, group), own},
		"pods in the own Role":      {all, append(own, pods)},
		"wildcard in the own Role":  {all, append(own, verb)},
		"URL":                       {append(all, url), own},
		"no leases":                 {all, []rule{jobs}},
		"no Jobs to wipe disks":     {all, []rule{leases}},
		"no Jobs for drills":        {[]rule{status, certificates}, own},
		"a missing controller":      {[]rule{jobs, certificates}, own},
		"status that is read only":  {[]rule{onlyReads, jobs, certificates}, own},
		"leases in every namespace": {append(all, leases), []rule{jobs}},
	} {
		if _, err := splitRules(r); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestParseRoles(t *testing.T) {
	const all = "---\nkind: ClusterRole\nrules:\n- {apiGroups: [\"\"], resources: [pods], verbs: [list]}\n"
	const own = "---\nkind: Role\nmetadata: {namespace: sheaf-system}\nrules:\n" +
		"- {apiGroups: [batch], resources: [jobs], verbs: [get]}\n"
	got, err := parseRoles(all + own)
	want := roles{
		everywhere: []rule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
		own:        []rule{{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get"}}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for name, text := range map[string]string{
		"nothing":                     "",
		"no YAML":                     "---\nkind: [",
		"two ClusterRoles":            all + all,
		"only a Role":                 own,
		"a Role of another namespace": all + strings.ReplaceAll(own, "sheaf-system", "default"),
	} {
		if _, err := parseRoles(text); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestJSONSchemaIsStrictAndPlain(t *testing.T) {
	in := parse(t, `
type: object
default: {properties: 1}
x-kubernetes-validations: [{rule: "true"}]
properties:
  size: {type: string, x-kubernetes-validations: [{rule: "isQuantity(self) && true"}]}
  odd: {type: integer, minimum: 1, maximum: 5, x-kubernetes-validations: [{rule: "self % 2 == 1"}]}
  amount: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}], pattern: x}
  labels: {type: object, additionalProperties: {type: string}}
  free: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}
  list: {type: array, items: {type: object, properties: {enum: {type: string, enum: [a]}}}}
`)
	want := parse(t, `
type: object
default: {properties: 1}
additionalProperties: false
properties:
  size: {type: string, pattern: '^[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i|[MGTPE]|[eE][+-]?[0-9]+)?$'}
  odd: {type: integer, minimum: 1, maximum: 5, enum: [1, 3, 5]}
  amount: {type: [integer, string], pattern: x}
  labels: {type: object, additionalProperties: {type: string}}
  free: {type: object, properties: {a: {type: string}}}
  list: {type: array, items: {type: object, additionalProperties: false, properties: {enum: {type: string, enum: [a]}}}}
`)
	if got := jsonSchemaObject(in); !reflect.DeepEqual(got, want) {
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		t.Errorf("got  %s\nwant %s", a, b)
	}
}

func TestRelaxLetsTheFieldsOfAStoreBeEmpty(t *testing.T) {
	store := parse(t,
		`{required: [groups], properties: {groups: {type: object, required: [routing]}, image: {type: string, minLength: 1}, n: {type: integer}}}`)
	relax(store)
	want := parse(t, `{properties: {
  groups: {type: object, if: {minProperties: 1}, then: {required: [routing]}},
  image: {anyOf: [{const: ""}, {type: string, minLength: 1}]}, n: {type: integer}}}`)
	// The code under test sets minProperties to an int. The YAML decoder returns a number of another type, which
	// DeepEqual would report as a difference.
	want["properties"].(map[string]any)["groups"].(map[string]any)["if"] = map[string]any{"minProperties": 1}
	if !reflect.DeepEqual(store, want) {
		t.Errorf("got %v\nwant %v", store, want)
	}
}

func TestKubernetesSchemasHoldWhatTheyReferTo(t *testing.T) {
	dir := t.TempDir()
	swagger := filepath.Join(dir, "swagger.json")
	text := `{"definitions": {
  "a.Pod": {"properties": {"spec": {"$ref": "#/definitions/a.Spec"}},
            "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}]},
  "a.Spec": {"properties": {"again": {"$ref": "#/definitions/a.Spec"}, "port": {"$ref": "#/definitions/u.IntOrString"}}},
  "u.IntOrString": {"type": "string"}, "other": {"type": "string"}}}`
	if err := os.WriteFile(swagger, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeKubernetesSchemas(swagger, dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "pod-v1-v1.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	if len(schema.Definitions) != 3 || schema.Definitions["a.Spec"]["additionalProperties"] != false ||
		!reflect.DeepEqual(schema.Definitions["u.IntOrString"]["type"], []any{"string", "number"}) {
		t.Errorf("%s", data)
	}
}
