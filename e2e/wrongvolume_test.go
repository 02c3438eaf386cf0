//go:build e2e

package e2e

import (
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// awaitNotBlank waits until the only disk of a DiskSet is reported as not blank, and returns the disk.
func awaitNotBlank(set string) (disk v1alpha1.DiskStatus) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var disks v1alpha1.DiskSet
		g.Expect(get(&disks, "diskset", set)).To(Succeed())
		g.Expect(disks.Status.Disks).To(HaveLen(1))
		disk = disks.Status.Disks[0]
		g.Expect(disk.State).To(Equal(v1alpha1.DiskNotBlank), disk.Message)
	}).WithTimeout(2 * time.Minute).Should(Succeed())
	return disk
}

// Scenario 3: volumes that do not match the spec are neither served nor written to.
var _ = Describe("wrong volumes", func() {
	It("are never served and never overwritten", smoke, func() {
		s := newSpace("wrongvolume")
		ext4 := s.threeDisks()
		s.makeStore(ext4)

		By("ext3 where ext4 is asked, and a disk with a partition table")
		ext3 := s.disk("n1", "wrong-ext3", "160M")
		cluster("exec", "n1", "mkfs.ext3", "-q", ext3)
		s.diskSet(s.name+"-ext3", "ext4", diskSpec{"n1", ext3, "128Mi"})
		s.makePool("old", s.name+"-ext3", 1, "fileSystem: {type: ext4}")
		table := s.disk("n2", "wrong-table", "160M")
		// The disk gets one Linux partition that begins at sector 2048.
		cluster("exec", "n2", "sh", "-c",
			`{ head -c 446 /dev/zero; printf '\200\0\1\1\203\0\1\1\0\10\0\0\0\10\0\0'; head -c 48 /dev/zero; printf '\125\252'; } | `+
				"dd of="+table+" conv=fsync status=none")
		before := cluster("exec", "n2", "sha256sum", table)
		s.diskSet(s.name+"-table", "ext4", diskSpec{"n2", table, "128Mi"})
		s.makePool("table", s.name+"-table", 1, "fileSystem: {type: ext4}")

		By("nobody gets a disk that is not blank, and the files of a stranger keep owner and mode")
		files := s.disk("n3", "wrong-files", "160M")
		cluster("exec", "n3", "sh", "-c", "mkfs.ext4 -q "+files+" && mkdir -p /mnt/wrong-files && mount "+files+
			" /mnt/wrong-files && mkdir /mnt/wrong-files/payroll && echo 1 > /mnt/wrong-files/payroll/2026.csv && "+
			"chown 1000:1000 /mnt/wrong-files/payroll/2026.csv && chmod 0600 /mnt/wrong-files/payroll/2026.csv && "+
			"umount /mnt/wrong-files")
		sum := cluster("exec", "n3", "sha256sum", files)
		s.diskSet(s.name+"-files", "ext4", diskSpec{"n3", files, "128Mi"})
		s.makePool("files", s.name+"-files", 1, "fileSystem: {type: ext4}")
		for set, says := range map[string]string{s.name + "-ext3": "ext3 or ext4 file system",
			s.name + "-table": "partition table", s.name + "-files": "ext3 or ext4 file system"} {
			disk := awaitNotBlank(set)
			command := regexp.MustCompile(`kubectl (-n \S+ logs job/\S+)\. `).FindStringSubmatch(disk.Message)
			Expect(command).To(HaveLen(2), disk.Message)
			Expect(kubectl(strings.Fields(command[1])...)).To(ContainSubstring(says))
		}
		Expect(cluster("exec", "n3", "sha256sum", files)).To(Equal(sum), "something was written to the files of a stranger")
		kubectl("delete", "-n", s.name, "shardpools", "files", "--wait=true", "--timeout=2m")

		By("released as they are: the shard and the kubelet refuse them")
		for _, set := range []string{s.name + "-ext3", s.name + "-table"} {
			kubectl("annotate", "pv", awaitNotBlank(set).PersistentVolume, "sheaf.dev/release=true")
		}
		s.awaitShard("old", 0, v1alpha1.ShardFileSystemMismatch, 2*time.Minute)
		s.awaitCondition("old", v1alpha1.ConditionFileSystemMatches, "False", time.Minute, "ext3", "ext4")
		Expect(cluster("exec", "n1", "debugfs", "-R", "ls -p /", ext3)).
			NotTo(ContainSubstring("superblock"), "the volume was made")
		blocked := s.awaitShard("table", 0, v1alpha1.ShardFormatBlocked, 2*time.Minute)
		Expect(blocked.Message).To(And(ContainSubstring(table), ContainSubstring("n2")))
		s.awaitCondition("table", v1alpha1.ConditionReady, "False", time.Minute, table)
		Expect(cluster("exec", "n2", "sha256sum", table)).To(Equal(before),
			"something was written to the disk with a partition table")

		By("the volume of another store")
		disk := s.disk("n3", "wrong-store", "160M")
		s.diskSet(s.name+"-store", "ext4", diskSpec{"n3", disk, "128Mi"})
		s.makePool("main", s.name+"-store", 1, "fileSystem: {type: ext4}")
		s.awaitShard("main", 0, v1alpha1.ShardServing, 2*time.Minute)
		first := s.storeQ(Default)
		kubectl("delete", "-n", s.name, "shardpools", "main", "old", "table", "--wait=true", "--timeout=2m")
		kubectl("delete", "-n", s.name, "recordstore", "q", "--wait=true", "--timeout=2m")
		kubectl("delete", "-n", s.name, "pvc", "--all", "--wait=true", "--timeout=2m")
		kubectl("annotate", "pv", "-l", "sheaf.dev/diskset="+s.name, "sheaf.dev/release=true")
		kubectl("annotate", "pv", "-l", "sheaf.dev/diskset="+s.name+"-store", "sheaf.dev/release=true")
		etcd := s.disk("n1", "wrong-etcd", "256M")
		s.diskSet(s.name+"-etcd", "ext4", diskSpec{"n1", etcd, "240Mi"})
		s.makeStore(s.name + "-etcd")
		s.makePool("main", s.name+"-store", 1, "fileSystem: {type: ext4}")
		foreign := s.awaitShard("main", 0, v1alpha1.ShardForeign, 2*time.Minute)
		second := s.storeQ(Default)
		Expect(foreign.Message).To(And(ContainSubstring(first.Status.StoreUID), ContainSubstring(second.Status.StoreUID)))
		s.awaitCondition("main", v1alpha1.ConditionReady, "False", time.Minute, first.Status.StoreUID, second.Status.StoreUID)
	})
})
