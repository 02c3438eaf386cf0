package workload

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func restoredStore() *v1alpha1.RecordStore {
	store := &v1alpha1.RecordStore{}
	store.Namespace, store.Name = "prod", "quotes"
	store.Status.StoreUID = "11111111-9a53-4a6e-8a38-6a4c1e6f0d5b"
	store.Status.TLS = &v1alpha1.TLSStatus{Transport: v1alpha1.TransportRequired}
	store.Spec.Restore = &v1alpha1.Restore{URL: "s3://backups/quotes", StoreUID: "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b",
		CredentialsSecretRef: &v1alpha1.ArchiveSecretReference{Name: "bucket"}}
	return store
}

func TestSourceOfARestore(t *testing.T) {
	store := restoredStore()
	d := RestoreDeployment(RestoreInput{Store: store, Image: "sheaf-archive:1", Credentials: []string{"AWS_ACCESS_KEY_ID"},
		CredentialsHash: "abc"})
	if d.Name != "quotes-restore" || *d.Spec.Replicas != 1 ||
		d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Errorf("%s, %d, %s", d.Name, *d.Spec.Replicas, d.Spec.Strategy.Type)
	}
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	if slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--group") }) {
		t.Errorf("all groups are restored: %v", c.Args)
	}
	for _, arg := range []string{"source", "s3://backups/quotes", "--store=6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b",
		"--into=11111111-9a53-4a6e-8a38-6a4c1e6f0d5b", "--listen=:7640", "--http=:7641", "--tls-dir=" + TLSDir} {
		if !slices.Contains(c.Args, arg) {
			t.Errorf("no %s in %v", arg, c.Args)
		}
	}
	if c.Image != "sheaf-archive:1" || len(c.Env) != 1 || c.Env[0].ValueFrom.SecretKeyRef.Name != "bucket" ||
		d.Spec.Template.Annotations[annotationCredentials] != "abc" {
		t.Errorf("image %s, environment %v, annotations %v", c.Image, c.Env, d.Spec.Template.Annotations)
	}
	// The pod uses its ServiceAccount only to identify itself to the cloud. It has no token for the Kubernetes API.
	if pod.ServiceAccountName != "default" || *pod.AutomountServiceAccountToken {
		t.Errorf("ServiceAccount %q, token %t", pod.ServiceAccountName, *pod.AutomountServiceAccountToken)
	}
	if got := pod.Volumes[0].Projected.Sources[0].Secret.Name; got != "quotes-restore-tls" {
		t.Errorf("certificate %s", got)
	}
	service := RestoreService(store)
	if service.Spec.Ports[0].Port != PortRestore || service.Spec.Selector[v1alpha1.LabelComponent] != ContainerRestore ||
		RestoreAddress("prod", "quotes") != "quotes-restore.prod.svc:7640" {
		t.Errorf("%+v, %s", service.Spec, RestoreAddress("prod", "quotes"))
	}
	if !slices.Contains(RestoreNames(store), strings.TrimSuffix(RestoreAddress("prod", "quotes"), ":7640")) {
		t.Errorf("the certificate has not the name that is dialled: %q", RestoreNames(store))
	}
	store.Spec.Restore.CredentialsSecretRef, store.Spec.Restore.ServiceAccountName = nil, "sheaf-archive"
	store.Spec.Restore.Groups = []string{"eu", "us"}
	pod = RestoreDeployment(RestoreInput{Store: store, Image: "a"}).Spec.Template.Spec
	if args := pod.Containers[0].Args; !slices.Contains(args, "--group=eu") || !slices.Contains(args, "--group=us") {
		t.Errorf("some groups are restored: %v", args)
	}
	if pod.ServiceAccountName != "sheaf-archive" || len(pod.Containers[0].Env) != 0 {
		t.Errorf("ServiceAccount %q, environment %v", pod.ServiceAccountName, pod.Containers[0].Env)
	}
}

// A source that starts again serves the same state as before.
func TestASourceServesTheStateWithWhichTheRestoreBegan(t *testing.T) {
	for name, c := range map[string]struct {
		time, point, recorded string
		want                  []string
	}{
		"nothing is known yet": {},
		"the end, which is recorded": {recorded: "2026-11-01T12:00:00.5Z",
			want: []string{"--up-to=2026-11-01T12:00:00.5Z"}},
		"a time": {time: "2026-11-01T12:00:00+01:00", recorded: "2026-11-01T11:00:00Z",
			want: []string{"--time=2026-11-01T12:00:00+01:00"}},
		"a point": {point: "p", recorded: "2026-11-01T11:00:00Z", want: []string{"--point=p"}},
	} {
		store := restoredStore()
		store.Spec.Restore.Time, store.Spec.Restore.Point = c.time, c.point
		if c.recorded != "" {
			store.Status.Restore = &v1alpha1.RestoreStatus{Time: c.recorded}
		}
		if got := RestorePoint(store); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Only pods of the store reach the source's groups. The source has no reason to connect to etcd.
func TestNetworkPolicyOfARestore(t *testing.T) {
	store := restoredStore()
	store.Spec.Etcd.Managed = &v1alpha1.ManagedEtcd{Members: 3}
	for _, restores := range []bool{true, false} {
		if !restores {
			store.Spec.Restore = nil
		}
		found := false
		for _, p := range NetworkPolicies(store, "sheaf-system") {
			switch p.Policy.Name {
			case Restore("quotes"):
				found = true
				rule := p.Policy.Spec.Ingress[0]
				if p.Wanted != restores || rule.Ports[0].Port.IntVal != PortRestore || len(rule.From) != 1 ||
					rule.From[0].PodSelector.MatchLabels[v1alpha1.LabelStore] != "quotes" {
					t.Errorf("restores %t: wanted %t, %+v", restores, p.Wanted, rule)
				}
			case Etcd("quotes"):
				not := p.Policy.Spec.Ingress[0].From[0].PodSelector.MatchExpressions[0].Values
				if !slices.Contains(not, ContainerRestore) {
					t.Errorf("etcd lets in all but %q", not)
				}
			}
		}
		if !found {
			t.Error("no policy")
		}
	}
}
