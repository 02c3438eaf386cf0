//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// awaitStoreCondition waits until the condition kind of the store q has the given status and a message with all the
// words, and returns the message.
func (s *space) awaitStoreCondition(kind, status string, timeout time.Duration, words ...string) string {
	GinkgoHelper()
	var message string
	Eventually(func(g Gomega) {
		store := s.storeQ(g)
		c := condition(store.Status.Conditions, kind)
		g.Expect(c).NotTo(BeNil(), "no condition %s", kind)
		g.Expect(string(c.Status)).To(Equal(status), "%+v", c)
		for _, w := range words {
			g.Expect(c.Message).To(ContainSubstring(w))
		}
		message = c.Message
	}).WithTimeout(timeout).Should(Succeed())
	return message
}

// diskOf returns the device and the node of the disk that a claim is bound to. It waits, because the operator writes
// them a little later.
func (s *space) diskOf(set, claim string) v1alpha1.DiskStatus {
	GinkgoHelper()
	var found v1alpha1.DiskStatus
	Eventually(func(g Gomega) {
		var disks v1alpha1.DiskSet
		g.Expect(get(&disks, "diskset", set)).To(Succeed())
		for _, d := range disks.Status.Disks {
			if d.Claim == s.name+"/"+claim {
				found = d
			}
		}
		g.Expect(found.Device).NotTo(BeEmpty(), "no disk holds %s: %+v", claim, disks.Status.Disks)
	}).WithTimeout(time.Minute).Should(Succeed())
	return found
}

// awaitUnmounted waits until no process on the node has the device mounted.
func awaitUnmounted(node, device string) {
	GinkgoHelper()
	Eventually(func() error {
		return try(30*time.Second, "", "cluster", "exec", node, "findmnt", "-S",
			cluster("exec", node, "readlink", "-f", device)).err
	}).WithTimeout(2*time.Minute).Should(HaveOccurred(), "%s of %s is still mounted", device, node)
}

// outage is how long etcd is down.
const outage = 2 * time.Minute

// Scenario 8: etcd is down, etcd loses everything, and one of three members loses its disk.
var _ = Describe("etcd", SpecPriority(1), func() {
	It("may be down, and comes back from the shards' volumes when it was wiped", func() {
		s := newSpace("etcd")
		class := s.threeDisks()
		s.makeStore(class)
		s.makePool("main", class, 2, "fileSystem: {type: ext4}")
		s.begin(2*time.Minute, 8)
		disk := s.diskOf(class, "data-q-etcd-0")

		By("down for two minutes: no call fails, nothing restarts, the status says so, and nobody hurries")
		shards := [2]pod{s.pod("main-0-0"), s.pod("main-1-0")}
		Expect(s.holdPods().err).NotTo(HaveOccurred())
		t := s.startTraffic()
		kubectl("delete", "pod", "-n", s.name, "q-etcd-0", "--wait=true", "--timeout=60s")
		down := time.Now()
		s.awaitStoreCondition(v1alpha1.ConditionEtcdReady, "False", time.Minute, "0 of 1 member of etcd is",
			"Settled groups are read and written")
		s.awaitStoreCondition(v1alpha1.ConditionReady, "False", time.Minute, "0 of 1 member of etcd is")
		calm := s.countReconciles("recordstore/q", "shardpool/main")
		s.getAll(8)
		t.awaitCalls(40)
		calm()
		Eventually(func() time.Duration {
			return time.Since(down)
		}).WithTimeout(outage + time.Minute).Should(BeNumerically(">=", outage))
		s.awaitStoreCondition(v1alpha1.ConditionEtcdReady, "False", time.Minute, "0 of 1 member of etcd is")
		t.awaitCalls(4) // calls must still succeed after etcd has been down for that long
		Expect(t.end()).To(BeEmpty())
		s.getAll(8)
		for n, before := range shards {
			s.checkUntouched(fmt.Sprintf("main-%d-0", n), before)
			s.awaitShard("main", int32(n), v1alpha1.ShardServing, time.Minute)
		}

		By("wiped: nothing is made afresh, and an alert tells")
		alerts := s.watchAlerts()
		awaitUnmounted(disk.Node, disk.Device)
		cluster("disk", "zero", disk.Node, s.name)
		s.allowPods("q-etcd")
		s.awaitStoreCondition(v1alpha1.ConditionEtcdReady, "False", 2*time.Minute, "sheaf.dev/allow-new-etcd")
		s.getAll(8)
		store := s.storeQ(Default)
		kubectl("annotate", "-n", s.name, "recordstore", "q", "sheaf.dev/allow-new-etcd="+store.Status.StoreUID)
		message := s.awaitStoreCondition(v1alpha1.ConditionPlacementReady, "False", 3*time.Minute, "etcd is empty",
			"recover placement")
		alerts.await(alertStalled, firing)
		s.getAll(8)

		By("the command of the condition's message rebuilds the placement")
		command := strings.Fields(regexp.MustCompile(`kubectl -n .* --yes$`).FindString(message))
		Expect(command).NotTo(BeEmpty(), message)
		kubectl(command[1:]...)
		s.awaitStore("q", 2*time.Minute)
		s.awaitStoreCondition(v1alpha1.ConditionPlacementReady, "True", time.Minute)
		alerts.await(alertStalled, gone)
		old := s.pod("main-0-0").Metadata.UID
		kubectl("delete", "pod", "-n", s.name, "main-0-0")
		s.awaitNewPod("main-0-0", old, 2*time.Minute)
		s.getAll(8)
	})

	It("has three members: one whose disk was replaced joins the others again by itself", func() {
		s := newSpace("etcdmember")
		class := s.threeDisks()
		apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: RecordStore
metadata: {name: q, namespace: %s}
spec:
  groups: {routing: Hash, count: 8}
  etcd: {managed: {members: 3, storage: {storageClassName: %s, size: 128Mi}}}
  gateway: {replicas: 0}
`, s.name, class))
		s.awaitStoreCondition(v1alpha1.ConditionEtcdRedundant, "True", 2*time.Minute, "3 of 3")
		s.awaitStoreCondition(v1alpha1.ConditionPlacementReady, "True", time.Minute)
		before := s.etcdMembers()
		Expect(before).To(HaveLen(3), "%v", before)
		disk := s.diskOf(class, "data-q-etcd-1")

		alerts := s.watchAlerts()
		By("its disk is replaced by a blank one")
		Expect(s.holdPods().err).NotTo(HaveOccurred())
		kubectl("delete", "pod", "-n", s.name, "q-etcd-1", "--wait=true", "--timeout=60s")
		s.awaitStoreCondition(v1alpha1.ConditionEtcdRedundant, "False", time.Minute, "2 of 3; q-etcd-1: ", "exceeded quota")
		s.awaitStoreCondition(v1alpha1.ConditionEtcdReady, "True", time.Minute)
		Eventually(s.evictableMembers).WithTimeout(time.Minute).Should(Equal("0"))
		alerts.await(alertEtcdMember, firing)
		awaitUnmounted(disk.Node, disk.Device)
		cluster("disk", "zero", disk.Node, s.name)
		s.allowPods("q-etcd")

		By("it is a member again, another one, and the next node can be drained")
		s.awaitStoreCondition(v1alpha1.ConditionEtcdRedundant, "True", 2*time.Minute, "3 of 3")
		alerts.await(alertEtcdMember, gone)
		after := s.etcdMembers()
		Expect(after).To(HaveLen(3), "%v", after)
		Expect(after["q-etcd-1"]).NotTo(Equal(before["q-etcd-1"]))
		Expect(after["q-etcd-0"]).To(Equal(before["q-etcd-0"]))
		Expect(after["q-etcd-2"]).To(Equal(before["q-etcd-2"]))
		Eventually(s.evictableMembers).WithTimeout(time.Minute).Should(Equal("1"))
	})
})

// etcdMembers returns the IDs of the healthy voting members, by name.
func (s *space) etcdMembers() map[string]string {
	GinkgoHelper()
	var rows []struct {
		Name, ID, Role string
		Healthy        bool
	}
	out := kubectl("exec", "-n", s.name, "q-etcd-0", "--", "/sheaf", "etcd", "members", "--output=json")
	Expect(json.Unmarshal([]byte(out), &rows)).To(Succeed(), out)
	ids := map[string]string{}
	for _, row := range rows {
		if row.Healthy && row.Role != "learner" {
			ids[row.Name] = row.ID
		}
	}
	return ids
}

// evictableMembers returns how many members of etcd may be evicted by a drain at the moment.
func (s *space) evictableMembers() string {
	GinkgoHelper()
	return kubectl("get", "pdb", "-n", s.name, "q-etcd", "-o", "jsonpath={.status.disruptionsAllowed}")
}
