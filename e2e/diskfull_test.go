//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
)

// records is a client in this process for a store's gateway. Unlike the command line, this client puts without request
// ids. The store then does not have to remember deleted records for a retry, so a delete frees space immediately.
type records struct{ recordv1.RecordServiceClient }

// connect connects to the gateway of the store q from this process.
func (s *space) connect() records {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, tool("kubectl"), "port-forward", "-n", s.name, "service/q-gateway", ":7600")
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() {
		cancel()
		_ = cmd.Wait() // Wait returns an error, because the process was killed
	})
	lines := bufio.NewScanner(out)
	Expect(lines.Scan()).To(BeTrue(), "kubectl port-forward said nothing")
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(lines.Text())
	Expect(at).NotTo(BeEmpty(), lines.Text())
	go func() {
		for lines.Scan() { // keep reading, because kubectl would block if nobody read its output
		}
	}()
	speaks, err := client.TLS(s.adminFiles("q"))
	Expect(err).NotTo(HaveOccurred())
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(speaks), grpc.WithAuthority("localhost"))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	return records{recordv1.NewRecordServiceClient(conn)}
}

// bytesOf returns a large record's data, which is hardly compressible.
func bytesOf(id int64) []byte {
	data := make([]byte, bulkBytes)
	_, _ = rand.NewChaCha8([32]byte{byte(id), byte(id >> 8)}).Read(data)
	return data
}

func key(id int64) *recordv1.RecordKey { return &recordv1.RecordKey{Id: id} }

func (r records) put(id int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := r.Put(ctx, &recordv1.PutRequest{Key: key(id), Data: bytesOf(id)}, grpc.WaitForReady(true))
	return err
}

// holds checks that the store returns the record with its data.
func (r records) holds(id int64) {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := r.Get(ctx, &recordv1.GetRequest{Key: key(id)}, grpc.WaitForReady(true))
	Expect(err).NotTo(HaveOccurred())
	Expect(out.GetRecord().GetData()).To(Equal(bytesOf(id)))
}

func (r records) remove(id int64) {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := r.Delete(ctx, &recordv1.DeleteRequest{Key: key(id)}, grpc.WaitForReady(true))
	Expect(err).NotTo(HaveOccurred())
}

// fill puts records with consecutive ids, beginning with the given one, until a record is refused because of a lack
// of space. It returns the id of that record.
func (r records) fill(id int64) int64 {
	GinkgoHelper()
	for end := id + 2000; id < end; id++ {
		err := r.put(id)
		if err == nil {
			continue
		}
		Expect(status.Code(err)).To(Equal(codes.ResourceExhausted), "%v", err)
		var reasons []string
		for _, detail := range status.Convert(err).Details() {
			if info, ok := detail.(*errdetails.ErrorInfo); ok {
				reasons = append(reasons, info.GetReason())
			}
		}
		Expect(reasons).To(ConsistOf("DISK_FULL"), "%v", err)
		Expect(err.Error()).To(ContainSubstring("delete records"), "what to do")
		return id
	}
	Fail("the disk is never full")
	return 0
}

// fixedVolume creates a StorageClass whose volumes cannot grow, with one volume of the given size.
func fixedVolume(name, size, node, device string) {
	GinkgoHelper()
	apply(fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  capacity: {storage: %s}
  accessModes: [ReadWriteOnce]
  storageClassName: %s
  persistentVolumeReclaimPolicy: Retain
  local: {path: %s, fsType: ext4}
  nodeAffinity:
    required:
      nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}]
`, name, name, size, name, device, node))
	DeferCleanup(func() {
		kubectl("delete", "storageclass", name)
		kubectl("delete", "pv", name, "--wait=false") // does not wait, because the volume's claim is deleted first
	})
}

// storageSize raises the storage size of a pool.
func (s *space) storageSize(pool, size string) {
	GinkgoHelper()
	kubectl("patch", "shardpool", pool, "-n", s.name, "--type=merge", "-p", `{"spec":{"storage":{"size":"`+size+`"}}}`)
}

// setOf returns the UID of a StatefulSet, and the size that its claim template requests.
func (s *space) setOf(shard string) (uid, size string) {
	GinkgoHelper()
	var set struct {
		Metadata struct{ UID string }
		Spec     struct {
			VolumeClaimTemplates []struct {
				Spec struct {
					Resources struct{ Requests map[string]string }
				}
			}
		}
	}
	if err := get(&set, "statefulset", shard, "-n", s.name); err != nil || len(set.Spec.VolumeClaimTemplates) != 1 {
		return "", "" // the operator is recreating the StatefulSet
	}
	return set.Metadata.UID, set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests["storage"]
}

// awaitGrown waits until the pool's condition VolumesGrown has the given status and reason, and a message that
// contains all the given words.
func (s *space) awaitGrown(pool, status, reason string, words ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		p, err := s.pool(pool)
		g.Expect(err).NotTo(HaveOccurred())
		c := condition(p.Status.Conditions, v1alpha1.ConditionVolumesGrown)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.ObservedGeneration).To(Equal(p.Generation))
		g.Expect(c.Reason).To(Equal(reason), "%+v", c)
		g.Expect(string(c.Status)).To(Equal(status))
		for _, w := range words {
			g.Expect(c.Message).To(ContainSubstring(w))
		}
	}).WithTimeout(2 * time.Minute).Should(Succeed())
}

// checkUntouched checks that a shard's pod is still the same, and that the pod's process never exited. The kubelet may
// notice later than the store that the pod is ready.
func (s *space) checkUntouched(name string, before pod) {
	GinkgoHelper()
	var now pod
	Eventually(func(g Gomega) {
		now = s.pod(name)
		g.Expect(now.ready()).To(BeTrue(), "%+v", now)
	}).WithTimeout(time.Minute).Should(Succeed())
	Expect(now.Metadata.UID).To(Equal(before.Metadata.UID))
	Expect(now.Status.ContainerStatuses[0].RestartCount).To(BeZero())
}

// Scenario 11: a full disk and its remedies. There is no CSI driver in the test cluster, so the test cannot show a
// volume that a driver enlarges. Instead, a disk grows as a logical volume does, and the kubelet enlarges the file
// system as it would for a driver. To simulate a driver that refuses to enlarge a volume, the test writes what that
// driver's resizer would write.
var _ = Describe("a full disk", SpecPriority(1), func() {
	It("refuses puts alone, takes them again when there is room, and grows under its pod", func() {
		s := newSpace("diskfull")
		s.groups = 2
		s.makeStore(s.threeDisks())
		class := s.name + "-small"
		// The pool uses xfs, because a mounted ext4 cannot grow on a machine that restricts root's use of resources.
		s.diskSet(class, "xfs", diskSpec{"n1", s.disk("n1", "diskfull-small", "320M"), "310Mi"})
		apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: ShardPool
metadata: {name: main, namespace: %s}
spec:
  storeRef: {name: q}
  storage: {storageClassName: %s, size: 256Mi}
  fileSystem: {type: xfs}
`, s.name, class))
		s.begin(2*time.Minute, 8)
		before := s.pod("main-0-0")
		r := s.connect()
		alerts := s.watchAlerts()

		By("full: puts are refused, gets and deletes work, and status says what to do")
		refused := r.fill(100)
		Expect(refused).To(BeNumerically(">", 120), "so little was never full")
		o := s.sheaf("q", string(bytesOf(1)), "put", "99", "-")
		Expect(o.err).To(HaveOccurred())
		Expect(o.words).To(And(ContainSubstring("DISK_FULL"), ContainSubstring("delete records")))
		s.getAll(8)
		r.holds(100)
		r.holds(refused - 1)
		s.awaitCondition("main", v1alpha1.ConditionSpaceAvailable, "False", 2*time.Minute,
			"puts are refused", "main-0", "Delete records", "group compact GROUP --all", "spec.storage.size")
		s.awaitStore("q", time.Minute) // the store is Ready, because a shard with a full disk can still read
		alerts.await(alertVolumeFull, firing)
		alerts.await(alertUnavailable, gone)

		By("room made is noticed, without a restart")
		for id := int64(101); id < refused; id++ {
			r.remove(id)
		}
		for _, group := range []string{"0", "1"} {
			o := s.sheaf("q", "", "group", "compact", group, "--all")
			Expect(o.err).NotTo(HaveOccurred(), "%v", o)
		}
		Eventually(func() error { return r.put(refused) }).WithTimeout(time.Minute).Should(Succeed())
		s.awaitCondition("main", v1alpha1.ConditionSpaceAvailable, "True", 2*time.Minute)
		alerts.await(alertVolumeFull, gone)
		r.holds(100)
		r.holds(refused)
		refused = r.fill(refused + 1)
		s.awaitCondition("main", v1alpha1.ConditionSpaceAvailable, "False", 2*time.Minute, "puts are refused")
		s.checkUntouched("main-0-0", before)

		By("the claim grows: the set is created again around its pod")
		uid, size := s.setOf("main-0")
		Expect(size).To(Equal("256Mi"))
		s.storageSize("main", "480Mi")
		s.awaitGrown("main", "False", "Resizing", "310Mi", "480Mi", "/dev/disk/by-id/virtio-diskfull-small", "n1",
			"DiskSet "+class)
		Expect(kubectl("get", "pvc", "data-main-0-0", "-n", s.name, "-o", "jsonpath={.spec.resources.requests.storage}")).
			To(Equal("480Mi"))
		Eventually(func(g Gomega) {
			now, size := s.setOf("main-0")
			g.Expect(size).To(Equal("480Mi"))
			g.Expect(now).NotTo(Equal(uid))
			g.Expect(kubectl("get", "pod", "main-0-0", "-n", s.name, "-o", "jsonpath={.metadata.ownerReferences[0].uid}")).
				To(Equal(now))
		}).WithTimeout(time.Minute).Should(Succeed())
		s.checkUntouched("main-0-0", before)

		By("a driver that cannot: what its resizer writes is shown")
		patchClaim := func(state string) {
			kubectl("patch", "pvc", "data-main-0-0", "-n", s.name, "--subresource=status", "--type=merge", "-p",
				`{"status":{"allocatedResourceStatuses":`+state+`}}`)
		}
		patchClaim(`{"storage":"ControllerResizeInfeasible"}`)
		s.awaitGrown("main", "False", "ResizeInfeasible", "data-main-0-0", "480Mi", "second pool", "Drained")
		patchClaim("null")

		By("the disk grows: there is room, with the same pod")
		cluster("disk", "grow", "n1", "diskfull-small", "512M")
		kubectl("patch", "diskset", class, "--type=json", "-p",
			`[{"op":"replace","path":"/spec/disks/0/size","value":"500Mi"}]`)
		s.awaitGrown("main", "True", "Grown", "480Mi")
		Eventually(func() error { return r.put(refused) }).WithTimeout(2 * time.Minute).Should(Succeed())
		s.awaitCondition("main", v1alpha1.ConditionSpaceAvailable, "True", 2*time.Minute)
		s.getAll(8)
		r.holds(100)
		r.holds(refused)
		s.checkUntouched("main-0-0", before)
		s.awaitStore("q", time.Minute)
	})

	It("of a class that does not let it grow stays as it is, and the pool says what to do, which is done", func() {
		s := newSpace("fixed")
		s.makeStore(s.threeDisks())
		class := s.name + "-by-hand"
		fixedVolume(class, "90Mi", "n2", s.disk("n2", "fixed-small", "96M"))
		apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: ShardPool
metadata: {name: main, namespace: %s}
spec:
  storeRef: {name: q}
  storage: {storageClassName: %s, size: 64Mi}
`, s.name, class))
		s.awaitStore("q", 2*time.Minute)
		before := s.pod("main-0-0")
		alerts := s.watchAlerts()

		By("up to the size of the disk there is nothing to grow")
		s.storageSize("main", "80Mi")
		s.awaitGrown("main", "True", "Grown", "80Mi")

		By("above it")
		s.storageSize("main", "160Mi")
		s.awaitGrown("main", "False", "ResizeInfeasible", "90Mi", "160Mi", `"`+class+`"`, "allowVolumeExpansion",
			"second pool", "Drained")
		s.awaitCondition("main", v1alpha1.ConditionStalled, "True", time.Minute, "allowVolumeExpansion")
		alerts.await(alertPoolStalled, firing)
		Expect(kubectl("get", "pvc", "data-main-0-0", "-n", s.name, "-o", "jsonpath={.spec.resources.requests.storage}")).
			To(Equal("64Mi"))
		s.checkUntouched("main-0-0", before)

		By("set back to what there is")
		s.storageSize("main", "80Mi")
		s.awaitGrown("main", "True", "Grown", "80Mi")
		s.awaitCondition("main", v1alpha1.ConditionReady, "True", time.Minute)
		alerts.await(alertPoolStalled, gone)
		s.checkUntouched("main-0-0", before)

		By("drained, as was said, but before there is a second pool: the pool waits for a person, and an alert tells")
		s.poolState("main", v1alpha1.PoolDrained)
		alerts.await(alertPoolStalled, firing)

		By("the second pool is there: while its disk answers nothing, the moves stand still, and an alert tells")
		slow := s.name + "-slow"
		s.diskSet(slow, "ext4", diskSpec{"n3", s.disk("n3", "fixed-slow", "256M", "slow"), "240Mi"})
		s.makePool("other", slow, 1, "state: Cordoned", "fileSystem: {type: ext4}")
		s.awaitShard("other", 0, v1alpha1.ShardServing, 2*time.Minute)
		cluster("disk", "throttle", "n3", "fixed-slow", "hang")
		answers := func() { cluster("disk", "throttle", "n3", "fixed-slow", "off") }
		DeferCleanup(answers)
		s.poolState("other", v1alpha1.PoolActive)
		alerts.await(alertStandStill, firing)
		answers()
		alerts.await(alertStandStill, gone)
		alerts.await(alertPoolStalled, gone)
		Eventually(func(g Gomega) {
			store := s.storeQ(g)
			g.Expect(store.Status.Groups.Moving).To(BeZero())
			g.Expect(s.shards("main")["main-0"].Groups).To(BeZero(), "the pool still has groups")
		}).WithTimeout(2 * time.Minute).Should(Succeed())
	})
})
