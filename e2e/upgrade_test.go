//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// These are selectors of pods.
const (
	storePods = v1alpha1.LabelStore + "=q"
	shardPods = v1alpha1.LabelPool + "=main"
)

// restartCounts returns, for each pod, its UID and how often its containers have restarted. The result changes only if
// something restarts.
func restartCounts(pods map[string]pod) map[string]string {
	lives := map[string]string{}
	for name, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			lives[name] = fmt.Sprintf("%s restarts=%d", p.Metadata.UID, c.RestartCount)
		}
	}
	return lives
}

// changedPods returns the names of pods that were replaced or restarted.
func changedPods(before, after map[string]pod) []string {
	var names []string
	was, is := restartCounts(before), restartCounts(after)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if was[name] != is[name] {
			names = append(names, name)
		}
	}
	return names
}

// useImage sets the store's image.
func (s *space) useImage(image string) {
	GinkgoHelper()
	kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", `{"spec":{"image":"`+image+`"}}`)
}

// updateMode sets the update mode of the pool main.
func (s *space) updateMode(mode v1alpha1.UpdateMode) {
	GinkgoHelper()
	kubectl("patch", "shardpool", "main", "-n", s.name, "--type=merge", "-p",
		`{"spec":{"update":{"mode":"`+string(mode)+`"}}}`)
}

// awaitObserved waits until the operator has processed the current specs.
func (s *space) awaitObserved() {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		store := s.storeQ(g)
		g.Expect(store.Status.ObservedGeneration).To(Equal(store.Generation))
		pool, err := s.pool("main")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pool.Status.ObservedGeneration).To(Equal(pool.Generation))
	}).WithTimeout(2 * time.Minute).Should(Succeed())
}

// awaitUpdated waits until all of the store's pods run the given image and are ready, and until the pool's and the
// store's statuses show this.
func (s *space) awaitUpdated(image string) {
	GinkgoHelper()
	s.awaitCondition("main", v1alpha1.ConditionUpdated, "True", 3*time.Minute)
	Eventually(func(g Gomega) {
		for name, p := range s.pods(storePods) {
			g.Expect(p.ready()).To(BeTrue(), name)
			g.Expect(p.Spec.Containers[0].Image).To(Equal(image), name)
			g.Expect(p.Metadata.DeletionTimestamp).To(BeEmpty(), name)
		}
		pool, err := s.pool("main")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pool.Status.Updated).To(Equal(pool.Status.Shards), "%+v", pool.Status)
		g.Expect(pool.Status.Serving).To(Equal(pool.Status.Shards), "%+v", pool.Status)
	}).WithTimeout(3 * time.Minute).Should(Succeed())
	s.awaitObserved()
	s.awaitStore("q", 2*time.Minute)
}

// throttle sets the speed of the disk that the shard on the node uses.
func (s *space) throttle(node, rate string) {
	GinkgoHelper()
	cluster("disk", "throttle", node, s.name+"-slow", rate)
}

// These are the disk rates for shards that are about to be restarted, during the mount and during the load. At
// loadRate, loading takes minutes.
const mountRate, loadRate = "512K", "16K"

// throttleAll sets the speed of the disks that the shards use.
func (s *space) throttleAll(rate string) {
	GinkgoHelper()
	for _, node := range []string{"n1", "n2", "n3"} {
		s.throttle(node, rate)
	}
}

// awaitHeld waits until some shard has been restarted and holds up the update because it is still loading. It returns
// the name of that shard, and ignores the shards listed in `but`. The shard keeps loading until the test makes its
// disk fast again.
func (s *space) awaitHeld(before map[string]pod, but []string) string {
	GinkgoHelper()
	var held string
	Eventually(func(g Gomega) {
		for name, p := range s.pods(shardPods) {
			shard := strings.TrimSuffix(name, "-0")
			status := p.Status.ContainerStatuses
			if p.Metadata.UID != before[name].Metadata.UID && !slices.Contains(but, shard) && len(status) == 1 &&
				status[0].State.Running != nil {
				held = shard
				s.throttle(p.Spec.NodeName, loadRate)
			}
		}
		g.Expect(held).NotTo(BeEmpty(), "no shard restarts")
	}).WithTimeout(3 * time.Minute).WithPolling(200 * time.Millisecond).Should(Succeed())
	s.awaitCondition("main", v1alpha1.ConditionUpdated, "False", 2*time.Minute,
		"none is restarted while shard "+held+" is Loading")
	return held
}

// restarts records events from a watch on the shards' pods.
type restarts struct {
	mutex   sync.Mutex
	order   []string // shards whose pod was deleted, in order; guarded by mutex
	down    []string // moments at which more than one shard had no pod, or only a terminating one; guarded by mutex
	failure error    // guarded by mutex
}

// watchShards follows the shards' pods event by event, because polling could miss a restart.
func (s *space) watchShards() *restarts {
	GinkgoHelper()
	r := &restarts{}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, tool("kubectl"), "get", "pods", "-n", s.name, "-l", shardPods, "--watch",
		"--output-watch-events", "-o", "json")
	out, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	shards, started, done := len(s.pods(shardPods)), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		err := errors.Join(r.follow(json.NewDecoder(out), shards, started), cmd.Wait())
		if ctx.Err() == nil {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.failure = fmt.Errorf("the watch of the shards' pods ended: %w", cmp.Or(err, io.EOF))
		}
	}()
	DeferCleanup(func() {
		cancel()
		<-done
	})
	Eventually(started).WithTimeout(time.Minute).Should(BeClosed())
	return r
}

// follow reads events until the stream ends. It first receives one event for each existing pod, which together
// describe the initial state.
func (r *restarts) follow(events *json.Decoder, shards int, started chan<- struct{}) error {
	well := map[string]string{} // UID of each shard's ready pod
	for {
		var event struct {
			Type   string
			Object pod
		}
		if err := events.Decode(&event); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		shard, uid := strings.TrimSuffix(event.Object.Metadata.Name, "-0"), event.Object.Metadata.UID
		r.mutex.Lock()
		switch {
		case event.Type == "DELETED" || event.Object.Metadata.DeletionTimestamp != "":
			if well[shard] == uid {
				delete(well, shard)
				r.order = append(r.order, shard)
				if len(well) < shards-1 {
					r.down = append(r.down, fmt.Sprintf("%s was told to end while only %v were there", shard,
						slices.Sorted(maps.Keys(well))))
				}
			}
		default:
			well[shard] = uid
			if len(well) == shards && started != nil {
				close(started)
				started = nil
			}
		}
		r.mutex.Unlock()
	}
}

// seen returns the shards that have been restarted so far, in order.
func (r *restarts) seen() []string {
	GinkgoHelper()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	Expect(r.failure).NotTo(HaveOccurred())
	Expect(r.down).To(BeEmpty())
	return slices.Clone(r.order)
}

// leaderName returns the pod of the operator that leads, or led last, or "" if none has led.
func leaderName() string {
	GinkgoHelper()
	name, _, _ := strings.Cut(leaseHolder(), "_")
	return name
}

// leaseHolder returns the process of the leading operator: its pod's name, and a suffix that the process chooses when
// it starts.
func leaseHolder() string {
	GinkgoHelper()
	return kubectl("get", "lease", "-n", operatorNamespace, "-o", "jsonpath={.items[*].spec.holderIdentity}")
}

// awaitLeader waits until an operator with the given image leads, and returns its pod.
func awaitLeader(image string) pod {
	GinkgoHelper()
	var leader pod
	Eventually(func(g Gomega) {
		leader = pod{}
		name := leaderName()
		g.Expect(name).NotTo(BeEmpty(), "no operator leads")
		g.Expect(get(&leader, "pod", name, "-n", operatorNamespace)).To(Succeed())
		g.Expect(leader.ready()).To(BeTrue())
		g.Expect(leader.Spec.Containers[0].Image).To(Equal(image))
	}).WithTimeout(2 * time.Minute).Should(Succeed())
	return leader
}

// Scenario 7: upgrades. A shard restarts only if its own pod changes. Shards restart one at a time, and the update
// stops if a shard fails.
var _ = Describe("upgrading", Ordered, SpecPriority(2), func() {
	const records = 12
	var s *space
	var ids map[string][]int
	BeforeAll(func() {
		Expect(nextImage).NotTo(BeEmpty(),
			"E2E_NEXT_IMAGE and E2E_NEXT_OPERATOR_IMAGE name what is upgraded to: run this by `make e2e`")
		s = newSpace("upgrade")
		s.groups = 24
		s.diskSet(s.name, "ext4", diskSpec{"n1", s.disk("n1", s.name, "256M"), "240Mi"})
		var slow []diskSpec
		for _, node := range []string{"n1", "n2", "n3"} {
			slow = append(slow, diskSpec{node, s.disk(node, s.name+"-slow", "320M", "slow"), "300Mi"})
		}
		s.diskSet(s.name+"-slow", "ext4", slow...)
		DeferCleanup(func() { s.throttleAll("off") }) // cleaning up a slow disk takes long
		s.makeStore(s.name)
		s.makePool("main", s.name+"-slow", 3, "fileSystem: {type: ext4}", "residency: Resident",
			"resources: {limits: {memory: 256Mi}}")
		s.begin(2*time.Minute, records)
		ids = s.idsByShard()
		Expect(ids).To(HaveLen(3), "every shard has a record")
		s.putBulk(48) // at mountRate, loading takes half a minute, which is long enough to be observed
	})

	It("of the shards' image waits while the pool is paused", func() {
		before := s.pods(shardPods)
		s.updateMode(v1alpha1.UpdatePaused)
		s.useImage(nextImage)
		s.awaitCondition("main", v1alpha1.ConditionUpdated, "False", time.Minute, "3 of 3 shards", "update.mode is Paused",
			"OneByOne")
		s.awaitStoreCondition(v1alpha1.ConditionUpdated, "False", time.Minute, "Paused")
		By("gateway and etcd have no pause")
		kubectl("rollout", "status", "-n", s.name, "deployment/q-gateway", "--timeout=2m")
		Eventually(func(g Gomega) {
			etcd := s.pod("q-etcd-0")
			g.Expect(etcd.ready()).To(BeTrue())
			g.Expect(etcd.Spec.Containers[0].Image).To(Equal(nextImage))
		}).WithTimeout(2 * time.Minute).Should(Succeed())
		s.awaitStore("q", 2*time.Minute)
		Expect(changedPods(before, s.pods(shardPods))).To(BeEmpty())
	})

	It("of the shards' image restarts one after the other, each loaded before the next", func() {
		before := s.pods(shardPods)
		seen := s.watchShards()
		calls := s.startTraffic("--timeout=2m")
		s.throttleAll(mountRate)
		s.updateMode(v1alpha1.UpdateOneByOne)
		var order []string
		for range len(before) - 1 {
			held := s.awaitHeld(before, order)
			s.checkOtherShards(held, ids)
			order = append(order, held)
			// On a busy machine, the operator may ask the shard late.
			Eventually(func() v1alpha1.ShardState { return s.shardState(held) }).WithTimeout(time.Minute).
				Should(Equal(v1alpha1.ShardLoading), "it has loaded already: is the disk slow?")
			Expect(seen.seen()).To(Equal(order))
			s.throttle(before[held+"-0"].Spec.NodeName, "off")
		}
		s.throttleAll("off")
		s.awaitUpdated(nextImage)
		all := seen.seen()
		Expect(all[:len(order)]).To(Equal(order))
		Expect(all).To(ConsistOf("main-0", "main-1", "main-2"))
		AddReportEntry("order of restarts", all)
		for name, p := range s.pods(shardPods) {
			status := p.Status.ContainerStatuses[0]
			Expect(status.ImageID).NotTo(Equal(before[name].Status.ContainerStatuses[0].ImageID), "it is the same image")
			Expect(status.RestartCount).To(BeZero(), "%s ended by itself", name)
		}
		Expect(calls.end()).To(BeEmpty())
		s.getAll(records)
	})

	It("of the shards' image is taken back half-way", func() {
		before := s.pods(shardPods)
		seen := s.watchShards()
		s.throttleAll(mountRate)
		s.useImage(image)
		held := s.awaitHeld(before, nil)
		s.useImage(nextImage)
		s.awaitObserved() // the operator must see the new image before it may restart another shard
		s.throttleAll("off")
		s.awaitUpdated(nextImage)
		Expect(changedPods(before, s.pods(shardPods))).To(Equal([]string{held + "-0"}), "only the first one was restarted")
		Expect(seen.seen()).To(Equal([]string{held, held}))
	})

	It("to an image that does not exist stops at the gateway, and is taken back", func() {
		before, etcd := s.pods(shardPods), s.pod("q-etcd-0").Metadata.UID
		missing := repository(nextImage) + ":no-such-tag"
		s.useImage(missing)
		s.awaitStoreCondition(v1alpha1.ConditionUpdated, "False", 2*time.Minute, missing, "etcd and shards keep theirs",
			"Image", "spec.image")
		s.awaitStoreCondition(v1alpha1.ConditionReady, "False", time.Minute, "0 of 1 gateway")
		s.awaitCondition("main", v1alpha1.ConditionUpdated, "False", time.Minute, "3 of 3 shards",
			"do not run image "+missing)
		s.awaitStoreCondition(v1alpha1.ConditionGatewayReady, "True", time.Minute)
		s.put("q", records+1, "put meanwhile")
		s.getAll(records)

		s.useImage(nextImage)
		s.awaitUpdated(nextImage)
		Expect(changedPods(before, s.pods(shardPods))).To(BeEmpty())
		Expect(s.pod("q-etcd-0").Metadata.UID).To(Equal(etcd))
		s.getAll(records)
	})
})

// shardState returns the state of a shard in the pool main.
func (s *space) shardState(name string) v1alpha1.ShardState {
	GinkgoHelper()
	return s.shards("main")[name].State
}
