package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// rule is a PolicyRule of Kubernetes' RBAC.
type rule struct {
	APIGroups       []string `json:"apiGroups,omitempty"`
	Resources       []string `json:"resources,omitempty"`
	ResourceNames   []string `json:"resourceNames,omitempty"`
	NonResourceURLs []string `json:"nonResourceURLs,omitempty"`
	Verbs           []string `json:"verbs"`
}

// clusterScoped lists resources without a namespace. A Role cannot grant them, so they are in a separate ClusterRole.
var clusterScoped = []string{"disksets", "nodes", "persistentvolumes", "storageclasses", "namespaces"}

// ownNamespace is the operator's own namespace in markers. The chart takes that of the release in its place.
const ownNamespace = "sheaf-system"

// readVerbs lists the verbs that only read.
var readVerbs = []string{"get", "list", "watch"}

// roles are the roles in config/rbac/role.yaml.
type roles struct {
	everywhere []rule // the ClusterRole
	own        []rule // the Role for the operator's own namespace: rules whose markers name a namespace
}

// split holds the operator's roles, divided into the parts that the chart binds separately.
type split struct {
	namespaced []rule // everything in the watched namespaces
	read       []rule // for reading nodes, volumes and classes
	diskSets   []rule // additional rules for DiskSets
	election   []rule // for leader election in the operator's own namespace
	certs      []rule // for cert-manager's Certificates in the watched namespaces
	wipe       []rule // for Jobs that wipe disks, and their claims, in the operator's own namespace
}

// splitRules splits the roles into parts. It returns an error for wildcards, and for rules that it cannot assign to a
// part.
func splitRules(all roles) (split, error) {
	var s split
	for _, r := range slices.Concat(all.everywhere, all.own) {
		if slices.Contains(slices.Concat(r.APIGroups, r.Resources, r.Verbs), "*") {
			return split{}, fmt.Errorf("rule %+v has a wildcard", r)
		}
		if len(r.NonResourceURLs) > 0 || len(r.Resources) == 0 {
			return split{}, fmt.Errorf("rule %+v is not about resources: teach hack/charts where it belongs", r)
		}
	}
	for _, r := range all.everywhere {
		for _, resource := range r.Resources {
			s.addEverywhere(r, resource)
		}
	}
	for _, r := range all.own {
		for _, resource := range r.Resources {
			if err := s.addOwn(r, resource); err != nil {
				return split{}, err
			}
		}
	}
	if err := s.complete(); err != nil {
		return split{}, err
	}
	s.namespaced, s.read, s.diskSets = merge(s.namespaced), merge(s.read), merge(s.diskSets)
	s.election, s.wipe, s.certs = merge(s.election), merge(s.wipe), merge(s.certs)
	return s, nil
}

// complete returns an error if a controller's rules are missing. Rules go missing if a marker is in the comment of a
// type, where controller-gen silently skips it. Markers must be in a separate comment.
func (s *split) complete() error {
	for _, want := range []struct {
		resource string
		rules    []rule
	}{
		{"disksets/status", s.diskSets}, {"leases", s.election}, {"jobs", s.wipe}, {"certificates", s.certs},
		{"jobs", s.namespaced}, {"recordarchives/status", s.namespaced}, {"recordbackups/status", s.namespaced},
		{"recordstores/status", s.namespaced}, {"shardpools/status", s.namespaced}, {"shards/status", s.namespaced},
		{"recordgrants/status", s.namespaced}, {"recordtenants/status", s.namespaced},
	} {
		granted := slices.ContainsFunc(want.rules, func(r rule) bool {
			return slices.Contains(r.Resources, want.resource) && slices.ContainsFunc([]string{"patch", "update", "create"},
				func(verb string) bool {
					return slices.Contains(r.Verbs, verb)
				})
		})
		if !granted {
			return fmt.Errorf("no rule may write %s: do the kubebuilder:rbac markers stand in a comment of their own?",
				want.resource)
		}
	}
	return nil
}

// addOwn adds a rule for the operator's own namespace. Jobs and claims there are those that inspect and wipe disks.
func (s *split) addOwn(r rule, resource string) error {
	r.Resources = []string{resource}
	switch resource {
	case "jobs", "persistentvolumeclaims":
		s.wipe = append(s.wipe, r)
	case "leases", "events":
		s.election = append(s.election, r)
	default:
		return fmt.Errorf("rule %+v is for the operator's own namespace: teach hack/charts which Role gets it", r)
	}
	return nil
}

func (s *split) addEverywhere(r rule, resource string) {
	r.Resources = []string{resource}
	name, _, _ := strings.Cut(resource, "/")
	switch {
	case slices.Contains(r.APIGroups, "cert-manager.io"):
		s.certs = append(s.certs, r)
	case !slices.Contains(clusterScoped, name):
		s.namespaced = append(s.namespaced, r)
	case name == "disksets":
		s.diskSets = append(s.diskSets, r)
	default:
		look, write := r.splitVerbs()
		if len(look.Verbs) > 0 {
			s.read = append(s.read, look)
		}
		if len(write.Verbs) > 0 {
			s.diskSets = append(s.diskSets, write)
		}
	}
}

// splitVerbs divides a rule into two: one with the verbs that only read, and one with all other verbs.
func (r rule) splitVerbs() (look, write rule) {
	look, write = r, r
	look.Verbs, write.Verbs = nil, nil
	for _, verb := range r.Verbs {
		if slices.Contains(readVerbs, verb) {
			look.Verbs = append(look.Verbs, verb)
		} else {
			write.Verbs = append(write.Verbs, verb)
		}
	}
	return look, write
}

// merge merges rules that differ only in their resources.
func merge(rules []rule) []rule {
	var merged []rule
next:
	for _, r := range rules {
		for n, m := range merged {
			if slices.Equal(m.APIGroups, r.APIGroups) && slices.Equal(m.Verbs, r.Verbs) &&
				slices.Equal(m.ResourceNames, r.ResourceNames) {
				if !slices.Contains(m.Resources, r.Resources[0]) {
					merged[n].Resources = append(merged[n].Resources, r.Resources...)
				}
				continue next
			}
		}
		merged = append(merged, r)
	}
	return merged
}

// parseRoles reads a ClusterRole, which must come first, and Roles. The Roles must be for the operator's own namespace,
// because the chart knows no other one.
func parseRoles(text string) (all roles, err error) {
	for n, document := range strings.Split(strings.TrimPrefix(text, "---\n"), "\n---\n") {
		var role struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Namespace string `json:"namespace"`
			} `json:"metadata"`
			Rules []rule `json:"rules"`
		}
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			return roles{}, err
		}
		switch {
		case n == 0 && role.Kind == "ClusterRole":
			all.everywhere = role.Rules
		case n > 0 && role.Kind == "Role" && role.Metadata.Namespace == ownNamespace:
			all.own = append(all.own, role.Rules...)
		default:
			return roles{}, fmt.Errorf("want one ClusterRole and then Roles in namespace %s, found a %s in namespace %q",
				ownNamespace, role.Kind, role.Metadata.Namespace)
		}
	}
	return all, nil
}

// writeRules writes the rules of config/rbac/role.yaml as named templates.
func writeRules(root string) error {
	path := filepath.Join(root, "config", "rbac", "role.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	all, err := parseRoles(string(data))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s, err := splitRules(all)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	text, err := rulesTemplate(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "charts", "sheaf-operator", "templates", "_rules.tpl"), []byte(text), 0o644)
}

// copyFence copies the policy that limits what the operator's account may do. The chart inserts the names of the
// release into the copy when it is rendered.
func copyFence(root string) error {
	text, err := os.ReadFile(filepath.Join(root, "config", "rbac", "fence.yaml"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "charts", "sheaf-operator", "files", "fence.yaml"), text, 0o644)
}

func rulesTemplate(s split) (string, error) {
	var out strings.Builder
	out.WriteString("{{- /* Made by `make charts` from config/rbac/role.yaml. Do not edit. */ -}}\n")
	for _, part := range []struct {
		name, comment string
		rules         []rule
	}{
		{"namespaced", "What the operator does in the namespaces it watches.", s.namespaced},
		{"certManager", "Certificates of cert-manager, in the same namespaces.", s.certs},
		{"read", "What it looks at outside of namespaces.", s.read},
		{"diskSets", "What DiskSets need beside that.", s.diskSets},
		{"election", "Leader election, in the operator's own namespace.", s.election},
		{"wipe", "Jobs that wipe disks, in the operator's own namespace.", s.wipe},
	} {
		text := "[]\n"
		if len(part.rules) > 0 {
			data, err := yaml.Marshal(part.rules)
			if err != nil {
				return "", err
			}
			text = string(data)
		}
		fmt.Fprintf(&out, "\n{{- /* %s */ -}}\n{{- define \"sheaf-operator.rules.%s\" -}}\n%s{{- end }}\n", part.comment,
			part.name, text)
	}
	return out.String(), nil
}
