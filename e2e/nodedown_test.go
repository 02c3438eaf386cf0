//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// idsByShard returns the ids of the store's records, by shard.
func (s *space) idsByShard() map[string][]int {
	GinkgoHelper()
	var status struct {
		Groups []struct{ Group, Shard string }
	}
	o := s.sheaf("q", "", "status", "--output=json")
	Expect(o.err).NotTo(HaveOccurred(), "%v", o)
	Expect(json.Unmarshal([]byte(o.out), &status)).To(Succeed(), "%v", o)
	shardOf := map[string]string{}
	for _, g := range status.Groups {
		shardOf[g.Group] = g.Shard
	}
	scan := s.sheaf("q", "", "scan", "--metadata")
	Expect(scan.err).NotTo(HaveOccurred(), "%v", scan)
	ids := map[string][]int{}
	for line := range strings.Lines(scan.out) {
		var record struct{ ID, Group string }
		Expect(json.Unmarshal([]byte(line), &record)).To(Succeed(), line)
		id, err := strconv.Atoi(record.ID)
		Expect(err).NotTo(HaveOccurred(), line)
		Expect(shardOf).To(HaveKey(record.Group), line)
		ids[shardOf[record.Group]] = append(ids[shardOf[record.Group]], id)
	}
	for _, list := range ids {
		slices.Sort(list)
	}
	return ids
}

// checkOtherShards reads and writes records on all shards except the given one.
func (s *space) checkOtherShards(shard string, ids map[string][]int) {
	GinkgoHelper()
	calls := 0
	for other, list := range ids {
		if other == shard {
			continue
		}
		for _, id := range list[:min(2, len(list))] {
			Expect(s.get("q", id)).To(Equal(fmt.Sprint("record ", id)))
			s.put("q", id, fmt.Sprint("record ", id))
			calls++
		}
	}
	Expect(calls).To(BeNumerically(">", 0), "no other shard has a record: %v", ids)
}

// ordinaryPod starts a pod on the given node. Kubernetes may remove the pod while the node is down.
func (s *space) ordinaryPod(name, node string) {
	GinkgoHelper()
	apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  nodeName: %s
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    args: [dev, --listen=127.0.0.1:7700, --http=127.0.0.1:7701, --dir=/scratch/dev, --shards=1, --groups=1]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {}}]
`, name, s.name, node, image))
	kubectl("wait", "-n", s.name, "--for=condition=Ready", "pod/"+name, "--timeout=60s")
}

// onlyOn calls do(), and makes Kubernetes schedule all pods that do() creates on the given node.
func onlyOn(node string, do func()) {
	GinkgoHelper()
	for _, other := range []string{"n1", "n2", "n3"} {
		if other != node {
			kubectl("cordon", other)
			DeferCleanup(func() { kubectl("uncordon", other) })
		}
	}
	do()
	for _, other := range []string{"n1", "n2", "n3"} {
		kubectl("uncordon", other)
	}
}

// Scenario 10: while a node is down, its shard stays assigned to it, because the disk with the shard's data is on
// that node. When the node returns, all data is still there.
var _ = Describe("a node that is away for longer than pods are left there", Serial, func() {
	It("keeps its shard, which serves every record when the node is back", func() {
		s := newSpace("nodedown")
		class := s.threeDisks()
		onlyOn("n1", func() {
			s.makeStore(class)
			s.client()
			Eventually(func(g Gomega) {
				pods := s.pods(v1alpha1.LabelStore + "=q")
				g.Expect(pods).To(HaveLen(2), "etcd and the gateway")
				for name, p := range pods {
					g.Expect(p.Spec.NodeName).To(Equal("n1"), name)
				}
			}).WithTimeout(2 * time.Minute).Should(Succeed())
		})
		s.makePool("main", class, 2, "fileSystem: {type: ext4}")
		s.awaitStore("q", 2*time.Minute)
		s.putAll(8)
		ids := s.idsByShard()
		Expect(ids).To(And(HaveKey("main-0"), HaveKey("main-1")))
		shard, number := "main-0", int32(0)
		if s.pod("main-0-0").Spec.NodeName == awaitLeader(operatorImage).Spec.NodeName {
			shard, number = "main-1", 1
		}
		before := s.awaitShard("main", number, v1alpha1.ShardServing, time.Minute)
		Expect(before.Node).NotTo(Equal("n1"), "%+v", before)
		old := s.pod(shard + "-0")
		s.ordinaryPod("ordinary", before.Node)
		alerts := s.watchAlerts()

		By("the node goes away: the status says so, and what to do")
		cluster("node-stop", before.Node)
		DeferCleanup(func() {
			cluster("node-start", before.Node)
			kubectl("wait", "--for=condition=Ready", "node/"+before.Node, "--timeout=180s")
		})
		s.awaitShard("main", number, v1alpha1.ShardNodeDown, 3*time.Minute)
		s.awaitCondition("main", v1alpha1.ConditionReady, "False", time.Minute, shard, "NodeDown", before.Node,
			"Repair the node")
		s.awaitStoreCondition(v1alpha1.ConditionReady, "False", time.Minute, "NodeDown", before.Node)
		alerts.await(alertUnavailable, firing)

		By("other pods of the node are evicted: the shard is not, and its data stays")
		Eventually(func() string {
			return s.pod("ordinary").Metadata.DeletionTimestamp
		}).WithTimeout(3 * time.Minute).ShouldNot(BeEmpty())
		s.checkOtherShards(shard, ids)
		p := s.pod(shard + "-0")
		Expect(p.Metadata.UID).To(Equal(old.Metadata.UID))
		Expect(p.Metadata.DeletionTimestamp).To(BeEmpty(), "the shard is evicted")
		Expect(p.Spec.NodeName).To(Equal(before.Node))
		away := s.awaitShard("main", number, v1alpha1.ShardNodeDown, time.Minute)
		Expect(away.Volume.UUID).To(Equal(before.Volume.UUID))
		Expect(away.Volume.PersistentVolume).To(Equal(before.Volume.PersistentVolume))
		Expect(away.Groups).To(Equal(before.Groups), "groups have moved")

		By("the node comes back: so does the shard, with every record")
		cluster("node-start", before.Node)
		kubectl("wait", "--for=condition=Ready", "node/"+before.Node, "--timeout=180s")
		back := s.awaitShard("main", number, v1alpha1.ShardServing, 3*time.Minute)
		Expect(back.Volume.UUID).To(Equal(before.Volume.UUID))
		s.awaitStore("q", 2*time.Minute)
		alerts.await(alertUnavailable, gone)
		p = s.pod(shard + "-0")
		Expect(p.Metadata.UID).To(Equal(old.Metadata.UID))
		Expect(p.Status.ContainerStatuses[0].RestartCount).To(Equal(old.Status.ContainerStatuses[0].RestartCount+1),
			"started once again")
		Expect(s.idsByShard()).To(Equal(ids), "a record changed its shard")
		s.getAll(8)
	})
})
