//go:build e2e

package e2e

import (
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// traffic puts and gets records until it is stopped.
type traffic struct {
	stop   chan struct{}
	done   sync.WaitGroup
	mutex  sync.Mutex
	calls  int           // guarded by mutex
	failed []string      // guarded by mutex
	slow   time.Duration // guarded by mutex: the slowest call took so long
}

// startTraffic calls the store q all the time, with ids from 1000 on. Flags are of the command line.
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

// awaitCalls waits until so many more calls were made.
func (t *traffic) awaitCalls(more int) {
	GinkgoHelper()
	before := t.count()
	Eventually(t.count).WithTimeout(3 * time.Minute).Should(BeNumerically(">=", before+more))
}

// end stops the calls and gives those that failed.
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

// scaleOperator changes the number of operators, and back at the end.
func scaleOperator(replicas int) {
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
}

// Scenarios 6 and 7: nothing that serves needs the operator, and another one restarts nothing.
var _ = Describe("the operator", Serial, Ordered, func() {
	var s *space
	BeforeAll(func() {
		s = newSpace("operatordown")
		class := s.threeDisks()
		s.makeStore(class)
		s.makePool("main", class, 2, "fileSystem: {type: ext4}")
		s.awaitStore("q", 2*time.Minute)
		s.client()
		s.putAll(8)
	})

	It("is upgraded, and that restarts nothing else", func() {
		before, old := s.pods(storePods), awaitLeader(operatorImage)
		installOperator("image.repository="+repository(nextOperatorImage), "image.tag="+tag(nextOperatorImage))
		DeferCleanup(func() { installOperator() })
		leader := awaitLeader(nextOperatorImage)
		Expect(leader.Status.ContainerStatuses[0].ImageID).NotTo(Equal(old.Status.ContainerStatuses[0].ImageID), "it is the same image")
		By("it has work to do, and so has looked at everything")
		kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", `{"spec":{"gateway":{"serviceAnnotations":{"example.org/a":"b"}}}}`)
		s.updateMode(v1alpha1.UpdatePaused)
		s.awaitObserved()
		s.awaitCondition("main", v1alpha1.ConditionUpdated, "True", time.Minute)
		s.awaitStore("q", time.Minute)
		Expect(changed(before, s.pods(storePods))).To(BeEmpty())
		Expect(s.pods(storePods)).To(HaveLen(len(before)))
	})

	It("is away: a deleted shard comes back, and puts and gets never stop", func() {
		scaleOperator(0)
		t := s.startTraffic()
		t.awaitCalls(4)
		old := s.pod("main-0-0").Metadata.UID
		kubectl("delete", "pod", "-n", s.name, "main-0-0", "--wait=false")
		s.awaitNewPod("main-0-0", old, 2*time.Minute)
		t.awaitCalls(8)
		Expect(t.end()).To(BeEmpty())
		s.getAll(8)
	})
})
