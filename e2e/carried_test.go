//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// A disk with the only copy of some groups is moved to another node. The DiskSet reports the move, and the commands of
// docs/operations/disks.md make the shard serve its data on that node. A free disk that would fit as well remains free.
var _ = Describe("a disk that is carried to another node", func() {
	It("serves there what it holds, by the commands of the page", func() {
		s := newSpace("carried")
		s.makeStore(s.threeDisks())
		class, device := s.name+"-shards", "/dev/disk/by-id/virtio-carried-b"
		first := diskSpec{"n1", s.disk("n1", "carried-a", "256M"), "240Mi"}
		s.diskSet(class, "ext4", first, diskSpec{"n2", s.disk("n2", "carried-b", "256M"), "240Mi"})
		s.makePool("main", class, 2, "fileSystem: {type: ext4}")
		s.begin(3*time.Minute, 16)
		var before v1alpha1.ShardStatus
		for number := range int32(2) {
			if shard := s.awaitShard("main", number, v1alpha1.ShardServing, time.Minute); shard.Node == "n2" {
				before = shard
			}
		}
		Expect(before.Volume).NotTo(BeNil(), "no shard is on n2")
		claim := fmt.Sprintf("data-main-%d-0", before.Number)
		old := s.diskOf(class, claim).PersistentVolume
		number := fmt.Sprintf("[%d]", before.Number)
		run := func(begins string, replace ...string) {
			GinkgoHelper()
			replace = append(replace, "quotes-ssd-1", before.Name, "quotes-ssd", "main", "[1]", number, "prod/", s.name+"/",
				"disks-1a2b3c4d5e6f", old)
			kubectl(s.documentedIn("docs/operations/disks.md", begins, replace...)...)
		}

		By("the shard is parked, and the disk is carried")
		run(`kubectl -n prod patch shardpool quotes-ssd --type=merge -p '{"spec":{"parked":[1]}}'`)
		run("kubectl -n prod wait --for=delete pod/quotes-ssd-1-0")
		awaitUnmounted("n2", device)
		cluster("disk", "move", "n2", "carried-b", "n3")
		for n := range s.disks {
			if s.disks[n] == [2]string{"n2", "carried-b"} {
				s.disks[n][0] = "n3"
			}
		}
		spare := diskSpec{"n2", s.disk("n2", "carried-c", "256M"), "240Mi"}
		s.diskSet(class, "ext4", first, diskSpec{"n3", device, "240Mi"}, spare)

		By("the DiskSet says so")
		var now string
		Eventually(func(g Gomega) {
			var set v1alpha1.DiskSet
			g.Expect(get(&set, "diskset", class)).To(Succeed())
			states := map[string]v1alpha1.DiskStatus{}
			for _, disk := range set.Status.Disks {
				states[disk.Node] = disk
				if disk.State == v1alpha1.DiskRemoved {
					states["removed"] = disk
				}
			}
			g.Expect(states["n3"].State).To(Equal(v1alpha1.DiskNotBlank), "%+v", set.Status)
			g.Expect(states["n3"].Message).To(ContainSubstring("carried here from node n2: then do not wipe it"))
			now = states["n3"].PersistentVolume
			g.Expect(states["removed"].PersistentVolume).To(Equal(old))
			g.Expect(states["removed"].Message).To(And(ContainSubstring(now), ContainSubstring("Move a disk to another node")))
			free := 0
			for _, disk := range set.Status.Disks {
				if disk.State == v1alpha1.DiskFree {
					free++
				}
			}
			g.Expect(free).To(Equal(1), "%+v", set.Status)
		}).WithTimeout(3 * time.Minute).Should(Succeed())

		By("the claim moves to it")
		run("kubectl annotate pv disks-6f5e4d3c2b1a sheaf.dev/for-claim", "disks-6f5e4d3c2b1a", now)
		run("kubectl -n prod delete pvc data-quotes-ssd-1-0")
		run("kubectl delete pv disks-1a2b3c4d5e6f")
		run(`kubectl -n prod patch shardpool quotes-ssd --type=merge -p '{"spec":{"parked":null}}'`)
		Eventually(func(g Gomega) {
			var shard v1alpha1.Shard
			g.Expect(get(&shard, "shard", before.Name, "-n", s.name)).To(Succeed())
			g.Expect(shard.Status).To(And(HaveField("State", v1alpha1.ShardServing), HaveField("Node", "n3")))
			g.Expect(shard.Status.Volume).To(And(HaveField("UUID", before.Volume.UUID),
				HaveField("PersistentVolume", now)))
		}).WithTimeout(3 * time.Minute).Should(Succeed())
		s.awaitStore("q", time.Minute)
		s.getAll(16)
	})
})
