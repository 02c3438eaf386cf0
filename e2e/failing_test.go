//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// awaitPoolReason waits until the pool is not Ready, with the given reason.
func (s *space) awaitPoolReason(pool, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		p, err := s.pool(pool)
		g.Expect(err).NotTo(HaveOccurred())
		c := condition(p.Status.Conditions, v1alpha1.ConditionReady)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Reason).To(Equal(reason), "%+v", c)
		g.Expect(string(c.Status)).To(Equal("False"))
	}).WithTimeout(2 * time.Minute).Should(Succeed())
}

// The API server accepts some input that turns out to be invalid only in the cluster. The operator reports such input
// in the status, and checks it again only at a low rate until it is corrected.
var _ = Describe("what cannot be", func() {
	It("is named in a condition, and not looked at all the time", func() {
		s := newSpace("failing")
		class := s.threeDisks()
		s.makeStore(class)

		more := s.name + "-more"
		s.diskSet(more, "ext4", diskSpec{"n1", s.disk("n1", "failing-1", "160M"), "128Mi"},
			diskSpec{"n2", s.disk("n2", "failing-2", "160M"), "128Mi"},
			diskSpec{"n3", s.disk("n3", "failing-3", "160M"), "128Mi"})

		By("a class, a volume, a store, a node and an image that are not there; an image that ends; a file system that is " +
			"another one")
		ext3 := s.disk("n1", "failing-ext3", "160M")
		cluster("exec", "n1", "mkfs.ext3", "-q", ext3)
		s.diskSet(s.name+"-ext3", "ext4", diskSpec{"n1", ext3, "128Mi"})
		s.diskSet(s.name+"-nonode", "ext4", diskSpec{"n9", "/dev/disk/by-id/virtio-none", "128Mi"})
		s.makePool("noclass", "there-is-no-such-class", 1)
		s.makePool("ext3", s.name+"-ext3", 1, "fileSystem: {type: ext4}")
		kubectl("annotate", "pv", awaitNotBlank(s.name+"-ext3").PersistentVolume, "sheaf.dev/release=true")
		s.makePool("nonode", more, 1, "scheduling: {nodeSelector: {disk: none}}")
		s.makePool("noroom", s.name+"-nonode", 1)
		apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: ShardPool
metadata: {name: nostore, namespace: %s}
spec:
  storeRef: {name: none}
  storage: {storageClassName: %s, size: 64Mi}
---
apiVersion: sheaf.dev/v1alpha1
kind: RecordStore
metadata: {name: noimage, namespace: %s}
spec:
  groups: {routing: Hash, count: 1}
  image: localhost/there-is-none:1
  etcd: {managed: {members: 1, storage: {storageClassName: %s, size: 128Mi}}}
---
apiVersion: sheaf.dev/v1alpha1
kind: RecordStore
metadata: {name: noetcd, namespace: %s}
spec:
  groups: {routing: Hash, count: 1}
  image: %s
  etcd: {external: {endpoints: ['http://198.51.100.1:2379']}}
---
apiVersion: sheaf.dev/v1alpha1
kind: ShardPool
metadata: {name: noimage, namespace: %s}
spec:
  storeRef: {name: noimage}
  storage: {storageClassName: %s, size: 64Mi}
---
apiVersion: sheaf.dev/v1alpha1
kind: ShardPool
metadata: {name: crash, namespace: %s}
spec:
  storeRef: {name: noetcd}
  storage: {storageClassName: %s, size: 64Mi}
`, s.name, class, s.name, class, s.name, operatorImage, s.name, more, s.name, more))

		for pool, reason := range map[string]v1alpha1.ShardState{
			"noclass": v1alpha1.ShardNoStorageClass, "ext3": v1alpha1.ShardFileSystemMismatch,
			"nonode": v1alpha1.ShardUnschedulable,
			"noroom": v1alpha1.ShardNoVolume, "nostore": "StoreNotFound",
			"noimage": v1alpha1.ShardImagePull, "crash": v1alpha1.ShardCrashLooping,
		} {
			s.awaitPoolReason(pool, string(reason))
		}
		s.awaitCondition("ext3", v1alpha1.ConditionFileSystemMatches, "False", time.Minute, "ext3", "ext4")
		for store, words := range map[string]string{"noimage": "localhost/there-is-none:1", "noetcd": "198.51.100.1"} {
			Eventually(func(g Gomega) {
				found, err := s.store(store)
				g.Expect(err).NotTo(HaveOccurred())
				c := condition(found.Status.Conditions, v1alpha1.ConditionEtcdReady)
				g.Expect(c).NotTo(BeNil())
				g.Expect(string(c.Status)).To(Equal("False"))
				g.Expect(c.Message).To(ContainSubstring(words))
			}).WithTimeout(2 * time.Minute).Should(Succeed())
		}
		s.countReconciles("shardpool/noclass", "shardpool/ext3", "shardpool/nonode", "shardpool/noroom", "shardpool/nostore",
			"shardpool/noimage", "shardpool/crash", "recordstore/q", "recordstore/noimage", "recordstore/noetcd",
			"diskset/"+s.name+"-nonode")()
	})
})
