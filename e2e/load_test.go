//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client"
)

// A load is a set of callers that continuously put records and read them back. They call the gateway's Service with
// the Go client, as a program in the cluster would. So this machine must be able to reach Services by their
// addresses.
const (
	loadCallers = 8
	loadRecords = 64                     // number of records of each caller
	loadEvery   = 100 * time.Millisecond // interval at which a caller puts and gets one record
	loadFirst   = 1_000_000              // ID of the first record
	slowCall    = 500 * time.Millisecond // slower calls are recorded
)

// load is the load on a store. It can be started and stopped several times, and remembers all acknowledged records.
type load struct {
	store   *client.Client
	callers [loadCallers]*caller
	stop    context.CancelFunc // nil if the load is not running
	done    sync.WaitGroup
	mutex   sync.Mutex
	calls   int         // guarded by mutex
	failed  []string    // calls that failed despite the client's own retries; guarded by mutex
	slow    []timedCall // guarded by mutex
}

type timedCall struct {
	what        string
	began, ends time.Time
}

// caller is one of the load's callers. Each caller has its own records, which no other caller writes, so it can check
// the data that it reads.
type caller struct {
	number int
	turn   int
	// valid lists the data that each record may hold: first the last acknowledged data, then the data of puts with an
	// unknown outcome.
	valid map[int64][]string
}

// gatewayAddress returns the address of the gateway's Service of the store q.
func (s *space) gatewayAddress() string {
	GinkgoHelper()
	return strings.TrimSpace(kubectl("get", "service", "q-gateway", "-n", s.name, "-o",
		"jsonpath={.spec.clusterIP}:{.spec.ports[0].port}"))
}

// goClient connects from this machine to the store q at its gateway's Service. The client is closed when the scenario
// ends.
func (s *space) goClient() *client.Client {
	GinkgoHelper()
	host := s.gatewayAddress()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	speaks, err := client.TLS(s.adminFiles("q"))
	Expect(err).NotTo(HaveOccurred())
	store, err := client.Dial(ctx, client.Config{
		Addresses: []string{host}, Credentials: speaks, DialOptions: []grpc.DialOption{grpc.WithAuthority("q-gateway." +
			s.name + ".svc")},
	})
	Expect(err).NotTo(HaveOccurred(), "this machine has to reach Services, such as %s, by their addresses", host)
	DeferCleanup(func() { _ = store.Close() }) // the only possible error is that calls were aborted
	return store
}

// newLoad returns a load for the store q, which is not running yet.
func (s *space) newLoad() *load {
	GinkgoHelper()
	l := &load{store: s.goClient()}
	for n := range l.callers {
		l.callers[n] = &caller{number: n, valid: map[int64][]string{}}
	}
	DeferCleanup(func() { l.end() })
	return l
}

// start starts the callers.
func (l *load) start() {
	l.end() // a failed attempt may have left its callers running
	ctx, cancel := context.WithCancel(context.Background())
	l.stop, l.calls, l.failed, l.slow = cancel, 0, nil, nil
	for _, c := range l.callers {
		l.done.Go(func() {
			turns := time.NewTicker(loadEvery)
			defer turns.Stop()
			for ctx.Err() == nil {
				c.do(l)
				select {
				case <-turns.C:
				case <-ctx.Done():
				}
			}
		})
	}
}

// do puts one record and reads one record.
func (c *caller) do(l *load) {
	c.turn++
	id, data := c.id(c.turn), fmt.Sprintf("caller %d, turn %d", c.number, c.turn)
	err := l.timed(fmt.Sprint("put ", id), func(ctx context.Context) error {
		_, err := l.store.Put(ctx, client.Key{ID: id}, []byte(data), nil)
		return err
	})
	if err == nil {
		c.valid[id] = nil
	}
	c.valid[id] = append(c.valid[id], data)
	id = c.id(c.turn * 7) // read a different record, which may not have been written yet
	if len(c.valid[id]) > 0 {
		// An error is ignored because timed has already recorded it.
		_ = l.timed(fmt.Sprint("get ", id), func(ctx context.Context) error { return c.read(ctx, l, id) })
	}
}

func (c *caller) id(n int) int64 { return int64(loadFirst + c.number*loadRecords + n%loadRecords) }

// read returns an error if a record does not hold valid data.
func (c *caller) read(ctx context.Context, l *load, id int64) error {
	record, err := l.store.Get(ctx, client.Key{ID: id}, nil)
	if err != nil {
		return err
	}
	if !slices.Contains(c.valid[id], string(record.Data)) {
		return fmt.Errorf("record %d is %q, and has to be one of %q", id, record.Data, c.valid[id])
	}
	return nil
}

// timed makes a call, and records the call if it failed or was slow. The client's own timeout limits the call.
func (l *load) timed(what string, do func(ctx context.Context) error) error {
	call := timedCall{what: what, began: time.Now()}
	err := do(context.Background())
	call.ends = time.Now()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.calls++
	if err != nil {
		l.failed = append(l.failed, fmt.Sprintf("%s, after %v: %v", what, call.ends.Sub(call.began).Round(time.Millisecond),
			err))
	}
	if call.ends.Sub(call.began) > slowCall {
		l.slow = append(l.slow, call)
	}
	return err
}

// end stops the callers, and returns the failed calls.
func (l *load) end() []string {
	if l.stop == nil {
		return nil
	}
	l.stop()
	l.done.Wait()
	l.stop = nil
	slowest := timedCall{what: "none above " + slowCall.String()}
	if len(l.slow) > 0 {
		slowest = slices.MaxFunc(l.slow, func(a, b timedCall) int {
			return cmp.Compare(a.ends.Sub(a.began), b.ends.Sub(b.began))
		})
	}
	AddReportEntry("load", fmt.Sprintf("%d calls, %d failed, slowest: %s, %v", l.calls, len(l.failed), slowest.what,
		slowest.ends.Sub(slowest.began).Round(time.Millisecond)))
	return l.failed
}

// awaitCalls waits until the given number of further calls has been answered.
func (l *load) awaitCalls(more int) {
	GinkgoHelper()
	count := func() int {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		return l.calls
	}
	before := count()
	Eventually(count).WithTimeout(3 * time.Minute).Should(BeNumerically(">=", before+more))
}

// slowestCall returns how long the slowest call since the given moment took. It also returns how long after that moment
// the last slow call was answered. The load must have been stopped.
func (l *load) slowestCall(since time.Time) (longest, until time.Duration) {
	for _, call := range l.slow {
		if call.ends.Before(since) {
			continue
		}
		began := call.began
		if began.Before(since) {
			began = since
		}
		longest, until = max(longest, call.ends.Sub(began)), max(until, call.ends.Sub(since))
	}
	return longest, until
}

// finish waits until the given number of further calls has been answered, and then stops the load. No call may have
// failed. finish then checks all acknowledged records.
func (l *load) finish(more int) {
	GinkgoHelper()
	l.awaitCalls(more)
	Expect(l.end()).To(BeEmpty())
	l.check()
}

// ids returns the ids of all records of the load, and those in more. The load must have been stopped.
func (l *load) ids(more ...int64) []int64 {
	for _, c := range l.callers {
		more = slices.AppendSeq(more, maps.Keys(c.valid))
	}
	return more
}

// check reads every record that was ever acknowledged. The load must have been stopped.
func (l *load) check() {
	GinkgoHelper()
	var lost []string
	records := 0
	for _, c := range l.callers {
		for _, id := range slices.Sorted(maps.Keys(c.valid)) {
			records++
			if err := c.read(context.Background(), l, id); err != nil {
				lost = append(lost, err.Error())
			}
		}
	}
	Expect(records).To(BeNumerically(">", 0), "there was no load")
	Expect(lost).To(BeEmpty(), "of %d records", records)
}
