//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/placement"
)

// partitionWaitMax limits how long a call may wait when a node is partitioned during a move. Calls wait less even on a
// slow machine. The test prints the actual time.
const partitionWaitMax = 30 * time.Second

// checkWaits reports how long calls had to wait after an event. It fails if a call failed or waited too long, or if an
// acknowledged record is missing. It stops the load.
func (l *load) checkWaits(what string, since time.Time) {
	GinkgoHelper()
	Expect(l.end()).To(BeEmpty())
	longest, until := l.slowestCall(since)
	words := fmt.Sprintf("%s: no call waited longer than %v; the last one above %v was answered %v later", what,
		longest.Round(time.Millisecond), slowCall, until.Round(time.Millisecond))
	AddReportEntry(words)
	GinkgoWriter.Println(words)
	Expect(longest).To(BeNumerically("<=", partitionWaitMax), words)
	l.check()
}

// makeNextPool gives the store q a second pool, on disks with adjustable speed. The pool is cordoned, so it takes no
// group yet.
func (s *space) makeNextPool() {
	GinkgoHelper()
	var disks []diskSpec
	for _, node := range []string{"n1", "n2", "n3"} {
		disks = append(disks, diskSpec{node, s.disk(node, s.name+"-slow", "256M", "slow"), "240Mi"})
	}
	s.diskSet(s.name+"-slow", "ext4", disks...)
	s.makePool("next", s.name+"-slow", 3, "state: Cordoned", "fileSystem: {type: ext4}")
	for n := range int32(3) {
		s.awaitShard("next", n, v1alpha1.ShardServing, 3*time.Minute)
	}
}

// migrate moves all groups from the pool "main" to the pool "next" under load. At each step, it partitions the node of
// a copy, and reconnects that node. n1 is not partitioned, because it runs etcd. If the move is complete before all
// steps were seen, the groups move back.
func (s *space) migrate(l *load) {
	others := []string{"n2", "n3"}
	var from, to string
	steps := []struct {
		name string
		is   func(membershipStep) []string // returns the shards whose nodes may be partitioned when the step is seen
	}{
		{"a learner was added", func(step membershipStep) []string { return step.added(placement.Learner) }},
		{"a learner was promoted and the voter in its domain removed", func(step membershipStep) []string {
			return step.added(placement.Voter)
		}},
		{"the lead went to the new pool", func(step membershipStep) []string {
			if step.before.Leader != step.after.Leader && strings.HasPrefix(step.after.Leader, to) {
				return []string{step.after.Leader}
			}
			return nil
		}},
		{"the last voter of the old pool was removed", func(step membershipStep) []string {
			for _, shard := range shardsOf(step.after, placement.Voter) {
				if strings.HasPrefix(shard, from) {
					return nil
				}
			}
			return step.added(placement.Voter)
		}},
	}
	m := s.watchMemberships()
	turns := 0
	turn := func(a, b string) {
		turns++
		from, to = a, b
		s.poolState(to, v1alpha1.PoolActive)
		s.poolState(from, v1alpha1.PoolDrained)
	}
	looked := m.now()
	turn("main", "next")
	for _, step := range steps {
		By("cut off: " + step.name)
		at, node := m.await(looked, 3*time.Minute, others, step.is)
		cut := time.Now()
		cluster("node-cut", node)
		DeferCleanup(func() { cluster("node-join", node) })
		GinkgoWriter.Printf("%s of group %s: %s was cut off %v later\n", step.name, at.after.Name, node, time.Since(cut).
			Round(time.Millisecond))
		l.awaitCalls(300)
		l.checkWaits(fmt.Sprintf("%s cut off when %s", node, step.name), cut)

		By("put back")
		l.start()
		cluster("node-join", node)
		s.awaitCaughtUp(3, 3*time.Minute)
		GinkgoWriter.Printf("all copies had caught up %v after the cut\n", time.Since(cut).Round(time.Second))
		looked = m.now() // continue from here, because all groups may have moved before the test waits for the next step
		if s.copiesOn(from+"-") == 0 {
			turn(to, from)
		}
	}

	By("all groups get to the second pool, and the first one goes")
	if to != "next" {
		turn("main", "next")
	}
	Eventually(func() int { return s.copiesOn(from + "-") }).WithTimeout(4 * time.Minute).Should(BeZero())
	s.awaitSettled()
	n, shared := m.count()
	AddReportEntry(fmt.Sprintf("%d changes of memberships in etcd, %d turns", n, turns))
	Expect(shared).To(BeEmpty(), "two voters of a group were on one node on the way, in %d steps", n)
	kubectl("delete", "shardpool", "main", "-n", s.name, "--wait=true", "--timeout=110s")
	l.finish(100)
}
