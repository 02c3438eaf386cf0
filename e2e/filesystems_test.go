//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Scenario 2: the kubelets create the requested file systems on blank disks.
var _ = Describe("file systems", func() {
	It("are made as asked, and status names type, options and source as they are", smoke, func() {
		s := newSpace("filesystems")
		s.makeStore(s.threeDisks(), "audit: {mode: Writes}", "tls: {clients: [reader]}")
		kinds := []struct{ node, fileSystem, size string }{{"n1", "xfs", "320M"}, {"n2", "btrfs", "160M"},
			{"n3", "ext4", "160M"}}
		for _, k := range kinds {
			class := s.name + "-" + k.fileSystem
			device := s.disk(k.node, "fs-"+k.fileSystem, k.size)
			s.diskSet(class, k.fileSystem+", mountOptions: [noatime]", diskSpec{k.node, device, "128Mi"})
			s.makePool(k.fileSystem, class, 1, fmt.Sprintf("fileSystem: {type: %s, mountOptions: [noatime]}", k.fileSystem))
		}
		s.awaitStore("q", 3*time.Minute)
		for _, k := range kinds {
			shard := s.awaitShard(k.fileSystem, 0, v1alpha1.ShardServing, time.Minute)
			Expect(shard.Node).To(Equal(k.node))
			Expect(shard.Volume).NotTo(BeNil())
			Expect(shard.Volume.FileSystem).To(Equal(k.fileSystem))
			Expect(shard.Volume.MountOptions).To(ContainElements("rw", "noatime"))
			Expect(shard.Volume.Source).To(HavePrefix("/dev/"))
			Expect(shard.Volume.UUID).NotTo(BeEmpty())
			s.awaitCondition(k.fileSystem, v1alpha1.ConditionFileSystemMatches, "True", time.Minute)
			owner := cluster("exec", k.node, "sh", "-c", "stat -c %u $(findmnt -rn -S "+shard.Volume.Source+
				" -o TARGET | head -1)/superblock")
			Expect(owner).To(Equal("65532"), "the superblock's owner")
		}
		s.client()
		s.putAll(8)
		s.getAll(8)
		By("an audit log")
		s.checkAuditLog("n1", "n2", "n3")
	})
})
