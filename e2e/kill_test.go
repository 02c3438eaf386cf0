//go:build e2e

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Scenario 4: a killed shard loads again, even if its disk is slow, and nothing kills the shard while it loads.
var _ = Describe("a killed shard", func() {
	It("loads from a slow disk, group after group, and no probe ends it", func() {
		s := newSpace("kill")
		s.groups = 64 // groups differ in size, and the shard loads small ones first
		etcd := s.threeDisks()
		s.makeStore(etcd)
		class := s.name + "-slow"
		s.diskSet(class, "ext4", diskSpec{"n1", s.disk("n1", "kill-slow", "320M", "slow"), "300Mi"})
		s.makePool("main", class, 1, "fileSystem: {type: ext4}", "residency: Resident", "resources: {limits: {memory: 1Gi}}")
		s.begin(2*time.Minute, 8)
		s.putBulk(bulkRecords)

		// Loading takes more than a minute at this rate, and the shard reports its progress every 30 s.
		cluster("disk", "throttle", "n1", "kill-slow", "1M")
		DeferCleanup(func() { cluster("disk", "throttle", "n1", "kill-slow", "off") })
		uid := s.pod("main-0-0").Metadata.UID
		cluster("crash", s.name, "main-0-0", "shard")

		s.awaitShard("main", 0, v1alpha1.ShardLoading, time.Minute) // until then, the status is from the time before the kill

		By("it loads: progress grows, and some groups serve before the others")
		var last int32
		var steps, partly int
		Eventually(func(g Gomega) {
			shards, err := s.shardList("main")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(shards).To(HaveLen(1))
			shard := shards[0]
			if shard.State == v1alpha1.ShardLoading {
				Expect(shard.LoadPercent).To(BeNumerically(">=", last), "progress went back")
				if shard.LoadPercent > last {
					steps++
				}
				last = shard.LoadPercent
				if shard.ServingGroups > 0 && shard.ServingGroups < shard.Groups {
					partly++
				}
			}
			restarts := s.pod("main-0-0").Status.ContainerStatuses
			g.Expect(restarts).To(HaveLen(1))
			g.Expect(restarts[0].RestartCount).To(Equal(1))
			g.Expect(shard.State).To(Equal(v1alpha1.ShardServing), "%+v", shard)
		}).WithTimeout(5 * time.Minute).Should(Succeed())
		Expect(steps).To(BeNumerically(">=", 2), "loading was never seen to progress: is the disk slow?")
		Expect(partly).To(BeNumerically(">=", 1), "no group was seen to serve before the last")
		p := s.pod("main-0-0")
		Expect(p.Metadata.UID).To(Equal(uid))
		Expect(p.Status.ContainerStatuses[0].RestartCount).To(Equal(1), "ended once, by us")
		s.getAll(8)
	})
})
