package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// version is the API version of Sheaf's kinds that the store chart uses.
const version = "v1alpha1"

// jsonSchema converts an OpenAPI schema from a CRD to a plain JSON schema. The result is strict. An unknown field is an
// error, because the API server would drop it.
func jsonSchema(node any) any {
	switch node := node.(type) {
	case map[string]any:
		return jsonSchemaObject(node)
	case []any:
		out := make([]any, len(node))
		for n, item := range node {
			out[n] = jsonSchema(item)
		}
		return out
	}
	return node
}

func jsonSchemaObject(node map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range node {
		switch {
		case key == "properties":
			properties, _ := value.(map[string]any)
			kept := map[string]any{}
			for name, property := range properties {
				kept[name] = jsonSchema(property)
			}
			out[key] = kept
		case key == "default" || key == "enum": // the value is data, not a schema
			out[key] = value
		case strings.HasPrefix(key, "x-kubernetes-"):
		default:
			out[key] = jsonSchema(value)
		}
	}
	if node["x-kubernetes-int-or-string"] == true {
		delete(out, "anyOf")
		out["type"] = []any{"integer", "string"}
	}
	if _, set := out["pattern"]; !set && isQuantity(node) {
		out["pattern"] = `^[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i|[MGTPE]|[eE][+-]?[0-9]+)?$`
	}
	if isOdd(node) {
		out["enum"] = odds(node)
	}
	_, closed := out["properties"]
	if _, set := out["additionalProperties"]; closed && !set && node["x-kubernetes-preserve-unknown-fields"] != true {
		out["additionalProperties"] = false
	}
	return out
}

// isQuantity reports whether a CEL rule requires that a string is a quantity. The JSON schema expresses this with a
// pattern.
func isQuantity(node map[string]any) bool {
	return hasRule(node, func(rule string) bool { return strings.HasPrefix(rule, "isQuantity(self)") })
}

// isOdd reports whether a CEL rule requires that a number is odd. The JSON schema expresses this with an enum.
func isOdd(node map[string]any) bool {
	return hasRule(node, func(rule string) bool { return rule == "self % 2 == 1" })
}

// odds returns the odd numbers from a node's minimum to its maximum.
func odds(node map[string]any) []any {
	first, _ := node["minimum"].(float64)
	last, _ := node["maximum"].(float64)
	var out []any
	for n := int(first); n <= int(last); n++ {
		if n%2 == 1 {
			out = append(out, float64(n))
		}
	}
	return out
}

func hasRule(node map[string]any, wanted func(rule string) bool) bool {
	rules, _ := node["x-kubernetes-validations"].([]any)
	return slices.ContainsFunc(rules, func(r any) bool {
		rule, _ := r.(map[string]any)
		text, _ := rule["rule"].(string)
		return wanted(text)
	})
}

// specOf returns the schema of a kind's spec.
func specOf(crds []crd, kind string) (map[string]any, error) {
	for _, c := range crds {
		if c.kind != kind {
			continue
		}
		properties, _ := c.versions[version]["properties"].(map[string]any)
		spec, ok := properties["spec"].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s %s has no spec", kind, version)
		}
		return jsonSchemaObject(spec), nil
	}
	return nil, fmt.Errorf("config/crd/bases holds no %s", kind)
}

// writeValuesSchema inserts the schemas of the kinds' specs into the template of the store chart's schema.
func writeValuesSchema(root string, crds []crd) error {
	chart := filepath.Join(root, "charts", "sheaf-store")
	data, err := os.ReadFile(filepath.Join(chart, "values.schema.frame.json"))
	if err != nil {
		return err
	}
	var frame map[string]any
	if err := json.Unmarshal(data, &frame); err != nil {
		return fmt.Errorf("values.schema.frame.json: %w", err)
	}
	properties, _ := frame["properties"].(map[string]any)
	store, err := specOf(crds, "RecordStore")
	if err != nil {
		return err
	}
	relax(store)
	pool, err := specOf(crds, "ShardPool")
	if err != nil {
		return err
	}
	omit(pool, "storeRef") // the chart sets this field
	grant, err := specOf(crds, "RecordGrant")
	if err != nil {
		return err
	}
	omit(grant, "storeRef") // the chart sets this field
	tenant, err := specOf(crds, "RecordTenant")
	if err != nil {
		return err
	}
	omit(tenant, "storeRef") // the chart sets this field
	disks, err := specOf(crds, "DiskSet")
	if err != nil {
		return err
	}
	for name, spec := range map[string]map[string]any{"store": store, "pools": pool, "grants": grant, "tenants": tenant,
		"diskSets": disks} {
		slot, ok := properties[name].(map[string]any)
		if !ok {
			return fmt.Errorf("values.schema.frame.json has no property %s", name)
		}
		if name == "store" {
			maps.Copy(slot, spec)
			continue
		}
		slot["additionalProperties"] = spec
	}
	text, err := encode(frame)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(chart, "values.schema.json"), text, 0o644)
}

// relax makes the schema accept empty values for a store's fields. The chart omits empty fields, so the defaults
// apply.
func relax(store map[string]any) {
	delete(store, "required")
	properties, _ := store["properties"].(map[string]any)
	for _, property := range properties {
		p, ok := property.(map[string]any)
		if !ok {
			continue
		}
		delete(p, "minProperties")
		if required, ok := p["required"]; ok {
			delete(p, "required")
			p["if"] = map[string]any{"minProperties": 1}
			p["then"] = map[string]any{"required": required}
		}
		if p["type"] == "string" {
			properties2 := map[string]any{"anyOf": []any{map[string]any{"const": ""}, maps.Clone(p)}}
			clear(p)
			maps.Copy(p, properties2)
		}
	}
}

// omit removes a property from a schema.
func omit(schema map[string]any, name string) {
	properties, _ := schema["properties"].(map[string]any)
	delete(properties, name)
	required, _ := schema["required"].([]any)
	schema["required"] = slices.DeleteFunc(required, func(r any) bool { return r == name })
}

func encode(value any) ([]byte, error) {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// writeSchemas writes one JSON schema for each kind, under the name that kubeconform looks for.
func writeSchemas(root, swagger, dir string) error {
	crds, err := readCRDs(root)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range crds {
		for v, schema := range c.versions {
			strict := jsonSchemaObject(schema)
			properties, _ := strict["properties"].(map[string]any)
			properties["metadata"] = map[string]any{"type": "object"}
			if err := writeSchema(dir, c.group, v, c.kind, strict); err != nil {
				return err
			}
		}
	}
	return writeKubernetesSchemas(swagger, dir)
}

func writeSchema(dir, group, v, kind string, schema any) error {
	text, err := encode(schema)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, schemaName(group, v, kind)), text, 0o644)
}

// schemaName returns the name of the file in which kubeconform looks for the schema of a kind. The pattern is
// '{{.ResourceKind}}-{{.Group}}-{{.ResourceAPIVersion}}.json'. For the core group, which has no name, kubeconform uses
// the version as the group.
func schemaName(group, v, kind string) string {
	if group == "" {
		group = v
	}
	return strings.ToLower(kind) + "-" + group + "-" + v + ".json"
}

// writeKubernetesSchemas writes the schemas of Kubernetes' own kinds, which it reads from the swagger.json in the
// source of Kubernetes.
func writeKubernetesSchemas(swagger, dir string) error {
	data, err := os.ReadFile(swagger)
	if err != nil {
		return err
	}
	var spec struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return fmt.Errorf("%s: %w", swagger, err)
	}
	if len(spec.Definitions) == 0 {
		return errors.New(swagger + ": no definitions")
	}
	for name, definition := range spec.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 { // skip shared types such as DeleteOptions, which have several kinds or none
			continue
		}
		gvk, _ := kinds[0].(map[string]any)
		needed := map[string]any{}
		closure(spec.Definitions, name, needed)
		schema := map[string]any{"$ref": "#/definitions/" + name, "definitions": needed}
		err := writeSchema(dir, fmt.Sprint(gvk["group"]), fmt.Sprint(gvk["version"]), fmt.Sprint(gvk["kind"]), schema)
		if err != nil {
			return err
		}
	}
	return nil
}

// closure adds the named definition to needed, and makes it strict. It also adds all definitions to which that
// definition refers directly or indirectly.
func closure(all map[string]map[string]any, name string, needed map[string]any) {
	if _, done := needed[name]; done {
		return
	}
	strict := strictDefinition(name, all[name])
	needed[name] = strict
	for _, ref := range references(strict) {
		closure(all, ref, needed)
	}
}

func strictDefinition(name string, definition map[string]any) map[string]any {
	switch {
	case strings.HasSuffix(name, ".IntOrString"), strings.HasSuffix(name, ".resource.Quantity"):
		return map[string]any{"type": []any{"string", "number"}}
	case strings.Contains(name, "apiextensions-apiserver") && strings.Contains(name, "JSON"):
		return map[string]any{} // fields of these types hold schemas or JSON values of any form
	}
	return jsonSchemaObject(definition)
}

// references returns the names of the definitions to which a schema refers.
func references(node any) []string {
	var found []string
	switch node := node.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(node)) {
			if ref, ok := node[key].(string); ok && key == "$ref" {
				found = append(found, strings.TrimPrefix(ref, "#/definitions/"))
				continue
			}
			found = append(found, references(node[key])...)
		}
	case []any:
		for _, item := range node {
			found = append(found, references(item)...)
		}
	}
	return found
}
