//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client"
)

// root is the root of the repository. The suite runs in its own folder.
var root = func() string {
	dir, err := filepath.Abs("..")
	if err != nil {
		panic(err)
	}
	return dir
}()

// tool returns the path of a program that the Makefile builds.
func tool(name string) string {
	for _, dir := range []string{"bin/kube", "bin/tools", "bin", "hack/cluster"} {
		if path := filepath.Join(root, dir, name); exists(path) {
			return path
		}
	}
	return name
}

func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// output is the result of a command.
type output struct {
	command string
	out     string
	words   string // standard error
	err     error
}

func (o output) String() string {
	return fmt.Sprintf("%s\n%s%s%v", o.command, o.out, o.words, o.err)
}

// noResponse matches the messages that kubectl prints when the API server, or a kubelet behind it, does not respond.
// The faults that scenarios inject never cause such a message.
var noResponse = regexp.MustCompile(`(?m)^(Unable to connect to the server: .*handshake timeout|` +
	`(error|Error from server.*): .*(error dialing backend|unable to upgrade connection|handshake timeout|request timed out|unable to return a response))`)

// try runs a command and returns its result, even if it failed. It retries kubectl for up to a minute if the API server
// does not respond.
func try(timeout time.Duration, stdin, name string, args ...string) output {
	for began := time.Now(); ; time.Sleep(time.Second) {
		o := once(timeout, stdin, name, args...)
		if name != "kubectl" || o.err == nil || !noResponse.MatchString(o.words) || time.Since(began) > time.Minute {
			return o
		}
		fmt.Fprintln(GinkgoWriter, "not answered:", o)
	}
}

func once(timeout time.Duration, stdin, name string, args ...string) output {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool(name), args...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Dir = root
	var out, words bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &words
	err := cmd.Run()
	return output{command: name + " " + strings.Join(args, " "), out: out.String(), words: words.String(), err: err}
}

// must runs a command that has to succeed, and returns its standard output.
func must(timeout time.Duration, stdin, name string, args ...string) string {
	GinkgoHelper()
	o := try(timeout, stdin, name, args...)
	Expect(o.err).NotTo(HaveOccurred(), "%v", o)
	return o.out
}

// kubectl runs kubectl, which has to succeed, and returns its standard output.
func kubectl(args ...string) string {
	GinkgoHelper()
	return must(5*time.Minute, "", "kubectl", args...)
}

// apply applies YAML. The API server must not warn.
func apply(yaml string) {
	GinkgoHelper()
	o := try(time.Minute, yaml, "kubectl", "apply", "--server-side", "-f", "-")
	Expect(o.err).NotTo(HaveOccurred(), "%v\n%s", o, yaml)
	Expect(o.words).NotTo(ContainSubstring("Warning"), "the API server warned")
}

// cluster runs the program that manages the test cluster.
func cluster(args ...string) string {
	GinkgoHelper()
	return strings.TrimSpace(must(3*time.Minute, "", "cluster", args...))
}

// space is the namespace of a scenario, with Pod Security "restricted", and everything that the scenario has created.
type space struct {
	name   string
	groups int // number of groups in the store q; 0 means 8
	sets   []string
	disks  [][2]string // node and name of each disk
}

// newSpace creates a namespace. When the scenario ends, it removes the namespace and the disks that the scenario added.
func newSpace(name string) *space {
	GinkgoHelper()
	s := &space{name: "e2e-" + name}
	s.makeNamespace()
	DeferCleanup(s.remove)
	return s
}

func (s *space) makeNamespace() {
	GinkgoHelper()
	// A namespace from an earlier attempt may still be terminating.
	Eventually(func() error {
		return get(&struct{}{}, "namespace", s.name)
	}).WithTimeout(4*time.Minute).Should(MatchError(ContainSubstring("404")), "namespace %s is still there", s.name)
	apply(fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata:
  name: %s
  labels:
    pod-security.kubernetes.io/enforce: restricted
    pod-security.kubernetes.io/warn: restricted
`, s.name))
}

// remove removes everything that the scenario has created. Pods use volumes and volumes use disks, so pods are removed
// first.
func (s *space) remove() {
	if CurrentSpecReport().Failed() {
		s.dump()
	}
	// Do not wait until an empty namespace is deleted, because this takes at least five seconds and nothing depends on
	// it.
	kubectl("delete", "namespace", s.name, "--ignore-not-found", fmt.Sprintf("--wait=%v", !s.empty()), "--timeout=4m")
	if len(s.sets) > 0 {
		kubectl(append([]string{"delete", "disksets", "--ignore-not-found", "--wait=true", "--timeout=2m"}, s.sets...)...)
		kubectl("delete", "pv", "-l", "sheaf.dev/diskset in ("+strings.Join(s.sets, ",")+")", "--wait=true", "--timeout=2m")
	}
	for _, disk := range s.disks {
		cluster("disk", "rm", disk[0], disk[1])
	}
}

// noMorePods is the name of the quota that prevents new pods in a scenario's namespace.
const noMorePods = "no-more-pods"

// holdPods sets the quota noMorePods.
func (s *space) holdPods() output {
	yaml := fmt.Sprintf(
		"apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: %s, namespace: %s}\nspec: {hard: {pods: '0'}}\n", noMorePods,
		s.name)
	return try(time.Minute, yaml, "kubectl", "apply", "--server-side", "-f", "-")
}

// allowPods removes the quota. It also modifies the StatefulSet, so that the StatefulSet controller tries again now,
// and not only after a long pause.
func (s *space) allowPods(set string) {
	GinkgoHelper()
	kubectl("delete", "resourcequota", noMorePods, "-n", s.name)
	kubectl("annotate", "statefulset", set, "-n", s.name, "e2e/pods=again", "--overwrite")
}

// empty deletes the pods and everything with finalizers. Otherwise Kubernetes would check the deleted namespace again
// only half a minute later. empty reports whether no pod, claim or Sheaf object is left.
func (s *space) empty() bool {
	if s.holdPods().err != nil {
		return false // the scenario has deleted the namespace
	}
	gone := true
	for _, args := range [][]string{
		{"recordstores,shardpools", "--wait=false"},
		{"pods", "--grace-period=1", "--timeout=90s"},
		{"recordstores,shardpools,persistentvolumeclaims", "--timeout=60s"},
	} {
		if o := try(2*time.Minute, "", "kubectl", append([]string{"delete", "--all", "-n", s.name, "--ignore-not-found"},
			args...)...); o.err != nil {
			GinkgoWriter.Println(o) // deleting the namespace removes the rest, or reports why it cannot
			gone = false
		}
	}
	return gone
}

// dump prints information that helps to find the cause of a failure.
func (s *space) dump() {
	for _, args := range [][]string{
		{"get", "sheaf,pods,pvc,pv,statefulsets,deployments", "-n", s.name, "-o", "wide"},
		{"get", "recordstores,recordarchives,recordbackups,shardpools,shards", "-n", s.name, "-o", "yaml"},
		{"get", "disksets", "-o", "yaml"},
		{"get", "events", "-n", s.name, "--sort-by=.lastTimestamp"},
		{"logs", "-n", operatorNamespace, "deployment/" + operatorName, "--tail=60"},
		{"logs", "-n", s.name, "-l", "app.kubernetes.io/name=sheaf", "--tail=15", "--prefix"},
	} {
		o := try(30*time.Second, "", "kubectl", args...)
		fmt.Fprintln(GinkgoWriter, o)
	}
}

// disk adds a blank disk to a node and returns its path.
func (s *space) disk(node, name, size string, options ...string) string {
	GinkgoHelper()
	path := cluster(append([]string{"disk", "add", node, name, size}, options...)...)
	s.disks = append(s.disks, [2]string{node, name})
	return path
}

// diskSpec is one disk of a DiskSet.
type diskSpec struct{ node, device, size string }

// diskSet creates a DiskSet. The DiskSet and its volumes are removed after the namespace.
func (s *space) diskSet(name, fileSystem string, disks ...diskSpec) {
	GinkgoHelper()
	yaml := fmt.Sprintf(
		"apiVersion: sheaf.dev/v1alpha1\nkind: DiskSet\nmetadata: {name: %s}\nspec:\n  fileSystem: {type: %s}\n  "+
			"namespaces: [%s]\n  disks:\n",
		name, fileSystem, s.name)
	for _, d := range disks {
		yaml += fmt.Sprintf("  - {node: %s, device: %s, size: %s}\n", d.node, d.device, d.size)
	}
	apply(yaml)
	s.sets = append(s.sets, name)
}

// store reads a RecordStore.
func (s *space) store(name string) (*v1alpha1.RecordStore, error) {
	var store v1alpha1.RecordStore
	return &store, get(&store, "recordstore", name, "-n", s.name)
}

// storeQ reads the store q, which must exist.
func (s *space) storeQ(g Gomega) *v1alpha1.RecordStore {
	GinkgoHelper()
	store, err := s.store("q")
	g.Expect(err).NotTo(HaveOccurred())
	return store
}

// pool reads a ShardPool.
func (s *space) pool(name string) (*v1alpha1.ShardPool, error) {
	var pool v1alpha1.ShardPool
	return &pool, get(&pool, "shardpool", name, "-n", s.name)
}

// shardList returns the status of each shard in a pool, as the Shard objects report it.
func (s *space) shardList(pool string) (shards []v1alpha1.ShardStatus, err error) {
	var list v1alpha1.ShardList
	err = get(&list, "shards", "-n", s.name, "-l", v1alpha1.LabelPool+"="+pool)
	for _, shard := range list.Items {
		if shard.Status.State != "" {
			shards = append(shards, shard.Status)
		}
	}
	return shards, err
}

// condition returns the condition of the given type, or nil.
func condition(conditions []metav1.Condition, kind string) *metav1.Condition {
	for n := range conditions {
		if conditions[n].Type == kind {
			return &conditions[n]
		}
	}
	return nil
}

// awaitStore waits until the named store is Ready.
func (s *space) awaitStore(name string, timeout time.Duration) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		store, err := s.store(name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(condition(store.Status.Conditions, v1alpha1.ConditionReady)).
			To(HaveField("Status", metav1.ConditionTrue), "%+v", store.Status)
	}).WithTimeout(timeout).Should(Succeed())
}

// awaitCondition waits until the condition kind of the pool has the given status, and a message with all the words.
func (s *space) awaitCondition(pool, kind, status string, timeout time.Duration, words ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		p, err := s.pool(pool)
		g.Expect(err).NotTo(HaveOccurred())
		c := condition(p.Status.Conditions, kind)
		g.Expect(c).NotTo(BeNil(), "no condition %s", kind)
		g.Expect(string(c.Status)).To(Equal(status), "%+v", c)
		for _, w := range words {
			g.Expect(c.Message).To(ContainSubstring(w))
		}
	}).WithTimeout(timeout).Should(Succeed())
}

// awaitShard waits until the shard has the given state.
func (s *space) awaitShard(pool string, number int32, state v1alpha1.ShardState,
	timeout time.Duration) v1alpha1.ShardStatus {
	GinkgoHelper()
	var found v1alpha1.ShardStatus
	Eventually(func(g Gomega) {
		shards, err := s.shardList(pool)
		g.Expect(err).NotTo(HaveOccurred())
		for _, shard := range shards {
			if shard.Number == number {
				found = shard
			}
		}
		g.Expect(found.State).To(Equal(state), "%+v", found)
	}).WithTimeout(timeout).Should(Succeed())
	return found
}

// threeDisks adds one disk to each of three nodes, creates a DiskSet with ext4 from them, and returns its name.
func (s *space) threeDisks() string {
	GinkgoHelper()
	var disks []diskSpec
	for _, node := range []string{"n1", "n2", "n3"} {
		disks = append(disks, diskSpec{node, s.disk(node, s.name, "256M"), "240Mi"})
	}
	s.diskSet(s.name, "ext4", disks...)
	return s.name
}

// makeStore creates a RecordStore named q, with one member of etcd and one gateway. Each string in more is a further
// line of the RecordStore's spec.
func (s *space) makeStore(etcdClass string, more ...string) {
	GinkgoHelper()
	apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: RecordStore
metadata: {name: q, namespace: %s}
spec:
  groups: {routing: Hash, count: %d}
  etcd: {managed: {members: 1, storage: {storageClassName: %s, size: 128Mi}}}
  gateway: {replicas: 1}
%s`, s.name, cmp.Or(s.groups, 8), etcdClass, lines(more)))
}

// makePool creates a ShardPool of the store q. Each string in more is a further line of the pool's spec.
func (s *space) makePool(name, class string, shards int, more ...string) {
	GinkgoHelper()
	apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: ShardPool
metadata: {name: %s, namespace: %s}
spec:
  storeRef: {name: q}
  shards: %d
  storage: {storageClassName: %s, size: 100Mi}
%s`, name, s.name, shards, class, lines(more)))
}

func lines(more []string) string {
	text := ""
	for _, line := range more {
		text += "  " + line + "\n"
	}
	return text
}

// pod is the part of a pod that the scenarios use.
type pod struct {
	Metadata struct {
		Name, UID         string
		DeletionTimestamp string
	}
	Spec struct {
		NodeName   string
		Containers []struct{ Image string }
	}
	Status struct {
		Phase             string
		ContainerStatuses []struct {
			Ready        bool
			RestartCount int
			ImageID      string
			State        struct{ Running *struct{} }
		}
	}
}

func (p pod) ready() bool {
	return p.Status.Phase == "Running" && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready
}

// pod returns the named pod, or an empty pod if it does not exist.
func (s *space) pod(name string) pod {
	var p pod
	if err := get(&p, "pod", name, "-n", s.name); err != nil {
		return pod{}
	}
	return p
}

// pods returns the pods that match the selector, by name.
func (s *space) pods(selector string) map[string]pod {
	GinkgoHelper()
	var list struct{ Items []pod }
	Expect(get(&list, "pods", "-n", s.name, "-l", selector)).To(Succeed())
	pods := map[string]pod{}
	for _, p := range list.Items {
		pods[p.Metadata.Name] = p
	}
	return pods
}

// awaitNewPod waits until the named pod is ready and has a UID other than the given one.
func (s *space) awaitNewPod(name, uid string, timeout time.Duration) {
	GinkgoHelper()
	Eventually(func() bool {
		p := s.pod(name)
		return p.ready() && p.Metadata.UID != uid
	}).WithTimeout(timeout).Should(BeTrue(), "pod %s did not come back", name)
}

// putAll stores records 1 to n. getAll reads them back.
func (s *space) putAll(n int) {
	GinkgoHelper()
	store := s.goClient()
	for id := range n {
		_, err := store.Put(context.Background(), client.Key{ID: int64(id + 1)}, fmt.Append(nil, "record ", id+1), nil)
		Expect(err).NotTo(HaveOccurred())
	}
}

func (s *space) getAll(n int) {
	GinkgoHelper()
	store := s.goClient()
	for id := range n {
		record, err := store.Get(context.Background(), client.Key{ID: int64(id + 1)}, nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(record.Data)).To(Equal(fmt.Sprint("record ", id+1)))
	}
}

// begin waits until the store q is Ready, starts the pod with the command line (see client), and stores records 1 to
// n.
func (s *space) begin(timeout time.Duration, n int) {
	GinkgoHelper()
	s.awaitStore("q", timeout)
	s.client()
	s.putAll(n)
}

// client starts a pod with the command line, for calls from inside the cluster. The pod has the administrators'
// certificates of the stores that the scenarios create, as soon as these stores have some.
func (s *space) client() {
	GinkgoHelper()
	certificates := ""
	for _, store := range []string{"q", "quotes"} {
		certificates += fmt.Sprintf("{secret: {name: %s-admin-tls, optional: true, items: [", store)
		for _, key := range []string{"tls.crt", "tls.key", "ca.crt"} {
			certificates += fmt.Sprintf("{key: %s, path: %s/%s}, ", key, store, key)
		}
		certificates += "]}}, "
	}
	apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: %s}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: client
    image: %s
    imagePullPolicy: IfNotPresent
    args: [dev, --listen=127.0.0.1:7700, --http=127.0.0.1:7701, --dir=/scratch/dev, --shards=1, --groups=1]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: tls, mountPath: /tls}]
  volumes: [{name: scratch, emptyDir: {}}, {name: tls, projected: {sources: [%s]}}]
`, s.name, image, certificates))
	kubectl("wait", "-n", s.name, "--for=condition=Ready", "pod/client", "--timeout=3m")
}

// sheaf runs the command line inside the cluster, against a store's gateway.
func (s *space) sheaf(store, stdin string, args ...string) output {
	all := append([]string{"exec", "-i", "-n", s.name, "client", "--", "/sheaf"}, args...)
	all = append(all, "--server", fmt.Sprintf("%s-gateway.%s.svc:7600", store, s.name))
	for _, file := range [][2]string{{"--ca", "ca.crt"}, {"--cert", "tls.crt"}, {"--key", "tls.key"}} {
		all = append(all, file[0], "/tls/"+store+"/"+file[1])
	}
	return try(3*time.Minute, stdin, "kubectl", all...)
}

// put stores a record, and the method get reads a record back. Both have to succeed.
func (s *space) put(store string, id int, data string) {
	GinkgoHelper()
	o := s.sheaf(store, data, "put", fmt.Sprint(id), "-")
	Expect(o.err).NotTo(HaveOccurred(), "%v", o)
}

func (s *space) get(store string, id int) string {
	GinkgoHelper()
	o := s.sheaf(store, "", "get", fmt.Sprint(id))
	Expect(o.err).NotTo(HaveOccurred(), "%v", o)
	return o.out
}
