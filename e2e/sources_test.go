//go:build e2e

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/test/issuertest"
)

// fakeCertManager simulates cert-manager with some issuers. It signs the Certificates in a namespace until the scenario
// ends. Certificates with any other issuer are not signed.
type fakeCertManager struct {
	s       *space
	issuers map[string]*authority.Authority // by name
	signed  map[string]string               // for each Certificate, the request that was signed
}

func (s *space) newStandIn(names ...string) *fakeCertManager {
	GinkgoHelper()
	i := &fakeCertManager{s: s, issuers: map[string]*authority.Authority{}, signed: map[string]string{}}
	for _, name := range names {
		a, err := authority.New("e2e "+name, time.Now(), authority.Lifetime)
		Expect(err).NotTo(HaveOccurred())
		i.issuers[name] = a
	}
	return i
}

// start signs Certificates repeatedly until the scenario ends.
func (i *fakeCertManager) start() {
	stop := make(chan struct{})
	var works sync.WaitGroup
	works.Go(func() {
		turns := time.NewTicker(time.Second)
		defer turns.Stop()
		for {
			select {
			case <-turns.C:
				if err := i.signRequested(); err != nil {
					GinkgoWriter.Println("stand-in issuer:", err) // the next turn will try again
				}
			case <-stop:
				return
			}
		}
	})
	DeferCleanup(func() {
		close(stop)
		works.Wait()
	})
}

// signRequested signs each Certificate whose current request has not been signed yet.
func (i *fakeCertManager) signRequested() error {
	var list struct{ Items []json.RawMessage }
	if err := get(&list, "certificates.cert-manager.io", "-n", i.s.name); err != nil {
		return err
	}
	for _, text := range list.Items {
		c, err := issuertest.Parse(text)
		if err != nil {
			return err
		}
		issuer := i.issuers[c.Spec.IssuerRef.Name]
		want := c.Spec.IssuerRef.Name + fmt.Sprint(c.Metadata.Generation)
		if issuer == nil || i.signed[c.Metadata.Name] == want {
			continue
		}
		if err := i.sign(c, issuer); err != nil {
			return err
		}
		i.signed[c.Metadata.Name] = want
	}
	return nil
}

// sign writes the Secret of a Certificate, and reports in the Certificate's status that it is ready.
func (i *fakeCertManager) sign(c *issuertest.Certificate, issuer *authority.Authority) error {
	data, err := issuertest.Sign(issuer, c, time.Now())
	if err != nil {
		return err
	}
	encoded := map[string]string{}
	for key, content := range data {
		encoded[key] = base64.StdEncoding.EncodeToString(content)
	}
	secret, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": encoded,
		"metadata": map[string]any{"name": c.Spec.SecretName, "namespace": i.s.name, "labels": c.Spec.SecretTemplate.Labels},
	})
	if err != nil {
		return err
	}
	o := try(time.Minute, string(secret), "kubectl", "apply", "--server-side", "--field-manager=stand-in",
		"--force-conflicts", "-f", "-")
	if o.err != nil {
		return fmt.Errorf("write Secret %s: %w: %s", c.Spec.SecretName, o.err, o.words)
	}
	ready, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []map[string]any{{
		"type": "Ready", "status": "True", "reason": "Ready", "message": "signed",
		"observedGeneration": c.Metadata.Generation,
		"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
	}}}})
	if err != nil {
		return err
	}
	o = try(time.Minute, "", "kubectl", "patch", "certificates.cert-manager.io", c.Metadata.Name, "-n", i.s.name,
		"--subresource=status", "--type=merge", "-p", string(ready))
	if o.err != nil {
		return fmt.Errorf("say that Certificate %s is ready: %w: %s", c.Metadata.Name, o.err, o.words)
	}
	return nil
}

// A store gets its certificates from cert-manager. The kind Certificate comes from e2e/testdata, and fakeCertManager
// simulates the issuers. The store opens no port before all certificates are signed. It then changes to another
// issuer, and to the operator's own certificates, while callers put and get.
var _ = Describe("certificates of cert-manager", SpecPriority(1), func() {
	It("are waited for, spoken with, and give way to others under load", func() {
		kind, err := os.ReadFile(filepath.Join(root, "e2e/testdata/certificates.yaml"))
		Expect(err).NotTo(HaveOccurred())
		apply(string(kind))
		// The kind is removed after the store.
		DeferCleanup(func() { kubectl("delete", "crd", "certificates.cert-manager.io", "--ignore-not-found") })
		kubectl("wait", "--for=condition=Established", "crd/certificates.cert-manager.io", "--timeout=60s")
		s := newSpace("certmanager")
		issuers := s.newStandIn("first", "second")
		s.makeStore(s.threeDisks(), "tls: {source: CertManager, certManager: {issuerRef: {name: first}}, clients: [reader]}")
		class := s.name + "-shards"
		s.diskSet(class, "ext4", diskSpec{"n1", s.disk("n1", "cm-a", "256M"), "240Mi"},
			diskSpec{"n2", s.disk("n2", "cm-b", "256M"), "240Mi"})
		s.makePool("main", class, 2)

		By("waited for: nothing is opened before")
		Eventually(func(g Gomega) {
			store := s.storeQ(g)
			g.Expect(condition(store.Status.Conditions, v1alpha1.ConditionCertificates)).To(And(
				HaveField("Status", BeEquivalentTo("False")), HaveField("Reason", trust.ReasonNotIssued),
				HaveField("Message", ContainSubstring("Certificate q-gateway-tls-server is not ready"))))
		}).WithTimeout(2 * time.Minute).Should(Succeed())
		Expect(kubectl("get", "statefulsets,deployments,pods", "-n", s.name, "-o", "name")).To(BeEmpty())

		By("what the store speaks with")
		issuers.start()
		s.awaitStore("q", 4*time.Minute)
		s.client()
		s.put("q", 1, "by cert-manager")
		Expect(s.get("q", 1)).To(Equal("by cert-manager"))
		content, err := s.secret("main-0-tls")
		Expect(err).NotTo(HaveOccurred())
		Expect(slices.Sorted(maps.Keys(content))).To(ContainElements("client.crt", "client.key", "tls.crt", "tls.key"))
		o := try(time.Minute, "", "kubectl", "exec", "-n", s.name, "client", "--", "/sheaf", "get", "1", "--timeout=5s",
			"--server",
			fmt.Sprintf("q-gateway.%s.svc:7600", s.name))
		Expect(o.err).To(HaveOccurred(), "in plaintext: %v", o)
		l := s.newLoad()
		shards := s.pods("sheaf.dev/pool=main")
		Expect(shards).To(HaveLen(2))

		// changeUnderLoad patches the store under load, and waits until the store's processes trust only the new authorities.
		changeUnderLoad := func(patch string) {
			GinkgoHelper()
			before := s.storeQ(Default)
			l.start()
			l.awaitCalls(100)
			kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", patch)
			Eventually(func(g Gomega) {
				store := s.storeQ(g)
				now, words := store.Status.TLS, condition(store.Status.Conditions, v1alpha1.ConditionCertificates)
				g.Expect(now.Bundle != before.Status.TLS.Bundle && now.Phase == v1alpha1.TLSReady && now.Reported == now.Processes).
					To(BeTrue(), "%+v: %v", now, words)
			}).WithTimeout(8 * time.Minute).Should(Succeed())
			l.finish(100)
			for name, p := range s.pods("sheaf.dev/pool=main") {
				Expect(p.Metadata.UID).To(Equal(shards[name].Metadata.UID), "%s was made anew", name)
				Expect(p.Status.ContainerStatuses[0].RestartCount).To(Equal(shards[name].Status.ContainerStatuses[0].RestartCount),
					"%s has restarted", name)
			}
		}

		if os.Getenv("E2E_LONG") != "" { // only in long runs, because a change of authorities takes 6 minutes
			By("another issuer, under load")
			changeUnderLoad(`{"spec": {"tls": {"certManager": {"issuerRef": {"name": "second"}}}}}`)
			content, err := s.secret("q-admin-tls")
			Expect(err).NotTo(HaveOccurred())
			Expect(content["ca.crt"]).To(BeEquivalentTo(issuers.issuers["second"].CertificatePEM()))
		}

		By("the operator's own, under load: those of cert-manager are taken away")
		changeUnderLoad(`{"spec": {"tls": {"source": "Operator", "certManager": null}}}`)
		Eventually(func() string {
			return kubectl("get", "certificates.cert-manager.io", "-n", s.name, "-o", "name")
		}).WithTimeout(time.Minute).Should(BeEmpty())
		Eventually(func() string {
			return strings.Join(strings.Fields(kubectl("get", "secrets", "-n", s.name, "-o", "name")), " ")
		}).WithTimeout(time.Minute).ShouldNot(MatchRegexp(`-tls-(server|client)\b`))
		Expect(s.get("q", 1)).To(Equal("by cert-manager"))
	})
})
