//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Scenario 1: two Helm commands install everything on a cluster that enforces Pod Security "restricted".
var _ = Describe("installing", Ordered, smoke, func() {
	const values = `
store:
  groups: {routing: Hash, count: 16}
  etcd: {managed: {members: 1, storage: {storageClassName: install-ext4, size: 128Mi}}}
  gateway: {replicas: 2}
pools:
  main:
    shards: 2
    storage: {storageClassName: install-ext4, size: 128Mi}
    fileSystem: {type: ext4}
`
	var s *space
	BeforeAll(func() {
		s = newSpace("install")
		var disks []diskSpec
		for n := range 3 {
			node := fmt.Sprintf("n%d", n+1)
			disks = append(disks, diskSpec{node, s.disk(node, "install", "256M"), "240Mi"})
		}
		s.diskSet("install-ext4", "ext4", disks...)
	})

	It("returns from helm --wait when the store serves, and not before", func() {
		file := filepath.Join(GinkgoT().TempDir(), "values.yaml")
		Expect(os.WriteFile(file, []byte(values), 0o600)).To(Succeed())
		o := try(4*time.Minute, "", "helm", "upgrade", "--install", "quotes", "charts/sheaf-store", "--namespace", s.name,
			"--wait",
			"--timeout", "3m", "-f", file,
			"--set", "test.image.repository="+repository(image), "--set", "test.image.tag="+tag(image))
		Expect(o.err).NotTo(HaveOccurred(), "%v", o)
		Expect(o.words).NotTo(ContainSubstring("Warning"))
		// The status is read only once. If something is missing now, helm did not wait for it.
		store, err := s.store("quotes")
		Expect(err).NotTo(HaveOccurred())
		Expect(condition(store.Status.Conditions, v1alpha1.ConditionReady)).To(HaveField("Status", metav1.ConditionTrue))
		Expect(store.Status.Groups).To(HaveField("Serving", int32(16)))
		pool, err := s.pool("quotes-main")
		Expect(err).NotTo(HaveOccurred())
		Expect(condition(pool.Status.Conditions, v1alpha1.ConditionReady)).To(HaveField("Status", metav1.ConditionTrue))
	})

	It("passes helm test right after", func() {
		must(3*time.Minute, "", "helm", "test", "quotes", "--namespace", s.name, "--timeout", "2m")
	})

	It("serves the first record by the Service's name", func() {
		s.client()
		s.put("quotes", 42, "hello")
		Expect(s.get("quotes", 42)).To(Equal("hello"))
	})

	It("shows what is there", func() {
		Expect(kubectl("get", "sheaf", "-n", s.name)).To(And(ContainSubstring("recordstore"), ContainSubstring("shardpool"),
			ContainSubstring("True")))
		Expect(kubectl("get", "shards", "-n", s.name)).To(And(ContainSubstring("STATE"), ContainSubstring("Serving")))
	})

	It("shows it on one screen by the plugin of kubectl, and what moves", func() {
		Eventually(func(g Gomega) { // a gateway or shard that responds late is briefly reported as a problem
			screen := try(time.Minute, "", "kubectl", "sheaf", "status", "quotes", "-n", s.name, "--width=80")
			g.Expect(screen.err).NotTo(HaveOccurred(), "%v", screen) // exit code 0 means that there is no problem
			for _, words := range []string{
				"RecordStore " + s.name + "/quotes: Ready", "16 of 16 serve", "SHARDS  2 of 2 serve", "quotes-main-1",
				"MOVES  nothing moves",
				"ETCD  1 of 1 members are ready", "GATEWAYS  2 of 2 are ready", "install-ext4",
			} {
				g.Expect(screen.out).To(ContainSubstring(words), screen.out)
			}
			moves := try(time.Minute, "", "kubectl", "sheaf", "moves", "-n", s.name)
			g.Expect(moves.out).To(Equal("nothing moves\n"), "%v", moves)
		}).WithTimeout(2 * time.Minute).Should(Succeed())
	})

	It("brings a gateway to this machine, and another one when that goes", func() {
		ctx, cancel := context.WithCancel(context.Background())
		forward := exec.CommandContext(ctx, tool("kubectl"), "sheaf", "port-forward", "quotes", "-n", s.name, "--port=17600",
			"--http-port=17601")
		forward.Stdout, forward.Stderr = GinkgoWriter, GinkgoWriter
		Expect(forward.Start()).To(Succeed())
		DeferCleanup(func() {
			cancel()
			_ = forward.Wait() // Wait returns an error, because the process was killed
		})
		caller := http.Client{Timeout: 3 * time.Second}
		ready := func() error {
			answer, err := caller.Get("http://127.0.0.1:17601/readyz")
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return fmt.Errorf("status %s", answer.Status)
			}
			return nil
		}
		Eventually(ready).WithTimeout(time.Minute).Should(Succeed())
		kubectl("delete", "pods", "-n", s.name, "-l", "app.kubernetes.io/component=gateway", "--grace-period=1",
			"--wait=true", "--timeout=60s")
		Eventually(ready).WithTimeout(time.Minute).Should(Succeed())
		kubectl("rollout", "status", "-n", s.name, "deployment/quotes-gateway", "--timeout=2m")
	})

	It("gathers a report without secrets", func() {
		const secret = "hunter2hunter2"
		kubectl("create", "secret", "generic", "quotes-secret", "-n", s.name, "--from-literal=password="+secret)
		kubectl("annotate", "recordstore", "quotes", "-n", s.name, "example.org/api-token="+secret)
		file := filepath.Join(GinkgoT().TempDir(), "report.tar.gz")
		kubectl("sheaf", "report", "quotes", "-n", s.name, "--live-timeout=1m", "--output", file)
		var files strings.Builder
		for _, name := range strings.Fields(must(time.Minute, "", "tar", "tzf", file)) {
			files.WriteString(name + "\n")
		}
		for _, name := range []string{
			"status.txt", "findings.json", "live/groups.json", "objects/recordstore/quotes.yaml",
			"objects/networkpolicy/quotes-etcd.yaml",
			"logs/quotes-main-0-0/shard.log", "pages/quotes-main-0-0/status.json", "pages/quotes-etcd-0/metrics.txt",
			"logs/" + operatorName,
		} {
			Expect(files.String()).To(ContainSubstring("sheaf-report-quotes/" + name))
		}
		Expect(files.String()).NotTo(ContainSubstring("quotes-secret"))
		Expect(files.String()).NotTo(ContainSubstring("errors.txt"),
			must(time.Minute, "", "tar", "xzOf", file, "sheaf-report-quotes/status.txt"))
		Expect(must(time.Minute, "", "tar", "xzOf", file)).NotTo(ContainSubstring(secret))
	})
})
