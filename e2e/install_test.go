//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Scenario 1: two Helm commands on a cluster that enforces Pod Security "restricted".
var _ = Describe("installing", Ordered, func() {
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
		o := try(4*time.Minute, "", "helm", "upgrade", "--install", "quotes", "charts/sheaf-store", "--namespace", s.name, "--wait",
			"--timeout", "3m", "-f", file,
			"--set", "test.image.repository="+repository(image), "--set", "test.image.tag="+tag(image))
		Expect(o.err).NotTo(HaveOccurred(), "%v", o)
		Expect(o.words).NotTo(ContainSubstring("Warning"))
		// Asked once: what is not there now, helm has not waited for.
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
		Expect(kubectl("get", "sheaf", "-n", s.name)).To(And(ContainSubstring("recordstore"), ContainSubstring("shardpool"), ContainSubstring("True")))
	})
})
