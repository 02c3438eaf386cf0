package controllers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/test/clitest"
	"sheaf.dev/sheaf/internal/test/etcdserver"
)

// adminClient implements the parts of a ShardClient that these tests need.
type adminClient struct{}

func (adminClient) Describe(ctx context.Context, shard fleet.ShardAt) (*recordv1.ShardStatus, error) {
	conn, err := grpc.NewClient("passthrough:///"+shard.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	admin := recordv1.NewAdminServiceClient(conn)
	shards, err := admin.ListShards(ctx, &recordv1.ListShardsRequest{})
	if err != nil {
		return nil, err
	}
	groups, err := admin.ListGroups(ctx, &recordv1.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	report := &recordv1.ShardStatus{Shard: shards.GetShards()[0]}
	for _, g := range groups.GetGroups() {
		report.Groups = append(report.Groups,
			&recordv1.Group{Group: g.GetGroup(), State: recordv1.GroupState_GROUP_STATE_SERVING})
	}
	return report, nil
}

// processes runs a real `sheaf shard` for each pod that the simulated cluster starts, each on its own address of the
// loopback network.
type processes struct {
	binary, root, etcd string
	apart              bool // each shard is a failure domain of its own
	// deliver returns the files of a pod's folder of certificates. If it is nil, pods have no such folder.
	deliver func(ctx context.Context, pod *corev1.Pod) (deliveredFiles, error)
	running map[string]*exec.Cmd // keyed by the UID of the pod
}

// newProcesses uses the binary from `make build`, or builds one.
func newProcesses(ctx context.Context) *processes {
	GinkgoHelper()
	r := &processes{root: ginkgo.GinkgoT().TempDir(), running: map[string]*exec.Cmd{}}
	dir, err := clitest.Programs(ctx, r.root, "sheaf.dev/sheaf/cmd/sheaf")
	Expect(err).NotTo(HaveOccurred())
	r.binary = filepath.Join(dir, "sheaf")
	DeferCleanup(func() {
		for pod := range r.running {
			r.end(pod)
		}
	})
	return r
}

// start runs the pod's container with its own arguments, except for those that depend on the machine.
func (r *processes) start(pod *corev1.Pod) (ip string) {
	ip = fmt.Sprintf("127.%d.%d.%d", 10+rand.IntN(200), rand.IntN(250), 1+rand.IntN(250))
	if pod.Labels[v1alpha1.LabelPool] == "" {
		return ip // for a member of etcd, no process is started
	}
	shard := pod.Labels[v1alpha1.LabelPool] + "-" + pod.Labels[v1alpha1.LabelShard]
	domain := pod.Spec.NodeName
	if r.apart {
		domain = "domain-of-" + shard
	}
	env := strings.NewReplacer("$(EXPECT_VOLUME)", pod.Annotations[workload.AnnotationVolume], "$(NODE_NAME)",
		pod.Spec.NodeName, "$(DOMAIN)", domain)
	args := []string{}
	for _, arg := range pod.Spec.Containers[0].Args {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--dir":
			arg = "--dir=" + r.dir(shard)
		case "--listen":
			arg = fmt.Sprintf("--listen=%s:%d", ip, workload.PortShard)
		case "--advertise":
			arg = fmt.Sprintf("--advertise=%s:%d", ip, workload.PortShard)
		case "--http":
			arg = fmt.Sprintf("--http=%s:%d", ip, workload.PortShardHTTP)
		case "--etcd":
			arg = "--etcd=" + r.etcd
		case "--tls-dir": // the etcd of these tests has no certificates
			args = append(args, "--etcd-insecure")
			arg = "--tls-dir=" + r.certificates(pod)
		}
		args = append(args, env.Replace(arg))
	}
	Expect(os.MkdirAll(r.dir(shard), 0o700)).To(Succeed())
	cmd := exec.Command(r.binary, args...)
	cmd.Stderr = ginkgo.GinkgoWriter
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	Expect(cmd.Start()).To(Succeed())
	r.running[string(pod.UID)] = cmd
	return ip
}

// certificates writes the certificate files of the pod to a new folder.
func (r *processes) certificates(pod *corev1.Pod) (dir string) {
	files, err := r.deliver(context.Background(), pod)
	Expect(err).NotTo(HaveOccurred())
	return r.secret(files)
}

// secret writes the files to a new folder.
func (r *processes) secret(files map[string][]byte) (dir string) {
	dir, err := os.MkdirTemp(r.root, "tls-")
	Expect(err).NotTo(HaveOccurred())
	Expect(certs.Install(dir, files)).To(Succeed())
	return dir
}

// dir returns the folder that is the shard's disk.
func (r *processes) dir(shard string) string { return filepath.Join(r.root, shard) }

// end kills the process of the given pod.
func (r *processes) end(pod string) {
	if cmd := r.running[pod]; cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // returns an error, because the process was killed
		delete(r.running, pod)
	}
}

var _ = Describe("A pool of real shards", needs("real processes"), func() {
	var p *poolPlay
	var r *processes
	var stopServer func()
	BeforeEach(func(ctx context.Context) {
		p = newPoolPlay(ctx)
		r = newProcesses(ctx)
		server, err := etcdserver.Start(filepath.Join(r.root, "etcd"))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(server.Close)
		stopServer = server.Close
		r.etcd = strings.Join(server.Endpoints(), ",")
		connection, err := server.Client()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = connection.Close() })
		store, err := registry.NewStore(connection, workload.Placement(p.Namespace, p.store.Name), nil)
		Expect(err).NotTo(HaveOccurred())
		_, err = store.InitMeta(ctx, placement.Meta{
			StoreUUID: uuid.MustParse(p.storeID), Routing: placement.Routing{Mode: placement.Hash, Groups: 8}, Copies: 1,
			CreatedUTC: time.Now().UTC().Format(time.RFC3339),
		})
		Expect(err).NotTo(HaveOccurred())
		p.kubelet = r
		p.r = p.reconciler(acting)
		p.r.Shards = adminClient{}
	})
	until := func(ctx context.Context, state v1alpha1.ShardState, words ...string) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			_ = p.round(ctx)
			statuses := p.get(ctx, "ssd").Status.ShardStatuses
			g.Expect(statuses).NotTo(BeEmpty())
			g.Expect(string(statuses[0].State)).To(Equal(string(state)), statuses[0].Message)
			for _, w := range words {
				g.Expect(statuses[0].Message).To(ContainSubstring(w))
			}
		}).WithTimeout(2 * time.Minute).Should(Succeed())
	}

	It("serves its own volume, and never a blank or a foreign one", func(ctx context.Context) {
		p.pool(ctx, "ssd", 1)
		until(ctx, v1alpha1.ShardServing)
		p.settle(ctx, 0)
		volume := p.state(ctx, "ssd", 0).Volume
		Expect(uuid.Validate(volume.UUID)).To(Succeed())
		Expect(volume.FileSystem).NotTo(BeEmpty())
		Expect(p.pod(ctx, "ssd-0").Annotations).To(HaveKeyWithValue(workload.AnnotationVolume, volume.UUID))

		By("restarting it: it comes back on its volume")
		Expect(api.Delete(ctx, p.pod(ctx, "ssd-0"))).To(Succeed())
		until(ctx, v1alpha1.ShardServing)

		By("putting a blank disk in its place")
		Expect(os.Rename(r.dir("ssd-0"), r.dir("kept"))).To(Succeed())
		Expect(api.Delete(ctx, p.pod(ctx, "ssd-0"))).To(Succeed())
		until(ctx, v1alpha1.ShardDiskLost, volume.UUID)
		p.expect(ctx, "ssd", v1alpha1.ConditionVolumesReady, metav1.ConditionFalse, "DiskLost", volume.UUID)
		empty, err := isEmpty(r.dir("ssd-0"))
		Expect(err).NotTo(HaveOccurred())
		Expect(empty).To(BeTrue(), "the blank disk was written to")

		By("giving up the old one")
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) {
			pool.Annotations = map[string]string{v1alpha1.AnnotationForgetVolumes: volume.UUID}
		})
		until(ctx, v1alpha1.ShardServing)
		p.settle(ctx, 0)
		Expect(p.state(ctx, "ssd", 0).Volume.UUID).NotTo(Equal(volume.UUID))

		By("a file system that it does not have")
		p.pool(ctx, "other", 1, func(pool *v1alpha1.ShardPool) {
			pool.Spec.FileSystem = &v1alpha1.FileSystem{Type: v1alpha1.Btrfs}
		})
		Eventually(func(g Gomega) {
			_ = p.round(ctx)
			c := findCondition(p.get(ctx, "other"), v1alpha1.ConditionFileSystemMatches)
			g.Expect(c.Reason).To(Equal("FileSystemMismatch"), c.Message)
			g.Expect(c.Message).To(And(ContainSubstring("btrfs"), ContainSubstring(volume.FileSystem)))
		}).WithTimeout(2 * time.Minute).Should(Succeed())

		By("restarting it while etcd is away: it says what it waits for, and the pool what to do")
		stopServer()
		Expect(api.Get(ctx, client.ObjectKeyFromObject(p.store), p.store)).To(Succeed())
		step.SetFalse(&p.store.Status.Conditions, 1, v1alpha1.ConditionEtcdReady, "EtcdNotReady",
			"0 of 1 member of etcd is ready: look at its pod")
		Expect(api.Status().Update(ctx, p.store)).To(Succeed())
		Expect(api.Delete(ctx, p.pod(ctx, "ssd-0"))).To(Succeed())
		until(ctx, v1alpha1.ShardPending, "etcd does not answer", "0 of 1 member of etcd is ready: look at its pod")
		p.expect(ctx, "ssd", v1alpha1.ConditionEtcdReady, metav1.ConditionFalse, "EtcdNotReady", "look at its pod")
		p.expect(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, "EtcdNotReady", "etcd does not answer",
			"look at its pod")
	})
})

// isEmpty reports whether a folder is empty.
func isEmpty(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Readdirnames(1); !errors.Is(err, io.EOF) {
		return false, err
	}
	return true, nil
}
