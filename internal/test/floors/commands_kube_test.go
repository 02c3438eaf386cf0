package floors

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

var (
	// otherKinds are the kinds of Kubernetes and cert-manager that pages may name. If a page names another kind, add it to
	// this list.
	otherKinds = strings.Fields("all crd namespace namespaces node nodes pod pods pv pvc service secret secrets " +
		"configmap deployment deploy statefulset job jobs event events storageclass lease clusterrole certificates")
	// kindVerbs are the verbs of kubectl whose arguments name kinds.
	kindVerbs = strings.Fields("get describe delete patch annotate label wait edit scale explain rollout logs exec " +
		"port-forward cp cordon uncordon drain")
	kubeValued = strings.Fields("-n -l -o -f -p -c --namespace --selector --output --filename --patch --container " +
		"--context --kubeconfig --type --timeout --for --tail --since --raw --field-selector --as")
	nodeVerbs   = strings.Fields("cordon uncordon drain cp")
	podVerbs    = strings.Fields("logs exec port-forward")
	aFieldPath  = regexp.MustCompile(`\.((?:spec|status)(?:\.\w+|\[[^\]]*\])*)`)
	otherVerbs  = strings.Fields("apply create run sheaf top version api-resources config cluster-info auth replace")
	outputPaths = regexp.MustCompile(`^(?:-o=?|--output=)?(?:jsonpath|custom-columns|go-template)=`)
)

// kinds maps the names of this project's kinds to their schemas.
type kinds map[string]schema

// schema is the part of a JSON schema that the checks need.
type schema struct {
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties json.RawMessage   `json:"additionalProperties"`
	Items                *schema           `json:"items"`
	Ref                  string            `json:"$ref"`
	Preserve             bool              `json:"x-kubernetes-preserve-unknown-fields"`
}

func readKinds() (kinds, error) {
	found := kinds{}
	files, err := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var crd struct {
			Spec struct {
				Group string
				Names struct {
					Plural, Singular, Kind string
					ShortNames, Categories []string
				}
				Versions []struct {
					Schema struct {
						OpenAPIV3Schema schema `json:"openAPIV3Schema"`
					} `json:"schema"`
				}
			}
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(crd.Spec.Versions) != 1 {
			return nil, fmt.Errorf("%s has %d versions: the check of fields knows one", file, len(crd.Spec.Versions))
		}
		n := crd.Spec.Names
		names := []string{n.Plural, n.Singular, n.Plural + "." + crd.Spec.Group}
		for _, name := range append(names, n.ShortNames...) {
			found[name] = crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		}
		for _, name := range n.Categories { // a category stands for several kinds, so fields are not checked
			found[name] = schema{Preserve: true}
		}
	}
	return found, nil
}

// has reports whether a value may have this path. The path may pass through lists.
func (s schema) has(path []string) bool {
	if s.Items != nil {
		return s.Items.has(path)
	}
	if len(path) == 0 || s.Preserve || s.Ref != "" {
		return true
	}
	if p, ok := s.Properties[path[0]]; ok {
		return p.has(path[1:])
	}
	if len(s.AdditionalProperties) == 0 || string(s.AdditionalProperties) == "false" {
		return len(s.AdditionalProperties) == 0 && len(s.Properties) == 0
	}
	var more schema
	if string(s.AdditionalProperties) == "true" || json.Unmarshal(s.AdditionalProperties, &more) != nil {
		return true
	}
	return more.has(path[1:])
}

// unknown returns the path of a field that is in the value and not in the schema. It returns "" if there is no such
// field.
func (s schema) unknown(value any, path ...string) string {
	switch v := value.(type) {
	case map[string]any:
		for key, below := range v {
			if found := s.unknown(below, append(slices.Clone(path), key)...); found != "" {
				return found
			}
		}
	case []any:
		for _, below := range v {
			if found := s.unknown(below, path...); found != "" {
				return found
			}
		}
	}
	if !s.has(path) {
		return strings.Join(path, ".")
	}
	return ""
}

// check checks the kinds in a kubectl command, and the fields of this project's kinds, against the CRDs.
func (k kinds) check(c pagetest.Command) (bool, error) {
	if c.Words[0] != "kubectl" && c.Words[0] != "bin/kube/kubectl" {
		return false, nil
	}
	var plain []string // the arguments without flags and their values
	var patch string
	for i := 1; i < len(c.Words) && c.Words[i] != "--"; i++ {
		word := c.Words[i]
		if !strings.HasPrefix(word, "-") {
			plain = append(plain, word)
			continue
		}
		if slices.Contains(kubeValued, word) && i+1 < len(c.Words) {
			i++
			if word == "-p" || word == "--patch" {
				patch = c.Words[i]
			}
		}
	}
	if len(plain) == 0 {
		return false, nil
	}
	verb, args := plain[0], plain[1:]
	if verb == "sheaf" && c.Words[1] != "sheaf" {
		return true, errors.New("flags cannot stand before the name of a plugin")
	}
	if !slices.Contains(kindVerbs, verb) {
		if slices.Contains(otherVerbs, verb) || pagetest.Placeholder(verb) {
			return true, nil
		}
		return true, fmt.Errorf("kubectl has no verb %s, or this test does not know it", verb)
	}
	named, err := k.named(verb, args)
	if err != nil || named == "" {
		return true, err
	}
	ours, ok := k[named]
	if !ok {
		return true, nil
	}
	if verb == "patch" && patch != "" {
		var value any
		if err := yaml.Unmarshal([]byte(patch), &value); err != nil {
			return true, fmt.Errorf("the patch is no JSON: %w", err)
		}
		path := ours.unknown(value)
		if operations, ok := value.([]any); ok { // a patch of --type=json
			path = ours.unknownPatchPath(operations)
		}
		if path != "" {
			return true, fmt.Errorf("%s has no field %s", named, path)
		}
	}
	return true, ours.hasFields(named, c.Words)
}

var aPlace = regexp.MustCompile(`/(\d+|-)(/|$)`) // matches a list index in a JSON pointer, such as /0 or /-

// unknownPatchPath looks at the paths in a JSON patch, and at the paths in the values of its operations. It returns one
// that is missing from the schema, or "" if there is none.
func (s schema) unknownPatchPath(operations []any) string {
	for _, operation := range operations {
		o, _ := operation.(map[string]any)
		pointer, _ := o["path"].(string)
		path := strings.Split(strings.Trim(aPlace.ReplaceAllString(pointer, "$2"), "/"), "/")
		if found := s.unknown(o["value"], path...); found != "" {
			return found
		}
	}
	return ""
}

// named returns the kind that the arguments of a kubectl verb name. If they name several kinds, it returns the last
// one.
func (k kinds) named(verb string, args []string) (string, error) {
	switch {
	case verb == "rollout" && len(args) > 0:
		args = args[1:] // removes the subcommand, such as restart or status
	case slices.Contains(nodeVerbs, verb):
		return "", nil
	}
	last := ""
	for i, arg := range args {
		kind, _, slash := strings.Cut(arg, "/")
		if !slash && (i > 0 || slices.Contains(podVerbs, verb)) {
			break // the other words are names of objects
		}
		for _, name := range strings.Split(kind, ",") {
			if verb == "explain" {
				name, _, _ = strings.Cut(name, ".")
			}
			if name = strings.ToLower(name); pagetest.Placeholder(kind) {
				continue
			}
			if _, ours := k[name]; !ours && !slices.Contains(otherKinds, name) {
				return "", fmt.Errorf("no CRD has the kind %s, and this test knows it of nobody else", name)
			}
			last = name
		}
	}
	return last, nil
}

// hasFields takes the fields that a kubectl explain command or an output option names, and checks that the schema of
// a kind has them.
func (s schema) hasFields(kind string, words []string) error {
	for _, word := range words {
		if !outputPaths.MatchString(word) && !strings.HasPrefix(word, kind+".") {
			continue
		}
		for _, m := range aFieldPath.FindAllStringSubmatch(word, -1) {
			path := strings.Split(regexp.MustCompile(`\[[^\]]*\]`).ReplaceAllString(m[1], ""), ".")
			if !s.has(path) {
				return fmt.Errorf("%s has no field %s", kind, m[1])
			}
		}
	}
	return nil
}

// checkHelm checks the keys that a helm command sets against the chart's values and their schema.
func checkHelm(c pagetest.Command) (bool, error) {
	if c.Words[0] != "helm" {
		return false, nil
	}
	chart := ""
	for _, word := range c.Words {
		if strings.HasPrefix(strings.TrimPrefix(word, "./"), "charts/") {
			chart = word
		}
	}
	applies := false
	for i, word := range c.Words {
		flag, value, given := strings.Cut(word, "=")
		if flag != "--set" && flag != "--set-string" && flag != "--set-json" && flag != "--set-file" {
			continue
		}
		if !given {
			if i+1 == len(c.Words) {
				return true, fmt.Errorf("%s needs a value", flag)
			}
			value = c.Words[i+1]
		}
		if applies = true; chart == "" {
			return true, errors.New("it names no folder of a chart, whose values could be set")
		}
		if err := checkSetKeys(chart, value); err != nil {
			return true, err
		}
	}
	return applies || chart != "", nil
}

var inBraces = regexp.MustCompile(`\{[^}]*\}`)

// checkSetKeys returns an error if a --set has a key that is neither in the chart's values nor in their schema.
func checkSetKeys(chart, settings string) error {
	var values map[string]any
	var allowed schema
	for name, into := range map[string]any{"values.yaml": &values, "values.schema.json": &allowed} {
		text, err := os.ReadFile(filepath.Join(root, chart, name))
		if err != nil {
			return err
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			return fmt.Errorf("%s of %s: %w", name, chart, err)
		}
	}
	for _, one := range strings.Split(inBraces.ReplaceAllString(settings, ""), ",") {
		key, _, ok := strings.Cut(one, "=")
		if !ok {
			return fmt.Errorf("%q sets nothing", one)
		}
		path := strings.Split(regexp.MustCompile(`\[\d+\]`).ReplaceAllString(key, ""), ".")
		if !allowed.has(path) && !hasPath(values, path) {
			return fmt.Errorf("%s has no value %s", chart, key)
		}
	}
	return nil
}

// hasPath reports whether a path exists in a chart's values.
func hasPath(values map[string]any, path []string) bool {
	value, ok := values[path[0]]
	if !ok || len(path) == 1 {
		return ok
	}
	below, ok := value.(map[string]any)
	return ok && hasPath(below, path[1:])
}
