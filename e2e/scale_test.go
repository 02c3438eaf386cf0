//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// shards returns the status of each shard in a pool, as the Shard objects report it.
func (s *space) shards(pool string) map[string]v1alpha1.ShardStatus {
	GinkgoHelper()
	list, err := s.shardList(pool)
	Expect(err).NotTo(HaveOccurred())
	shards := map[string]v1alpha1.ShardStatus{}
	for _, shard := range list {
		shards[shard.Name] = shard
	}
	return shards
}

// copiesOn returns the number of group copies that the shards with the given name prefix report.
func (s *space) copiesOn(prefix string) int {
	GinkgoHelper()
	var status struct {
		Groups []struct{ Group, Shard string }
	}
	o := s.sheaf("q", "", "status", "--output=json")
	Expect(json.Unmarshal([]byte(o.out), &status)).To(Succeed(), "%v", o) // the exit code is 1 if there is a problem
	n := 0
	for _, g := range status.Groups {
		if strings.HasPrefix(g.Shard, prefix) {
			n++
		}
	}
	return n
}

// awaitSettled waits until all copies exist and nothing moves.
func (s *space) awaitSettled() {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		store := s.storeQ(g)
		c := condition(store.Status.Conditions, v1alpha1.ConditionRedundant)
		g.Expect(c).NotTo(BeNil())
		g.Expect(string(c.Status)).To(Equal("True"), "%+v", c)
		g.Expect(store.Status.Groups.Moving).To(BeZero())
		g.Expect(store.Status.Groups.Serving).To(Equal(store.Status.Groups.Total))
	}).WithTimeout(4 * time.Minute).Should(Succeed())
}

// redundancy records the changes of the condition Redundant. The returned function returns all reasons that the
// condition has had.
func (s *space) redundancy() func() []string {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(context.Background())
	DeferCleanup(cancel)
	cmd := exec.CommandContext(ctx, tool("kubectl"), "get", "recordstore", "q", "-n", s.name, "--watch", "-o",
		`jsonpath={.status.conditions[?(@.type=="Redundant")].reason}{"\n"}`)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	reasons, first := make(chan []string, 1), make(chan struct{})
	go func() {
		var seen []string
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if seen = append(seen, lines.Text()); len(seen) == 1 {
				close(first)
			}
		}
		_ = cmd.Wait() // finishes when the scenario ends
		reasons <- slices.Compact(seen)
	}()
	Eventually(first).WithTimeout(time.Minute).Should(BeClosed())
	return func() []string {
		cancel()
		return <-reasons
	}
}

// handOvers reads the logs of pods until the pods end. For each shard, the returned function returns the line that
// the shard logged about handing over its leaderships when it stopped.
func (s *space) handOvers(pods map[string]pod) func() map[string]string {
	ctx, cancel := context.WithCancel(context.Background())
	DeferCleanup(cancel)
	var done sync.WaitGroup
	var mutex sync.Mutex
	said := map[string]string{}
	for name := range pods {
		done.Go(func() {
			cmd := exec.CommandContext(ctx, tool("kubectl"), "logs", "-n", s.name, name, "--follow", "--tail=1")
			cmd.WaitDelay = 5 * time.Second
			out, _ := cmd.Output() // returns when the container or the scenario ends
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "handed the lead over") {
					mutex.Lock()
					said[strings.TrimSuffix(name, "-0")] = strings.TrimSpace(line)
					mutex.Unlock()
				}
			}
		})
	}
	return func() map[string]string {
		done.Wait()
		return said
	}
}

// This scenario tests issue 4: under load, shards are added and removed, restart, lose a disk and change their file
// system. No call fails, because the client retries, and no acknowledged record is lost. There are three nodes, and
// therefore three failure domains with enough shards each.
var _ = Describe("a store with three copies, under load,", Ordered, SpecPriority(3), func() {
	var s *space
	var l *load
	disks := map[string][]diskSpec{}
	addDisk := func(set, node string, size int) {
		name := fmt.Sprintf("%s-%d", set, len(disks[set]))
		disks[set] = append(disks[set], diskSpec{node, s.disk(node, strings.TrimPrefix(name, "e2e-"),
			fmt.Sprintf("%dM", size)), fmt.Sprintf("%dMi", size-10)})
	}
	BeforeAll(func() {
		s = newSpace("scale")
		s.groups = 24
		s.diskSet("e2e-scale-etcd", "ext4", diskSpec{"n1", s.disk("n1", "scale-etcd", "256M"), "240Mi"})
		for _, node := range []string{"n1", "n2", "n3"} {
			addDisk("e2e-scale", node, 192)
		}
		s.diskSet("e2e-scale", "ext4", disks["e2e-scale"]...)
		s.makeStore("e2e-scale-etcd", "replication: {copies: 3}")
		s.makePool("main", "e2e-scale", 3, "fileSystem: {type: ext4}")
		s.client()
		s.awaitStoreCondition(v1alpha1.ConditionRedundant, "True", 3*time.Minute, "3 copies")
		s.awaitStore("q", 2*time.Minute)
		l = s.newLoad()
	})
	BeforeEach(func() {
		l.start()
		l.awaitCalls(100)
	})
	// well checks at the end of each step that no call has failed and that no acknowledged record is lost.
	well := func() {
		GinkgoHelper()
		l.finish(100)
	}

	It("grows from three shards to five, which fill themselves", smoke, func() {
		node := s.pod("main-1-0").Spec.NodeName // shard 1 can be removed later, because its node gets a second shard
		addDisk("e2e-scale", node, 192)
		for _, other := range []string{"n1", "n2", "n3"} {
			if other != node {
				addDisk("e2e-scale", other, 192)
				break
			}
		}
		s.diskSet("e2e-scale", "ext4", disks["e2e-scale"]...)
		kubectl("scale", "shardpool", "main", "-n", s.name, "--replicas=5")
		for _, number := range []int32{3, 4} {
			shard := s.awaitShard("main", number, v1alpha1.ShardServing, 3*time.Minute)
			Eventually(func() int {
				return s.copiesOn(shard.Name)
			}).WithTimeout(3*time.Minute).Should(BeNumerically(">", 0), "%s stays empty", shard.Name)
		}
		s.awaitSettled()
		well()
	})

	It("gives shard 1 away: first its groups, then its set, then its claim as the policy says", smoke, func() {
		kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", `{"spec":{"deletionPolicy":"Delete"}}`)
		if CurrentSpecReport().NumAttempts == 1 { // a second attempt continues where the first one failed
			Expect(s.copiesOn("main-1")).To(BeNumerically(">", 0))
		}
		kubectl("patch", "shardpool", "main", "-n", s.name, "--type=merge", "-p", `{"spec":{"shards":4,"remove":[1]}}`)
		Eventually(func(g Gomega) {
			var sets struct {
				Items []struct{ Metadata struct{ Name string } }
			}
			g.Expect(get(&sets, "statefulsets", "-n", s.name, "-l", shardPods)).To(Succeed())
			var names []string
			for _, set := range sets.Items {
				names = append(names, set.Metadata.Name)
			}
			g.Expect(names).To(ConsistOf("main-0", "main-2", "main-3", "main-4"))
		}).WithTimeout(3 * time.Minute).Should(Succeed())
		Expect(s.copiesOn("main-1")).To(BeZero(), "its set went before its groups did")
		Eventually(func() string { return kubectl("get", "pvc", "-n", s.name, "-l", shardPods, "-o", "name") }).
			WithTimeout(time.Minute).ShouldNot(ContainSubstring("data-main-1-0"))
		s.awaitSettled()
		kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", `{"spec":{"deletionPolicy":"Retain"}}`)
		well()
	})

	It("changes its image shard by shard, each after it has handed its lead over", func() {
		before := s.pods(shardPods)
		seen := s.watchShards()
		said := s.handOvers(before)
		s.useImage(nextImage)
		s.awaitUpdated(nextImage)
		order := seen.seen()
		Expect(order).To(ConsistOf("main-0", "main-2", "main-3", "main-4"))
		AddReportEntry("order of restarts", order)
		words := said()
		some := MatchRegexp(`"groups":[1-9]`)
		for _, shard := range order {
			// A shard may just have lost all of its leaderships. In that case it has nothing to hand over.
			Expect(words).To(HaveKeyWithValue(shard, Or(some, MatchRegexp(`"groups":0,"kept":0\b`))),
				"it handed no lead over: %v", words)
			AddReportEntry(shard, words[shard])
		}
		Expect(words).To(ContainElement(some), "no shard had a lead")
		s.awaitSettled()
		well()
	})

	It("replaces a disk that comes back blank, and nobody has to do anything", func() {
		before := s.shards("main")["main-2"]
		disk := s.diskOf("e2e-scale", "data-main-2-0")
		// The pod must not run while the disk is replaced, just as it would not run while its machine is down. Otherwise,
		// the kernel's last writes would leave half a file system on the blank disk. The kubelet would neither mount that
		// disk nor format it (FormatBlocked).
		Expect(s.holdPods().err).NotTo(HaveOccurred())
		kubectl("delete", "pod", "main-2-0", "-n", s.name, "--timeout=60s")
		awaitUnmounted(disk.Node, disk.Device)
		cluster("disk", "zero", disk.Node, strings.TrimPrefix(filepath.Base(disk.Device), "virtio-"))
		zeroed := time.Now()
		s.allowPods("main-2")
		Eventually(func(g Gomega) {
			now := s.shards("main")["main-2"]
			g.Expect(now.Volume).NotTo(BeNil())
			g.Expect(now.Volume.UUID).NotTo(Or(BeEmpty(), Equal(before.Volume.UUID)), "%+v", now)
			g.Expect(now.State).To(Equal(v1alpha1.ShardServing), "%+v", now)
		}).WithTimeout(4 * time.Minute).Should(Succeed())
		s.awaitSettled()
		AddReportEntry(fmt.Sprintf("redundant again %v after the disk was zeroed", time.Since(zeroed).Round(time.Second)))
		well()
	})

	It("gives a shard another disk by one field, and the old one is wiped", func() {
		before := s.shards("main")["main-2"]
		addDisk("e2e-scale", before.Node, 192)
		s.diskSet("e2e-scale", "ext4", disks["e2e-scale"]...)
		kubectl("patch", "shardpool", "main", "-n", s.name, "--type=merge", "-p", `{"spec":{"replace":[2]}}`)
		Eventually(func(g Gomega) {
			now := s.shards("main")["main-2"]
			g.Expect(now.Volume).NotTo(BeNil())
			g.Expect(now.Volume.UUID).NotTo(Or(BeEmpty(), Equal(before.Volume.UUID)), "%+v", now)
			g.Expect(now.Volume.PersistentVolume).NotTo(Or(BeEmpty(), Equal(before.Volume.PersistentVolume)), "%+v", now)
			g.Expect(now.State).To(Equal(v1alpha1.ShardServing), "%+v", now)
			g.Expect(now.Node).To(Equal(before.Node), "its failure domain has another copy now")
		}).WithTimeout(3 * time.Minute).Should(Succeed())
		s.awaitSettled()
		Eventually(func(g Gomega) {
			var set v1alpha1.DiskSet
			g.Expect(get(&set, "diskset", "e2e-scale")).To(Succeed())
			g.Expect(set.Status.Disks).To(ContainElement(And(HaveField("PersistentVolume", before.Volume.PersistentVolume),
				HaveField("State", v1alpha1.DiskReleased), HaveField("Message", ContainSubstring("it was replaced")))))
		}).WithTimeout(time.Minute).Should(Succeed())
		s.wipe("e2e-scale", before, s.shards("main")["main-0"])
		well()
	})

	It("goes from ext4 to xfs by a second pool, back half-way, and then for good", func() {
		for _, node := range []string{"n1", "n2", "n3"} {
			addDisk("e2e-scale-xfs", node, 320)
		}
		s.diskSet("e2e-scale-xfs", "xfs", disks["e2e-scale-xfs"]...)
		s.makePool("xfs", "e2e-scale-xfs", 3, "fileSystem: {type: xfs}")
		for n := range int32(3) {
			s.awaitShard("xfs", n, v1alpha1.ShardServing, 3*time.Minute)
		}
		s.awaitSettled() // wait until the shard has received its groups

		By("half-way, and back")
		reasons := s.redundancy()
		all := s.copiesOn("main-")
		Expect(all).To(BeNumerically(">", 0))
		s.poolState("main", v1alpha1.PoolDrained)
		left := 0
		Eventually(func() int {
			left = s.copiesOn("main-")
			return left
		}).WithTimeout(3 * time.Minute).WithPolling(10 * time.Millisecond).Should(BeNumerically("<", all))
		s.poolState("main", v1alpha1.PoolActive)
		Eventually(func(g Gomega) { // the status shows the change only some seconds later
			for name, shard := range s.shards("main") {
				g.Expect(shard.State).To(Equal(v1alpha1.ShardServing), name)
			}
		}).WithTimeout(2 * time.Minute).Should(Succeed())
		s.awaitSettled()
		AddReportEntry(fmt.Sprintf("copies on the first pool: %d, half-way %d, taken back %d", all, left,
			s.copiesOn("main-")))

		By("for good")
		s.poolState("main", v1alpha1.PoolDrained)
		Eventually(func() int { return s.copiesOn("main-") }).WithTimeout(4 * time.Minute).Should(BeZero())
		kubectl("delete", "shardpool", "main", "-n", s.name, "--wait=true", "--timeout=110s")
		Expect(kubectl("get", "pvc", "-n", s.name, "-l", shardPods, "-o", "name")).
			NotTo(BeEmpty(), "the claims went, with deletionPolicy Retain")
		s.awaitSettled()
		s.awaitStore("q", 2*time.Minute)
		shards := s.shards("xfs")
		Expect(shards).To(HaveLen(3))
		for name, shard := range shards {
			Expect(shard.Volume).NotTo(BeNil(), name)
			Expect(shard.Volume.FileSystem).To(Equal("xfs"), name)
		}
		seen := reasons()
		AddReportEntry("condition Redundant meanwhile", seen)
		Expect(seen).NotTo(ContainElement("SharedDomain"), "two copies of a group were on one node on the way")
		well()
	})
})

// poolState sets the wanted state of the pool.
func (s *space) poolState(pool string, state v1alpha1.PoolState) {
	GinkgoHelper()
	kubectl("patch", "shardpool", pool, "-n", s.name, "--type=merge", "-p", `{"spec":{"state":"`+string(state)+`"}}`)
}
