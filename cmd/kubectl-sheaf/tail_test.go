package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sheaf.dev/sheaf/internal/test/must"
)

// The tail of a log has its newest whole lines, in whatever parts the log arrives.
func TestTail(t *testing.T) {
	for written, want := range map[string]string{
		"":                      "",
		"one\ntwo\n":            "one\ntwo\n",
		"12345\n789\n":          "12345\n789\n",
		"12345\n7890\n":         "(the oldest 6 bytes are left out)\n7890\n",
		"one\ntwo\nthree\nup":   "(the oldest 8 bytes are left out)\nthree\nup",
		"a line that is long":   "(the oldest 9 bytes are left out)\nat is long",
		"a line that is long\n": "(the oldest 10 bytes are left out)\nt is long\n",
		strings.Repeat("lines\n", 1000) + "end\n": "(the oldest 6000 bytes are left out)\nend\n",
	} {
		for _, part := range []int{1, 3, 7, 25, 10_000} {
			kept := &tail{limit: 10}
			for rest := []byte(written); len(rest) > 0; rest = rest[min(part, len(rest)):] {
				_, err := kept.Write(rest[:min(part, len(rest))])
				must.OK(t, err)
			}
			if got := kept.text(); got != want {
				t.Errorf("%.20q in parts of %d bytes: %q, want %q", written, part, got, want)
			}
			if len(kept.kept) > 20 {
				t.Errorf("%.20q in parts of %d bytes: %d bytes are held", written, part, len(kept.kept))
			}
		}
	}
}

// A report has the newest lines of a log that is larger than a report may contain. The kubelet must not limit the
// bytes, because it counts from the oldest line.
func TestReportHasTheNewestLines(t *testing.T) {
	log := strings.Repeat("2026-11-30T00:00:00Z a line of a long log\n", logBytesMax/40) + "the last line\n"
	core, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://api.example", QPS: -1}, &http.Client{
		Transport: answers(func(r *http.Request) (*http.Response, error) {
			if limit := r.URL.Query().Get("limitBytes"); limit != "" {
				t.Errorf("the kubelet is told to send only %s bytes", limit)
			}
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{},
				Body: io.NopCloser(strings.NewReader(log))}, nil
		})})
	must.OK(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "talks"}}
	var packed bytes.Buffer
	r := &archive{tar: tar.NewWriter(&packed), folder: "report", at: time.Now(), limit: time.Hour}
	(&app{core: core}).addLog(t.Context(), r, pod, "shard", false, time.Hour)
	must.OK(t, errors.Join(r.err, r.tar.Close()))
	files := tar.NewReader(&packed)
	_, err = files.Next()
	must.OK(t, err)
	got, err := io.ReadAll(files)
	must.OK(t, err)
	if !bytes.HasPrefix(got, []byte("(the oldest ")) || !bytes.HasSuffix(got, []byte("\nthe last line\n")) ||
		len(got) > logBytesMax+100 || len(got) < logBytesMax-100 {
		t.Errorf("%d of %d bytes, from %.60q, failed %q", len(got), len(log), got, r.failed)
	}
}
