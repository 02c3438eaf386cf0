//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/certs"
)

// memberships follows the members of the store q's groups in etcd. It sees every change that leaders write.
type memberships struct {
	mutex   sync.Mutex
	domains map[string]string          // failure domains of shards by name, including deleted shards; guarded by mutex
	groups  map[string]placement.Group // guarded by mutex
	steps   []membershipStep           // every change of a group that already existed; guarded by mutex
	shared  []string                   // memberships with two voters on one node; guarded by mutex
	failure error                      // guarded by mutex
}

// membershipStep is one change of a group.
type membershipStep struct{ before, after placement.Group }

// watchMemberships starts to follow the members. This machine must be able to reach the first etcd member's pod by its
// address.
func (s *space) watchMemberships() *memberships {
	GinkgoHelper()
	address := strings.TrimSpace(kubectl("get", "pod", "q-etcd-0", "-n", s.name, "-o", "jsonpath={.status.podIP}")) +
		":2379"
	content, err := s.secret("q-etcd-tls") // the Secret contains ca.crt, which a client needs to connect to etcd
	Expect(err).NotTo(HaveOccurred())
	own, err := certs.InMemory(certs.Config{}, content)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(own.Close)
	etcd, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{address}, Credentials: etcd.Credentials(own)})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	m := &memberships{domains: map[string]string{}, groups: map[string]placement.Group{}}
	prefix := fmt.Sprintf("%s/%s.q/", registry.PrefixDefault, s.name)
	soon, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	first, err := etcd.Get(soon, prefix, clientv3.WithPrefix())
	Expect(err).NotTo(HaveOccurred(), "this machine has to reach pods, such as %s, by their addresses", address)
	for _, kv := range slices.Backward(first.Kvs) { // shards come first, so that their nodes are known when groups follow
		m.handleKey(strings.TrimPrefix(string(kv.Key), prefix), kv.Value)
	}
	Expect(m.groups).NotTo(BeEmpty(), "etcd holds no groups below %s", prefix)
	var done sync.WaitGroup
	done.Go(func() {
		for answer := range etcd.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(first.Header.Revision+1)) {
			if err := answer.Err(); err != nil && ctx.Err() == nil {
				m.fail(fmt.Errorf("the watch of etcd ended: %w", err))
			}
			for _, event := range answer.Events {
				if event.Type == clientv3.EventTypePut {
					m.handleKey(strings.TrimPrefix(string(event.Kv.Key), prefix), event.Kv.Value)
				}
			}
		}
	})
	DeferCleanup(func() {
		cancel()
		done.Wait()
		_ = etcd.Close() // the only possible error is that calls were aborted
	})
	return m
}

func (m *memberships) fail(err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.failure = err
}

// handleKey processes one key in etcd and its value.
func (m *memberships) handleKey(key string, value []byte) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if _, ok := strings.CutPrefix(key, "shards/"); ok {
		var shard placement.Shard
		if m.failure = json.Unmarshal(value, &shard); m.failure == nil {
			m.domains[shard.Name] = shard.Domain
		}
		return
	}
	if _, ok := strings.CutPrefix(key, "groups/"); !ok {
		return
	}
	var group placement.Group
	if m.failure = json.Unmarshal(value, &group); m.failure != nil {
		return
	}
	if before, ok := m.groups[group.Name]; ok {
		m.steps = append(m.steps, membershipStep{before, group})
	}
	m.groups[group.Name] = group
	nodes := map[string]string{}
	for _, shard := range shardsOf(group, placement.Voter) {
		node := m.domains[shard]
		if other, taken := nodes[node]; taken && node != "" {
			m.shared = append(m.shared, fmt.Sprintf("group %s has voters on %s and %s, both of node %s", group.Name, other,
				shard, node))
		}
		nodes[node] = shard
	}
}

// shardsOf returns the shards on which the group has members with the given role.
func shardsOf(group placement.Group, role placement.Role) []string {
	var shards []string
	for _, member := range group.Members {
		if member.Role == role {
			shards = append(shards, member.Shard)
		}
	}
	return shards
}

// added returns the shards that had no member with the given role before the step and have one after it.
func (s membershipStep) added(role placement.Role) []string {
	had := shardsOf(s.before, role)
	return slices.DeleteFunc(shardsOf(s.after, role), func(shard string) bool { return slices.Contains(had, shard) })
}

// now returns the number of steps so far.
func (m *memberships) now() int {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return len(m.steps)
}

// await waits until a step matches. A step matches if is() returns a shard on one of the given nodes. The argument
// looked is the number of earlier steps, which await skips. It returns the matching step and the node.
func (m *memberships) await(looked int, timeout time.Duration, nodes []string,
	is func(membershipStep) []string) (step membershipStep, node string) {
	GinkgoHelper()
	find := func() error {
		m.mutex.Lock()
		defer m.mutex.Unlock()
		if m.failure != nil {
			return StopTrying("what etcd holds cannot be followed").Wrap(m.failure)
		}
		for ; looked < len(m.steps); looked++ {
			for _, shard := range is(m.steps[looked]) {
				if node = m.domains[shard]; slices.Contains(nodes, node) {
					step = m.steps[looked]
					return nil
				}
			}
		}
		return fmt.Errorf("none of %d steps is the one that is waited for", looked)
	}
	Eventually(find).WithTimeout(timeout).WithPolling(5 * time.Millisecond).Should(Succeed())
	return step, node
}

// count returns the number of changes seen so far, and those memberships that had two voters on one node.
func (m *memberships) count() (steps int, shared []string) {
	GinkgoHelper()
	m.mutex.Lock()
	defer m.mutex.Unlock()
	Expect(m.failure).NotTo(HaveOccurred())
	return len(m.steps), slices.Clone(m.shared)
}

// lagMax is the maximum number of entries that an up-to-date copy may lack. The operator uses the same limit when it
// restarts shards.
const lagMax = 1000

// awaitCaughtUp waits until it has seen each group of the store q with the given number of voters that serve and are
// up to date. The groups need not all be in this state at the same time, and they may move while it waits. Once
// awaitCaughtUp has returned, another node may fail.
func (s *space) awaitCaughtUp(copies int, timeout time.Duration) {
	GinkgoHelper()
	well := map[string]bool{}
	Eventually(func(g Gomega) {
		var status struct {
			Groups []struct {
				Group, State, Role string
				LagEntries         *int `json:"lagEntries"`
			}
		}
		o := s.sheaf("q", "", "status", "--output=json")
		g.Expect(json.Unmarshal([]byte(o.out), &status)).To(Succeed(), "%v", o) // the exit code is 1 if there is a problem
		voters, behind := map[string]int{}, map[string]any{}
		for _, row := range status.Groups {
			behind[row.Group] = row
			if row.State != "Serving" || row.Role != "Voter" && row.Role != "Leader" || row.LagEntries == nil ||
				*row.LagEntries > lagMax {
				continue
			}
			if voters[row.Group]++; voters[row.Group] >= copies {
				well[row.Group] = true
			}
		}
		for group := range well {
			delete(behind, group)
		}
		g.Expect(well).To(HaveLen(s.groups), "groups that have not caught up yet: %v", behind)
	}).WithTimeout(timeout).Should(Succeed())
}
