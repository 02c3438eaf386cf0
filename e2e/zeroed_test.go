//go:build e2e

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Scenario 9: a device that lost what was on it is never taken for a new one.
var _ = Describe("a zeroed device", func() {
	It("is DiskLost under a stopped shard, and never served empty", func() {
		s := newSpace("zeroed")
		class := s.threeDisks()
		s.makeStore(class)
		s.makePool("main", class, 1, "fileSystem: {type: ext4}")
		s.awaitStore("q", 2*time.Minute)
		s.client()
		s.putAll(4)
		shard := s.awaitShard("main", 0, v1alpha1.ShardServing, time.Minute)
		Expect(shard.Volume).NotTo(BeNil())
		disk := s.diskOf(class, "data-main-0-0")

		kubectl("patch", "shardpool", "main", "-n", s.name, "--type=merge", "-p", `{"spec":{"parked":[0]}}`)
		s.awaitShard("main", 0, v1alpha1.ShardParked, 2*time.Minute)
		awaitUnmounted(disk.Node, disk.Device)
		cluster("disk", "zero", disk.Node, s.name)
		kubectl("patch", "shardpool", "main", "-n", s.name, "--type=merge", "-p", `{"spec":{"parked":[]}}`)

		lost := s.awaitShard("main", 0, v1alpha1.ShardDiskLost, 2*time.Minute)
		Expect(lost.Message).To(ContainSubstring(shard.Volume.UUID), "the volume that is missing")
		s.awaitCondition("main", v1alpha1.ConditionReady, "False", time.Minute, shard.Volume.UUID)
		o := s.sheaf("q", "", "get", "1", "--timeout", "3s")
		Expect(o.err).To(HaveOccurred(), "%v", o)
		Expect(o.words).NotTo(ContainSubstring("no such record"), "an empty volume was served")
		Expect(s.sheaf("q", "new", "put", "1", "-", "--timeout", "3s").err).To(HaveOccurred())
	})
})
