//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// hangDisk makes one shard's disk in the pool "next" hang for a while, under load. Requests to that disk wait without
// an error. The copies on that disk must not be reported as available.
func (s *space) hangDisk(l *load) {
	var shard v1alpha1.ShardStatus
	Eventually(func() int32 { // twice a minute, the status reports how many groups a shard leads
		shard = s.shards("next")["next-1"]
		return shard.LeadingGroups
	}).WithTimeout(2*time.Minute).Should(BeNumerically(">", 0), "%+v", shard)
	before := s.pod("next-1-0")
	hung := time.Now()
	cluster("disk", "throttle", shard.Node, s.name+"-slow", "hang")
	answers := func() { cluster("disk", "throttle", shard.Node, s.name+"-slow", "off") }
	DeferCleanup(answers)

	By("calls go on at the other copies, and the status names the shard")
	l.awaitCalls(500)
	l.checkWaits("the disk of "+shard.Name+" hangs", hung)
	s.awaitShard("next", shard.Number, v1alpha1.ShardUnreachable, time.Minute)
	s.awaitCondition("next", v1alpha1.ConditionReady, "False", time.Minute, shard.Name, shard.Node,
		"its disk does not answer")
	s.awaitStoreCondition(v1alpha1.ConditionReady, "False", time.Minute, shard.Name, "its disk does not answer")
	s.awaitStoreCondition(v1alpha1.ConditionAvailable, "True", time.Minute)
	s.awaitStoreCondition(v1alpha1.ConditionRedundant, "False", time.Minute, shard.Name, "does not answer")
	Eventually(func(g Gomega) {
		volume := s.shards("next")[shard.Name].Volume
		g.Expect(volume).NotTo(BeNil())
		g.Expect(volume.Silent).To(BeTrue())
	}).WithTimeout(time.Minute).Should(Succeed())
	AddReportEntry(fmt.Sprintf("the status said so %v after the disk began to hang", time.Since(hung).Round(time.Second)))

	By("the disk answers again: the shard goes on where it was")
	l.start()
	answers()
	s.awaitShard("next", shard.Number, v1alpha1.ShardServing, 3*time.Minute)
	s.awaitSettled()
	s.awaitStore("q", 2*time.Minute)
	after := s.shards("next")[shard.Name]
	Expect(after.Volume).To(HaveField("UUID", shard.Volume.UUID), "the disk was given up")
	Expect(s.pod("next-1-0").Metadata.UID).To(Equal(before.Metadata.UID))
	l.finish(100)
}
