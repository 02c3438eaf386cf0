package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sheaf.dev/sheaf/internal/test/kubefindingtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// unpack reads an archive. It returns the content of each file by the file's name, without the folder.
func unpack(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	packed, err := gzip.NewReader(r)
	must.OK(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(packed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must.OK(t, err)
		text, err := io.ReadAll(archive)
		must.OK(t, err)
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(text)
	}
}

// secret is in every field of the objects below that could leak it into a report.
const secret = "hunter2hunter2"

func TestReport(t *testing.T) {
	a, out := newTestApp(t, "report")
	want := healthyStore()
	store := want.Store.DeepCopy()
	store.Annotations = map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": `{"password":"` + secret + `"}`, "example.org/api-token": secret,
		"example.org/owner": "team-a",
	}
	set(&store.Status.Conditions, "EtcdReady", metav1.ConditionFalse, "Refused",
		"dial https://sheaf:"+secret+"@etcd.example:2379: refused")
	create(t, a.objects, "report", store)
	create(t, a.objects, "report", want.Pools[0].DeepCopy())
	for i := range want.Pods {
		pod := want.Pods[i].DeepCopy()
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "OTEL_EXPORTER_OTLP_HEADERS", Value: "x=" + secret}}
		pod.Spec.Containers[0].Args = []string{"--verbose", "--password=" + secret}
		create(t, a.objects, "report", pod)
	}
	create(t, a.objects, "report", &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "report", Name: "etcd-tls", Labels: want.Pods[0].Labels},
		Data:       map[string][]byte{"tls.key": []byte(secret)},
	})
	operator := kubefindingtest.Pod("sheaf-operator-0", "n1", operatorLabels, "operator")
	create(t, a.objects, "report", &operator)

	file := filepath.Join(t.TempDir(), "report.tar.gz")
	must.OK(t, a.call(t.Context(), "report", "--live-timeout=2s", "--output", file))
	if !strings.Contains(out.String(), "wrote "+file) {
		t.Errorf("it says %q", out.String())
	}
	packed, err := os.ReadFile(file)
	must.OK(t, err)
	files := unpack(t, bytes.NewReader(packed))
	for name, text := range files {
		if strings.Contains(text, secret) {
			t.Errorf("%s holds the secret:\n%s", name, text)
		}
		if strings.Contains(name, "etcd-tls") {
			t.Errorf("a Secret is in it: %s", name)
		}
	}
	for name, words := range map[string]string{
		"status.txt": "RecordStore report/quotes", "findings.json": "[", "objects/recordstore/quotes.yaml": "owner: team-a",
		"objects/shardpool/quotes-ssd.yaml": "storageClassName: local-xfs", "objects/pod/quotes-etcd-1.yaml": "--verbose",
		"events.txt": "",
		"errors.txt": "logs/sheaf-operator-0/operator.log", // there is no kubelet, so logs cannot be read
	} {
		if text, ok := files[name]; !ok || !strings.Contains(text, words) {
			t.Errorf("%s: there is %v, with\n%s", name, ok, text)
		}
	}
	for _, words := range []string{"ask a gateway", "read /status of pod quotes-ssd-0-0",
		"read /metrics of pod quotes-etcd-1"} {
		if !strings.Contains(files["errors.txt"], words) {
			t.Errorf("errors.txt does not say %q:\n%s", words, files["errors.txt"])
		}
	}

	t.Run("a file that is there is not written over", func(t *testing.T) {
		if err := a.call(t.Context(), "report", "--live-timeout=1s", "--output", file); err == nil ||
			!strings.Contains(err.Error(), "exists") {
			t.Errorf("%v", err)
		}
		if again, err := os.ReadFile(file); err != nil || !bytes.Equal(again, packed) {
			t.Errorf("the file has changed: %v", err)
		}
	})
	t.Run("to standard output", func(t *testing.T) {
		out.Reset()
		a.err = io.Discard // the progress is discarded, because it would be mixed with the archive in the same buffer
		must.OK(t, a.call(t.Context(), "report", "quotes", "--live-timeout=1s", "--since=1h", "-o", "-"))
		if files := unpack(t, out); files["status.txt"] == "" {
			t.Errorf("%d files", len(files))
		}
	})
}

func TestSecretsInTexts(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"dial https://user:pass@host:2379/x", "dial https://user:[left out]host:2379/x"},
		{"Authorization: Bearer abcdefgh12345678", "Authorization: [left out]"},
		{`{"token":"abc","n":1}`, `{"token":"[left out]","n":1}`},
		{"password = hunter2, next", "password = [left out], next"},
		{"-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\n", "-----BEGIN EC PRIVATE KEY-----[left out]\n"},
		{"a eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl b", "a [left out] b"},
		{"tlsSecretRef:\n  name: etcd-tls", "tlsSecretRef:\n  name: etcd-tls"},
		{"sheaf_shard_records 12\nimage: registry.example:5000/team/sheaf:v1",
			"sheaf_shard_records 12\nimage: registry.example:5000/team/sheaf:v1"},
	} {
		if got := redactText(c.in); !strings.Contains(c.out, "Bearer") && strings.Contains(got, "abcdefgh12345678") ||
			got != c.out && !strings.HasPrefix(c.in, "Authorization") {
			t.Errorf("%q becomes %q, not %q", c.in, got, c.out)
		}
	}
}

func TestAnObjectKeepsWhatIsNoSecret(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{
		"kind": "Pod", "metadata": map[string]any{"name": "a", "creationTimestamp": kubefindingtest.Now.Format(time.RFC3339)},
		"spec": map[string]any{"containers": []any{map[string]any{
			"name": "shard", "args": []any{"--listen=:7610"},
			"env": []any{
				map[string]any{"name": "A", "value": "b"},
				map[string]any{"name": "NODE_NAME", "valueFrom": map[string]any{"fieldRef": map[string]any{
					"fieldPath": "spec.nodeName"}}},
			},
		}}},
	}}
	redactObject(u)
	containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "containers")
	container := containers[0].(map[string]any)
	env := container["env"].([]any)
	if env[0].(map[string]any)["value"] != redacted || env[1].(map[string]any)["valueFrom"] == nil ||
		container["args"].([]any)[0] != "--listen=:7610" {
		t.Errorf("%v", container)
	}
}
