//go:build e2e

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// Scenario 12: a deletion ends quickly, and a new store can adopt the data of a deleted one.
var _ = Describe("deleting", func() {
	It("finishes with store, pools and namespace at once, keeps the data, and a new store adopts it", func() {
		s := newSpace("adopt")
		class := s.threeDisks()
		etcd := s.name + "-etcd"
		s.diskSet(etcd, "ext4", diskSpec{"n1", s.disk("n1", "adopt-etcd-1", "256M"), "240Mi"})
		s.makeStore(etcd)
		s.makePool("main", class, 2, "fileSystem: {type: ext4}")
		s.begin(2*time.Minute, 8)
		first := s.storeQ(Default)

		kubectl("delete", "-n", s.name, "recordstore/q", "shardpool/main", "--wait=false")
		kubectl("delete", "namespace", s.name, "--wait=true", "--timeout=4m")
		s.makeNamespace()
		// etcd starts on an empty disk. The operator has to find the shards' old disks itself.
		etcd += "-2"
		s.diskSet(etcd, "ext4", diskSpec{"n2", s.disk("n2", "adopt-etcd-2", "256M"), "240Mi"})
		s.makeStore(etcd, "adoptStoreUID: "+first.Status.StoreUID)
		s.makePool("main", class, 2, "fileSystem: {type: ext4}")
		s.awaitStore("q", 3*time.Minute)
		s.client()
		s.getAll(8)
		second := s.storeQ(Default)
		Expect(second.Status.StoreUID).To(Equal(first.Status.StoreUID))
		Expect(second.UID).NotTo(Equal(first.UID))

		By("deletionPolicy Delete removes the claims and nothing else")
		kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", `{"spec":{"deletionPolicy":"Delete"}}`)
		Eventually(func() string {
			return kubectl("get", "statefulset", "main-0", "-n", s.name, "-o",
				`jsonpath={.metadata.annotations.sheaf\.dev/deletion-policy}`)
		}).WithTimeout(time.Minute).Should(Equal("Delete"))
		kubectl("delete", "-n", s.name, "shardpool/main", "recordstore/q", "--wait=true", "--timeout=2m")
		Eventually(func() string {
			return kubectl("get", "pvc", "-n", s.name, "-o", "name")
		}).WithTimeout(time.Minute).Should(BeEmpty())
		Expect(kubectl("get", "pv", "-l", "sheaf.dev/diskset="+class, "-o", "name")).NotTo(BeEmpty())
	})
})
