package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// The shards use TLS, as stores do by default.
var _ = Describe("Real shards with three copies of each group", needs("minutes of real processes"), func() {
	const records = 40
	var p *storePlay
	var r *processes
	var server, admin string // address of the gateway, and the folder with an administrator's certificate

	BeforeEach(func(ctx context.Context) {
		p = newStorePlay(ctx)
		r = newProcesses(ctx)
		r.etcd, r.apart = strings.Join(p.etcd.Endpoints(), ","), true
		r.deliver = p.certs.deliver
		p.kubelet, p.away = r, true // real shards register themselves, so the simulation must not register them
		p.pools.Shards, p.r.Credentials = p.etcd.Shards(), p.etcd.Credentials()
		server = strings.Replace(freeAddress(), "127.0.0.1", "localhost", 1) // the name in the gateway's certificate
	})
	// until runs rounds, and stops once all assertions of the given function succeed.
	until := func(ctx context.Context, what func(g Gomega)) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			_ = p.round(ctx)
			what(g)
		}).WithTimeout(4 * time.Minute).WithPolling(200 * time.Millisecond).Should(Succeed())
	}
	redundant := func(ctx context.Context) {
		GinkgoHelper()
		until(ctx, func(g Gomega) {
			store := p.get(ctx)
			g.Expect(meta.IsStatusConditionTrue(store.Status.Conditions, v1alpha1.ConditionRedundant)).
				To(BeTrue(), "%v", p.words(ctx))
			g.Expect(meta.IsStatusConditionTrue(store.Status.Conditions, v1alpha1.ConditionReady)).
				To(BeTrue(), "%v", p.words(ctx))
		})
	}
	sheaf := func(stdin string, args ...string) string {
		GinkgoHelper()
		args = append(args, "--server="+server, "--ca="+admin+"/ca.crt", "--cert="+admin+"/tls.crt",
			"--key="+admin+"/tls.key")
		cmd := exec.Command(r.binary, args...)
		cmd.Stdin = strings.NewReader(stdin)
		var words strings.Builder
		cmd.Stderr = &words
		out, err := cmd.Output()
		Expect(err).NotTo(HaveOccurred(), "%v: %s", args, words.String())
		return string(out)
	}
	gateway := func(ctx context.Context) {
		GinkgoHelper()
		admin = r.secret(p.secret(ctx, workload.AdminTLS("quotes")).Data)
		var deployment appsv1.Deployment
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: workload.Gateway("quotes")}, &deployment)).
			To(Succeed())
		files, err := p.certs.deliver(ctx, &corev1.Pod{Spec: deployment.Spec.Template.Spec})
		Expect(err).NotTo(HaveOccurred())
		cmd := exec.Command(r.binary, "gateway", "--tls-dir="+r.secret(files), "--etcd-insecure", "--etcd="+r.etcd,
			"--store="+workload.Placement(p.Namespace, "quotes"), "--listen="+server, "--http="+freeAddress())
		cmd.Stderr = ginkgo.GinkgoWriter
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		Expect(cmd.Start()).To(Succeed())
		DeferCleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // returns an error, because the process was killed
		})
		Eventually(func() error {
			conn, err := net.Dial("tcp", server)
			if err == nil {
				_ = conn.Close()
			}
			return err
		}).Should(Succeed())
	}
	// A single process puts all records, because starting a process takes as much processor time as a shard uses in a
	// second.
	putAll := func() {
		GinkgoHelper()
		tree := ginkgo.GinkgoT().TempDir()
		for id := range records {
			Expect(os.WriteFile(filepath.Join(tree, fmt.Sprint(id)), []byte(fmt.Sprint("record ", id)), 0o600)).To(Succeed())
		}
		sheaf("", "import", tree, "--id=name", "--quiet")
	}
	allThere := func() {
		GinkgoHelper()
		want, has := map[string]string{}, map[string]string{}
		for id := range records {
			want[fmt.Sprint(id)] = fmt.Sprint("record ", id)
		}
		lines := json.NewDecoder(strings.NewReader(sheaf("", "scan")))
		for lines.More() {
			var record struct {
				ID   string `json:"id"`
				Data []byte `json:"data"`
			}
			Expect(lines.Decode(&record)).To(Succeed())
			has[record.ID] = string(record.Data)
		}
		Expect(has).To(Equal(want))
	}

	It("move off a shard that goes, follow an update one by one, and come back after a disk is lost",
		func(ctx context.Context) {
			p.create(ctx, threeCopies)
			p.pool(ctx, 4)
			redundant(ctx)
			gateway(ctx)
			putAll()

			By("one shard too many")
			Expect(p.holdingShards(ctx)).To(HaveLen(4))
			p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards, s.Remove = 3, []int32{1} })
			until(ctx, func(g Gomega) {
				g.Expect(p.runningShards(ctx)).To(Equal([]string{"ssd-0", "ssd-2", "ssd-3"}), "%v", p.words(ctx))
			})
			redundant(ctx)
			Expect(p.holdingShards(ctx)).To(Equal([]string{"ssd-0", "ssd-2", "ssd-3"}))
			allThere()

			By("an update")
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Image = "sheaf:2" })
			until(ctx, func(g Gomega) {
				for _, shard := range p.runningShards(ctx) {
					g.Expect(p.pod(ctx, shard).Spec.Containers[0].Image).To(Equal("sheaf:2"))
				}
				g.Expect(p.runningShards(ctx)).To(HaveLen(3))
			})
			redundant(ctx)
			for _, shard := range p.runningShards(ctx) {
				Expect(p.started[shard]).To(Equal(2), shard)
			}
			allThere()

			By("a disk that is blank when its shard starts")
			was := ""
			for _, s := range p.getPool(ctx).Status.ShardStatuses {
				if s.Name == "ssd-2" {
					was = s.Volume.UUID
				}
			}
			r.end(string(p.pod(ctx, "ssd-2").UID))
			Expect(os.RemoveAll(r.dir("ssd-2"))).To(Succeed())
			Expect(api.Delete(ctx, p.pod(ctx, "ssd-2"))).To(Succeed())
			until(ctx, func(g Gomega) {
				pool := p.getPool(ctx)
				g.Expect(pool.Annotations[v1alpha1.AnnotationForgetVolumes]).To(Equal(was))
				for _, s := range pool.Status.ShardStatuses {
					if s.Name == "ssd-2" {
						g.Expect(s.Volume.UUID).NotTo(Or(Equal(was), BeEmpty()), s.Message)
					}
				}
			})
			redundant(ctx)
			allThere()

			By("an etcd that is wiped: nothing is rebuilt while a shard is silent, then all of it is, without a person")
			p.r.Placements = podAddressShards{p}
			silent := r.running[string(p.pod(ctx, "ssd-2").UID)]
			Expect(silent.Process.Signal(syscall.SIGSTOP)).To(Succeed())
			DeferCleanup(func() { _ = silent.Process.Signal(syscall.SIGCONT) }) // fails if the process has ended
			Expect(p.etcd.Wipe(ctx)).To(Succeed())
			until(ctx, func(g Gomega) {
				c := meta.FindStatusCondition(p.get(ctx).Status.Conditions, v1alpha1.ConditionPlacementReady)
				g.Expect(c.Reason).To(Equal("PlacementLost"), c.Message)
				g.Expect(c.Message).To(And(ContainSubstring("when every shard answers"), ContainSubstring("ssd-2"),
					ContainSubstring("sheaf recover placement")))
			})
			held, _ := p.holds(ctx)
			Expect(held).To(BeEmpty())
			Expect(silent.Process.Signal(syscall.SIGCONT)).To(Succeed())
			redundant(ctx)
			Expect(p.takeEvents()).To(ContainElement(ContainSubstring("PlacementRebuilt")))
			allThere()
			sheaf("record 0", "put", "0", "-")
		})
})

// podAddressShards makes the operator connect to shards at the IP addresses of their pods, because these tests have no
// DNS.
type podAddressShards struct{ p *storePlay }

func (r podAddressShards) Close(key string) { r.p.etcd.Close(key) }

func (r podAddressShards) Open(key string, access workload.EtcdAccess, credentials fleet.EtcdCredentials) (
	fleet.Placement, error,
) {
	placement, err := r.p.etcd.Open(key, access, credentials)
	return reachingPlacement{placement, r.p}, err
}

type reachingPlacement struct {
	fleet.Placement
	p *storePlay
}

func (r reachingPlacement) Recover(ctx context.Context, store *v1alpha1.RecordStore, shards []fleet.ShardAt) error {
	found := slices.Clone(shards)
	for i, shard := range shards {
		pod := &corev1.Pod{}
		name, _, _ := strings.Cut(shard.Address, ".")
		if err := api.Get(ctx, types.NamespacedName{Namespace: r.p.Namespace, Name: name}, pod); err != nil {
			return err
		}
		found[i].Address = net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(workload.PortShard))
	}
	err := r.Placement.Recover(ctx, store, found)
	for i, shard := range found {
		if err != nil {
			err = fmt.Errorf("%s is %s: %w", shards[i].Address, shard.Address, err)
		}
	}
	return err
}

// freeAddress returns a loopback address on which no process listens at the moment.
func freeAddress() string {
	GinkgoHelper()
	address, err := loopback.FreeAddress()
	Expect(err).NotTo(HaveOccurred())
	return address
}
