//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// makeForeignPod creates a pod in its own namespace. The pod has only a token for the store q and the store's
// authorities. The function run() runs the command line in the pod.
func (s *space) makeForeignPod() (namespace string, run func(args ...string) output) {
	GinkgoHelper()
	other := newSpace(strings.TrimPrefix(s.name, "e2e-") + "-stranger")
	authorities := kubectl("get", "configmap", "q-tls", "-n", s.name, "-o", `jsonpath={.data.ca\.crt}`)
	apply(fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: q-authorities, namespace: %[1]s}
data: {ca.crt: %[4]q}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, namespace: %[1]s}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: client
    image: %[2]s
    imagePullPolicy: IfNotPresent
    args: [dev, --listen=127.0.0.1:7700, --http=127.0.0.1:7701, --dir=/scratch/dev, --shards=1, --groups=1]
    env:
    - {name: SHEAF_CA, value: /sheaf-access/ca.crt}
    - {name: SHEAF_TOKEN_FILE, value: /sheaf-access/token}
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: access, mountPath: /sheaf-access, readOnly: true}]
  volumes:
  - {name: scratch, emptyDir: {}}
  - name: access
    projected:
      sources:
      - {configMap: {name: q-authorities}}
      - {serviceAccountToken: {path: token, audience: sheaf/%[3]s/q, expirationSeconds: 600}}
`, other.name, image, s.name, authorities))
	kubectl("wait", "-n", other.name, "--for=condition=Ready", "pod/stranger", "--timeout=3m")
	return other.name, func(args ...string) output {
		args = append(args, "--server", fmt.Sprintf("q-gateway.%s.svc:7600", s.name), "--timeout", "10s")
		return try(time.Minute, "", "kubectl", append([]string{"exec", "-n", other.name, "stranger", "--", "/sheaf"},
			args...)...)
	}
}

// checkGrantOfPod checks that the store q admits a pod from another namespace while a grant names the pod, but
// neither before nor after that.
func (s *space) checkGrantOfPod() {
	GinkgoHelper()
	namespace, stranger := s.makeForeignPod()
	refused := func() {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			for _, call := range [][]string{{"get", "1"}, {"rm", "1"}} {
				o := stranger(call...)
				g.Expect(o.err).To(HaveOccurred(), "%v", o)
				g.Expect(o.words).To(ContainSubstring("serviceaccount/"+namespace+"/default may not"), "%v", o)
			}
		}).WithTimeout(2 * time.Minute).WithPolling(500 * time.Millisecond).Should(Succeed())
	}
	By("it is known, and may do nothing")
	refused()
	Eventually(func() string {
		return stranger("auth", "whoami").out
	}).WithTimeout(time.Minute).Should(ContainSubstring("serviceaccount/" + namespace + "/default"))
	By("a grant")
	apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: RecordGrant
metadata: {name: stranger, namespace: %s}
spec:
  storeRef: {name: q}
  subjects: [{kind: ServiceAccounts, namespace: %s}]
  verbs: [get]
  groups: {all: true}
`, s.name, namespace))
	kubectl("wait", "-n", s.name, "--for=condition=Ready", "recordgrant/stranger", "--timeout=2m")
	Eventually(func(g Gomega) {
		o := stranger("get", "1")
		g.Expect(o.err).NotTo(HaveOccurred(), "%v", o)
		g.Expect(o.out).To(Equal(s.get("q", 1)))
	}).WithTimeout(2 * time.Minute).WithPolling(500 * time.Millisecond).Should(Succeed())
	o := stranger("rm", "1")
	Expect(o.err).To(HaveOccurred(), "what is not granted: %v", o)
	By("its end")
	kubectl("delete", "recordgrant", "stranger", "-n", s.name)
	refused()
	Expect(s.get("q", 1)).NotTo(BeEmpty())
}
