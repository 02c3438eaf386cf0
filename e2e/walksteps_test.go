//go:build e2e && walk

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func (w *walk) walkScale() {
	w.step("3 to 4 to 3 by helm", "no failed call", func() {
		w.helmMust(nil, values(walkValues, 4, ""))
		w.awaitShardCount("q-a", 4)
		w.awaitSettled()
		w.helmMust(nil, values(walkValues, 3, ""))
		w.awaitShardCount("q-a", 3)
	})
	w.step("3 to 6 to 4 with `remove: [1, 4]`", "no failed call, balanced", func() {
		w.helmMust(nil, values(walkValues, 6, ""))
		w.awaitShardCount("q-a", 6)
		w.awaitSettled()
		groups := map[string]int{}
		for name, shard := range w.shards("q-a") {
			groups[name] = int(shard.Groups)
		}
		w.note("groups by shard: %v", groups)
		w.helmMust(nil, values(walkValues, 4, "remove: [1, 4]"))
		w.awaitShardCount("q-a", 4)
		w.note("left: %v", slices.Sorted(maps.Keys(w.shards("q-a"))))
	})
	w.step("remove the only shard of a domain, taken back", "refused with the reason, nothing moves (D6)", func() {
		shards := w.shards("q-a")
		perNode := map[string]int{}
		for _, s := range shards {
			perNode[s.Node]++
		}
		var only, other v1alpha1.ShardStatus
		for _, s := range shards {
			if perNode[s.Node] == 1 {
				only = s
			} else {
				other = s
			}
		}
		numbers := slices.Sorted(func(yield func(int32) bool) {
			for _, s := range shards {
				if !yield(s.Number) {
					return
				}
			}
		})
		w.note("shards %v, only one of its node: %s", numbers, only.Name)
		began := time.Now()
		w.patch("shardpool/q-a", fmt.Sprintf(`{"spec":{"shards":3,"remove":[%d]}}`, only.Number))
		Eventually(func(g Gomega) {
			p, err := w.pool("q-a")
			g.Expect(err).NotTo(HaveOccurred())
			c := condition(p.Status.Conditions, v1alpha1.ConditionStalled)
			g.Expect(c).NotTo(BeNil())
			g.Expect(string(c.Status)).To(Equal("True"))
			w.said = append(w.said[:1], c.Reason+": "+c.Message)
		}).WithTimeout(2 * time.Minute).Should(Succeed())
		w.since(began, "said")
		began = time.Now()
		w.patch("shardpool/q-a", fmt.Sprintf(`{"spec":{"shards":3,"remove":[%d]}}`, other.Number))
		Eventually(func() string {
			p, err := w.pool("q-a")
			if err != nil {
				return err.Error()
			}
			if c := condition(p.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
				return string(c.Status)
			}
			return "False"
		}).WithTimeout(2 * time.Minute).Should(Equal("False"))
		w.since(began, "corrected: no longer Stalled")
		w.awaitShardCount("q-a", 3)
		w.since(began, "done")
		w.awaitSettled()
		w.helmMust(nil, values(walkValues, 3, ""))
	})
	w.step("drain everything, scale to 0, taken back", "refused with the reason, serves on", func() {
		w.patch("shardpool/q-a", `{"spec":{"state":"Drained"}}`)
		w.awaitCondition("q-a", v1alpha1.ConditionStalled, "True", time.Minute)
		p, err := w.pool("q-a")
		Expect(err).NotTo(HaveOccurred())
		w.note("drained: %s", condition(p.Status.Conditions, v1alpha1.ConditionStalled).Message)
		w.patch("shardpool/q-a", `{"spec":{"state":"Active","shards":0}}`)
		w.awaitCondition("q-a", v1alpha1.ConditionStalled, "True", time.Minute)
		p, err = w.pool("q-a")
		Expect(err).NotTo(HaveOccurred())
		w.note("0 shards: %s", condition(p.Status.Conditions, v1alpha1.ConditionStalled).Message)
		began := time.Now()
		w.patch("shardpool/q-a", `{"spec":{"shards":3}}`)
		w.awaitCondition("q-a", v1alpha1.ConditionReady, "True", 2*time.Minute)
		w.since(began, "taken back, Ready")
	})
}

func (w *walk) walkKill() {
	w.step("a shard's pod deleted", "fail-over", func() {
		old := w.pod("q-a-0-0").Metadata.UID
		kubectl("delete", "pod", "q-a-0-0", "-n", w.name)
		w.awaitNewPod("q-a-0-0", old, 2*time.Minute)
	})
	w.step("a shard's pod deleted by force", "fail-over", func() {
		old := w.pod("q-a-1-0").Metadata.UID
		try(time.Minute, "", "kubectl", "delete", "pod", "q-a-1-0", "-n", w.name, "--force", "--grace-period=0")
		w.awaitNewPod("q-a-1-0", old, 2*time.Minute)
	})
	w.step("`kill -9` of a shard, of a gateway", "fail-over", func() {
		cluster("crash", w.name, "q-a-2-0", "shard")
		w.load.awaitCalls(200)
		w.awaitSettled()
		gateway := slices.Sorted(maps.Keys(w.pods(v1alpha1.LabelStore + "=q,app.kubernetes.io/component=gateway")))[0]
		cluster("crash", w.name, gateway, "gateway")
		w.load.awaitCalls(200)
	})
	w.step("containerd, its shims and the kubelet of a node killed", "fail-over", func() {
		shard := w.shards("q-a")["q-a-0"]
		for _, what := range []string{"kubelet", "containerd", "containerd-shim-runc-v2"} {
			cluster("exec", shard.Node, "sh", "-c", "kill -9 $(pidof "+what+")")
			w.note("%s killed", what)
			w.load.awaitCalls(200)
		}
		kubectl("wait", "--for=condition=Ready", "node/"+shard.Node, "--timeout=180s")
	})
}

func (w *walk) walkNodes() {
	w.step("`kubectl drain` of one node", "evicts, no failed call", func() {
		began := time.Now()
		o := try(3*time.Minute, "", "kubectl", "drain", "n2", "--ignore-daemonsets", "--delete-emptydir-data", "--force",
			"--timeout=120s",
			"--pod-selector=sheaf.dev/store=q")
		w.since(began, "drained")
		kubectl("uncordon", "n2")
		Expect(o.err).NotTo(HaveOccurred(), "%v", o)
	})
	w.step("power of a node cut", "no failed call, at most 5 s", func() {
		began := time.Now()
		cluster("node-stop", "n2")
		w.awaitStoreCondition(v1alpha1.ConditionRedundant, "False", time.Minute)
		w.since(began, "said by Redundant")
		w.load.awaitCalls(600)
		w.note("Available: %s", w.jsonpath("recordstore/q", `.status.conditions[?(@.type=="Available")].status`))
		began = time.Now()
		cluster("node-start", "n2")
		kubectl("wait", "--for=condition=Ready", "node/n2", "--timeout=180s")
		w.awaitSettled()
		w.since(began, "back and redundant")
	})
	w.step("a node of a gateway cut off the network, and put back", "at most 5 s", func() {
		began := time.Now()
		cluster("node-cut", "n3")
		w.load.awaitCalls(600)
		w.awaitStoreCondition(v1alpha1.ConditionRedundant, "False", time.Minute)
		w.since(began, "said by Redundant")
		cluster("node-join", "n3")
		kubectl("wait", "--for=condition=Ready", "node/n3", "--timeout=180s")
	})
	w.step("where gateways and operators are after all that", "not on one node (D8)", func() {
		for what, args := range map[string][]string{
			"gateways":  {"-n", w.name, "-l", v1alpha1.LabelStore + "=q,app.kubernetes.io/component=gateway"},
			"operators": {"-n", operatorNamespace, "-l", "app.kubernetes.io/name=sheaf-operator"},
		} {
			on := strings.Fields(kubectl(append([]string{"get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"},
				args...)...))
			w.note("%s on %v", what, on)
			Expect(on).To(HaveLen(2))
			Expect(on[0]).NotTo(Equal(on[1]))
		}
	})
}

func (w *walk) walkOperator() {
	w.step("operators deleted every 3 s while 3 to 5 to 3", "converges", func() {
		w.whileOperatorsDie(func() {
			began := time.Now()
			w.patch("shardpool/q-a", `{"spec":{"shards":5}}`)
			w.awaitShardCount("q-a", 5)
			w.since(began, "5 serve")
			began = time.Now()
			w.patch("shardpool/q-a", `{"spec":{"shards":3}}`)
			w.awaitShardCount("q-a", 3)
			w.since(began, "3 serve")
		})
	})
	w.step("the operator that leads is killed", "the other takes over", func() {
		leader := leaderName()
		began := time.Now()
		kubectl("delete", "pod", "-n", operatorNamespace, leader, "--wait=false")
		Eventually(leaderName).WithTimeout(2 * time.Minute).ShouldNot(Equal(leader))
		w.since(began, "another leads")
	})
	w.step("the operator's chart away, a pod deleted, the chart back", "serves on", func() {
		old := w.pod("q-a-0-0").Metadata.UID
		must(3*time.Minute, "", "helm", "uninstall", operatorName, "-n", operatorNamespace, "--wait")
		kubectl("delete", "pod", "q-a-0-0", "-n", w.name)
		w.awaitNewPod("q-a-0-0", old, 2*time.Minute)
		w.load.awaitCalls(200)
		installOperator()
	})
}

func (w *walk) walkImage() {
	w.step("image v1 to v2 to v1 by helm", "one by one", func() {
		w.helmMust(map[string]string{"store.image": nextImage}, values(walkValues, 3, ""))
		w.awaitSettled()
		w.helmMust(map[string]string{"store.image": image}, values(walkValues, 3, ""))
	})
	w.step("image that does not exist, set back", "the error names it, nothing lost", func() {
		before := w.pods(shardPods)
		o := try(2*time.Minute, "", "helm", "upgrade", "q", "charts/sheaf-store", "-n", w.name, "--wait", "--timeout", "40s",
			"--reuse-values",
			"--set", "store.image=localhost/there-is-none:1")
		Expect(o.err).To(HaveOccurred())
		w.note("helm: %s", strings.ReplaceAll(strings.TrimSpace(o.words), "\n", " "))
		w.helmMust(nil, values(walkValues, 3, ""))
		Expect(changedPods(before, w.pods(shardPods))).To(BeEmpty())
	})
}

func (w *walk) walkClaims() {
	w.step("claim and pod of a shard deleted", "data back from the same disk", func() {
		before := w.shards("q-a")["q-a-1"]
		old := w.pod("q-a-1-0").Metadata.UID
		kubectl("delete", "pvc", "data-q-a-1-0", "-n", w.name, "--wait=false")
		kubectl("delete", "pod", "q-a-1-0", "-n", w.name)
		w.awaitNewPod("q-a-1-0", old, 3*time.Minute)
		w.awaitShardCount("q-a", 3)
		Expect(w.shards("q-a")["q-a-1"].Volume.UUID).To(Equal(before.Volume.UUID))
	})
	w.step("StatefulSet deleted, with and without its pod", "made anew", func() {
		old := w.pod("q-a-2-0").Metadata.UID
		kubectl("delete", "statefulset", "q-a-2", "-n", w.name, "--cascade=orphan")
		Eventually(func() error { return try(time.Minute, "", "kubectl", "get", "statefulset", "q-a-2", "-n", w.name).err }).
			WithTimeout(time.Minute).Should(Succeed())
		Expect(w.pod("q-a-2-0").Metadata.UID).To(Equal(old))
		kubectl("delete", "statefulset", "q-a-2", "-n", w.name)
		w.awaitNewPod("q-a-2-0", old, 2*time.Minute)
	})
	w.step("a shard's disk replaced by a blank one", "replaced without a person", func() {
		before := w.shards("q-a")["q-a-2"]
		disk := w.diskOf("walk-a", "data-q-a-2-0")
		Expect(w.holdPods().err).NotTo(HaveOccurred())
		kubectl("delete", "pod", "q-a-2-0", "-n", w.name)
		awaitUnmounted(disk.Node, disk.Device)
		cluster("disk", "zero", disk.Node, strings.TrimPrefix(filepath.Base(disk.Device), "virtio-"))
		began := time.Now()
		w.allowPods("q-a-2")
		Eventually(func(g Gomega) {
			now := w.shards("q-a")["q-a-2"]
			g.Expect(now.Volume).NotTo(BeNil())
			g.Expect(now.Volume.UUID).NotTo(Or(BeEmpty(), Equal(before.Volume.UUID)), "%+v", now)
			g.Expect(now.State).To(Equal(v1alpha1.ShardServing), "%+v", now)
		}).WithTimeout(4 * time.Minute).Should(Succeed())
		w.since(began, "serving")
		w.awaitSettled()
		w.since(began, "redundant")
	})
	w.step("mount as asked", "type and source", func() {
		for name, shard := range w.shards("q-a") {
			out := cluster("exec", shard.Node, "findmnt", "-n", "-o", "FSTYPE", "-S",
				cluster("exec", shard.Node, "readlink", "-f", w.diskOf("walk-a", "data-"+name+"-0").Device))
			Expect(out).To(ContainSubstring("ext4"))
			Expect(shard.Volume.FileSystem).To(Equal("ext4"))
		}
		w.note("ext4 on all nodes, and the status agrees (options: filesystems_test.go)")
	})
}

func (w *walk) walkDrift() {
	w.step("drift: replicas, PDB, Service flags, environment, image", "healed", func() {
		began := time.Now()
		kubectl("scale", "statefulset", "q-a-0", "-n", w.name, "--replicas=0")
		w.patch("pdb/q-shards", `{"spec":{"minAvailable":0,"maxUnavailable":null}}`)
		w.patch("service/q-gateway", `{"spec":{"publishNotReadyAddresses":true}}`)
		kubectl("set", "env", "deployment/q-gateway", "-n", w.name, "FOO=bar")
		kubectl("set", "image", "statefulset/q-a-1", "-n", w.name, "shard="+nextImage)
		Eventually(func() string {
			return w.jsonpath("pdb/q-shards", ".spec.minAvailable")
		}).WithTimeout(time.Minute).ShouldNot(Equal("0"))
		w.awaitField("statefulset/q-a-0", ".spec.replicas", "1")
		w.awaitField("service/q-gateway", ".spec.publishNotReadyAddresses", "")
		w.awaitField("deployment/q-gateway", `.spec.template.spec.containers[0].env[?(@.name=="FOO")].value`, "")
		w.awaitField("statefulset/q-a-1", ".spec.template.spec.containers[0].image", image)
		w.since(began, "healed")
	})
	w.step("drift: Service deleted, class deleted", "made anew", func() {
		began := time.Now()
		ip := w.jsonpath("service/q-gateway", ".spec.clusterIP")
		_ = ip
		kubectl("delete", "storageclass", "walk-a")
		kubectl("delete", "service", "q-a", "-n", w.name, "--ignore-not-found")
		Eventually(func() error {
			return try(time.Minute, "", "kubectl", "get", "storageclass", "walk-a").err
		}).WithTimeout(time.Minute).Should(Succeed())
		w.since(began, "healed")
	})
	w.step("Service port by hand, etcd to 1, PDB 0, at once (D3)", "healed", func() {
		began := time.Now()
		w.patch("service/q-gateway", `{"spec":{"ports":[{"name":"grpc","port":9999,"targetPort":9999}]}}`)
		kubectl("scale", "statefulset", "q-etcd", "-n", w.name, "--replicas=1")
		w.awaitField("service/q-gateway", ".spec.ports[0].port", "7600")
		w.since(began, "port is back")
		w.awaitField("statefulset/q-etcd", ".spec.replicas", "3")
		w.since(began, "3 members are asked for")
		w.awaitStoreCondition(v1alpha1.ConditionEtcdRedundant, "True", 2*time.Minute, "3 of 3")
		w.since(began, "etcd is redundant")
	})
}

func (w *walk) walkEtcd() {
	w.step("etcd pods one by one, then all at once", "no effect on calls", func() {
		for n := range 3 {
			name := fmt.Sprintf("q-etcd-%d", n)
			old := w.pod(name).Metadata.UID
			kubectl("delete", "pod", name, "-n", w.name)
			w.awaitNewPod(name, old, 2*time.Minute)
		}
		w.awaitStoreCondition(v1alpha1.ConditionEtcdRedundant, "True", 2*time.Minute, "3 of 3")
		began := time.Now()
		kubectl("delete", "pods", "-n", w.name, "-l", v1alpha1.LabelStore+"=q,app.kubernetes.io/component=etcd")
		w.awaitStoreCondition(v1alpha1.ConditionEtcdRedundant, "True", 2*time.Minute, "3 of 3")
		w.since(began, "all at once: redundant again")
	})
	w.step("claim and pod of an etcd member deleted", "same disk, joins again", func() {
		began := time.Now()
		old := w.pod("q-etcd-1").Metadata.UID
		kubectl("delete", "pvc", "data-q-etcd-1", "-n", w.name, "--wait=false")
		kubectl("delete", "pod", "q-etcd-1", "-n", w.name)
		w.awaitNewPod("q-etcd-1", old, 2*time.Minute)
		w.awaitStoreCondition(v1alpha1.ConditionEtcdRedundant, "True", 2*time.Minute, "3 of 3")
		w.since(began, "redundant")
	})
	w.step("disk of an etcd member replaced (D2)", "repaired and shown", func() {
		disk := w.diskOf("walk-etcd", "data-q-etcd-2")
		Expect(w.holdPods().err).NotTo(HaveOccurred())
		kubectl("delete", "pod", "q-etcd-2", "-n", w.name)
		w.note("%s", w.awaitStoreCondition(v1alpha1.ConditionEtcdRedundant, "False", time.Minute, "q-etcd-2"))
		awaitUnmounted(disk.Node, disk.Device)
		cluster("disk", "zero", disk.Node, strings.TrimPrefix(filepath.Base(disk.Device), "virtio-"))
		began := time.Now()
		w.allowPods("q-etcd")
		w.awaitStoreCondition(v1alpha1.ConditionEtcdRedundant, "True", 2*time.Minute, "3 of 3")
		w.since(began, "redundant")
	})
}

func (w *walk) walkPools() {
	xfs, btrfs := values(walkPool, "x", "x", "256Mi", "xfs"), values(walkPool, "b", "b", "180Mi", "btrfs")
	base, store := values(walkValues, 3, ""), values("%s", strings.TrimSuffix(walkValues, walkPoolA))
	w.step("ext4 to xfs by a second pool", "no failed call", func() {
		w.helmMust(nil, base, xfs)
		w.awaitSettled()
		w.helmMust(nil, store, xfs)
		w.poolGone("q-a")
	})
	w.step("xfs to btrfs, both in one upgrade", "no failed call", func() {
		began := time.Now()
		w.helmMust(nil, store, btrfs)
		w.poolGone("q-x")
		w.since(began, "the old pool is gone")
	})
	w.step("btrfs to ext4 on the disks used before (D4)", "no put refused", func() {
		began := time.Now()
		w.helmMust(nil, base)
		w.poolGone("q-b")
		w.since(began, "the old pool is gone")
	})
}

func (w *walk) poolGone(pool string) {
	GinkgoHelper()
	Eventually(func() error { return try(time.Minute, "", "kubectl", "get", "shardpool", pool, "-n", w.name).err }).
		WithTimeout(4*time.Minute).Should(HaveOccurred(), "pool %s is still there", pool)
}

func (w *walk) walkRefused() {
	w.step("wrong edits of a live store (D13, D15)", "refused with the field", func() {
		for what, patch := range map[string][2]string{
			"remove: [99]":     {"shardpool/q-a", `{"spec":{"remove":[99]}}`},
			"parked: [77]":     {"shardpool/q-a", `{"spec":{"parked":[77]}}`},
			"memory 1k":        {"shardpool/q-a", `{"spec":{"resources":{"limits":{"memory":"1k"}}}}`},
			"other class":      {"shardpool/q-a", `{"spec":{"storage":{"storageClassName":"walk-b"}}}`},
			"smaller":          {"shardpool/q-a", `{"spec":{"storage":{"size":"100Mi"}}}`},
			"other routing":    {"recordstore/q", `{"spec":{"groups":{"routing":"Named"}}}`},
			"other groups":     {"recordstore/q", `{"spec":{"groups":{"count":24}}}`},
			"2 copies":         {"recordstore/q", `{"spec":{"replication":{"copies":2}}}`},
			"2 members":        {"recordstore/q", `{"spec":{"etcd":{"managed":{"members":2}}}}`},
			"-1 gateways":      {"recordstore/q", `{"spec":{"gateway":{"replicas":-1}}}`},
			"unknown state":    {"shardpool/q-a", `{"spec":{"state":"Gone"}}`},
			"other fileSystem": {"shardpool/q-a", `{"spec":{"fileSystem":{"type":"zfs"}}}`},
		} {
			kind, name, _ := strings.Cut(patch[0], "/")
			o := try(time.Minute, "", "kubectl", "patch", kind, name, "-n", w.name, "--type=merge", "-p", patch[1])
			if o.err == nil {
				w.note("ACCEPTED %s", what)
			}
			fmt.Fprintf(os.Stderr, "walk: %s: %s\n", what, strings.TrimSpace(o.words))
		}
		o := try(time.Minute, "", "helm", "upgrade", "q", "charts/sheaf-store", "-n", w.name, "--dry-run=server",
			"--reuse-values", "--set",
			"store.replication.copies=2")
		w.note("helm with copies 2: refused %v", o.err != nil)
		w.helmMust(nil, values(walkValues, 3, ""))
	})
	w.step("a pool of ext4 on an xfs DiskSet (D13)", "refused before a disk is formatted", func() {
		w.makePool("wrong", "walk-x", 1, "fileSystem: {type: ext4}")
		w.awaitPoolReason("wrong", string(v1alpha1.ShardFileSystemMismatch))
		p, err := w.pool("wrong")
		Expect(err).NotTo(HaveOccurred())
		w.note("%s; claims: %q", condition(p.Status.Conditions, v1alpha1.ConditionReady).Message,
			strings.TrimSpace(kubectl("get", "pvc", "-n", w.name, "-l", v1alpha1.LabelPool+"=wrong", "-o", "name")))
		kubectl("delete", "shardpool", "wrong", "-n", w.name, "--timeout=60s")
	})
	w.step("quota on claims, LimitRange", "explained in words", func() {
		apply(fmt.Sprintf(
			"apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: claims, namespace: %s}\nspec: {hard: "+
				"{persistentvolumeclaims: '1'}}\n", w.name))
		w.patch("shardpool/q-a", `{"spec":{"shards":4}}`)
		Eventually(func(g Gomega) {
			p, err := w.pool("q-a")
			g.Expect(err).NotTo(HaveOccurred())
			c := condition(p.Status.Conditions, v1alpha1.ConditionReady)
			g.Expect(c.Message).To(ContainSubstring("quota"))
			w.said = []string{c.Reason + ": " + c.Message}
		}).WithTimeout(2 * time.Minute).Should(Succeed())
		kubectl("delete", "resourcequota", "claims", "-n", w.name)
		w.patch("shardpool/q-a", `{"spec":{"shards":3}}`)
		w.awaitShardCount("q-a", 3)
	})
	w.step("a pool whose disks are all taken, deleted; then a disk is added (D5)", "nobody's claim gets it", func() {
		w.makePool("waits", "walk-etcd", 1)
		w.awaitPoolReason("waits", string(v1alpha1.ShardNoVolume))
		kubectl("delete", "shardpool", "waits", "-n", w.name, "--timeout=60s")
		Eventually(func() string {
			return kubectl("get", "pvc", "-n", w.name, "-l", v1alpha1.LabelPool+"=waits", "-o", "name")
		}).WithTimeout(time.Minute).Should(BeEmpty())
		w.note("its claim went with it")
	})
}

func (w *walk) walkIdle() {
	w.load.end()
	Eventually(func() float64 { // wait until the operator has finished the work that the last scenario may have left
		before := writes()
		time.Sleep(10 * time.Second)
		return writes() - before
	}).WithTimeout(3 * time.Minute).Should(BeNumerically("<=", 10))
	before := writes()
	time.Sleep(45 * time.Second)
	w.rows = append(w.rows, fmt.Sprintf(
		"| idle | quiet | %.0f writes to the API in 45 s, leases and heartbeats aside | | 45 s | |", writes()-before))
	fmt.Fprintln(os.Stderr, w.rows[len(w.rows)-1])
}

func (w *walk) walkEnd() {
	var uid string
	w.step("release deleted, adopted by its UID", "all records", func() {
		store, err := w.store("q")
		Expect(err).NotTo(HaveOccurred())
		uid = store.Status.StoreUID
		w.load.end()
		must(3*time.Minute, "", "helm", "uninstall", "q", "-n", w.name, "--wait", "--timeout", "2m")
		Eventually(func() string {
			return kubectl("get", "pods", "-n", w.name, "-l", storePods, "-o", "name")
		}).WithTimeout(2 * time.Minute).Should(BeEmpty())
		o := w.helm(map[string]string{"store.etcd.managed.storage.size": "128Mi"}, values(walkValues, 3, ""))
		w.note("without the UID: %s", strings.ReplaceAll(strings.TrimSpace(o.words), "\n", " "))
		Expect(o.err).To(HaveOccurred())
		w.helmMust(map[string]string{"store.adoptStoreUID": uid}, values(walkValues, 3, ""))
		old := w.load
		w.load = w.newLoad()
		w.load.callers = old.callers
		w.load.start()
	})
	w.step("kinds and names by `kubectl explain` and `get -o wide`", "good text", func() {
		w.note("%s", strings.ReplaceAll(strings.TrimSpace(kubectl("get", "recordstores", "-n", w.name, "-o", "wide")), "\n",
			" / "))
		Expect(kubectl("explain", "recordstore.spec.replication.copies")).To(ContainSubstring("copies"))
	})
	w.load.end()
	began := time.Now()
	kubectl("delete", "namespace", w.name, "--wait=true", "--timeout=110s")
	w.rows = append(w.rows, fmt.Sprintf(
		"| namespace deleted with store and pools | finishes | gone after %.0f s; volumes %s | | | |", time.Since(began).
			Seconds(),
		kubectl("get", "pv", "-l", "sheaf.dev/diskset=walk-a", "-o", "jsonpath={.items[*].status.phase}")))
}
