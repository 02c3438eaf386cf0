//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// stackTrace matches the traces that a panic leaves in a log, even if the panic was recovered.
var stackTrace = regexp.MustCompile(`panic|goroutine \d+ \[|\.go:\d+ \+0x`)

// operatorLogs collects the output of every operator that runs during the suite, including operators that no longer
// exist when the suite ends.
type operatorLogs struct {
	ctx   context.Context
	tails sync.WaitGroup
	mutex sync.Mutex
	logs  map[string]*bytes.Buffer // by container; guarded by mutex
}

// logOf collects one container's log.
type logOf struct {
	*operatorLogs
	container string
}

func (l logOf) Write(b []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.logs[l.container].Write(b)
}

// watchOperators reads the operators' logs until end() is called. end() fails if a log holds a stack trace.
func watchOperators() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &operatorLogs{ctx: ctx, logs: map[string]*bytes.Buffer{}}
	l.tails.Go(l.find)
	return func() {
		panics := operatorMetric(`controller_runtime_reconcile_panics_total`)
		cancel()
		l.tails.Wait()
		l.mutex.Lock()
		defer l.mutex.Unlock()
		Expect(l.logs).NotTo(BeEmpty(), "no operator was seen to run")
		for container, log := range l.logs {
			for _, line := range strings.Split(log.String(), "\n") {
				if strings.Contains(line, `"reason":"`) {
					continue // such a line quotes another process, for example an etcd member that panicked
				}
				Expect(line).NotTo(MatchRegexp(stackTrace.String()), "operator %s:\n%s", container, log)
			}
		}
		for object, n := range panics {
			Expect(n).To(BeZero(), object)
		}
	}
}

// find starts to read the logs of the operators whose logs are not being read yet.
func (l *operatorLogs) find() {
	for {
		var list struct{ Items []pod }
		if err := get(&list, "pods", "-n", operatorNamespace, "-l", "app.kubernetes.io/name=sheaf-operator"); err == nil {
			for _, p := range list.Items {
				if p.Status.Phase == "Running" && len(p.Status.ContainerStatuses) == 1 {
					l.read(p.Metadata.Name, p.Status.ContainerStatuses[0].RestartCount)
				}
			}
		}
		select {
		case <-l.ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// read follows a container's log until the log ends.
func (l *operatorLogs) read(pod string, restarts int) {
	container := fmt.Sprintf("%s, restarted %d times", pod, restarts)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.logs[container] != nil {
		return
	}
	l.logs[container] = &bytes.Buffer{}
	cmd := exec.CommandContext(l.ctx, tool("kubectl"), "logs", "-n", operatorNamespace, pod, "--follow")
	cmd.WaitDelay = 5 * time.Second
	cmd.Stdout = logOf{l, container}
	l.tails.Go(func() { _ = cmd.Run() }) // returns when the container or the suite ends
}

// operatorMetric returns a metric of the leading operator, by its labels.
func operatorMetric(name string) map[string]float64 {
	GinkgoHelper()
	return metricOf(kubectl("get", "--raw", operatorMetricsPath(leaderName())), name)
}

func operatorMetricsPath(pod string) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy/metrics", operatorNamespace, pod)
}

// metricOf returns the values of a metric, by label set. The argument text holds all metrics.
func metricOf(text, name string) map[string]float64 {
	GinkgoHelper()
	values := map[string]float64{}
	for _, line := range strings.Split(text, "\n") {
		if labels, value, ok := strings.Cut(strings.TrimPrefix(line, name+"{"), "} "); ok &&
			strings.HasPrefix(line, name+"{") {
			n, err := strconv.ParseFloat(value, 64)
			Expect(err).NotTo(HaveOccurred(), line)
			values[labels] = n
		}
	}
	return values
}

// reconciles returns how many times the leading operator has reconciled each of the objects, such as "shardpool/main"
// or "diskset/disks". It also returns which process leads, because a new leader counts from zero.
func (s *space) reconciles(objects []string) (leader string, counts map[string]float64) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		leader, counts = leaseHolder(), map[string]float64{}
		pod, _, _ := strings.Cut(leader, "_")
		o := try(30*time.Second, "", "kubectl", "get", "--raw", operatorMetricsPath(pod))
		g.Expect(o.err).NotTo(HaveOccurred(), "%v", o)
		all := metricOf(o.out, "sheaf_operator_reconciles_total")
		for _, object := range objects {
			kind, name, _ := strings.Cut(object, "/")
			namespace := s.name
			if kind == "diskset" {
				namespace = ""
			}
			labels := fmt.Sprintf(`kind=%q,name=%q,namespace=%q`, kind, name, namespace)
			g.Expect(all).To(HaveKey(labels))
			counts[object] = all[labels]
		}
		g.Expect(leaseHolder()).To(Equal(leader))
	}).WithTimeout(reconcileMax).Should(Succeed())
	return leader, counts
}

// reconcilesMax is how many times an object with a problem may be reconciled in a minute.
const reconcilesMax = 6

// reconcileMax is the time within which an object with a problem must be reconciled again. Without any event, it would
// be reconciled about once a minute.
const reconcileMax = 3 * time.Minute

// countReconciles starts to count how often objects are reconciled. The returned function waits until a minute has
// passed. It fails if an object was reconciled too often, or is no longer reconciled. If another operator has become
// the leader by then, the function counts for another minute, at most four times.
func (s *space) countReconciles(objects ...string) func() {
	GinkgoHelper()
	began := time.Now()
	leader, before := s.reconciles(objects)
	return func() {
		GinkgoHelper()
		var counts map[string]float64
		for tries := 0; ; tries++ {
			Expect(tries).To(BeNumerically("<", 5), "another operator leads each minute")
			time.Sleep(time.Until(began.Add(time.Minute))) // wait until the minute is over, because the limit is per minute
			var now string
			if now, counts = s.reconciles(objects); now == leader {
				break
			}
			AddReportEntry("another operator leads: counted again")
			began, leader, before = time.Now(), now, counts
		}
		minutes := time.Since(began).Minutes()
		var wrong []string
		for _, object := range objects {
			count := counts[object] - before[object]
			words := fmt.Sprintf("%s: %.0f reconciles in %.1f minutes", object, count, minutes)
			AddReportEntry(words)
			most := reconcilesMax * minutes
			if strings.HasPrefix(object, "diskset/") {
				most *= 4 // stores of other scenarios, which run concurrently, also trigger reconciles of every DiskSet
			}
			// One more reconcile may fall into the minute, depending on when the minute begins.
			if count > most+1 {
				wrong = append(wrong, words)
			}
		}
		Expect(wrong).To(BeEmpty(), "looked at all the time")
		Eventually(func(g Gomega) {
			now, counts := s.reconciles(objects)
			for _, object := range objects {
				g.Expect(now != leader || counts[object] > before[object]).To(BeTrue(), "%s is not looked at any more", object)
			}
		}).WithTimeout(max(time.Minute, time.Until(began.Add(reconcileMax)))).Should(Succeed())
	}
}
