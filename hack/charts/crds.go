package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// crd is one CustomResourceDefinition that controller-gen has written.
type crd struct {
	file  string // base name of the file
	text  string
	group string
	kind  string
	// versions maps each version to its OpenAPI schema.
	versions map[string]map[string]any
}

// readCRDs reads the CRDs in config/crd/bases.
func readCRDs(root string) ([]crd, error) {
	paths, err := filepath.Glob(filepath.Join(root, "config", "crd", "bases", "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, errors.New("config/crd/bases holds no CRD: run make generate")
	}
	var crds []crd
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		c, err := parseCRD(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		c.file = filepath.Base(path)
		crds = append(crds, c)
	}
	return crds, nil
}

func parseCRD(data []byte) (crd, error) {
	var parsed struct {
		Kind string `json:"kind"`
		Spec struct {
			Group string `json:"group"`
			Names struct {
				Kind string `json:"kind"`
			} `json:"names"`
			Versions []struct {
				Name   string `json:"name"`
				Schema struct {
					OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &parsed); err != nil {
		return crd{}, err
	}
	if parsed.Kind != "CustomResourceDefinition" || len(parsed.Spec.Versions) == 0 {
		return crd{}, fmt.Errorf("kind is %q with %d versions, want a CustomResourceDefinition", parsed.Kind,
			len(parsed.Spec.Versions))
	}
	c := crd{text: string(data), group: parsed.Spec.Group, kind: parsed.Spec.Names.Kind,
		versions: map[string]map[string]any{}}
	for _, v := range parsed.Spec.Versions {
		c.versions[v.Name] = v.Schema.OpenAPIV3Schema
	}
	return c, nil
}

// writeCRDTemplates writes each CRD as a template, because Helm upgrades templates, but never the files in a chart's
// crds folder.
func writeCRDTemplates(root string, crds []crd) error {
	dir := filepath.Join(root, "charts", "sheaf-operator", "templates", "crds")
	if err := os.RemoveAll(dir); err != nil { // removes kinds that no longer exist
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range crds {
		text, err := crdTemplate(c.text)
		if err != nil {
			return fmt.Errorf("%s: %w", c.file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// crdTemplate wraps a CRD in a template. The template engine never interprets the CRD itself.
func crdTemplate(text string) (string, error) {
	const before, after = "\nmetadata:\n  annotations:\n", "  name: "
	head, body, ok := strings.Cut(strings.TrimPrefix(text, "---\n"), before)
	if !ok || !strings.Contains(body, after) {
		return "", errors.New("want metadata with annotations and a name, as controller-gen writes it")
	}
	escape := strings.NewReplacer("{{", `{{ "{{" }}`, "}}", `{{ "}}" }}`).Replace
	var out strings.Builder
	out.WriteString(
		"{{- /* Made by `make charts` from config/crd/bases. Do not edit. */ -}}\n{{- if .Values.crds.install }}\n")
	out.WriteString(escape(head) + before)
	out.WriteString("    {{- if .Values.crds.keep }}\n    helm.sh/resource-policy: keep\n    {{- end }}\n")
	annotations, rest, _ := strings.Cut(body, after)
	out.WriteString(escape(annotations))
	out.WriteString("  labels:\n    {{- include \"sheaf-operator.labels\" . | nindent 4 }}\n")
	out.WriteString(after + escape(rest))
	out.WriteString("{{- end }}\n")
	return out.String(), nil
}
