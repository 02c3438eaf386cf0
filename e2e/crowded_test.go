//go:build e2e

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// The failure domain is the unit of disruption. Both shards on one node can be evicted together, while shards on
// another node have to wait.
var _ = Describe("a node that holds two shards of a store", Serial, func() {
	It("is drained, and another node waits until its shards are back", func() {
		s := newSpace("crowded")
		s.groups = 12
		s.diskSet("e2e-crowded", "ext4",
			diskSpec{"n1", s.disk("n1", "crowded", "256M"), "240Mi"}, diskSpec{"n2", s.disk("n2", "crowded-1", "256M"), "240Mi"},
			diskSpec{"n2", s.disk("n2", "crowded-2", "256M"), "240Mi"}, diskSpec{"n3", s.disk("n3", "crowded", "256M"), "240Mi"})
		s.diskSet("e2e-crowded-etcd", "ext4", diskSpec{"n1", s.disk("n1", "crowded-etcd", "256M"), "240Mi"})
		onlyOn("n1", func() {
			s.makeStore("e2e-crowded-etcd", "replication: {copies: 3}")
			s.client()
			kubectl("rollout", "status", "-n", s.name, "deployment/q-gateway", "--timeout=2m")
		})
		s.makePool("main", "e2e-crowded", 4, "fileSystem: {type: ext4}")
		s.awaitStoreCondition(v1alpha1.ConditionRedundant, "True", 5*time.Minute, "3 copies")
		s.awaitStore("q", 2*time.Minute)
		s.putAll(12)
		onNode := map[string]int{}
		for _, shard := range s.shards("main") {
			onNode[shard.Node]++
		}
		Expect(onNode).To(Equal(map[string]int{"n1": 1, "n2": 2, "n3": 1}))
		l := s.newLoad()
		l.start()
		l.awaitCalls(200)

		By("both shards of the node are evicted")
		for _, node := range []string{"n2", "n3"} {
			DeferCleanup(func() { kubectl("uncordon", node) })
		}
		must(4*time.Minute, "", "kubectl", drainOf("n2", "3m")...)
		s.awaitStoreCondition(v1alpha1.ConditionRedundant, "False", time.Minute)
		l.awaitCalls(100)

		By("the shard of another node may not go")
		held := startDrain("n3")
		held.awaitRefusal()
		held.end()
		<-held.ended
		l.awaitCalls(100)

		By("when both are back it may")
		kubectl("uncordon", "n2")
		s.awaitSettled()
		must(3*time.Minute, "", "kubectl", drainOf("n3", "2m")...)
		kubectl("uncordon", "n3")
		s.awaitSettled()
		s.awaitStore("q", 2*time.Minute)
		Expect(l.end()).To(BeEmpty())
		l.check()
	})
})
