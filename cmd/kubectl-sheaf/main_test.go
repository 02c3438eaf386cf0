package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/kubefindingtest"
	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/must"
)

var update = flag.Bool("update", false, "write the golden files anew")

// server is the API server that the tests share.
var server = sync.OnceValues(func() (*kubetest.Server, error) { return kubetest.Start("../../config/crd/bases") })

var started bool

func TestMain(m *testing.M) {
	code := m.Run()
	if started {
		if s, err := server(); err == nil {
			if err := s.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// newTestApp returns the plugin for an API server, with a new namespace.
func newTestApp(t *testing.T, namespace string) (*app, *bytes.Buffer) {
	t.Helper()
	kubetest.Only(t)
	started = true
	s, err := server()
	must.OK(t, err)
	var out bytes.Buffer
	a := newApp(&out, &out)
	a.now, a.namespace = func() time.Time { return kubefindingtest.Now }, namespace
	must.OK(t, a.connectTo(rest.CopyConfig(s.Config)))
	err = a.objects.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	must.OK(t, err)
	return a, &out
}

// call runs a command of a plugin that is already connected.
func (a *app) call(ctx context.Context, args ...string) error {
	cmd := a.command()
	cmd.PersistentPreRunE = nil
	cmd.SetArgs(args)
	return cmd.ExecuteContext(ctx)
}

// create creates an object and its status, as the operator or Kubernetes would.
func create(t *testing.T, c client.Client, namespace string, o client.Object) {
	t.Helper()
	if o.GetNamespace() != "" {
		o.SetNamespace(namespace)
	}
	o.SetCreationTimestamp(metav1.Time{})
	withStatus := o.DeepCopyObject().(client.Object)
	must.OK(t, c.Create(t.Context(), o))
	withStatus.SetResourceVersion(o.GetResourceVersion())
	withStatus.SetUID(o.GetUID())
	switch o := o.(type) { // use the spec that the API server returned, with the fields that admission has set
	case *corev1.PersistentVolume, *corev1.Node, *corev1.Secret:
		return
	case *corev1.Pod:
		withStatus.(*corev1.Pod).Spec = o.Spec
	}
	if err := c.Status().Update(t.Context(), withStatus); err != nil {
		t.Fatalf("status of %T %s: %v", o, o.GetName(), err)
	}
}

// golden compares a command's output with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		must.OK(t, os.WriteFile(file, []byte(got), 0o600))
		return
	}
	want, err := os.ReadFile(file)
	must.OK(t, err)
	if got != string(want) {
		t.Errorf("%s differs (go test ./cmd/kubectl-sheaf -update writes it anew; look at it then):\n%s", file, got)
	}
}

func TestWrongCommandLines(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"status a b", "at most 1 arg"}, {"drain", "1 arg"}, {"drain a b", "1 arg"}, {"sing", "unknown command"},
		{"status --width=a", "invalid argument"}, {"drain a --shard=1 --undo", "--undo takes back the draining of a pool"},
		{"status -o yaml", "must be json"}, {"moves --every=0s", "must be more than 0"},
		{"groups -o yaml", "must be json"}, {"groups delete a", "at least 2 arg"},
		{"groups --timeout=-1s", "not be negative"}, {"status --live-timeout=-1s", "not be negative"},
		{"report --source-timeout=-1s", "not be negative"},
	} {
		var out bytes.Buffer
		err := newApp(&out, &out).call(t.Context(), strings.Fields(c.args)...)
		if err == nil || !strings.Contains(err.Error(), c.says) || exitCode(err) != exitUsage {
			t.Errorf("%s: %v, exit code %d", c.args, err, exitCode(err))
		}
	}
	if code := exitCode(failf("no API server: %w", errors.New("refused"))); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
}

// The help shows the command's name as a user types it.
func TestHelpNamesThePlugin(t *testing.T) {
	var out bytes.Buffer
	must.OK(t, newApp(&out, &out).call(t.Context(), "drain", "--help"))
	if !strings.Contains(out.String(), "kubectl sheaf drain POOL") {
		t.Errorf("help: %s", out.String())
	}
}

func TestNamingAStore(t *testing.T) {
	a, _ := newTestApp(t, "naming")
	ctx := t.Context()
	if _, err := a.oneStore(ctx, nil, time.Minute); err == nil || !strings.Contains(err.Error(), "has no RecordStore") {
		t.Errorf("without a store: %v", err)
	}
	for _, name := range []string{"b", "a"} {
		create(t, a.objects, "naming", &v1alpha1.RecordStore{
			ObjectMeta: metav1.ObjectMeta{Namespace: "naming", Name: name},
			Spec: v1alpha1.RecordStoreSpec{Groups: v1alpha1.Groups{Routing: v1alpha1.RoutingHash, Count: new(int32(4))},
				Etcd: v1alpha1.Etcd{Managed: &v1alpha1.ManagedEtcd{}}},
		})
	}
	if _, err := a.oneStore(ctx, nil, time.Minute); err == nil || !strings.Contains(err.Error(), "name one of a, b") {
		t.Errorf("with two: %v", err)
	}
	if store, err := a.oneStore(ctx, []string{"b"}, time.Minute); err != nil || store.Name != "b" {
		t.Errorf("by name: %v, %v", store, err)
	}
	if _, err := a.oneStore(ctx, []string{"c"}, time.Minute); err == nil || !strings.Contains(err.Error(),
		"read RecordStore c of namespace naming") {
		t.Errorf("by a wrong name: %v", err)
	}
}
