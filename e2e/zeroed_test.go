//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client"
)

// noticed is the time within which a lost disk must be reported.
const noticed = 30 * time.Second

// served returns how many of the records 1 to n were returned and how many reads were refused. It fails the test if a
// read reports that a record does not exist.
func (s *space) served(n int) (served, refused int) {
	GinkgoHelper()
	store := s.goClient()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	records, errs := make([]client.Record, n), make([]error, n)
	var calls sync.WaitGroup
	for at := range n {
		calls.Go(func() { records[at], errs[at] = store.Get(ctx, client.Key{ID: int64(at + 1)}, nil) })
	}
	calls.Wait()
	for at, err := range errs {
		if err == nil {
			Expect(string(records[at].Data)).To(Equal(fmt.Sprint("record ", at+1)))
			served++
			continue
		}
		Expect(err).NotTo(MatchError(client.ErrNotFound), "an empty volume was served")
		refused++
	}
	return served, refused
}

// awaitPartServed waits until only the other shard serves: some reads of the records 1 to n succeed, and the rest are
// refused.
func (s *space) awaitPartServed(n int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		served, refused := s.served(n)
		g.Expect(served).To(BeNumerically(">", 0), "the other shard serves on")
		g.Expect(refused).To(BeNumerically(">", 0))
	}).WithTimeout(time.Minute).Should(Succeed())
}

// Scenario 9: a device that has lost its content is never treated as a new device.
var _ = Describe("a zeroed device", func() {
	It("is DiskLost under a running shard and under a stopped one, and never served empty", smoke, func() {
		s := newSpace("zeroed")
		class := s.threeDisks()
		s.makeStore(class)
		s.makePool("main", class, 2, "fileSystem: {type: ext4}")
		s.begin(2*time.Minute, 16)
		var volumes [2]string
		for n := range volumes {
			shard := s.awaitShard("main", int32(n), v1alpha1.ShardServing, time.Minute)
			Expect(shard.Volume).NotTo(BeNil())
			volumes[n] = shard.Volume.UUID
		}

		By("zeroed under a running shard")
		disk := s.diskOf(class, "data-main-0-0")
		before := s.pod("main-0-0")
		cluster("disk", "zero", disk.Node, s.name)
		zeroed := time.Now()
		lost := s.awaitShard("main", 0, v1alpha1.ShardDiskLost, 4*noticed) // allow for a slow machine
		AddReportEntry(fmt.Sprintf("named after %v", time.Since(zeroed)))
		// The message names the volume that was on the disk, and the next steps.
		words := []string{volumes[0], "park the shard (spec.parked)", "replace the disk",
			"sheaf.dev/forget-volumes=" + volumes[0]}
		for _, w := range words {
			Expect(lost.Message).To(ContainSubstring(w))
		}
		s.awaitCondition("main", v1alpha1.ConditionReady, "False", time.Minute, words...)
		s.awaitCondition("main", v1alpha1.ConditionVolumesReady, "False", time.Minute, words...)
		s.awaitPartServed(16)

		By("its pod made anew: what is left on the device is not taken for a new disk")
		now := s.pod("main-0-0")
		Expect(now.Metadata.UID).To(Equal(before.Metadata.UID))
		Expect(now.Status.ContainerStatuses[0].RestartCount).To(BeZero(), "a probe ended the shard: that brings no disk back")
		kubectl("delete", "pod", "-n", s.name, "main-0-0", "--wait=true", "--timeout=60s")
		lost = s.awaitShard("main", 0, v1alpha1.ShardDiskLost, 2*time.Minute)
		Expect(lost.Message).To(And(ContainSubstring(volumes[0]), ContainSubstring("replace the disk")))
		s.awaitPartServed(16)

		By("zeroed under a stopped shard")
		disk = s.diskOf(class, "data-main-1-0")
		kubectl("patch", "shardpool", "main", "-n", s.name, "--type=merge", "-p", `{"spec":{"parked":[1]}}`)
		s.awaitShard("main", 1, v1alpha1.ShardParked, 2*time.Minute)
		awaitUnmounted(disk.Node, disk.Device)
		cluster("disk", "zero", disk.Node, s.name)
		kubectl("patch", "shardpool", "main", "-n", s.name, "--type=merge", "-p", `{"spec":{"parked":[]}}`)
		lost = s.awaitShard("main", 1, v1alpha1.ShardDiskLost, 2*time.Minute)
		Expect(lost.Message).To(ContainSubstring(volumes[1]), "the volume that is missing")
		s.awaitCondition("main", v1alpha1.ConditionReady, "False", time.Minute, volumes[0], volumes[1])
		served, refused := s.served(16)
		Expect(served).To(BeZero())
		Expect(refused).To(Equal(16))
		Expect(s.sheaf("q", "new", "put", "1", "-", "--timeout", "3s").err).To(HaveOccurred())
	})
})
