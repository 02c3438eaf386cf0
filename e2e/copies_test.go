//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// With three copies a node that goes away takes no record with it, and calls succeed again soon.
var _ = Describe("a store with three copies on three nodes", func() {
	It("goes on when a node is away, and is redundant again when it is back", func() {
		const records = 12
		s := newSpace("copies")
		class := s.threeDisks()
		disks := []diskSpec{{"n1", s.disk("n1", "e2e-copies-etcd", "256M"), "240Mi"}}
		s.diskSet("e2e-copies-etcd", "ext4", disks...)
		// What a caller needs beside the shards stays on n1, so that only a shard goes away.
		onlyOn("n1", func() {
			s.makeStore("e2e-copies-etcd", "replication: {copies: 3}")
			s.client()
			kubectl("rollout", "status", "-n", s.name, "deployment/q-gateway", "--timeout=2m")
		})
		s.makePool("main", class, 3, "fileSystem: {type: ext4}")
		s.awaitStoreCondition(v1alpha1.ConditionRedundant, "True", 5*time.Minute, "3 copies")
		s.awaitStore("q", 2*time.Minute)
		s.putAll(records)

		pool, err := s.pool("main")
		Expect(err).NotTo(HaveOccurred())
		away := v1alpha1.ShardStatus{}
		for _, shard := range pool.Status.ShardStatuses {
			if shard.Node != "n1" && shard.Node != operatorNodes()[0] {
				away = shard
			}
		}
		Expect(away.Node).NotTo(BeEmpty(), "%+v", pool.Status.ShardStatuses)

		By("the node goes away: every record is there, and can be put again")
		cluster("node-stop", away.Node)
		stopped := time.Now()
		DeferCleanup(func() {
			cluster("node-start", away.Node)
			kubectl("wait", "--for=condition=Ready", "node/"+away.Node, "--timeout=180s")
		})
		s.getAll(records)
		for id := range records {
			s.put("q", id+1, fmt.Sprint("again ", id+1))
		}
		AddReportEntry("time from the stop of a node until every record was read, and put again", time.Since(stopped).Round(100*time.Millisecond).String())
		GinkgoWriter.Printf("node %s stopped: %d gets and %d puts had succeeded after %s\n", away.Node, records, records, time.Since(stopped))
		s.awaitStoreCondition(v1alpha1.ConditionRedundant, "False", 3*time.Minute, away.Name)
		s.awaitShard("main", away.Number, v1alpha1.ShardNodeDown, 3*time.Minute)

		By("meanwhile no other shard can be drained away")
		for _, shard := range pool.Status.ShardStatuses {
			if shard.Name != away.Name {
				o := try(time.Minute, "", "kubectl", "drain", shard.Node, "--pod-selector=app.kubernetes.io/component=shard", "--delete-emptydir-data",
					"--ignore-daemonsets", "--timeout=5s")
				kubectl("uncordon", shard.Node)
				Expect(o.err).To(HaveOccurred(), "%v", o)
				Expect(o.words).To(ContainSubstring("disruption budget"), "%v", o)
				break
			}
		}

		By("the node comes back")
		cluster("node-start", away.Node)
		kubectl("wait", "--for=condition=Ready", "node/"+away.Node, "--timeout=180s")
		s.awaitStoreCondition(v1alpha1.ConditionRedundant, "True", 5*time.Minute)
		s.awaitStore("q", 2*time.Minute)
		for id := range records {
			Expect(s.get("q", id+1)).To(Equal(fmt.Sprint("again ", id+1)))
		}
	})
})
