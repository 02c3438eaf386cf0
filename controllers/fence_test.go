package controllers

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/internal/kube/workload"
)

// fenceOperator creates the policy that restricts the operator's account, and waits until the policy is in force. All
// specs on a real API server then run under this policy.
func fenceOperator(ctx context.Context) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "config", "rbac", "fence.yaml"))
	Expect(err).NotTo(HaveOccurred())
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for _, object := range []client.Object{&admissionregistrationv1.ValidatingAdmissionPolicy{},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}} {
		Expect(documents.Decode(object)).To(Succeed())
		Expect(api.Create(ctx, object)).To(Succeed())
	}
	Expect(documents.Decode(&corev1.ConfigMap{})).To(MatchError(io.EOF))
	fenced := accountClient()
	Eventually(func() bool {
		foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "foreign-"}}
		return apierrors.IsForbidden(fenced.Create(ctx, foreign, client.DryRunAll))
	}).Should(BeTrue())
}

// accountClient returns a client with the operator's account. Refused requests of this client do not count as faults of
// the operator.
func accountClient() client.Client {
	GinkgoHelper()
	config := rest.CopyConfig(envConfig)
	config.Impersonate = rest.ImpersonationConfig{UserName: operatorUser}
	account, err := client.New(config, client.Options{Scheme: envScheme})
	Expect(err).NotTo(HaveOccurred())
	return account
}

var _ = Describe("The fence around the operator's account", needs("an admission policy"), func() {
	refused := func(err error, words string) {
		GinkgoHelper()
		Expect(err).To(MatchError(ContainSubstring(words)))
		Expect(err).To(MatchError(ContainSubstring("sheaf-operator' with binding")))
	}
	const notMade = "changes only what it has made"

	It("keeps it from Secrets, pods and volumes that it has not made", func(ctx context.Context) {
		account, ns := accountClient(), newNamespace(ctx)
		at := metav1.ObjectMeta{Namespace: ns, Name: "theirs"}
		secret := &corev1.Secret{ObjectMeta: at}
		pod := &corev1.Pod{ObjectMeta: at, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
		}}
		for _, object := range []client.Object{secret, pod, volume} {
			if object != client.Object(pod) { // the operator's role does not allow it to create any pods
				refused(account.Create(ctx, object.DeepCopyObject().(client.Object)), notMade)
			}
			Expect(api.Create(ctx, object)).To(Succeed())
			refused(account.Delete(ctx, object), notMade)
			before := object.DeepCopyObject().(client.Object)
			object.SetLabels(workload.TLSLabels("quotes"))
			refused(account.Patch(ctx, object, client.MergeFrom(before)), notMade)
			Expect(api.Delete(ctx, object)).To(Succeed())
		}
		ours := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "ours", Labels: workload.TLSLabels("q")}}
		Expect(account.Create(ctx, ours)).To(Succeed())
		Expect(account.Delete(ctx, ours)).To(Succeed())
	})

	It("keeps it from pods with rights of others, or of the node", func(ctx context.Context) {
		account, ns := accountClient(), newNamespace(ctx)
		labels := workload.Labels("quotes", workload.ContainerGateway)
		deployment := func(change func(*corev1.PodSpec)) *appsv1.Deployment {
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "d-", Labels: labels}}
			d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
			d.Spec.Template.Labels = labels
			d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
			change(&d.Spec.Template.Spec)
			return d
		}
		Expect(account.Create(ctx, deployment(func(*corev1.PodSpec) {}))).To(Succeed())
		refused(account.Create(ctx, deployment(func(p *corev1.PodSpec) { p.ServiceAccountName = "admin" })),
			"gives pods no ServiceAccount")
		off := false
		archive := func(p *corev1.PodSpec) {
			p.ServiceAccountName, p.AutomountServiceAccountToken = "sheaf-archive-a", &off
		}
		Expect(account.Create(ctx, deployment(archive))).To(Succeed())
		for _, change := range []func(*corev1.PodSpec){
			func(p *corev1.PodSpec) { p.ServiceAccountName = "sheaf-archives" },
			func(p *corev1.PodSpec) { p.AutomountServiceAccountToken = nil },
			func(p *corev1.PodSpec) {
				p.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
						ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}}}}}
			},
		} {
			refused(account.Create(ctx, deployment(func(p *corev1.PodSpec) {
				archive(p)
				change(p)
			})), "gives pods no ServiceAccount")
		}
		for _, change := range []func(*corev1.PodSpec){
			func(p *corev1.PodSpec) { p.HostNetwork = true },
			func(p *corev1.PodSpec) { p.HostPID = true },
			func(p *corev1.PodSpec) {
				p.Volumes = []corev1.Volume{{Name: "a", VolumeSource: corev1.VolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
			},
			func(p *corev1.PodSpec) {
				p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
			},
			func(p *corev1.PodSpec) {
				p.InitContainers = []corev1.Container{{Name: "b", Image: "b",
					SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}}
			},
		} {
			refused(account.Create(ctx, deployment(change)), "gives pods nothing of the node")
		}
	})
})
