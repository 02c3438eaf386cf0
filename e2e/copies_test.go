//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// failoverMax limits how long a call may wait when a node fails under load, on a slow machine. Normally calls wait 3
// to 5 s, as the report shows.
const failoverMax = 15 * time.Second

// statusMax limits how long the status may be outdated when the leading operator fails together with its node. The
// operator's lease must expire first, which takes 13 to 17 s.
const statusMax = 45 * time.Second

// drainOf returns the arguments with which kubectl evicts the shards from a node.
func drainOf(node, timeout string) []string {
	return []string{"drain", node, "--pod-selector=app.kubernetes.io/component=shard", "--delete-emptydir-data",
		"--ignore-daemonsets", "--timeout=" + timeout}
}

// drain is a running `kubectl drain` of a node. It runs until it succeeds or is stopped.
type drain struct {
	end   context.CancelFunc
	ended chan struct{}
	err   error // may be read once ended is closed
	mutex sync.Mutex
	words bytes.Buffer // standard error of kubectl; guarded by mutex
}

// startDrain starts to drain a node's shards. When an eviction is refused, kubectl reports this and tries again every
// five seconds.
func startDrain(node string) *drain {
	ctx, cancel := context.WithCancel(context.Background())
	d := &drain{end: cancel, ended: make(chan struct{})}
	cmd := exec.CommandContext(ctx, tool("kubectl"), drainOf(node, "5m")...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Stderr = d
	go func() {
		defer close(d.ended)
		d.err = cmd.Run()
	}()
	DeferCleanup(func() {
		cancel()
		<-d.ended
	})
	return d
}

func (d *drain) Write(b []byte) (int, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.words.Write(b)
}

func (d *drain) String() string {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.words.String()
}

// refusals returns how many evictions of this drain were refused.
func (d *drain) refusals() int { return strings.Count(d.String(), "disruption budget") }

// awaitRefusal waits until one more eviction is refused.
func (d *drain) awaitRefusal() {
	GinkgoHelper()
	before := d.refusals()
	Eventually(func(g Gomega) {
		select {
		case <-d.ended:
			StopTrying(fmt.Sprintf("it was not held back: %v\n%v", d.err, d)).Now()
		default:
		}
		g.Expect(d.refusals()).To(BeNumerically(">", before))
	}).WithTimeout(2*time.Minute).Should(Succeed(), "%v", d)
}

// If a node fails that runs shards of a store with three copies, no record is lost, and calls soon succeed again.
var _ = Describe("a store with three copies on three nodes", Serial, Ordered, func() {
	const records = 12
	var s *space
	var l *load
	BeforeAll(func() {
		s = newSpace("copies")
		s.groups = 24
		class := s.threeDisks()
		s.diskSet("e2e-copies-etcd", "ext4", diskSpec{"n1", s.disk("n1", "e2e-copies-etcd", "256M"), "240Mi"})
		// Everything else that a caller needs is on n1. Therefore, if another node fails, the caller loses only a shard.
		onlyOn("n1", func() {
			s.makeStore("e2e-copies-etcd", "replication: {copies: 3}")
			s.client()
			kubectl("rollout", "status", "-n", s.name, "deployment/q-gateway", "--timeout=2m")
		})
		s.makePool("main", class, 3, "fileSystem: {type: ext4}")
		s.awaitStoreCondition(v1alpha1.ConditionRedundant, "True", 5*time.Minute, "3 copies")
		s.awaitStore("q", 2*time.Minute)
		s.putAll(records)
		l = s.newLoad()
	})
	BeforeEach(func() {
		l.start()
		l.awaitCalls(200)
	})

	It("lets one of two nodes that are drained at once go, and holds the other back", smoke, func() {
		nodes := [2]string{"n2", "n3"}
		for _, node := range nodes {
			DeferCleanup(func() { kubectl("uncordon", node) })
		}
		drains := [2]*drain{startDrain(nodes[0]), startDrain(nodes[1])}
		held := 0
		Eventually(func() bool {
			select {
			case <-drains[0].ended:
				held = 1
			case <-drains[1].ended:
				held = 0
			default:
				return false
			}
			return true
		}).WithTimeout(2*time.Minute).Should(BeTrue(), "neither node was drained: %v %v", drains[0], drains[1])
		Expect(drains[1-held].err).NotTo(HaveOccurred(), "%v", drains[1-held])
		// The eviction from the second node must be refused even after the first node's shard has stopped.
		drains[held].awaitRefusal()
		drains[held].end()
		<-drains[held].ended
		s.awaitStoreCondition(v1alpha1.ConditionRedundant, "False", time.Minute)
		l.awaitCalls(100)

		By("when the first node takes its shard again, the other may go")
		kubectl("uncordon", nodes[1-held])
		s.awaitSettled()
		must(3*time.Minute, "", "kubectl", drainOf(nodes[held], "2m")...)
		kubectl("uncordon", nodes[held])
		s.awaitSettled()
		s.awaitStore("q", 2*time.Minute)
		l.finish(100)
	})

	It("goes on when a node is away with a shard, a gateway and the leading operator, and is redundant again when it is "+
		"back", smoke, func() {
		leader := awaitLeader(operatorImage)
		if leader.Spec.NodeName == "n1" {
			By("the operator on another node than etcd leads")
			kubectl("delete", "pod", "-n", operatorNamespace, leader.Metadata.Name, "--wait=true", "--timeout=60s")
			leader = awaitLeader(operatorImage)
		}
		Expect(leader.Spec.NodeName).NotTo(Or(BeEmpty(), Equal("n1")), "two operators are on one node")
		away := v1alpha1.ShardStatus{}
		for _, shard := range s.shards("main") {
			if shard.Node == leader.Spec.NodeName {
				away = shard
			}
		}
		Expect(away.Node).NotTo(BeEmpty())
		By("a second gateway beside it")
		onlyOn(away.Node, func() {
			kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", `{"spec":{"gateway":{"replicas":2}}}`)
			kubectl("wait", "-n", s.name, "deployment/q-gateway", "--for=jsonpath={.status.availableReplicas}=2", "--timeout=2m")
		})
		Expect(strings.Fields(kubectl("get", "pods", "-n", s.name, "-l",
			v1alpha1.LabelStore+"=q,app.kubernetes.io/component=gateway",
			"-o", "jsonpath={.items[*].spec.nodeName}"))).To(ConsistOf("n1", away.Node))

		alerts := s.watchAlerts()
		By("the node goes away: no call fails, none waits for long, and another operator says so")
		stopped := time.Now()
		cluster("node-stop", away.Node)
		DeferCleanup(func() {
			cluster("node-start", away.Node)
			kubectl("wait", "--for=condition=Ready", "node/"+away.Node, "--timeout=180s")
		})
		// Until Kubernetes considers the node down, the Service sends every other new connection to the gateway on the
		// failed node.
		oneByOne := make(chan []output, 1)
		go func() {
			var all []output
			for id := range records {
				all = append(all, s.sheaf("q", "", "get", fmt.Sprint(id+1)))
			}
			oneByOne <- all
		}()
		s.awaitStoreCondition(v1alpha1.ConditionRedundant, "False", statusMax, away.Name)
		AddReportEntry(fmt.Sprintf("the status said so %v after the node was stopped", time.Since(stopped).
			Round(time.Second)))
		l.awaitCalls(500)
		Expect(l.end()).To(BeEmpty())
		longest, until := l.slowestCall(stopped)
		for id, o := range <-oneByOne {
			Expect(o.err).NotTo(HaveOccurred(), "%v", o)
			Expect(o.out).To(Equal(fmt.Sprint("record ", id+1)))
		}
		words := fmt.Sprintf(
			"failover: no call waited longer than %v; the last one above %v was answered %v after the node was stopped",
			longest.Round(time.Millisecond), slowCall, until.Round(time.Millisecond))
		AddReportEntry(words)
		GinkgoWriter.Println(words)
		Expect(longest).To(BeNumerically("<=", failoverMax), words)
		l.check()
		s.getAll(records)

		By("meanwhile no other shard can be drained away")
		s.awaitShard("main", away.Number, v1alpha1.ShardNodeDown, 3*time.Minute)
		for _, shard := range s.shards("main") {
			if shard.Name != away.Name {
				other := startDrain(shard.Node)
				other.awaitRefusal()
				other.end()
				<-other.ended
				kubectl("uncordon", shard.Node)
				break
			}
		}

		By("every group serves, so that the store is available, which Prometheus sees too")
		s.awaitStoreCondition(v1alpha1.ConditionAvailable, "True", time.Minute, "groups serve")
		for kind, value := range map[string]float64{v1alpha1.ConditionAvailable: 1, v1alpha1.ConditionRedundant: 0} {
			Expect(operatorMetric("sheaf_store_condition")).To(HaveKeyWithValue(fmt.Sprintf(
				`condition=%q,namespace=%q,store="q"`, kind, s.name), value))
		}
		alerts.await(alertNotRedundant, firing)
		alerts.await(alertUnavailable, gone)

		By("the node comes back")
		l.start()
		cluster("node-start", away.Node)
		kubectl("wait", "--for=condition=Ready", "node/"+away.Node, "--timeout=180s")
		s.awaitSettled()
		s.awaitStore("q", 2*time.Minute)
		alerts.await(alertNotRedundant, gone)
		l.finish(100)
		s.getAll(records)
	})

	It("moves to another pool while a node is cut off at each step, and no two voters are ever on one node", func() {
		s.makeNextPool()
		s.migrate(l)
	})

	It("goes on while a disk hangs, says which, and goes back to normal when it answers", func() { s.hangDisk(l) })

	It("is redundant again without a node that is lost for good, by the documented commands", func() { s.loseNode(l) })
})
