package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/kubefindingtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// answers is an HTTP transport that simulates an API server.
type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// If a source does not respond, a report still contains all other sources. The report waits for the source only until
// its time limit, and says in plain words that it is missing.
func TestReportGoesOnWithoutASource(t *testing.T) {
	core, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://api.example", QPS: -1}, &http.Client{
		Transport: answers(func(r *http.Request) (*http.Response, error) {
			switch {
			case strings.Contains(r.URL.Path, "hangs"):
				if _, limited := r.Context().Deadline(); !limited {
					t.Errorf("%s has no time limit", r.URL.Path)
				}
				return nil, context.DeadlineExceeded
			case strings.Contains(r.URL.Path, "away"):
				return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{},
					Body: io.NopCloser(strings.NewReader("error trying to reach service: dial tcp: no route to host"))}, nil
			}
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{},
				Body: io.NopCloser(strings.NewReader("text"))}, nil
		})})
	must.OK(t, err)
	var said bytes.Buffer
	a := &app{core: core, err: &said}
	var pods []corev1.Pod
	for _, name := range []string{"hangs", "away", "well"} {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name,
			Labels: map[string]string{v1alpha1.LabelComponent: workload.ContainerShard}}}
		pod.Status.PodIP = "10.0.0.1"
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "shard"}}
		pods = append(pods, pod)
	}
	var packed bytes.Buffer
	r := &archive{tar: tar.NewWriter(&packed), folder: "report", at: time.Now(), limit: time.Hour}
	a.reportPods(t.Context(), pods, time.Hour, r)
	must.OK(t, errors.Join(r.err, r.tar.Close()))
	failed := strings.Join(r.failed, "\n")
	for _, words := range []string{
		"read logs/hangs/shard.log: no answer within 1h0m0s", "read /status of pod hangs: no answer within 1h0m0s",
		"read /status of pod away: the API server got no answer from there",
	} {
		if !strings.Contains(failed, words) {
			t.Errorf("%q is not in\n%s", words, failed)
		}
	}
	if strings.Contains(failed, "well") || !strings.Contains(packed.String(), "pages/well/status.json") {
		t.Errorf("what answers is left out:\n%s", failed)
	}
	if !strings.Contains(said.String(), "pod away (2 of 3)") {
		t.Errorf("the progress is %q", said.String())
	}
}

// observedApp returns the plugin with a simulated API server, which has one store, one pod and one claim. The API
// server calls the function see before each read. If see returns an error, the API server responds with this error.
func observedApp(t *testing.T, see func(ctx context.Context, what any) error) *app {
	t.Helper()
	o, _ := kubefindingtest.Well()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		must.OK(t, add(scheme))
	}
	a := newApp(io.Discard, io.Discard)
	a.namespace = o.Store.Namespace
	a.objects = fake.NewClientBuilder().WithScheme(scheme).WithObjects(o.Store, &o.Pods[0], &o.Claims[0]).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, one client.Object,
				options ...client.GetOption) error {
				if err := see(ctx, one); err != nil {
					return err
				}
				return c.Get(ctx, key, one, options...)
			},
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if err := see(ctx, list); err != nil {
					return err
				}
				return c.List(ctx, list, options...)
			},
		}).Build()
	return a
}

// If the request for a list gets no response, the report waits only until the time limit, says so, and still contains
// the other lists.
func TestEachListHasATimeLimit(t *testing.T) {
	a := observedApp(t, func(ctx context.Context, what any) error {
		if _, limited := ctx.Deadline(); !limited {
			t.Errorf("%T has no time limit", what)
		}
		if _, hangs := what.(*corev1.NodeList); hangs {
			return context.DeadlineExceeded
		}
		return nil
	})
	for _, args := range [][]string{nil, {"quotes"}} {
		if _, err := a.oneStore(t.Context(), args, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	store, err := a.oneStore(t.Context(), nil, time.Hour)
	must.OK(t, err)
	s, err := a.gather(t.Context(), store, time.Hour)
	must.OK(t, err)
	if len(s.Missing) != 1 || !strings.HasPrefix(s.Missing[0], "nodes: the API server has not answered within 1h0m0s") ||
		len(s.Pods) != 1 || len(s.Claims) != 1 {
		t.Errorf("%v, %d pods, %d claims", s.Missing, len(s.Pods), len(s.Claims))
	}
}

// A time limit of 0 means that there is no limit, as in the other commands.
func TestZeroMeansNoTimeLimit(t *testing.T) {
	reads := 0
	a := observedApp(t, func(ctx context.Context, what any) error {
		if reads++; ctx.Err() != nil {
			t.Errorf("%T: %v", what, ctx.Err())
		}
		if _, limited := ctx.Deadline(); limited {
			t.Errorf("%T has a time limit", what)
		}
		return ctx.Err()
	})
	o, _ := kubefindingtest.Well()
	// Without the pod, the report requests no log, for which a kubelet would be needed.
	if err := a.objects.Delete(t.Context(), &o.Pods[0]); err != nil {
		t.Fatal(err)
	}
	err := a.call(t.Context(), "report", "quotes", "--source-timeout=0", "--live-timeout=0", "--output=-")
	if err != nil || reads < 10 {
		t.Errorf("%v after %d reads", err, reads)
	}
}

// The libraries of Kubernetes print nothing about a forwarded connection.
func TestForwardedConnectionsEndSilently(t *testing.T) {
	var printed bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&printed)
	defer klog.LogToStderr(true)
	utilruntime.HandleErrorWithContext(context.Background(), io.ErrUnexpectedEOF, "loud")
	utilruntime.HandleErrorWithLogger(klog.FromContext(quiet(t.Context())), io.ErrUnexpectedEOF, "silent")
	klog.Flush()
	if text := printed.String(); !strings.Contains(text, "loud") || strings.Contains(text, "silent") {
		t.Errorf("printed: %q", text)
	}
}
