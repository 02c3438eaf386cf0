//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/base/units"
)

// These are the number and the size of the records with which putBulk fills a shard. The shard needs that much
// memory, or a long time to load them from a slow disk.
const bulkRecords, bulkBytes = 72, 1_000_000

// putBulk stores the given number of records, several at a time, with ids from 101 on.
func (s *space) putBulk(records int) {
	GinkgoHelper()
	ids, failed := make(chan int), make(chan output, records)
	var senders sync.WaitGroup
	for range 6 {
		senders.Go(func() {
			random := rand.NewChaCha8([32]byte{})
			data := make([]byte, bulkBytes)
			for id := range ids {
				_, _ = random.Read(data)
				if o := s.sheaf("q", string(data), "put", fmt.Sprint(id), "-"); o.err != nil {
					failed <- o
				}
			}
		})
	}
	for id := range records {
		ids <- 101 + id
	}
	close(ids)
	senders.Wait()
	close(failed)
	for o := range failed {
		Fail(o.String())
	}
}

// limitMemory sets the memory limit of the pool main.
func (s *space) limitMemory(limit string) {
	GinkgoHelper()
	kubectl("patch", "shardpool", "main", "-n", s.name, "--type=merge", "-p",
		`{"spec":{"resources":{"limits":{"memory":"`+limit+`"}}}}`)
}

// Scenario 5: the operator finds out how much memory a shard needs before anything is loaded.
var _ = Describe("a memory limit below the need", func() {
	It("is shown with both numbers, kills nothing, and heals when it is raised", func() {
		s := newSpace("memory")
		class := s.threeDisks()
		s.makeStore(class)
		s.makePool("main", class, 1, "fileSystem: {type: ext4}", "residency: Resident",
			"resources: {limits: {memory: 768Mi}}")
		s.begin(2*time.Minute, 8)
		s.putBulk(bulkRecords)
		s.limitMemory("96Mi")
		shard := s.awaitShard("main", 0, v1alpha1.ShardMemoryTooSmall, 2*time.Minute)
		Expect(shard.MemoryLimitBytes).To(BeNumerically(">", 0))
		Expect(shard.MemoryNeedBytes).To(BeNumerically(">", shard.MemoryLimitBytes))
		s.awaitCondition("main", v1alpha1.ConditionMemoryFits, "False", time.Minute,
			units.Bytes(shard.MemoryNeedBytes), units.Bytes(shard.MemoryLimitBytes), "raise the limit")
		Expect(s.pod("main-0-0").Status.ContainerStatuses[0].RestartCount).To(BeZero(), "the shard ended, say out of memory")

		s.limitMemory("768Mi")
		s.awaitShard("main", 0, v1alpha1.ShardServing, 2*time.Minute)
		s.awaitCondition("main", v1alpha1.ConditionMemoryFits, "True", time.Minute)
		s.getAll(8)
		Expect(s.pod("main-0-0").Status.ContainerStatuses[0].RestartCount).To(BeZero())
	})
})
