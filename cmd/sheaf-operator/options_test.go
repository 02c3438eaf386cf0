package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/must"
)

// call runs the command line. got holds the options with which the operator would run, or is nil if the operator
// would not run.
func call(args ...string) (got *options, out string, err error) {
	var text bytes.Buffer
	cmd := command(func(_ context.Context, o options) error {
		got = &o
		return nil
	})
	cmd.SetArgs(args)
	cmd.SetOut(&text)
	cmd.SetErr(&text)
	err = cmd.ExecuteContext(context.Background())
	return got, text.String(), err
}

func TestWrongCommandLines(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no image":        {nil, "--shard-image is required"},
		"an unknown flag": {[]string{"--shard-images=a"}, "unknown flag: --shard-images"},
		"no value":        {[]string{"--shard-image"}, "flag needs an argument"},
		"an argument":     {[]string{"--shard-image=a", "run"}, `unknown command "run"`},
		"no truth":        {[]string{"--shard-image=a", "--disksets=maybe"}, "maybe"},
		"no level": {[]string{"--shard-image=a", "--log-level=loud"},
			`--log-level "loud": give debug, info, warn or error`},
		"an empty level": {[]string{"--shard-image=a", "--log-level="}, "give debug, info, warn or error"},
		"no namespace": {[]string{"--shard-image=a", "--namespaces=ok,Not_One"},
			`--namespaces: "Not_One" is no name of a namespace`},
		"an empty one":      {[]string{"--shard-image=a", "--namespaces=a,,b"}, `--namespaces: ""`},
		"unicode":           {[]string{"--shard-image=a", "--namespaces=größe"}, "is no name of a namespace"},
		"a very long name":  {[]string{"--shard-image=a", "--namespaces=" + strings.Repeat("a", 253)}, "no more than 63"},
		"a wrong shorthand": {[]string{"-x"}, "unknown shorthand flag"},
	} {
		got, _, err := call(c.args...)
		if err == nil || got != nil {
			t.Errorf("%s: runs", name)
			continue
		}
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: says %q, not %q", name, err, c.says)
		}
		if exitCode(err) != exitUsage {
			t.Errorf("%s: exit code %d", name, exitCode(err))
		}
	}
}

func TestExitCodeOfAFailure(t *testing.T) {
	if code := exitCode(failure{errors.New("no API server")}); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
}

func TestVersionAndHelp(t *testing.T) {
	got, out, err := call("--version")
	if err != nil || got != nil || !strings.Contains(out, "sheaf-operator version "+version) {
		t.Errorf("%q, %v", out, err)
	}
	_, out, err = call("--help")
	if err != nil || !strings.Contains(out, "--shard-image") {
		t.Errorf("%q, %v", out, err)
	}
}

func TestOptionsReachTheManager(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "sheaf-system")
	got, _, err := call("--shard-image=sheaf:1", "--namespaces=a,b", "--metrics-bind-address=0", "--log-level=debug",
		"--disksets=false")
	must.OK(t, err)
	m := got.manager()
	namespaces := []string{}
	for n := range m.Cache.DefaultNamespaces {
		namespaces = append(namespaces, n)
	}
	slices.Sort(namespaces)
	if !slices.Equal(namespaces, []string{"a", "b"}) || m.Metrics.BindAddress != "0" || got.diskSets ||
		!m.LeaderElection || m.LeaderElectionNamespace != "sheaf-system" ||
		got.namespace != "sheaf-system" {
		t.Errorf("%+v", m)
	}
	for kind, by := range m.Cache.ByObject {
		if by.Label == nil {
			t.Errorf("%T: all of the cluster is cached", kind)
		}
	}
	// The cache keeps managed fields only for objects of the kinds that the operator applies.
	for o, kept := range map[client.Object]bool{&corev1.Service{}: true, &appsv1.StatefulSet{}: true, &corev1.Pod{}: false,
		&v1alpha1.ShardPool{}: false} {
		o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "somebody"}})
		if _, err := m.Cache.DefaultTransform(o); err != nil || (len(o.GetManagedFields()) == 1) != kept {
			t.Errorf("%T: managed fields %v, %v", o, o.GetManagedFields(), err)
		}
	}
	bench := labels.Set{v1alpha1.LabelName: v1alpha1.NameSheaf, v1alpha1.LabelComponent: v1alpha1.ComponentBench}
	for kind, by := range m.Cache.ByObject {
		_, pod := kind.(*corev1.Pod)
		_, claim := kind.(*corev1.PersistentVolumeClaim)
		if !by.Label.Matches(labels.Set(workload.ShardLabels("quotes", "ssd", 1))) ||
			!by.Label.Matches(labels.Set(workload.Labels("quotes", "etcd"))) {
			t.Errorf("%T: what we make is not cached", kind)
		}
		if by.Label.Matches(bench) != (pod || claim) || by.Label.Matches(labels.Set{"app": "a"}) {
			t.Errorf("%T: %s is cached", kind, by.Label)
		}
	}
	// Secrets must not be cached, because a cache needs the right to list all of them.
	if !slices.ContainsFunc(m.Client.Cache.DisableFor, func(o client.Object) bool {
		_, secret := o.(*corev1.Secret)
		return secret
	}) {
		t.Error("Secrets are cached")
	}
	got, _, err = call("--shard-image=sheaf:1")
	if err != nil || len(got.manager().Cache.DefaultNamespaces) != 0 {
		t.Errorf("all namespaces: %v", err)
	}
}
