package scaletest

import (
	"context"
	"embed"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/must"
)

//go:embed testdata
var testdata embed.FS

func readFile(t *testing.T, name string) string {
	t.Helper()
	content, err := testdata.ReadFile("testdata/" + name)
	must.OK(t, err)
	return string(content)
}

// cluster is a control plane without kubelets. kwok simulates the nodes and the pods.
type cluster struct {
	*kubetest.Server
	client   client.Client
	etcd     string // host:port of the etcd that holds the placement; Kubernetes has an etcd of its own
	network  string // first two numbers of every pod's address
	operator string // kubeconfig of the operator
	zones    int
	audited  auditCounts
	operates int    // pid of the operator; 0 while no operator should be running
	said     string // path of the operator's log
}

// root is the repository's root.
const root = "../../.."

// startCluster starts the control plane with nodes, and waits until they are Ready.
func startCluster(ctx context.Context, t *testing.T, nodes int) *cluster {
	t.Helper()
	log.SetLogger(logr.Discard()) // everything that the client would log is also in the errors that it returns
	began := time.Now()
	server, err := kubetest.StartWith(filepath.Join(root, "config", "crd", "bases"), kubetest.Options{
		Flags: map[string]string{
			"watch-cache": "true", "audit-policy-file": "$DIR/audit.yaml", "audit-log-path": "$DIR/audit.log",
			"enable-admission-plugins": "OwnerReferencesPermissionEnforcement,DefaultTolerationSeconds",
		},
		Files: map[string]string{"audit.yaml": readFile(t, "audit.yaml"), "stages.yaml": readFile(t, "stages.yaml")},
	})
	must.OK(t, err)
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	server.Config.QPS = -1
	// The pods have addresses in the loopback network, so that the test can listen at them in place of the pods. The
	// second number of the addresses is random, so that another run on the same machine uses other addresses.
	c := &cluster{Server: server, network: fmt.Sprintf("127.%d", 16+rand.IntN(224)), zones: 20,
		audited: auditCounts{requests: requests{}}}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		must.OK(t, add(scheme))
	}
	if c.client, err = client.New(server.Config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if c.operator, err = server.User("sheaf-operator"); err != nil {
		t.Fatal(err)
	}
	rights := filepath.Join(server.Dir(), "rights.yaml")
	must.OK(t, os.WriteFile(rights, []byte(readFile(t, "rights.yaml")), 0o600))
	c.apply(ctx, t, rights)
	c.apply(ctx, t, filepath.Join(root, "config", "rbac", "role.yaml"))
	c.startPrograms(t)
	t.Logf("the control plane has started: %.1f s", time.Since(began).Seconds())
	began = time.Now()
	c.makeNodes(ctx, t, nodes)
	await(ctx, t, "all nodes to be Ready", func() (bool, string) {
		ready := c.readyNodes(ctx, t)
		return ready == nodes, fmt.Sprintf("%d of %d are", ready, nodes)
	})
	t.Logf("%d nodes are Ready: %.1f s", nodes, time.Since(began).Seconds())
	return c
}

func (c *cluster) apply(ctx context.Context, t *testing.T, file string) {
	t.Helper()
	if _, err := c.Kubectl(ctx, "apply", "-f", file); err != nil {
		t.Fatal(err)
	}
}

// startPrograms starts the other parts of a control plane: the etcd for the placement, and kwok.
func (c *cluster) startPrograms(t *testing.T) {
	t.Helper()
	var peer string
	var err error
	if c.etcd, err = loopback.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	if peer, err = loopback.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	c.start(t, c.Program("etcd"), nil, "--data-dir", filepath.Join(c.Dir(), "placement"), "--unsafe-no-fsync",
		"--log-level=warn",
		"--listen-client-urls=http://"+c.etcd, "--advertise-client-urls=http://"+c.etcd,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer,
		"--initial-cluster=default=http://"+peer)
	c.start(t, c.Program("kube-controller-manager"), nil, "--kubeconfig", c.Kubeconfig, "--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000", "--concurrent-statefulset-syncs=10",
		"--node-monitor-grace-period=250s",
		"--controllers=statefulset-controller,deployment-controller,replicaset-controller,"+
			"persistentvolumeclaim-protection-controller,node-lifecycle-controller,taint-eviction-controller,"+
			"disruption-controller,garbage-collector-controller,pod-garbage-collector-controller")
	c.start(t, c.Program("kube-scheduler"), nil, "--kubeconfig", c.Kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000")
	kwok, err := filepath.Abs(filepath.Join(root, "bin", "tools", "kwok"))
	must.OK(t, err)
	c.start(t, kwok, nil, "--kubeconfig", c.Kubeconfig, "--config", filepath.Join(c.Dir(), "stages.yaml"),
		"--manage-all-nodes",
		"--cidr", c.network+".0.0/16", "--node-lease-duration-seconds=200", "--v=ERROR")
}

// start runs a program that is killed together with the server. One of its arguments must contain the server's
// folder, so that the guard finds the program. Its output is written to a log in that folder.
func (c *cluster) start(t *testing.T, program string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run this test by `make scale-test`, which builds all programs that it needs", err)
	}
	output, err := os.OpenFile(c.log(program), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must.OK(t, err)
	defer output.Close()                  // the program has its own descriptor for this file
	cmd := exec.Command(program, args...) // the server's guard kills the program
	cmd.Args[0] = filepath.Join(c.Dir(), filepath.Base(program))
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = append(os.Environ(), env...)
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", filepath.Base(program), tailOf(c.log(program)))
		}
	})
	return cmd
}

func (c *cluster) log(program string) string {
	return filepath.Join(c.Dir(), filepath.Base(program)+".log")
}

func tailOf(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}

func nodeName(n int) string { return fmt.Sprintf("node-%04d", n) }

func (c *cluster) zone(n int) string { return fmt.Sprintf("zone-%02d", n%c.zones) }

func (c *cluster) makeNodes(ctx context.Context, t *testing.T, nodes int) {
	t.Helper()
	c.forEach(ctx, t, nodes, func(ctx context.Context, n int) error {
		return c.client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:   nodeName(n),
			Labels: map[string]string{corev1.LabelHostname: nodeName(n), corev1.LabelTopologyZone: c.zone(n)},
		}})
	})
}

// forEach calls do() for every number from 0 to n-1, with several calls at the same time.
func (c *cluster) forEach(ctx context.Context, t *testing.T, n int, do func(ctx context.Context, n int) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	must.OK(t, group.Wait())
}

func (c *cluster) readyNodes(ctx context.Context, t *testing.T) (ready int) {
	t.Helper()
	var nodes corev1.NodeList
	must.OK(t, c.client.List(ctx, &nodes))
	for i := range nodes.Items {
		for _, condition := range nodes.Items[i].Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	return ready
}

// patience limits the wait for each condition. It is not a performance target: a run that takes longer than this has
// hung.
const patience = 30 * time.Minute

// await waits until the condition holds, and logs the progress from time to time.
func await(ctx context.Context, t *testing.T, what string, done func() (bool, string)) {
	t.Helper()
	began, said := time.Now(), time.Now()
	for {
		ok, words := done()
		if ok {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("waited %v for %s: %s", patience, what, words)
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			t.Logf("waiting for %s since %.0f s: %s", what, time.Since(began).Seconds(), words)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// hostOf returns an address without its port.
func hostOf(address net.Addr) string {
	host, _, _ := strings.Cut(address.String(), ":")
	return host
}
