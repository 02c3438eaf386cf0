package shardpool

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

func TestNewestRate(t *testing.T) {
	early := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	late := early.Add(time.Minute)
	claims := []corev1.PersistentVolumeClaim{fleettest.BenchClaim("a", "local-xfs"),
		fleettest.BenchClaim("b", "local-xfs"), fleettest.BenchClaim("other", "local-ext4"),
		fleettest.BenchClaim("unbound", "local-xfs"), {}}
	claims[3].Spec.VolumeName = ""
	known := &v1alpha1.DeviceRate{ReadBytesPerSecond: 7, Pod: "gone", MeasuredAt: metav1.NewTime(early)}
	good := fleettest.BenchPod("bench-1", "a", fleettest.RateMessage(3<<30), late)
	with := func(change func(*corev1.Pod)) corev1.Pod {
		pod := good.DeepCopy()
		change(pod)
		return *pod
	}
	says := func(message string) corev1.Pod {
		return with(func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State.Terminated.Message = message })
	}
	for _, test := range []struct {
		name  string
		known *v1alpha1.DeviceRate
		pods  []corev1.Pod
		want  int64
	}{
		{"no pod", known, nil, 7},
		{"the first", nil, []corev1.Pod{good}, 3 << 30},
		{"a newer one", known, []corev1.Pod{good}, 3 << 30},
		{"none that is older", known, []corev1.Pod{fleettest.BenchPod("old", "a", fleettest.RateMessage(9),
			early.Add(-time.Second))}, 7},
		{"the newest of several", nil, []corev1.Pod{good, fleettest.BenchPod("x", "b", fleettest.RateMessage(5),
			late.Add(time.Second)), fleettest.BenchPod("y", "b", fleettest.RateMessage(6), early)}, 5},
		{"another class", known, []corev1.Pod{fleettest.BenchPod("x", "other", fleettest.RateMessage(5), late)}, 7},
		{"a claim that is gone", known, []corev1.Pod{fleettest.BenchPod("x", "c", fleettest.RateMessage(5), late)}, 7},
		{"a claim without a volume", known, []corev1.Pod{fleettest.BenchPod("x", "unbound", fleettest.RateMessage(5), late)},
			7},
		{"one that still runs", known, []corev1.Pod{with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })}, 7},
		{"one that failed", known, []corev1.Pod{with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, 7},
		{"no container ended", known, []corev1.Pod{with(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated = nil
		})}, 7},
		{"two claims: which one was measured?", known, []corev1.Pod{with(func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, *p.Spec.Volumes[0].DeepCopy())
		})}, 7},
		{"no claim", known, []corev1.Pod{with(func(p *corev1.Pod) { p.Spec.Volumes = nil })}, 7},
		{"no message", known, []corev1.Pod{says("")}, 7},
		{"no JSON", known, []corev1.Pod{says("3 GiB/s")}, 7},
		{"something else's JSON", known, []corev1.Pod{says(`{"kind":"report","readBytesPerSecond":5}`)}, 7},
		{"no number", known, []corev1.Pod{says(`{"kind":"sheaf.dev/device-rate","readBytesPerSecond":"5"}`)}, 7},
		{"nothing", known, []corev1.Pod{says(fleettest.RateMessage(0))}, 7},
		{"less", known, []corev1.Pod{says(fleettest.RateMessage(-5))}, 7},
		{"faster than any disk", known, []corev1.Pod{says(fleettest.RateMessage(1 << 60))}, 7},
	} {
		got := newestRate("local-xfs", test.known, test.pods, claims)
		if got == nil || got.ReadBytesPerSecond != test.want {
			t.Errorf("%s: %+v, want %d", test.name, got, test.want)
		}
	}
	want := &v1alpha1.DeviceRate{ReadBytesPerSecond: 3 << 30, FileSystem: "xfs", PersistentVolume: "pv-of-a",
		Pod: "bench-1", MeasuredAt: metav1.NewTime(late)}
	if got := newestRate("local-xfs", nil, []corev1.Pod{good}, claims); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	long := strings.Replace(fleettest.RateMessage(5), "xfs", strings.Repeat("ß", 100), 1)
	if got := newestRate("local-xfs", nil, []corev1.Pod{says(long)}, claims); got == nil || got.FileSystem != "" {
		t.Errorf("a long name: %+v", got)
	}
}
