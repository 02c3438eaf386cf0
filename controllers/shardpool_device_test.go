package controllers

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// rateMessage is what `sheaf bench layouts --device-rate` writes: a test of that command knows it too.
func rateMessage(bytesPerSecond int64) string {
	return fmt.Sprintf("{\"kind\":\"sheaf.dev/device-rate\",\"readBytesPerSecond\":%d,\"sampleBytes\":1073741824,\"fileSystem\":\"xfs\"}\n", bytesPerSecond)
}

// benchPod is a pod of a Job that ended well, on one claim.
func benchPod(name, claim, message string, ended time.Time) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelComponent: v1alpha1.ComponentBench}}}
	pod.Spec.Containers = []corev1.Container{{Name: "bench", Image: "sheaf:1"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "bench", Image: "sheaf:1", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: message, FinishedAt: metav1.NewTime(ended)},
	}}}
	return pod
}

func benchClaim(name, class string) corev1.PersistentVolumeClaim {
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelComponent: v1alpha1.ComponentBench}}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim.Spec.StorageClassName, claim.Spec.VolumeName = &class, "pv-of-"+name
	return claim
}

func TestNewestRate(t *testing.T) {
	early, late := decideNow, decideNow.Add(time.Minute)
	claims := []corev1.PersistentVolumeClaim{benchClaim("a", "local-xfs"), benchClaim("b", "local-xfs"), benchClaim("other", "local-ext4"), benchClaim("unbound", "local-xfs"), {}}
	claims[3].Spec.VolumeName = ""
	known := &v1alpha1.DeviceRate{ReadBytesPerSecond: 7, Pod: "gone", MeasuredAt: metav1.NewTime(early)}
	good := benchPod("bench-1", "a", rateMessage(3<<30), late)
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
		{"none that is older", known, []corev1.Pod{benchPod("old", "a", rateMessage(9), early.Add(-time.Second))}, 7},
		{"the newest of several", nil, []corev1.Pod{good, benchPod("x", "b", rateMessage(5), late.Add(time.Second)), benchPod("y", "b", rateMessage(6), early)}, 5},
		{"another class", known, []corev1.Pod{benchPod("x", "other", rateMessage(5), late)}, 7},
		{"a claim that is gone", known, []corev1.Pod{benchPod("x", "c", rateMessage(5), late)}, 7},
		{"a claim without a volume", known, []corev1.Pod{benchPod("x", "unbound", rateMessage(5), late)}, 7},
		{"one that still runs", known, []corev1.Pod{with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })}, 7},
		{"one that failed", known, []corev1.Pod{with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, 7},
		{"no container ended", known, []corev1.Pod{with(func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State.Terminated = nil })}, 7},
		{"two claims: which one was measured?", known, []corev1.Pod{with(func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, *p.Spec.Volumes[0].DeepCopy())
		})}, 7},
		{"no claim", known, []corev1.Pod{with(func(p *corev1.Pod) { p.Spec.Volumes = nil })}, 7},
		{"no message", known, []corev1.Pod{says("")}, 7},
		{"no JSON", known, []corev1.Pod{says("3 GiB/s")}, 7},
		{"something else's JSON", known, []corev1.Pod{says(`{"kind":"report","readBytesPerSecond":5}`)}, 7},
		{"no number", known, []corev1.Pod{says(`{"kind":"sheaf.dev/device-rate","readBytesPerSecond":"5"}`)}, 7},
		{"nothing", known, []corev1.Pod{says(rateMessage(0))}, 7},
		{"less", known, []corev1.Pod{says(rateMessage(-5))}, 7},
		{"faster than any disk", known, []corev1.Pod{says(rateMessage(1 << 60))}, 7},
	} {
		got := newestRate("local-xfs", test.known, test.pods, claims)
		if got == nil || got.ReadBytesPerSecond != test.want {
			t.Errorf("%s: %+v, want %d", test.name, got, test.want)
		}
	}
	want := &v1alpha1.DeviceRate{ReadBytesPerSecond: 3 << 30, FileSystem: "xfs", PersistentVolume: "pv-of-a", Pod: "bench-1", MeasuredAt: metav1.NewTime(late)}
	if got := newestRate("local-xfs", nil, []corev1.Pod{good}, claims); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	long := strings.Replace(rateMessage(5), "xfs", strings.Repeat("ß", 100), 1)
	if got := newestRate("local-xfs", nil, []corev1.Pod{says(long)}, claims); got == nil || got.FileSystem != "" {
		t.Errorf("a long name: %+v", got)
	}
}

// The rate of a load is shown in percent of the device: of what a Job has measured, else of what the shard did.
func TestDecideShardLoadRate(t *testing.T) {
	o := serveWell()
	load := LoadReport{BytesTotal: 1 << 30, BytesDone: 1 << 29, BytesPerSecond: 900 << 20}
	for _, test := range []struct {
		name    string
		state   v1alpha1.ShardState
		bytes   int64
		job     int64
		sampled float64
		rate    int64
		percent int32
		text    string
	}{
		{"nobody has measured", v1alpha1.ShardLoading, 1 << 30, 0, 0, 900 << 20, 0, "50% 900MiB/s"},
		{"the shard has", v1alpha1.ShardLoading, 1 << 30, 0, 1000 << 20, 900 << 20, 90, "50% 900MiB/s (90% of the device)"},
		{"a Job has", v1alpha1.ShardLoading, 1 << 30, 1800 << 20, 1000 << 20, 900 << 20, 50, "50% 900MiB/s (50% of the device)"},
		{"from the page cache", v1alpha1.ShardLoading, 1 << 30, 300 << 20, 0, 900 << 20, 300, "50% 900MiB/s (300% of the device)"},
		{"from nowhere", v1alpha1.ShardLoading, 1 << 30, 1, 0, 900 << 20, 9999, "50% 900MiB/s (9999% of the device)"},
		{"loaded", v1alpha1.ShardServing, 1 << 30, 1800 << 20, 0, 900 << 20, 50, ""},
		{"too little to say anything", v1alpha1.ShardServing, 1 << 20, 1800 << 20, 0, 0, 0, ""},
	} {
		o.Report.State, o.Report.Load, o.DeviceRate, o.Last.LoadBytesPerSecond = test.state, load, test.job, 0
		o.Report.Load.BytesTotal, o.Report.Load.BytesDone, o.Report.Load.DeviceBytesPerSecond = test.bytes, test.bytes/2, test.sampled
		got := decideShard(o)
		if got.LoadBytesPerSecond != test.rate || got.LoadDevicePercent != test.percent || got.Load != test.text {
			t.Errorf("%s: %d bytes/s, %d%%, %q; want %d, %d, %q", test.name, got.LoadBytesPerSecond, got.LoadDevicePercent, got.Load, test.rate, test.percent, test.text)
		}
	}
	// What was said stays while the shard is silent, and moves in steps.
	o.Report.Load, o.DeviceRate = load, 1800<<20
	o.Last = decideShard(o)
	o.Report.Load.BytesPerSecond = 880 << 20
	if got := decideShard(o); got.LoadBytesPerSecond != 900<<20 || got.LoadDevicePercent != 50 {
		t.Errorf("2 %% slower: %d, %d%%", got.LoadBytesPerSecond, got.LoadDevicePercent)
	}
	o.Report, o.ReportErr = nil, context.DeadlineExceeded
	if got := decideShard(o); got.LoadBytesPerSecond != 900<<20 || got.LoadDevicePercent != 50 {
		t.Errorf("silent: %d, %d%%", got.LoadBytesPerSecond, got.LoadDevicePercent)
	}
}

var _ = Describe("A ShardPool and a Job that measures its class", func() {
	var p *poolPlay
	BeforeEach(func(ctx context.Context) { p = newPoolPlay(ctx) })

	// run plays a Job on a claim, of which only what it has left matters.
	run := func(ctx context.Context, name, class, message string, ended time.Time) {
		claim := benchClaim(name, class)
		claim.Namespace, claim.Spec.VolumeName = p.Namespace, ""
		Expect(api.Create(ctx, &claim)).To(Succeed())
		pod := benchPod(name, name, message, ended)
		status := pod.Status
		pod.Namespace, pod.Spec.RestartPolicy = p.Namespace, corev1.RestartPolicyNever
		Expect(api.Create(ctx, &pod)).To(Succeed())
		pod.Status = status
		Expect(api.Status().Update(ctx, &pod)).To(Succeed())
	}

	It("shows the rate and what loads reach of it, and keeps it when the Job is gone", func(ctx context.Context) {
		ended := time.Now().Truncate(time.Second)
		p.says("ssd-0", func(r *ShardReport) {
			r.State, r.Load = v1alpha1.ShardLoading, LoadReport{BytesTotal: 4 << 30, BytesDone: 1 << 30, BytesPerSecond: 1 << 30, ETA: 3 * time.Second}
		})
		p.pool(ctx, "ssd", 2)
		p.settle(ctx, 0)
		Expect(p.get(ctx, "ssd").Status.Device).To(BeNil())
		Expect(p.get(ctx, "ssd").Status.Load).To(Equal("25% 1.0GiB/s ETA 3s"))

		run(ctx, "bench-of-another", classFixed, rateMessage(1<<30), ended)
		run(ctx, "bench-broken", classGrows, "Killed", ended)
		p.settle(ctx, 0)
		Expect(p.get(ctx, "ssd").Status.Device).To(BeNil())

		run(ctx, "bench", classGrows, rateMessage(2<<30), ended)
		p.r = p.reconciler(acting) // progress is not written at each look
		p.settle(ctx, 0)
		pool := p.get(ctx, "ssd")
		Expect(pool.Status.Device).NotTo(BeNil())
		Expect(pool.Status.Device.ReadBytesPerSecond).To(Equal(int64(2 << 30)))
		Expect(pool.Status.Device).To(And(HaveField("FileSystem", "xfs"), HaveField("Pod", "bench"), HaveField("PersistentVolume", p.Namespace+"-bench")))
		Expect(pool.Status.Device.MeasuredAt.Time).To(BeTemporally("==", ended))
		Expect(p.state(ctx, "ssd", 0)).To(And(HaveField("LoadDevicePercent", int32(50)), HaveField("LoadBytesPerSecond", int64(1<<30)),
			HaveField("Load", "25% 1.0GiB/s (50% of the device) ETA 3s")))
		Expect(pool.Status.Load).To(Equal("25% 1.0GiB/s (50% of the device) ETA 3s"))

		labels := client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentBench}
		By("the Job and its claim being deleted, and another operator")
		Expect(api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(p.Namespace), labels)).To(Succeed())
		Expect(api.DeleteAllOf(ctx, &corev1.PersistentVolumeClaim{}, client.InNamespace(p.Namespace), labels)).To(Succeed())
		p.r = p.reconciler(acting)
		p.settle(ctx, 0)
		Expect(p.get(ctx, "ssd").Status.Device).To(Equal(pool.Status.Device))
		before := p.versions(ctx)
		_, err := p.reconcile(ctx, "ssd")
		Expect(err).NotTo(HaveOccurred())
		Expect(p.versions(ctx)).To(Equal(before))
	})
})
