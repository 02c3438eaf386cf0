//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// documentedCommand returns the command in docs/operations/troubleshooting.md that begins with the given string, after
// replacing some of its words.
func (s *space) documentedCommand(begins string, replace ...string) []string {
	GinkgoHelper()
	return s.documentedIn("docs/operations/troubleshooting.md", begins, replace...)
}

// documentedIn is like documentedCommand(), but for any page of the documentation.
func (s *space) documentedIn(page, begins string, replace ...string) []string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(root, page))
	Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, begins) {
			replace = append([]string{"-n prod", "-n " + s.name, "recordstore/quotes", "recordstore/q", "'", ""}, replace...)
			return strings.Fields(strings.NewReplacer(replace...).Replace(line))[1:] // without "kubectl"
		}
	}
	Fail(page + " has no command that begins with: " + begins)
	return nil
}

// newNode starts another node of the cluster. The node is removed when the scenario ends.
func (s *space) newNode(number int) string {
	GinkgoHelper()
	node := fmt.Sprint("n", number)
	cluster("up", fmt.Sprint(number))
	DeferCleanup(func() {
		cluster("node-stop", node)
		kubectl("delete", "node", node)
	})
	for _, archive := range []string{"sheaf", "sheaf-operator"} {
		cluster("load", filepath.Join(root, "bin/images", archive+".tar"))
	}
	return node
}

// loseNode removes a node permanently. Its machine is stopped, its Node object is deleted, and another machine takes
// its place.
func (s *space) loseNode(l *load) {
	// The new node has no disk yet. It must be started before a node is lost, because newNode starts every stopped node.
	node := s.newNode(4)
	var lost v1alpha1.ShardStatus
	disks := []diskSpec{}
	for _, shard := range s.shards("next") {
		if shard.Node != "n1" { // n1 runs etcd
			lost = shard
		}
		disks = append(disks, diskSpec{shard.Node, "/dev/disk/by-id/virtio-" + s.name + "-slow", "240Mi"})
	}
	began := time.Now()
	cluster("node-stop", lost.Node)
	DeferCleanup(func() {
		cluster("node-start", lost.Node)
		kubectl("wait", "--for=create", "node/"+lost.Node, "--timeout=180s")
		// A kubelet that started before its Node existed tries to register its volume drivers with growing pauses, and is not
		// Ready for up to two minutes. A restarted kubelet finds the Node immediately.
		cluster("exec", lost.Node, "sh", "-c", "kill $(pidof kubelet)")
		kubectl("wait", "--for=condition=Ready", "node/"+lost.Node, "--timeout=180s")
	})
	kubectl(s.documentedCommand("kubectl delete node n3", "n3", lost.Node)...)
	l.awaitCalls(300)
	l.checkWaits(lost.Node+" is lost", began)

	By("the status says so, and what to do")
	// If both operators ran on the lost node, as they may after the other two nodes were drained, no operator runs for
	// 40 to 60 s. Kubernetes must first delete the pods of the lost node and create them again.
	shard := s.awaitShard("next", lost.Number, v1alpha1.ShardNodeLost, 3*time.Minute)
	Expect(shard.Message).To(And(ContainSubstring("node "+lost.Node+" was deleted"), ContainSubstring("spec.remove"),
		ContainSubstring("spec.shards")))
	s.awaitStoreCondition(v1alpha1.ConditionRedundant, "False", time.Minute)
	s.awaitStoreCondition(v1alpha1.ConditionAvailable, "True", time.Minute)

	By("the other machine gets a disk, and the commands of docs/operations/troubleshooting.md make the store redundant")
	l.start()
	s.diskSet(s.name+"-slow", "ext4", append(disks, diskSpec{node, s.disk(node, s.name+"-slow", "256M", "slow"),
		"240Mi"})...)
	const patch = "kubectl -n prod patch shardpool quotes-ssd --type=merge -p "
	remove := fmt.Sprintf(`"remove":[%d]`, lost.Number)
	kubectl(s.documentedCommand(patch+`'{"spec":{"shards":4,"remove"`, "quotes-ssd", "next", `"remove":[2]`, remove)...)
	must(5*time.Minute, "", "kubectl", s.documentedCommand("kubectl -n prod wait --for=condition=Redundant",
		"--timeout=1h",
		"--timeout=4m")...)
	AddReportEntry(fmt.Sprintf("redundant again %v after %s was lost", time.Since(began).Round(time.Second), lost.Node))
	kubectl(s.documentedCommand(patch+`'{"spec":{"shards":3}}`, "quotes-ssd", "next")...)
	Eventually(func() map[string]v1alpha1.ShardStatus { return s.shards("next") }).WithTimeout(2 * time.Minute).Should(
		And(HaveLen(3), Not(HaveKey(lost.Name)), HaveKeyWithValue("next-3", HaveField("Node", node))))
	s.awaitSettled()
	s.awaitStore("q", 2*time.Minute)
	Expect(try(time.Minute, "", "kubectl", "get", "node", lost.Node).err).
		To(HaveOccurred(), "the lost node is there again")
	l.finish(100)
}
