//go:build e2e && walk

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// walk performs the daily operations of an administrator on one store, with helm and kubectl, under a steady load. It
// writes each scenario's observations as a row of a table. A failed scenario does not abort the walk.
type walk struct {
	*space
	load *load
	rows []string
	said []string // observations of the current scenario
}

// note records an observation.
func (w *walk) note(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

// since records that something has happened, and how many seconds after the given time.
func (w *walk) since(began time.Time, what string) {
	w.note("%s after %.0f s", what, time.Since(began).Seconds())
}

// step runs one scenario, waits until the store is healthy again, and checks all records that were ever acknowledged.
func (w *walk) step(name, expected string, do func()) {
	w.said = nil
	began := time.Now()
	fmt.Fprintf(os.Stderr, "walk: %s\n", name)
	w.load.start()
	var failures []string
	if err := InterceptGomegaFailure(func() { // the first failure aborts do()
		w.load.awaitCalls(50)
		do()
		w.awaitSettled()
		w.awaitStore("q", 2*time.Minute)
		w.load.awaitCalls(50)
	}); err != nil {
		failures = append(failures, err.Error())
	}
	w.load.end()
	longest, _ := w.load.slowestCall(began)
	slow := 0
	for _, call := range w.load.slow {
		if call.ends.Sub(call.began) > time.Second {
			slow++
		}
	}
	failures = append(failures, InterceptGomegaFailures(w.load.check)...)
	calls := fmt.Sprintf("%d of %d failed, none above %v", len(w.load.failed), w.load.calls, slowCall)
	if longest > 0 {
		calls = fmt.Sprintf("%d of %d failed, longest %.1f s, %d above 1 s", len(w.load.failed), w.load.calls,
			longest.Seconds(), slow)
	}
	verdict := "good"
	if len(failures) > 0 || len(w.load.failed) > 0 {
		verdict = "**bad**"
	}
	w.rows = append(w.rows, fmt.Sprintf("| %s | %s | %s | %s | %.0f s | %s |", name, expected, strings.Join(w.said, "; "),
		calls,
		time.Since(began).Seconds(), verdict))
	fmt.Fprintln(os.Stderr, w.rows[len(w.rows)-1])
	for _, f := range append(failures, w.load.failed...) {
		fmt.Fprintf(os.Stderr, "walk: %s: %s\n", name, f)
	}
	if len(failures) > 0 {
		w.dump()
	}
}

// helm upgrades the store's release.
func (w *walk) helm(values map[string]string, files ...string) output {
	args := []string{"upgrade", "--install", "q", "charts/sheaf-store", "--namespace", w.name, "--wait", "--timeout", "4m",
		"--reset-values"}
	for _, file := range files {
		args = append(args, "-f", file)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		args = append(args, "--set", key+"="+values[key])
	}
	return try(5*time.Minute, "", "helm", args...)
}

func (w *walk) helmMust(values map[string]string, files ...string) {
	GinkgoHelper()
	began := time.Now()
	o := w.helm(values, files...)
	Expect(o.err).NotTo(HaveOccurred(), "%v", o)
	w.since(began, "helm --wait returned")
}

func (w *walk) patch(what, patch string) {
	GinkgoHelper()
	kind, name, _ := strings.Cut(what, "/")
	kubectl("patch", kind, name, "-n", w.name, "--type=merge", "-p", patch)
}

// jsonpath returns the value of the field at the given path in an object.
func (w *walk) jsonpath(what, path string) string {
	GinkgoHelper()
	kind, name, _ := strings.Cut(what, "/")
	return kubectl("get", kind, name, "-n", w.name, "-o", "jsonpath={"+path+"}")
}

// awaitField waits until the field at path has the given value.
func (w *walk) awaitField(what, path, value string) {
	GinkgoHelper()
	kind, name, _ := strings.Cut(what, "/")
	Eventually(func() string {
		return try(30*time.Second, "", "kubectl", "get", kind, name, "-n", w.name, "-o", "jsonpath={"+path+"}").out
	}).WithTimeout(2*time.Minute).Should(Equal(value), "%s of %s", path, what)
}

// awaitShardCount waits until the pool has the given number of shards and all of them serve.
func (w *walk) awaitShardCount(pool string, n int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		list, err := w.shardList(pool)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(list).To(HaveLen(n))
		for _, shard := range list {
			g.Expect(shard.State).To(Equal(v1alpha1.ShardServing), shard.Name)
		}
	}).WithTimeout(4 * time.Minute).Should(Succeed())
}

// writes returns the number of write requests that the API server has counted, except those for leases and nodes. It
// approximates the number of writes by the operator.
func writes() (total float64) {
	GinkgoHelper()
	for line := range strings.Lines(kubectl("get", "--raw", "/metrics")) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || strings.Contains(line, `resource="leases"`) ||
			strings.Contains(line, `resource="nodes"`) {
			continue
		}
		for _, verb := range []string{"PUT", "POST", "PATCH", "DELETE"} {
			if strings.Contains(line, `verb="`+verb+`"`) {
				fields := strings.Fields(line)
				n, _ := strconv.ParseFloat(fields[len(fields)-1], 64)
				total += n
			}
		}
	}
	return total
}

const walkValues = `
store:
  groups: {routing: Hash, count: 12}
  replication: {copies: 3}
  etcd: {managed: {members: 3, storage: {storageClassName: walk-etcd, size: 128Mi}}}
  gateway: {replicas: 2}
` + walkPoolA

const walkPoolA = `
pools:
  a:
    shards: %d
    %s
    storage: {storageClassName: walk-a, size: 180Mi}
    fileSystem: {type: ext4}
`

const walkPool = `
pools:
  %s:
    shards: 3
    storage: {storageClassName: walk-%s, size: %s}
    fileSystem: {type: %s}
`

// values writes a Helm values file and returns its path.
func values(format string, args ...any) string {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), fmt.Sprintf("values-%d.yaml", time.Now().UnixNano()))
	Expect(os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o600)).To(Succeed())
	return file
}

var _ = Describe("a walk through day two", Serial, func() {
	It("is written down", func() {
		w := &walk{space: newSpace("walk")}
		w.groups = 12
		nodes := []string{"n1", "n2", "n3"}
		sets := map[string][]diskSpec{}
		for _, node := range nodes {
			for _, d := range []struct{ set, name, size, spec string }{
				{"walk-etcd", "walk-e", "256M", "240Mi"}, {"walk-a", "walk-a1", "256M", "240Mi"},
				{"walk-a", "walk-a2", "256M", "240Mi"},
				{"walk-b", "walk-b", "256M", "240Mi"}, {"walk-x", "walk-x", "320M", "310Mi"},
			} {
				sets[d.set] = append(sets[d.set], diskSpec{node, w.disk(node, d.name, d.size), d.spec})
			}
		}
		w.diskSet("walk-etcd", "ext4", sets["walk-etcd"]...)
		w.diskSet("walk-a", "ext4", sets["walk-a"]...)
		w.diskSet("walk-b", "btrfs", sets["walk-b"]...)
		w.diskSet("walk-x", "xfs", sets["walk-x"]...)

		began := time.Now()
		o := w.helm(nil, values(walkValues, 3, ""))
		Expect(o.err).NotTo(HaveOccurred(), "%v", o)
		w.client()
		w.put("q", 42, "hello")
		w.rows = append(w.rows, fmt.Sprintf(
			"| second Helm command, first record | < 90 s | Ready and a record after %.0f s; warnings: %q | | %.0f s | good |",
			time.Since(began).Seconds(), kubectl("get", "events", "-n", w.name, "--field-selector=type=Warning", "-o",
				"jsonpath={range .items[*]}{.reason} {end}"), time.Since(began).Seconds()))
		w.awaitSettled()
		w.load = w.newLoad()
		defer func() {
			file := filepath.Join(root, ".cache/walk.md")
			Expect(os.WriteFile(file, []byte(strings.Join(w.rows, "\n")+"\n"), 0o600)).To(Succeed())
		}()
		only := os.Getenv("WALK")
		for _, part := range []struct {
			name string
			do   func()
		}{
			{"nodes", w.walkNodes}, {"operator", w.walkOperator}, {"image", w.walkImage}, {"kill", w.walkKill},
			{"claims", w.walkClaims}, {"drift", w.walkDrift}, {"etcd", w.walkEtcd}, {"pools", w.walkPools},
			{"scale", w.walkScale}, // this step changes the numbers of the shards
			{"refused", w.walkRefused}, {"idle", w.walkIdle}, {"end", w.walkEnd},
		} {
			if only == "" || slices.Contains(strings.Split(only, ","), part.name) {
				part.do()
			}
		}
	})
})

// whileOperatorsDie runs do(), and deletes all operators every 3 s until do() has returned.
func (w *walk) whileOperatorsDie(do func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	kills := 0
	done.Go(func() {
		for ctx.Err() == nil {
			try(30*time.Second, "", "kubectl", "delete", "pods", "-n", operatorNamespace, "-l",
				"app.kubernetes.io/name=sheaf-operator", "--wait=false")
			kills++
			select {
			case <-ctx.Done():
			case <-time.After(3 * time.Second):
			}
		}
	})
	defer func() {
		cancel()
		done.Wait()
		w.note("deleted %d times", kills)
		kubectl("rollout", "status", "-n", operatorNamespace, "deployment/"+operatorName, "--timeout=90s")
	}()
	do()
}
