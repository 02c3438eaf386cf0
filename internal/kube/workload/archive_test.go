package workload

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func TestArchivePod(t *testing.T) {
	store := &v1alpha1.RecordStore{}
	store.Namespace, store.Name = "prod", "quotes"
	store.Status.StoreUID = "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b"
	store.Status.TLS = &v1alpha1.TLSStatus{Transport: v1alpha1.TransportRequired}
	archive := &v1alpha1.RecordArchive{}
	archive.Spec.URL = "s3://backups/quotes"
	archive.Spec.CredentialsSecretRef = &v1alpha1.ArchiveSecretReference{Name: "bucket"}
	data := map[string][]byte{"AWS_ACCESS_KEY_ID": []byte("id"), "AWS_SECRET_ACCESS_KEY": []byte("key"),
		"ca.crt": []byte("ca"), "AWS_SESSION_TOKEN": nil, "unknown": []byte("x")}
	in := ArchiveInput{Store: store, Archive: archive, Image: "sheaf-archive:1", Credentials: CredentialKeys(data),
		CredentialsHash: "abc"}
	d := ArchiveDeployment(in)
	if d.Name != "quotes-archive" || *d.Spec.Replicas != 1 ||
		d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Errorf("%s, %d, %s", d.Name, *d.Spec.Replicas, d.Spec.Strategy.Type)
	}
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	for _, arg := range []string{"run", "s3://backups/quotes", "--server=quotes-gateway.prod.svc:7600",
		"--name=prod.quotes", "--stay", "--http=:7621", "--tls-dir=" + TLSDir} {
		if !slices.Contains(c.Args, arg) {
			t.Errorf("no %s in %v", arg, c.Args)
		}
	}
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil {
			env[e.Name] = e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
		}
	}
	if len(env) != 3 || env["AWS_ACCESS_KEY_ID"] != "bucket/AWS_ACCESS_KEY_ID" ||
		env["AWS_SECRET_ACCESS_KEY"] != "bucket/AWS_SECRET_ACCESS_KEY" || env["AWS_CA_BUNDLE"] != credentialsDir+"/ca.crt" {
		t.Errorf("environment %v", env)
	}
	if d.Spec.Template.Annotations[annotationCredentials] != "abc" {
		t.Errorf("annotations %v", d.Spec.Template.Annotations)
	}
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	if mounts[pointsVolume] != pointsDir || !slices.Contains(c.Args, "--points-file=/etc/sheaf/points/wanted.json") {
		t.Errorf("mounts %v, args %v", mounts, c.Args)
	}
	if mounts[credentialsVolume] != credentialsDir || mounts[tlsVolume] != TLSDir {
		t.Errorf("mounts %v", mounts)
	}
	// The pod uses its ServiceAccount only to identify itself to the cloud. It has no token for the Kubernetes API.
	if pod.ServiceAccountName != "default" || *pod.AutomountServiceAccountToken {
		t.Errorf("ServiceAccount %q, token %t", pod.ServiceAccountName, *pod.AutomountServiceAccountToken)
	}
	archive.Spec.CredentialsSecretRef, archive.Spec.ServiceAccountName = nil, "sheaf-archive"
	in.Credentials = nil
	pod = ArchiveDeployment(in).Spec.Template.Spec
	if pod.ServiceAccountName != "sheaf-archive" || len(pod.Containers[0].Env) != 0 {
		t.Errorf("ServiceAccount %q, environment %v", pod.ServiceAccountName, pod.Containers[0].Env)
	}
}

// An archiver deletes nothing unless it is told to.
func TestArchiveRetentionIsFlags(t *testing.T) {
	points := &v1alpha1.ArchivePoints{Schedule: "0 3 * * *"}
	keep := &v1alpha1.ArchiveKeep{Window: &metav1.Duration{Duration: 48 * time.Hour}, Points: 7}
	for want, retention := range map[string]v1alpha1.ArchiveRetention{
		"":                            {},
		"--points-schedule=0 3 * * *": {Points: points, Keep: keep, Prune: v1alpha1.PruneNever},
		"--prune":                     {Prune: v1alpha1.PruneDelete},
		"--points-schedule=0 3 * * * --prune --keep-window=48h0m0s --keep-points=7": {Points: points, Keep: keep,
			Prune: v1alpha1.PruneDelete},
	} {
		if got := strings.Join(retentionArgs(&retention), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// If an archive has a limit, each shard gets this limit as a flag. Without a limit, shards get no flag for archives.
func TestArchiveLimitIsAShardFlag(t *testing.T) {
	store, pool := &v1alpha1.RecordStore{}, &v1alpha1.ShardPool{}
	for hold, want := range map[int64]bool{0: false, 1 << 30: true} {
		set, err := ShardSet(ShardInput{Store: store, Pool: pool, HoldBytes: hold})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(set.Spec.Template.Spec.Containers[0].Args, func(arg string) bool {
			return arg == "--archive-hold-max=1073741824"
		}); got != want {
			t.Errorf("hold %d: %t", hold, got)
		}
	}
}

// The pod of an archive connects to a bucket outside the cluster. It has no reason to connect to etcd, so the
// NetworkPolicy does not allow it.
func TestTheArchiveDoesNotReachEtcd(t *testing.T) {
	store := &v1alpha1.RecordStore{}
	store.Name, store.Spec.Etcd.Managed = "quotes", &v1alpha1.ManagedEtcd{Members: 3}
	for _, p := range NetworkPolicies(store, "sheaf-system") {
		if p.Policy.Name != Etcd("quotes") {
			continue
		}
		peer := p.Policy.Spec.Ingress[0].From[0].PodSelector
		if len(peer.MatchExpressions) != 1 || peer.MatchExpressions[0].Values[0] != ContainerArchive {
			t.Errorf("etcd lets in %+v", peer)
		}
	}
}

// Encryption keys are files of a volume, and never environment variables. New keys change the template, so the pod is
// replaced.
func TestEncryptionKeysAreFiles(t *testing.T) {
	encryption := &v1alpha1.ArchiveEncryption{SecretRef: v1alpha1.ArchiveSecretReference{Name: "keys"}}
	store := restoredStore()
	archive := &v1alpha1.RecordArchive{}
	archive.Spec.URL, archive.Spec.CredentialsSecretRef = "s3://backups/quotes", store.Spec.Restore.CredentialsSecretRef
	archive.Spec.Drill = &v1alpha1.ArchiveDrill{}
	templates := func(hash string) []corev1.PodTemplateSpec {
		in := ArchiveInput{Store: store, Archive: archive, CredentialsHash: "abc", KeysHash: hash}
		return []corev1.PodTemplateSpec{ArchiveDeployment(in).Spec.Template, DrillJob(in).Spec.Template,
			RestoreDeployment(RestoreInput{Store: store, CredentialsHash: "abc", KeysHash: hash}).Spec.Template}
	}
	for _, template := range templates("") {
		if _, ok := template.Annotations[annotationKeys]; ok || slices.ContainsFunc(template.Spec.Volumes,
			func(v corev1.Volume) bool { return v.Name == keysVolume }) {
			t.Errorf("keys without encryption: %+v", template)
		}
	}
	archive.Spec.Encryption, store.Spec.Restore.Encryption = encryption, encryption
	for _, template := range templates("def") {
		c := template.Spec.Containers[0]
		volume := slices.IndexFunc(template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == keysVolume })
		mount := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == keysVolume })
		if volume < 0 || mount < 0 || template.Spec.Volumes[volume].Secret.SecretName != "keys" ||
			*template.Spec.Volumes[volume].Secret.DefaultMode != 0o440 || !c.VolumeMounts[mount].ReadOnly ||
			c.VolumeMounts[mount].MountPath != keysDir || !slices.Contains(c.Args, "--encryption-keys="+keysDir) {
			t.Errorf("volumes %+v, mounts %+v, arguments %v", template.Spec.Volumes, c.VolumeMounts, c.Args)
		}
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.SecretKeyRef.Name == "keys"
		}) {
			t.Errorf("environment %+v", c.Env)
		}
		if template.Annotations[annotationKeys] != "def" || template.Annotations[annotationCredentials] != "abc" {
			t.Errorf("annotations %v", template.Annotations)
		}
	}
}
