//go:build e2e

package e2e

import (
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// traffic puts and gets records until it is stopped.
type traffic struct {
	stop   chan struct{}
	done   sync.WaitGroup
	mutex  sync.Mutex
	calls  int           // guarded by mutex
	failed []string      // guarded by mutex
	slow   time.Duration // duration of the slowest call; guarded by mutex
}

// startTraffic puts and gets records in the store q until it is stopped, with ids from 1000 on. The arguments are
// passed to the command line.
func (s *space) startTraffic(flags ...string) *traffic {
	t := &traffic{stop: make(chan struct{})}
	t.done.Go(func() {
		for id := 1000; ; id++ {
			select {
			case <-t.stop:
				return
			default:
			}
			data, start := fmt.Sprint("traffic ", id), time.Now()
			t.note(s.sheaf("q", data, append([]string{"put", fmt.Sprint(id), "-"}, flags...)...), "", start)
			start = time.Now()
			t.note(s.sheaf("q", "", append([]string{"get", fmt.Sprint(id)}, flags...)...), data, start)
		}
	})
	DeferCleanup(t.end)
	return t
}

func (t *traffic) note(o output, want string, start time.Time) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.calls++
	t.slow = max(t.slow, time.Since(start))
	if o.err != nil || want != "" && o.out != want {
		t.failed = append(t.failed, o.String())
	}
}

func (t *traffic) count() int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.calls
}

// awaitCalls waits until the given number of further calls has finished.
func (t *traffic) awaitCalls(more int) {
	GinkgoHelper()
	before := t.count()
	Eventually(t.count).WithTimeout(3 * time.Minute).Should(BeNumerically(">=", before+more))
}

// end stops the calls and returns the failed ones.
func (t *traffic) end() []string {
	select {
	case <-t.stop:
	default:
		close(t.stop)
		t.done.Wait()
		AddReportEntry("calls", fmt.Sprintf("%d, the slowest took %v", t.calls, t.slow.Round(time.Millisecond)))
	}
	return t.failed
}

// scaleOperator changes the number of operators. The returned function restores the previous number. It is also
// called when the scenario ends.
func scaleOperator(replicas int) (back func()) {
	GinkgoHelper()
	var deployment struct{ Spec struct{ Replicas int } }
	Expect(get(&deployment, "deployment", operatorName, "-n", operatorNamespace)).To(Succeed())
	scale := func(replicas int) {
		kubectl("scale", "-n", operatorNamespace, "deployment/"+operatorName, fmt.Sprintf("--replicas=%d", replicas))
		kubectl("rollout", "status", "-n", operatorNamespace, "deployment/"+operatorName, "--timeout=90s")
	}
	DeferCleanup(scale, deployment.Spec.Replicas)
	scale(replicas)
	Eventually(func() string {
		return kubectl("get", "pods", "-n", operatorNamespace, "-l", "app.kubernetes.io/name=sheaf-operator", "-o", "name")
	}).WithTimeout(time.Minute).Should(BeEmpty())
	return func() { scale(deployment.Spec.Replicas) }
}
