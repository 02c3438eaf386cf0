package workload

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/must"
)

// managedStore returns a store with a managed etcd.
func managedStore() *v1alpha1.RecordStore {
	store := shardInput().Store
	store.Spec.Etcd.Managed.Storage.Size = resource.MustParse("2Gi")
	store.Spec.Etcd.Managed.SnapshotEvery = &metav1.Duration{Duration: time.Hour}
	return store
}

func etcdTemplate(t *testing.T, store *v1alpha1.RecordStore, state string) corev1.PodTemplateSpec {
	t.Helper()
	set, err := EtcdStatefulSet(store, ImageOf(store, "sheaf:1"), state)
	must.OK(t, err)
	return set.Spec.Template
}

// The Pod Security level "restricted" admits every pod that the operator creates.
func TestPodsOfAStoreAreRestricted(t *testing.T) {
	store := managedStore()
	for name, pod := range map[string]corev1.PodSpec{
		"etcd":    etcdTemplate(t, store, EtcdNew).Spec,
		"gateway": GatewayDeployment(store, "sheaf:1", EtcdAccessOf(store, nil)).Spec.Template.Spec,
	} {
		security := pod.SecurityContext
		if !*security.RunAsNonRoot || *security.RunAsUser != User || *security.FSGroup != User ||
			security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: %+v", name, security)
		}
		if *pod.AutomountServiceAccountToken || pod.HostNetwork || pod.HostPID || pod.HostIPC {
			t.Errorf("%s reaches the node or the API server", name)
		}
		for _, v := range pod.Volumes {
			if v.HostPath != nil {
				t.Errorf("%s mounts the host's %s", name, v.HostPath.Path)
			}
		}
		for _, c := range pod.Containers {
			if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
				!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: container %s: %+v", name, c.Name, s)
			}
			if c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError || c.ReadinessProbe == nil ||
				c.LivenessProbe == nil {
				t.Errorf("%s: container %s says nothing of its end, or is not probed", name, c.Name)
			}
		}
	}
}

func TestEtcdArguments(t *testing.T) {
	args := etcdTemplate(t, managedStore(), EtcdExisting).Spec.Containers[0].Args
	for _, want := range []string{
		"etcd", "--name=$(POD_NAME)", "--initial-cluster-state=existing",
		"--initial-cluster-token=11111111-2222-3333-4444-555555555555",
		"--initial-cluster=quotes-etcd-0=quotes-etcd-0.quotes-etcd.prod.svc:2380," +
			"quotes-etcd-1=quotes-etcd-1.quotes-etcd.prod.svc:2380," +
			"quotes-etcd-2=quotes-etcd-2.quotes-etcd.prod.svc:2380",
		"--advertise-client=$(POD_NAME).quotes-etcd.prod.svc:2379", "--snapshot-every=1h0m0s",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %q", want, args)
		}
	}
}

func TestGatewayArguments(t *testing.T) {
	store := managedStore()
	store.Spec.Etcd = v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{
		Endpoints: []string{"https://a:2379", "https://b:2379"}, Prefix: "/teams/a",
		TLSSecretRef: &corev1.LocalObjectReference{Name: "tls"},
	}}
	secret := &corev1.Secret{Data: map[string][]byte{"ca.crt": {1}, "tls.crt": {1}, "tls.key": {1}}}
	pod := GatewayDeployment(store, "sheaf:1", EtcdAccessOf(store, secret)).Spec.Template.Spec
	args := strings.Join(pod.Containers[0].Args, " ")
	for _, want := range []string{
		"gateway ", "--planner=false", "--store-uid=11111111-2222-3333-4444-555555555555", "--etcd=a:2379,b:2379",
		"--store=prod.quotes",
		"--etcd-prefix=/teams/a", "--etcd-ca=/etc/sheaf/etcd/ca.crt", "--etcd-cert=/etc/sheaf/etcd/tls.crt",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("no %s in %s", want, args)
		}
	}
	if strings.Contains(args, "--create") {
		t.Error("a gateway must never make a store")
	}
	if pod.Volumes[0].Secret.SecretName != "tls" || !pod.Containers[0].VolumeMounts[0].ReadOnly {
		t.Errorf("the Secret is not mounted: %+v", pod.Volumes)
	}
}

// For a moment after a gateway has begun to terminate, its Service still sends new connections to it. The gateway must
// accept them, and then needs time to serve them.
func TestGatewayLeaves(t *testing.T) {
	pod := GatewayDeployment(managedStore(), "sheaf:1", EtcdAccess{}).Spec.Template.Spec
	hook := pod.Containers[0].Lifecycle
	if hook == nil || hook.PreStop == nil || hook.PreStop.Sleep == nil || hook.PreStop.Sleep.Seconds < 1 {
		t.Fatalf("a gateway that is to end refuses connections at once: %+v", hook)
	}
	if leaves, ends := hook.PreStop.Sleep.Seconds, *pod.TerminationGracePeriodSeconds; ends < leaves+30 {
		t.Errorf("of %d seconds to end %d go by before it ends its calls", ends, leaves)
	}
}

// No member restarts when the cluster has formed, or when a volume's size, the deletion policy or the number of
// gateways changes. A change to the configuration of a running member must restart it.
func TestEtcdTemplateHash(t *testing.T) {
	hash := func(state string, change func(*v1alpha1.RecordStore)) string {
		store := managedStore()
		change(store)
		return etcdTemplate(t, store, state).Annotations[AnnotationTemplate]
	}
	base := hash(EtcdNew, func(*v1alpha1.RecordStore) {})
	for name, same := range map[string]string{
		"formed": hash(EtcdExisting, func(*v1alpha1.RecordStore) {}),
		"a larger volume": hash(EtcdNew, func(s *v1alpha1.RecordStore) {
			s.Spec.Etcd.Managed.Storage.Size = resource.MustParse("9Gi")
		}),
		"a deletion policy": hash(EtcdNew, func(s *v1alpha1.RecordStore) { s.Spec.DeletionPolicy = v1alpha1.DeletionDelete }),
		"more gateways":     hash(EtcdNew, func(s *v1alpha1.RecordStore) { s.Spec.Gateway.Replicas = new(int32(5)) }),
	} {
		if same != base {
			t.Errorf("%s restarts etcd", name)
		}
	}
	for name, other := range map[string]string{
		"another image": hash(EtcdNew, func(s *v1alpha1.RecordStore) { s.Spec.Image = "sheaf:2" }),
		"another uid":   hash(EtcdNew, func(s *v1alpha1.RecordStore) { s.Status.StoreUID = "x" }),
		"scheduling": hash(EtcdNew, func(s *v1alpha1.RecordStore) {
			s.Spec.Etcd.Managed.Scheduling = &v1alpha1.Scheduling{PriorityClassName: "high"}
		}),
		"snapshots": hash(EtcdNew, func(s *v1alpha1.RecordStore) {
			s.Spec.Etcd.Managed.SnapshotEvery.Duration = time.Minute
		}),
	} {
		if other == base {
			t.Errorf("%s does not reach etcd", name)
		}
	}
}

func TestBudgets(t *testing.T) {
	store := managedStore()
	for name, c := range map[string]struct{ got, want int }{
		"3 members": {EtcdMembersBudget(store).Spec.MinAvailable.IntValue(), 2},
		"-1 shards": {ShardsBudget(store, -1).Spec.MinAvailable.IntValue(), 0},
		"3 shards":  {ShardsBudget(store, 3).Spec.MinAvailable.IntValue(), 3},
		"gateways":  {GatewaysBudget(store).Spec.MinAvailable.IntValue(), 1},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", name, c.got, c.want)
		}
	}
	store.Spec.Etcd.Managed.Members, store.Spec.Gateway.Replicas = 1, new(int32(0))
	if n := EtcdMembersBudget(store).Spec.MinAvailable.IntValue(); n != 0 {
		t.Errorf("a single member of etcd holds up every drain: %d", n)
	}
	if n := GatewaysBudget(store).Spec.MinAvailable.IntValue(); n != 0 {
		t.Errorf("no gateways: %d", n)
	}
}

func TestDiskVolumes(t *testing.T) {
	set := &v1alpha1.DiskSet{ObjectMeta: metav1.ObjectMeta{Name: "local-xfs"}}
	set.Spec.FileSystem = v1alpha1.FileSystem{Type: v1alpha1.XFS, MountOptions: []string{"noatime"}}
	set.Spec.Namespaces = []string{"prod", "test"}
	disk := v1alpha1.Disk{Node: "n1", Device: "/dev/disk/by-id/a", Size: resource.MustParse("1Gi")}
	pv := DiskPersistentVolume(set, disk)
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || *pv.Spec.Local.FSType != "xfs" ||
		pv.Spec.Local.Path != disk.Device || !slices.Equal(pv.Spec.MountOptions, []string{"noatime"}) ||
		DiskNode(pv) != "n1" {
		t.Errorf("%+v", pv.Spec)
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Namespace != "prod" || ref.UID != "" {
		t.Errorf("a claim of anybody could take it: %+v", ref)
	}
	other := disk
	other.Node = "n2"
	if DiskVolume("local-xfs", disk) == DiskVolume("local-xfs", other) || len(pv.Name) > 253 {
		t.Error("two disks with one volume")
	}
	if class := DiskClass(set); *class.ReclaimPolicy != corev1.PersistentVolumeReclaimRetain ||
		class.Provisioner != "kubernetes.io/no-provisioner" {
		t.Errorf("%+v", class)
	}
	if DiskNode(&corev1.PersistentVolume{}) != "" {
		t.Error("a volume without a node has one")
	}
}

// Gateways and shards write the audit log to standard output. There is no audit log if callers have no known
// identity.
func TestAuditLogOfAStore(t *testing.T) {
	of := func(args []string) (audit []string) {
		for _, arg := range args {
			if strings.HasPrefix(arg, "--audit") {
				audit = append(audit, arg)
			}
		}
		return audit
	}
	certificates := &v1alpha1.TLSStatus{Transport: v1alpha1.TransportRequired}
	for name, c := range map[string]struct {
		audit *v1alpha1.Audit
		tls   *v1alpha1.TLSStatus
		want  []string
	}{
		"absent":   {nil, certificates, nil},
		"none":     {&v1alpha1.Audit{Mode: v1alpha1.AuditNone}, certificates, nil},
		"refusals": {&v1alpha1.Audit{Mode: v1alpha1.AuditRefusals}, certificates, []string{"--audit-log=-"}},
		"default":  {&v1alpha1.Audit{}, certificates, []string{"--audit-log=-"}},
		"writes": {&v1alpha1.Audit{Mode: v1alpha1.AuditWrites}, certificates,
			[]string{"--audit-log=-", "--audit-writes"}},
		"without certificates": {&v1alpha1.Audit{Mode: v1alpha1.AuditWrites}, nil, nil},
	} {
		in := shardInput()
		in.Store.Spec.Audit, in.Store.Status.TLS = c.audit, c.tls
		set, err := ShardSet(in)
		must.OK(t, err)
		gateway := GatewayDeployment(in.Store, "sheaf:1", EtcdAccessOf(in.Store, nil))
		for component, pod := range map[string]corev1.PodSpec{"shard": set.Spec.Template.Spec,
			"gateway": gateway.Spec.Template.Spec} {
			if got := of(pod.Containers[0].Args); !slices.Equal(got, c.want) {
				t.Errorf("%s: %s has %q, want %q", name, component, got, c.want)
			}
		}
	}
}

// TestInvalidMemberCountMeansNoMembers checks that an invalid number of members, however large, causes no panic and
// allocates no memory for members.
func TestInvalidMemberCountMeansNoMembers(t *testing.T) {
	for members, want := range map[int32]int32{0: 3, 1: 1, 3: 3, -1: 0, math.MinInt32: 0, 2: 0, math.MaxInt32: 0} {
		store := &v1alpha1.RecordStore{}
		store.Spec.Etcd.Managed = &v1alpha1.ManagedEtcd{Members: members}
		if got := EtcdMembers(store); got != want {
			t.Errorf("%d members: %d", members, got)
		} else {
			etcdPod(store, store.Spec.Etcd.Managed, "sheaf:1", "new")
		}
	}
}
