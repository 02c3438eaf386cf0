//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// These are the alerts of the chart sheaf-operator.
const (
	alertUnavailable  = "SheafStoreUnavailable"
	alertNotRedundant = "SheafStoreNotRedundant"
	alertEtcdMember   = "SheafEtcdMemberMissing"
	alertVolumeFull   = "SheafVolumeNearlyFull"
	alertStandStill   = "SheafMovesStandStill"
	alertCertificates = "SheafCertificates"
	alertStalled      = "SheafStoreStalled"
	alertPoolStalled  = "SheafPoolStalled"
	alertOperatorGone = "SheafOperatorGone"
)

// minute is the time between two scrapes. The alert rules treat it as a minute, because each scrape is dated one
// minute after the previous one (hack/alerts). So an alert with `for: 15m` needs sixteen scrapes, and not a quarter
// of an hour. The rules are those of the chart, unchanged, and Prometheus's own engine evaluates them. The only
// difference from production is the real length of a minute.
const minute = 500 * time.Millisecond

// These are the alert states for which a test waits.
const (
	firing = "firing"
	gone   = ""
)

// alertWatch scrapes all operators as Prometheus would, and evaluates the chart's rules after every scrape.
type alertWatch struct {
	space   *space
	caller  http.Client
	mutex   sync.Mutex
	scrapes int               // guarded by mutex
	states  map[string]string // states of the alerts after the last scrape; guarded by mutex
	log     []string          // changes of alert states; guarded by mutex
	failure error             // guarded by mutex
}

// scrapeCaller returns a client that gives up a connection attempt after a `minute`. Unless a node is down, its kernel
// accepts a connection immediately, however busy the process is. Without the limit, a node that is down would delay
// each scrape.
func scrapeCaller() http.Client {
	return http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: minute}).
		DialContext}}
}

// watchAlerts follows the alerts for the store q until the scenario ends. This machine must be able to reach pods by
// their addresses.
func (s *space) watchAlerts() *alertWatch {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, tool("alerts-watch"), filepath.Join(root, "charts/sheaf-operator/files/alerts.yaml"))
	cmd.Stderr = GinkgoWriter
	cmd.WaitDelay = 5 * time.Second
	in, err := cmd.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	out, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed(), "hack/e2e.sh builds alerts-watch")
	a := &alertWatch{space: s, caller: scrapeCaller(), states: map[string]string{}}
	var done sync.WaitGroup
	done.Go(func() {
		if err := a.follow(ctx, in, bufio.NewReader(out)); err != nil && ctx.Err() == nil {
			a.mutex.Lock()
			defer a.mutex.Unlock()
			a.failure = err
		}
	})
	DeferCleanup(func() {
		cancel()
		done.Wait()
		_ = cmd.Wait() // Wait returns an error, because the process was killed
		AddReportEntry(fmt.Sprintf("alerts in %d scrapes", a.scrapes), strings.Join(a.log, "; "))
	})
	return a
}

// follow scrapes the operators and evaluates the rules once a `minute`.
func (a *alertWatch) follow(ctx context.Context, in io.Writer, out *bufio.Reader) error {
	turns := time.NewTicker(minute)
	defer turns.Stop()
	scrapes := json.NewEncoder(in)
	var addresses map[string]string
	for n := 0; ; n++ {
		answers := a.scrape(ctx, addresses)
		if n%10 == 0 || len(answers) < len(addresses) || len(addresses) < 2 {
			if addresses = operatorAddresses(); len(answers) == 0 {
				answers = a.scrape(ctx, addresses)
			}
		}
		if err := scrapes.Encode(answers); err != nil {
			return fmt.Errorf("tell alerts-watch of a scrape: %w", err)
		}
		text, err := out.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("alerts-watch ended: %w", err)
		}
		if err := a.recordAlerts(text); err != nil {
			return err
		}
		select {
		case <-turns.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// operatorAddresses returns the addresses of the running operators, by pod. If the API server does not respond, it
// returns none, and the scrape finds no metrics.
func operatorAddresses() map[string]string {
	addresses := map[string]string{}
	o := try(10*time.Second, "", "kubectl", "get", "pods", "-n", operatorNamespace, "-l",
		"app.kubernetes.io/name=sheaf-operator",
		"--field-selector=status.phase=Running", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{"\n"}{end}`)
	for line := range strings.Lines(o.out) {
		if words := strings.Fields(line); len(words) == 2 {
			addresses[words[0]] = words[1] + ":8080"
		}
	}
	return addresses
}

// scrape reads the operators' metrics about Sheaf. It skips operators that do not respond.
func (a *alertWatch) scrape(ctx context.Context, addresses map[string]string) map[string]string {
	answers := map[string]string{}
	var mutex sync.Mutex
	var all sync.WaitGroup
	for name, address := range addresses {
		all.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
			if err != nil {
				return
			}
			answer, err := a.caller.Do(request)
			if err != nil {
				return
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != http.StatusOK {
				return
			}
			var ours strings.Builder
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "sheaf_store_") || strings.HasPrefix(line, "sheaf_operator_leads") {
					ours.WriteString(line)
				}
			}
			mutex.Lock()
			defer mutex.Unlock()
			answers[name] = ours.String()
		})
	}
	all.Wait()
	return answers
}

// recordAlerts records the output of alerts-watch for one scrape. An alert without a store label concerns all stores.
func (a *alertWatch) recordAlerts(text []byte) error {
	var found map[string][]struct {
		Labels map[string]string
		State  string
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return fmt.Errorf("alerts-watch said %q: %w", text, err)
	}
	states := map[string]string{}
	for name, list := range found {
		for _, alert := range list {
			namespace, named := alert.Labels["namespace"]
			if named && (namespace != a.space.name || alert.Labels["store"] != "q") || states[name] == firing {
				continue
			}
			states[name] = alert.State
		}
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.scrapes++
	for _, name := range []string{
		alertUnavailable, alertNotRedundant, alertEtcdMember, alertVolumeFull, alertStandStill, alertCertificates,
		alertStalled, alertPoolStalled, alertOperatorGone,
	} {
		if before, now := a.states[name], states[name]; before != now {
			a.log = append(a.log, fmt.Sprintf("%d: %s %s", a.scrapes, name, map[string]string{gone: "is gone"}[now]+now))
		}
	}
	a.states = states
	return nil
}

// await waits until the given alert for the store q has the given state: firing or gone.
func (a *alertWatch) await(alert, state string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		a.mutex.Lock()
		defer a.mutex.Unlock()
		if a.failure != nil {
			StopTrying("the alerts cannot be followed").Wrap(a.failure).Now()
		}
		g.Expect(a.scrapes).To(BeNumerically(">", 0))
		g.Expect(a.states[alert]).To(Equal(state), "%s: %v", alert, a.log)
	}).WithTimeout(5 * time.Minute).Should(Succeed())
}
