package workload

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/test/must"
)

// shardInput returns the input for a shard as a typical user would configure it.
func shardInput() ShardInput {
	store := &v1alpha1.RecordStore{}
	store.Name, store.Namespace, store.Status.StoreUID = "quotes", "prod", "11111111-2222-3333-4444-555555555555"
	store.Spec.DeletionPolicy = v1alpha1.DeletionRetain
	store.Spec.Replication = v1alpha1.Replication{Copies: 3, TopologyKey: corev1.LabelHostname}
	store.Spec.Retention.Versions = 1
	store.Spec.ImagePullPolicy = corev1.PullIfNotPresent
	store.Spec.Etcd.Managed = &v1alpha1.ManagedEtcd{Members: 3}
	pool := &v1alpha1.ShardPool{}
	pool.Name, pool.Namespace = "ssd", "prod"
	pool.Spec.Medium, pool.Spec.Residency = v1alpha1.SSD, v1alpha1.ResidencyIndex
	pool.Spec.FileSystem = &v1alpha1.FileSystem{Type: v1alpha1.XFS, MountOptions: []string{"noatime"}}
	pool.Spec.Storage = v1alpha1.Storage{StorageClassName: "local-xfs", Size: resource.MustParse("500Gi")}
	return ShardInput{Store: store, Pool: pool, Etcd: EtcdAccessOf(store, nil), Image: "sheaf:1", Number: 2,
		ClaimSize: pool.Spec.Storage.Size}
}

func shardSet(t *testing.T, in ShardInput) *appsv1.StatefulSet {
	t.Helper()
	set, err := ShardSet(in)
	must.OK(t, err)
	return set
}

// TestShardTemplateHashIsKept protects users from restarts: if the hash changes, an upgrade of the operator restarts
// every shard. Change the hash only together with a change that the shards need, and mention it in CHANGELOG.md.
func TestShardTemplateHashIsKept(t *testing.T) {
	const kept = "70ac7dcc419a133c"
	if got := shardSet(t, shardInput()).Spec.Template.Annotations[AnnotationTemplate]; got != kept {
		t.Errorf("the pod template hashes to %s, was %s", got, kept)
	}
}

func TestShardTemplateHash(t *testing.T) {
	hash := func(change func(*ShardInput)) string {
		in := shardInput()
		change(&in)
		return shardSet(t, in).Spec.Template.Annotations[AnnotationTemplate]
	}
	base := hash(func(*ShardInput) {})
	for name, change := range map[string]func(*ShardInput){
		"the volume is learned": func(in *ShardInput) { in.Volume = "v" },
		"parked":                func(in *ShardInput) { in.Parked = true },
		"a larger claim":        func(in *ShardInput) { in.ClaimSize = resource.MustParse("1Ti") },
		"deletion policy":       func(in *ShardInput) { in.Store.Spec.DeletionPolicy = v1alpha1.DeletionDelete },
		"empty for nil": func(in *ShardInput) {
			in.Pool.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{}}
		},
	} {
		if hash(change) != base {
			t.Errorf("%s: restarts the shard", name)
		}
	}
	for name, change := range map[string]func(*ShardInput){
		"image":       func(in *ShardInput) { in.Image = "sheaf:2" },
		"store":       func(in *ShardInput) { in.Store.Status.StoreUID = "x" },
		"residency":   func(in *ShardInput) { in.Pool.Spec.Residency = v1alpha1.ResidencyResident },
		"etcd":        func(in *ShardInput) { in.Etcd.Prefix = "/other" },
		"file system": func(in *ShardInput) { in.Pool.Spec.FileSystem = nil },
		"compaction":  func(in *ShardInput) { in.Store.Spec.Compaction.SupersededPercent = new(int32(30)) },
		"views":       func(in *ShardInput) { in.Store.Spec.Views.MaxHeld = new(resource.MustParse("1Gi")) },
	} {
		if hash(change) == base {
			t.Errorf("%s: does not restart the shard", name)
		}
	}
}

// The pod satisfies Pod Security "restricted", and has everything that a shard on a local volume needs.
func TestShardPod(t *testing.T) {
	in := shardInput()
	in.Volume = "the-volume"
	in.Store.Spec.Compaction = v1alpha1.Compaction{
		SupersededPercent: new(int32(5)), MinSuperseded: new(resource.MustParse("16Mi")),
		BytesPerSecond: new(resource.MustParse("1Gi")),
	}
	in.Store.Spec.Views.MaxHeld = new(resource.MustParse("2Gi"))
	set := shardSet(t, in)
	pod, container := set.Spec.Template.Spec, set.Spec.Template.Spec.Containers[0]
	security := container.SecurityContext
	if !*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.RunAsUser != User ||
		*pod.SecurityContext.FSGroup != User ||
		pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		*security.AllowPrivilegeEscalation ||
		!*security.ReadOnlyRootFilesystem || !slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		*pod.AutomountServiceAccountToken {
		t.Errorf("not restricted: %+v, %+v", pod.SecurityContext, security)
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !slices.ContainsFunc(pod.Tolerations, func(t corev1.Toleration) bool {
			return t.Key == key && t.TolerationSeconds == nil
		}) {
			t.Errorf("%s is not tolerated for ever", key)
		}
	}
	if path := container.LivenessProbe.HTTPGet.Path; path != "/healthz" {
		t.Errorf("liveness asks %s, which may judge loading", path)
	}
	args := strings.Join(container.Args, " ")
	for _, arg := range []string{"--name=ssd-2", "--stay", "--advertise=ssd-2-0.ssd.prod.svc:7610", "--store=prod.quotes",
		"--compaction-share=0.05", "--compaction-min=16777216", "--compaction-rate=1073741824", "--mount-option=noatime",
		"--file-system=xfs", "--views-held-max=2147483648",
		"--expect-volume=$(EXPECT_VOLUME)",
		"--etcd=quotes-etcd-0.quotes-etcd.prod.svc:2379,quotes-etcd-1.quotes-etcd.prod.svc:2379," +
			"quotes-etcd-2.quotes-etcd.prod.svc:2379"} {
		if !strings.Contains(args, arg) {
			t.Errorf("no %s in %s", arg, args)
		}
	}
	if set.Spec.Template.Annotations[AnnotationVolume] != "the-volume" ||
		set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
		t.Errorf("annotations %v, update %s", set.Spec.Template.Annotations, set.Spec.UpdateStrategy.Type)
	}
}

func TestEtcdAccessExternal(t *testing.T) {
	store := shardInput().Store
	store.Spec.Etcd = v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{
		Endpoints: []string{"https://a:2379", "http://b:2379"}, Prefix: "/p",
		TLSSecretRef: &corev1.LocalObjectReference{Name: "tls"},
	}}
	args := func(secret *corev1.Secret) string { return strings.Join(EtcdAccessOf(store, secret).Args(), " ") }
	const base = "--etcd=a:2379,b:2379 --store=prod.quotes --etcd-prefix=/p --etcd-ca=/etc/sheaf/etcd/ca.crt"
	if got := args(&corev1.Secret{}); got != base {
		t.Errorf("got %s", got)
	}
	if got := args(&corev1.Secret{Data: map[string][]byte{corev1.TLSCertKey: []byte("x")}}); got != base+
		" --etcd-cert=/etc/sheaf/etcd/tls.crt --etcd-key=/etc/sheaf/etcd/tls.key" {
		t.Errorf("with a client's certificate: %s", got)
	}
	in := shardInput()
	in.Etcd = EtcdAccessOf(store, nil)
	if set := shardSet(t, in); len(set.Spec.Template.Spec.Volumes) != 1 ||
		len(set.Spec.Template.Spec.Containers[0].VolumeMounts) != 2 {
		t.Error("the Secret is not mounted")
	}
}

// The condition Redundant and the disruption budget take a hanging disk into account within 20 s. Until then, the
// eviction of another shard may cost a group its majority. TestAHangingDiskIsReportedInTime in internal/shard
// measures the first of the steps below.
func TestAHangingDiskIsKnownWithin20Seconds(t *testing.T) {
	probe := shardSet(t, shardInput()).Spec.Template.Spec.Containers[0].ReadinessProbe
	if probe.FailureThreshold < 2 {
		t.Error("one late answer makes a pod not ready")
	}
	var sum time.Duration
	for _, step := range []struct {
		what   string
		within time.Duration
	}{
		{"/readyz fails", host.SilentWithin},
		{"the kubelet finds the pod not ready", time.Duration(probe.PeriodSeconds*probe.FailureThreshold) * time.Second},
		{"the operator, which watches pods, has asked the shards and written their status", time.Second},
		{"the operator has collected changes of Shards, and looks at the store", 2 * time.Second},
	} {
		sum += step.within
		t.Logf("%v: %s", sum, step.what)
	}
	if sum >= 20*time.Second {
		t.Errorf("it takes %v", sum)
	}
}

func TestShardNumber(t *testing.T) {
	for name, want := range map[string]int32{"ssd-0": 0, "ssd-12": 12, "ssd": -1, "ssd-": -1, "ssd-01": -1, "ssd--1": -1,
		"ssd-x": -1, "hdd-1": -1, "ssd-99999999999": -1, "ssd-2-0": -1} {
		n, ok := ShardNumber("ssd", name)
		if ok != (want >= 0) || ok && n != want {
			t.Errorf("%s: %d, %t", name, n, ok)
		}
	}
}
