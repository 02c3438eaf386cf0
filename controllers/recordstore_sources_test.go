package controllers

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/issuertest"
)

var certificates = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "CertificateList"}

// certificateKind is the definition of kind Certificate, which the tests of cert-manager install and remove.
func certificateKind() *unstructured.Unstructured {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "e2e", "testdata", "certificates.yaml"))
	Expect(err).NotTo(HaveOccurred())
	out := &unstructured.Unstructured{}
	Expect(yaml.Unmarshal(text, &out.Object)).To(Succeed())
	return out
}

// listCertificates returns the Certificates in the namespace of the simulated cluster.
func (p *storePlay) listCertificates(ctx context.Context) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(certificates)
	err := api.List(ctx, list, client.InNamespace(p.Namespace))
	return list.Items, err
}

// installCertManager installs the kind Certificate in the cluster permanently.
func (p *storePlay) installCertManager(ctx context.Context) {
	GinkgoHelper()
	if err := api.Create(ctx, certificateKind()); !apierrors.IsAlreadyExists(err) {
		Expect(err).NotTo(HaveOccurred())
	}
	Eventually(func() error {
		_, err := p.listCertificates(ctx)
		return err
	}).Should(Succeed())
}

// issuers simulates cert-manager with several issuers, which are identified by their names. An issuer without an
// authority never signs anything.
type issuers struct {
	play      *storePlay
	by        map[string]*authority.Authority
	change    func(data map[string][]byte)           // changes the data of each Secret; nil if nothing is to be changed
	condition func(name string) (status, why string) // condition of a Certificate that is not signed; nil if it has none
}

// issue signs each Certificate that is unsigned, and each one whose signed certificate no longer matches the request.
func (i *issuers) issue(ctx context.Context) {
	GinkgoHelper()
	all, err := i.play.listCertificates(ctx)
	Expect(err).NotTo(HaveOccurred())
	for n := range all {
		text, err := json.Marshal(all[n].Object)
		Expect(err).NotTo(HaveOccurred())
		asked, err := issuertest.Parse(text)
		Expect(err).NotTo(HaveOccurred())
		a := i.by[asked.Spec.IssuerRef.Name]
		if a == nil {
			if i.condition != nil {
				status, why := i.condition(asked.Metadata.Name)
				i.say(ctx, &all[n], status, why)
			}
			continue
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: i.play.Namespace, Name: asked.Spec.SecretName}}
		err = api.Get(ctx, client.ObjectKeyFromObject(secret), secret)
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		const of = "signed-for"
		want := string(a.CertificatePEM()) + strings.Join(asked.Spec.DNSNames, " ")
		if secret.Annotations[of] != want {
			data, err := issuertest.Sign(a, asked, i.play.clock())
			Expect(err).NotTo(HaveOccurred())
			if i.change != nil {
				i.change(data)
			}
			secret.Data, secret.Labels, secret.Annotations = data, asked.Spec.SecretTemplate.Labels, map[string]string{of: want}
			if secret.UID == "" {
				Expect(api.Create(ctx, secret)).To(Succeed())
			} else {
				Expect(api.Update(ctx, secret)).To(Succeed())
			}
		}
		i.say(ctx, &all[n], "True", "Certificate is up to date and has not expired")
	}
}

func (i *issuers) say(ctx context.Context, c *unstructured.Unstructured, status, why string) {
	GinkgoHelper()
	condition := map[string]any{"type": "Ready", "status": status, "message": why, "observedGeneration": c.GetGeneration()}
	before := c.DeepCopy()
	if had, _, _ := unstructured.NestedSlice(c.Object, "status", "conditions"); equality.Semantic.DeepEqual(had,
		[]any{condition}) {
		return
	}
	Expect(unstructured.SetNestedSlice(c.Object, []any{condition}, "status", "conditions")).To(Succeed())
	Expect(api.Status().Patch(ctx, c, client.MergeFrom(before))).To(Succeed())
}

// newAuthority creates an authority with the given name.
func newAuthority(name string) *authority.Authority {
	GinkgoHelper()
	a, err := authority.New(name, time.Now(), authority.Lifetime)
	Expect(err).NotTo(HaveOccurred())
	return a
}

// useCertManager makes a store request its certificates from the given issuer.
func useCertManager(issuer string) func(*v1alpha1.RecordStore) {
	return func(s *v1alpha1.RecordStore) {
		s.Spec.TLS = &v1alpha1.TLS{Source: v1alpha1.TLSFromCertManager, CertManager: &v1alpha1.TLSCertManager{
			IssuerRef: v1alpha1.TLSIssuerRef{Name: issuer, Kind: "ClusterIssuer"},
		}, Clients: []string{"reader"}}
	}
}

// useProvided makes a store use certificates from Secrets whose names begin with given-.
func useProvided(s *v1alpha1.RecordStore) {
	s.Spec.TLS = &v1alpha1.TLS{Source: v1alpha1.TLSProvided, Provided: &v1alpha1.TLSProvidedSecrets{
		SecretPrefix: "given-"}}
}

// hasProcesses reports whether any process of the store is running or could be started.
func (p *storePlay) hasProcesses(ctx context.Context) bool {
	GinkgoHelper()
	var sets appsv1.StatefulSetList
	var deployments appsv1.DeploymentList
	Expect(api.List(ctx, &sets, client.InNamespace(p.Namespace))).To(Succeed())
	Expect(api.List(ctx, &deployments, client.InNamespace(p.Namespace))).To(Succeed())
	return len(sets.Items)+len(deployments.Items) > 0
}

// forbiddenConfig returns a configuration whose requests to this path are refused, as they are if the role lacks a
// permission.
func forbiddenConfig(of *rest.Config, path string) *rest.Config {
	out := rest.CopyConfig(of)
	out.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			// Discovery is allowed for everybody.
			if !strings.Contains(request.URL.Path, path) || !strings.Contains(request.URL.Path, "/namespaces/") {
				return next.RoundTrip(request)
			}
			body := `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "cannot get resource certificates"}`
			return &http.Response{
				StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Request: request,
				Body: io.NopCloser(strings.NewReader(body)),
			}, nil
		})
	})
	return out
}

// rounds runs n rounds.
func (p *storePlay) rounds(ctx context.Context, n int) {
	for range n {
		_ = p.round(ctx) // the error may be a conflict, which a later round resolves
	}
}

// secretNames returns the names of the Secrets in the namespace of the simulated cluster.
func (p *storePlay) secretNames(ctx context.Context) (names []string) {
	GinkgoHelper()
	var list corev1.SecretList
	Expect(api.List(ctx, &list, client.InNamespace(p.Namespace))).To(Succeed())
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// The first spec needs a cluster without cert-manager. It then installs cert-manager for the other specs.
var _ = Describe("Certificates of other sources than the operator", ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
	It("are asked of cert-manager: nothing is opened before its issuer has signed all", needs("kinds that are made here"),
		func(ctx context.Context) {
			p := newStorePlay(ctx)
			now := time.Now()
			p.clock = func() time.Time { return now }
			_, err := p.listCertificates(ctx)
			Expect(err).To(HaveOccurred(), "the kind is there already")
			p.create(ctx, useCertManager("ca"))
			p.pool(ctx, 2)
			p.rounds(ctx, 3)
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "CertManagerMissing", "install cert-manager")
			Expect(p.hasProcesses(ctx)).To(BeFalse())

			p.installCertManager(ctx)
			cert := &issuers{play: p, by: map[string]*authority.Authority{}}
			p.issuers = cert
			p.rounds(ctx, 3)
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "CertificateNotReady",
				"Certificate quotes-gateway-tls-server is not ready",
				"its issuer has not answered since")
			cert.condition = func(name string) (string, string) { return "False", "issuer ca not found by " + name }
			p.rounds(ctx, 3)
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "CertificateNotReady",
				"issuer ca not found by quotes-gateway-tls-server")
			Expect(p.hasProcesses(ctx)).To(BeFalse())
			Expect(p.get(ctx).Status.TLS.Bundle).To(BeEmpty())

			By("an issuer that tells no authority")
			cert.by["ca"], cert.change = newAuthority("ca"), func(data map[string][]byte) { delete(data, "ca.crt") }
			p.rounds(ctx, 3)
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "IssuerWithoutAuthority",
				"quotes-gateway-tls-server has no ca.crt", "ACME")
			Expect(p.hasProcesses(ctx)).To(BeFalse())

			By("one that does")
			cert.by["ca"], cert.change = newAuthority("ca"), nil
			p.until(ctx, func(*v1alpha1.RecordStore) { now = now.Add(time.Minute) }, atRest(v1alpha1.TransportRequired))
			p.settle(ctx)
			p.ready(ctx)
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionTrue, "Ready",
				"3 of 3 processes use transport required")
			for _, name := range []string{"quotes-gateway-tls", "quotes-etcd-tls", "ssd-0-tls", "ssd-1-tls"} {
				data := p.secret(ctx, name).Data
				Expect(data).To(HaveKey("client.crt"), name)
				Expect(data["client.crt"]).NotTo(Equal(data["tls.crt"]), name)
				Expect(p.secret(ctx, name+"-server").OwnerReferences).To(ContainElement(HaveField("Kind", "Certificate")), name)
			}
			admin := p.secret(ctx, "quotes-admin-tls").Data
			Expect(admin).NotTo(HaveKey("client.crt"))
			Expect(admin["ca.crt"]).To(BeEquivalentTo(cert.by["ca"].CertificatePEM()))
			Expect(p.secret(ctx, "quotes-authority").Data).NotTo(HaveKey("ca.key"))
			Expect(p.secretNames(ctx)).To(ContainElements("quotes-client-reader-tls", "quotes-client-reader-tls-client",
				"quotes-operator-tls"))

			By("a caller and a shard that there are no more: what was made for them goes")
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.Clients = nil })
			pool := p.getPool(ctx)
			pool.Spec.Shards = new(int32(1))
			Expect(api.Update(ctx, pool)).To(Succeed())
			p.settle(ctx)
			Expect(p.secretNames(ctx)).NotTo(ContainElement(Or(HavePrefix("quotes-client-"), HavePrefix("ssd-1"))))
			Expect(p.secretNames(ctx)).To(ContainElements("ssd-0-tls", "ssd-0-tls-server", "ssd-0-tls-client"))
			left, err := p.listCertificates(ctx)
			Expect(err).NotTo(HaveOccurred())
			for i := range left {
				Expect(left[i].GetName()).NotTo(Or(HavePrefix("quotes-client-"), HavePrefix("ssd-1")))
			}
		})

	It("are not asked of a kind that the operator has no right to", needs("kinds that are made here and rights"),
		func(ctx context.Context) {
			p := newStorePlay(ctx)
			p.installCertManager(ctx)
			barred, err := client.NewWithWatch(forbiddenConfig(operatorConfig, "/apis/cert-manager.io/"),
				client.Options{Scheme: envScheme})
			Expect(err).NotTo(HaveOccurred())
			p.operator(acting)
			p.r.Trust.Live, p.r.Trust.Client = barred, barred
			p.create(ctx, useCertManager("ca"))
			p.rounds(ctx, 2)
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "CertManagerForbidden", "certManager.enabled")
			Expect(p.hasProcesses(ctx)).To(BeFalse())
		})

	It("take the place of the operator's, of another issuer's, and give it back: step by step, and nothing restarts",
		needs("kinds that are made here"), func(ctx context.Context) {
			p := newStorePlay(ctx)
			now := time.Now()
			p.clock = func() time.Time { return now }
			p.installCertManager(ctx)
			cert := &issuers{play: p, by: map[string]*authority.Authority{"a": newAuthority("a"), "b": newAuthority("b")}}
			p.issuers = cert
			p.create(ctx, withTLS(v1alpha1.TLSRequired))
			p.pool(ctx, 2)
			p.settle(ctx)
			p.until(ctx, nil, atRest(v1alpha1.TransportRequired))
			shards := p.uids(ctx, workload.ContainerShard)
			over := func(change func(*v1alpha1.RecordStore)) (phases []v1alpha1.TLSPhase) {
				GinkgoHelper()
				before := p.get(ctx).Status.TLS.Bundle
				p.change(ctx, change)
				p.until(ctx, func(s *v1alpha1.RecordStore) {
					now = now.Add(time.Minute)
					if phase := s.Status.TLS.Phase; !slices.Contains(phases, phase) {
						phases = append(phases, phase)
					}
				}, func(s *v1alpha1.TLSStatus) bool { return s.Bundle != before && atRest(v1alpha1.TransportRequired)(s) })
				p.settle(ctx)
				p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionTrue, "Ready")
				Expect(p.uids(ctx, workload.ContainerShard)).To(Equal(shards))
				return phases
			}
			steps := []v1alpha1.TLSPhase{v1alpha1.TLSTrusting, v1alpha1.TLSIssuing, v1alpha1.TLSDropping}
			Expect(over(useCertManager("a"))).To(ContainElements(steps))
			Expect(p.secret(ctx, "ssd-0-tls").Data["client.crt"]).To(Equal(p.secret(ctx, "ssd-0-tls-client").Data["tls.crt"]))
			Expect(over(useCertManager("b"))).To(ContainElements(steps))
			told := &corev1.ConfigMap{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-tls"}, told)).To(Succeed())
			Expect(told.Data["ca.crt"]).To(BeEquivalentTo(cert.by["b"].CertificatePEM()))

			By("the record of the authorities that is lost: it holds no keys, and is made again")
			Expect(api.Delete(ctx, p.secret(ctx, "quotes-authority"))).To(Succeed())
			p.until(ctx, func(*v1alpha1.RecordStore) { now = now.Add(time.Minute) }, atRest(v1alpha1.TransportRequired))
			p.secret(ctx, "quotes-authority")

			By("another issuer while the store goes over to one: all that was told stays trusted meanwhile")
			p.change(ctx, useCertManager("a"))
			p.until(ctx, func(*v1alpha1.RecordStore) {
				now = now.Add(time.Minute)
			}, func(s *v1alpha1.TLSStatus) bool { return s.Phase == v1alpha1.TLSIssuing })
			Expect(over(useCertManager("b"))).To(ContainElements(v1alpha1.TLSTrusting))

			Expect(over(withTLS(v1alpha1.TLSRequired))).To(ContainElements(steps))
			left, err := p.listCertificates(ctx)
			Expect(err).NotTo(HaveOccurred())
			Expect(left).To(BeEmpty())
			Expect(p.secret(ctx, "ssd-0-tls").Data).NotTo(HaveKey("client.crt"))
			Expect(p.secretNames(ctx)).NotTo(ContainElement(Or(Equal("quotes-operator-tls"), HaveSuffix("-server"),
				HaveSuffix("-client"))))
		})

	It("are read from Secrets of somebody else: what is bad is named, and what was good stays in use",
		func(ctx context.Context) {
			p := newStorePlay(ctx)
			now := time.Now()
			p.clock = func() time.Time { return now }
			p.create(ctx, useProvided)
			p.pool(ctx, 1)
			p.rounds(ctx, 3)
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "SecretMissing",
				"Secret given-gateway does not exist", "/gateway")
			Expect(p.hasProcesses(ctx)).To(BeFalse())
			own, other := newAuthority("own"), newAuthority("other")
			uid, err := uuid.Parse(p.get(ctx).Status.StoreUID)
			Expect(err).NotTo(HaveOccurred())
			store := identity.Store{Domain: "cluster.local", Namespace: p.Namespace, UID: uid}
			give := func(a *authority.Authority, name string, id identity.Identity, hosts []string,
				change func(*authority.Leaf, map[string][]byte)) {
				GinkgoHelper()
				id.Store = store
				leaf := authority.Leaf{Identity: id, DNSNames: hosts, Server: true, Client: true, Now: now,
					Lifetime: 90 * 24 * time.Hour}
				data := map[string][]byte{}
				if change != nil {
					change(&leaf, data)
				}
				cert, key, err := a.Issue(leaf)
				Expect(err).NotTo(HaveOccurred())
				made := map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": a.CertificatePEM()}
				maps.Copy(made, data)
				maps.DeleteFunc(made, func(_ string, content []byte) bool { return content == nil })
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name}, Data: made}
				if err := api.Create(ctx, secret); apierrors.IsAlreadyExists(err) {
					Expect(api.Update(ctx, secret)).To(Succeed())
				} else {
					Expect(err).NotTo(HaveOccurred())
				}
			}
			gateway := []string{"quotes-gateway." + p.Namespace + ".svc"}
			shard := []string{"ssd-0-0.ssd." + p.Namespace + ".svc"}
			giveAll := func(a *authority.Authority) {
				GinkgoHelper()
				give(a, "given-gateway", identity.Identity{Role: identity.Gateway}, gateway, nil)
				give(a, "given-operator", identity.Identity{Role: identity.Operator}, nil, nil)
				give(a, "given-etcd", identity.Identity{Role: identity.Etcd}, []string{"*.quotes-etcd." + p.Namespace + ".svc"},
					nil)
				give(a, "given-shard-ssd-0", identity.Identity{Role: identity.Shard, Name: "ssd-0"}, shard, nil)
			}
			giveAll(own)
			p.until(ctx, nil, atRest(v1alpha1.TransportRequired))
			p.settle(ctx)
			p.ready(ctx)
			shards := p.uids(ctx, workload.ContainerShard)
			mounted := p.secret(ctx, "ssd-0-tls").Data
			Expect(mounted["tls.crt"]).To(Equal(p.secret(ctx, "given-shard-ssd-0").Data["tls.crt"]))
			Expect(p.secretNames(ctx)).NotTo(ContainElement("quotes-admin-tls"), "there is no given-admin")
			given := p.secret(ctx, "given-shard-ssd-0")
			Expect(given.OwnerReferences).To(BeEmpty())
			Expect(given.Labels).To(BeEmpty())

			id := identity.Identity{Role: identity.Shard, Name: "ssd-0"}
			_, foreignKey, err := other.PEM()
			Expect(err).NotTo(HaveOccurred())
			for words, bad := range map[string]func(*authority.Leaf, map[string][]byte){
				"tls.crt: as a certificate of servers, by ca.crt: x509: certificate has expired or is not yet valid: " +
					"current time": func(l *authority.Leaf, _ map[string][]byte) {
					l.Now, l.Lifetime = now.Add(-100*24*time.Hour), 99*24*time.Hour
				},
				// Certificates become valid 2 h before they are issued, so this one is not valid for another hour.
				"is before": func(l *authority.Leaf, _ map[string][]byte) { l.Now = now.Add(3 * time.Hour) },
				"tls.crt and tls.key: tls: private key does not match public key": func(_ *authority.Leaf, d map[string][]byte) {
					d["tls.key"] = foreignKey
				},
				"by ca.crt: x509: certificate signed by unknown authority": func(_ *authority.Leaf, d map[string][]byte) {
					d["ca.crt"] = other.CertificatePEM()
				},
				"tls.crt and tls.key: tls: failed to find any PEM data in certificate input": func(_ *authority.Leaf,
					d map[string][]byte) {
					d["tls.crt"] = []byte("garbage")
				},
				"tls.key is missing":                 func(_ *authority.Leaf, d map[string][]byte) { d["tls.key"] = nil },
				"ca.crt is missing":                  func(_ *authority.Leaf, d map[string][]byte) { d["ca.crt"] = nil },
				"ca.crt holds no certificate in PEM": func(_ *authority.Leaf, d map[string][]byte) { d["ca.crt"] = []byte{} },
				"/shard/ssd-1, and has to name":      func(l *authority.Leaf, _ map[string][]byte) { l.Identity.Name = "ssd-1" },
				"incompatible key usage":             func(l *authority.Leaf, _ map[string][]byte) { l.Client = false },
				"tls.crt lacks the DNS names by which others dial it: ssd-0-0.ssd.": func(l *authority.Leaf, _ map[string][]byte) {
					l.DNSNames = []string{"localhost"}
				},
				"client.key is missing": func(_ *authority.Leaf, d map[string][]byte) { d["client.crt"] = own.CertificatePEM() },
			} {
				By(words)
				give(own, "given-shard-ssd-0", id, shard, bad)
				now = now.Add(3 * time.Minute)
				p.rounds(ctx, 2)
				p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "SecretRefused",
					"Secret given-shard-ssd-0 cannot be used", words)
				Expect(p.secret(ctx, "ssd-0-tls").Data).To(Equal(mounted), words)
				p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "Available")
				give(own, "given-shard-ssd-0", id, shard, nil)
				p.rounds(ctx, 2)
				p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionTrue, "Ready")
				Expect(p.secret(ctx, "ssd-0-tls").Data["tls.crt"]).To(Equal(p.secret(ctx, "given-shard-ssd-0").Data["tls.crt"]))
				mounted = p.secret(ctx, "ssd-0-tls").Data
			}
			By("a Secret that is deleted")
			Expect(api.Delete(ctx, p.secret(ctx, "given-shard-ssd-0"))).To(Succeed())
			now = now.Add(3 * time.Minute)
			p.rounds(ctx, 2)
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "SecretMissing", "given-shard-ssd-0")
			Expect(p.secret(ctx, "ssd-0-tls").Data).To(Equal(mounted))

			By("authorities of callers, and an administrator")
			callers := newAuthority("callers")
			give(own, "given-shard-ssd-0", id, shard, nil)
			give(callers, "given-admin", identity.Identity{Role: identity.Admin, Name: "admin"}, nil,
				func(l *authority.Leaf, d map[string][]byte) {
					l.Server = false
					d["ca.crt"], d["client-ca.crt"] = own.CertificatePEM(), callers.CertificatePEM()
				})
			p.until(ctx, func(*v1alpha1.RecordStore) { now = now.Add(time.Minute) }, func(s *v1alpha1.TLSStatus) bool {
				return s.ClientBundle != s.Bundle && atRest(v1alpha1.TransportRequired)(s)
			})
			Expect(p.secret(ctx, "quotes-admin-tls").Data).To(And(
				HaveKeyWithValue("client-ca.crt", BeEquivalentTo(callers.CertificatePEM())),
				HaveKeyWithValue("ca.crt", BeEquivalentTo(own.CertificatePEM()))))
			Expect(api.Delete(ctx, p.secret(ctx, "given-admin"))).To(Succeed())
			p.until(ctx, func(*v1alpha1.RecordStore) { now = now.Add(time.Minute) }, func(s *v1alpha1.TLSStatus) bool {
				return s.ClientBundle == s.Bundle && atRest(v1alpha1.TransportRequired)(s)
			})
			Expect(p.secretNames(ctx)).NotTo(ContainElement("quotes-admin-tls"))

			By("another authority in one Secret: both are trusted, for as long as both are there")
			was := p.get(ctx).Status.TLS.Bundle
			give(other, "given-gateway", identity.Identity{Role: identity.Gateway}, gateway, nil)
			p.until(ctx, func(*v1alpha1.RecordStore) { now = now.Add(time.Minute) }, func(s *v1alpha1.TLSStatus) bool {
				return s.Bundle != was && atRest(v1alpha1.TransportRequired)(s)
			})
			Expect(p.secret(ctx, "quotes-gateway-tls").Data["tls.crt"]).To(Equal(p.secret(ctx, "given-gateway").Data["tls.crt"]))
			Expect(p.secret(ctx, "ssd-0-tls").Data["tls.crt"]).To(Equal(p.secret(ctx, "given-shard-ssd-0").Data["tls.crt"]))

			By("the same in all Secrets")
			giveAll(other)
			seen := map[v1alpha1.TLSPhase]bool{}
			first := p.get(ctx).Status.TLS.Bundle
			p.until(ctx, func(s *v1alpha1.RecordStore) {
				now, seen[s.Status.TLS.Phase] = now.Add(time.Minute), true
			}, func(s *v1alpha1.TLSStatus) bool { return s.Bundle != first && atRest(v1alpha1.TransportRequired)(s) })
			Expect(seen).To(HaveLen(4))
			Expect(p.uids(ctx, workload.ContainerShard)).To(Equal(shards))
			told := &corev1.ConfigMap{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-tls"}, told)).To(Succeed())
			Expect(told.Data["ca.crt"]).To(BeEquivalentTo(other.CertificatePEM()))
		})
})
