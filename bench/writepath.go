package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/pprof/profile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/client/recordv1"
)

// WritePathOptions are the options of WritePath.
type WritePathOptions struct {
	Options
	Binary  string        // path of the sheaf program
	GoTool  string        // path of the go program, which reads execution traces
	Time    time.Duration // duration of a CPU profile, in whole seconds
	Groups  []int
	Sizes   []int // bytes of data in a record
	Callers int
	Batch   int // records in a BatchPut
}

// writePath is one run of the write-path benchmark. The shard is a separate process, so that its profiles do not
// include callers.
type writePath struct {
	outcome
	opts  WritePathOptions
	cases []writeCase
	set   *rounds.Set
}

// writeCase is one way to write records: either with unary puts, or with batches, for which each caller has one
// stream.
type writeCase struct {
	groups, size, batch int // batch is 0 for unary puts
}

func (c writeCase) name() string {
	if c.batch == 0 {
		return fmt.Sprintf("put, %d groups", c.groups)
	}
	return fmt.Sprintf("batch of %d, %d groups", c.batch, c.groups)
}

func (c writeCase) key() string { return fmt.Sprintf("%d-%d-%d", c.size, c.batch, c.groups) }

// traceTime is the duration of an execution trace. A trace of a busy shard takes about 20 MB per second.
const traceTime = time.Second

// WritePath shows where a durable write spends its time in a shard with one copy. For each stage it reports two times.
// The CPU time for a record is sampled by the kernel's timers. The time that goroutines wait in that stage is recorded
// by an execution trace.
func WritePath(ctx context.Context, opts WritePathOptions) (report *result.Report, err error) {
	b := &writePath{opts: opts, outcome: outcome{Options: opts.Options}, set: rounds.New()}
	report, err = parts[writePath]{{"write path", (*writePath).measure}}.measure(ctx, b, &b.outcome, "write-path")
	report.Tables = b.tables()
	return report, err
}

func (b *writePath) measure(ctx context.Context) error {
	for _, groups := range b.opts.Groups {
		if err := b.withGroups(ctx, groups); err != nil {
			return fmt.Errorf("%d groups: %w", groups, err)
		}
	}
	return nil
}

func (b *writePath) withGroups(ctx context.Context, groups int) error {
	profiles, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	s, err := startStore(ctx, filepath.Join(b.dir, fmt.Sprintf("store-%d", groups)), b.opts.Binary, 1, 1, groups,
		"--pprof", profiles)
	if err != nil {
		return err
	}
	defer s.close()
	view, err := s.place.View(ctx)
	if err != nil {
		return err
	}
	shard, err := grpc.NewClient(view.Shards["1"].Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = shard.Close() }() // an error does not matter, because no call is in progress
	var cells []rounds.Cell
	for _, size := range b.opts.Sizes {
		for _, batch := range []int{0, b.opts.Batch} {
			c := writeCase{groups, size, batch}
			b.cases = append(b.cases, c)
			cells = append(cells, rounds.Cell{Key: c.key(), Run: func(ctx context.Context, f *rounds.Figures) error {
				b.Say("  %s, %d B", c.name(), c.size)
				target := &writeTarget{store: s, shard: shard, profiles: "http://" + profiles + "/debug/pprof/"}
				return b.measureCase(ctx, c, target, f)
			}})
		}
	}
	return b.set.Measure(ctx, cells, rounds.Options{
		Rounds: b.Rounds, Round: func(n int) { b.Say("  round %d of %d", n, b.Rounds) },
	})
}

// freeAddress returns an address of the loopback device on which nothing listens.
func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// writeTarget is the shard whose write path is measured.
type writeTarget struct {
	store    *benchStore
	shard    *grpc.ClientConn
	profiles string // URL of the shard's profiles
	written  atomic.Int64
}

// measureCase measures a case once. While callers write, it takes a CPU profile and then an execution trace.
func (b *writePath) measureCase(ctx context.Context, c writeCase, t *writeTarget, f *rounds.Figures) (err error) {
	writing, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- b.write(writing, c, t) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
	}()
	if err := drive.Eventually(ctx, "records are written", func() error {
		if t.written.Load() < int64(b.opts.Callers*max(c.batch, 1)*10) {
			return errors.New("too few so far")
		}
		return nil
	}, t.store.shards["1"]); err != nil {
		return err
	}
	before, err := t.processorTime()
	if err != nil {
		return err
	}
	records, begin := t.written.Load(), time.Now()
	samples, err := t.fetch(ctx, fmt.Sprintf("profile?seconds=%d", max(1, int(b.opts.Time.Seconds()))))
	if err != nil {
		return err
	}
	after, err := t.processorTime()
	if err != nil {
		return err
	}
	did := float64(t.written.Load() - records)
	f.Set("rate", did/time.Since(begin).Seconds())
	f.Set("processor", (after-before).Seconds()/did)
	if err := setStages(f, "processor", samples, did); err != nil {
		return err
	}
	return b.waits(ctx, t, f)
}

// waits takes an execution trace, and records how long goroutines waited in each stage.
func (b *writePath) waits(ctx context.Context, t *writeTarget, f *rounds.Figures) error {
	records := t.written.Load()
	trace, err := t.fetch(ctx, fmt.Sprintf("trace?seconds=%d", int(traceTime.Seconds())))
	if err != nil {
		return err
	}
	did := float64(t.written.Load() - records)
	name := filepath.Join(b.dir, "trace")
	if err := os.WriteFile(name, trace, 0o600); err != nil {
		return err
	}
	for _, kind := range waitKinds {
		read := exec.CommandContext(ctx, b.opts.GoTool, "tool", "trace", "-pprof="+kind, name) //nolint:gosec // from a flag
		stacks, err := read.Output()
		if err != nil {
			return fmt.Errorf("%s tool trace -pprof=%s: %w%s", b.opts.GoTool, kind, err, errorOutput(err))
		}
		if err := setStages(f, kind, stacks, did); err != nil {
			return err
		}
	}
	return os.Remove(name)
}

// waitKinds are the kinds of waiting that `go tool trace` distinguishes: waiting for locks and channels, in blocking
// system calls, and for a processor.
var waitKinds = []string{"sync", "syscall", "sched"}

// errorOutput returns the text that a failed program wrote to standard error, for use at the end of an error message.
func errorOutput(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return ": " + strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}

// write writes records until ctx is done. Each caller overwrites its own thousand records.
func (b *writePath) write(ctx context.Context, c writeCase, t *writeTarget) error {
	const own = 1000
	records, data := recordv1.NewRecordServiceClient(t.shard), randomBytes(c.size)
	err := drive.Parallel(b.opts.Callers, func(caller int) error {
		first := int64(caller) * own
		var stream grpc.BidiStreamingClient[recordv1.BatchPutRequest, recordv1.BatchPutResponse]
		if c.batch > 0 {
			var err error
			if stream, err = records.BatchPut(ctx); err != nil {
				return err
			}
		}
		for i := int64(0); ; i++ {
			var err error
			if c.batch > 0 {
				err = exchange(stream, putBatch(first+i*int64(c.batch)%own, c.batch, data))
			} else {
				_, err = records.Put(ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: first + i%own}, Data: data})
			}
			if err != nil {
				return err
			}
			t.written.Add(int64(max(c.batch, 1)))
		}
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the measurement is over
	}
	return err
}

// processorTime returns the shard process's CPU time so far, according to the kernel.
func (t *writeTarget) processorTime() (time.Duration, error) {
	times, err := t.store.processorTimes()
	return times["1"], err
}

// fetch downloads a profile from the shard.
func (t *writeTarget) fetch(ctx context.Context, what string) (content []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, t.profiles+what, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if content, err = io.ReadAll(response.Body); err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", request.URL, response.Status, content)
	}
	return content, err
}

// setStages sets a metric, named kind/stage, for each stage in a profile. Its unit is seconds per record.
func setStages(f *rounds.Figures, kind string, content []byte, records float64) error {
	p, err := profile.ParseData(content)
	if err != nil {
		return fmt.Errorf("reading a profile of %s: %w", kind, err)
	}
	if records <= 0 {
		return fmt.Errorf("no record was written while a profile of %s was taken", kind)
	}
	times := stageTimes(p)
	for _, stage := range append(stageNames(), otherStage) {
		f.Set(kind+"/"+stage, times[stage]/records)
	}
	return nil
}

// tables returns the report's tables: for each size the totals, the CPU time by stage, and the waiting times by stage.
func (b *writePath) tables() []result.Table {
	tables := make([]result.Table, 0, 3*len(b.opts.Sizes))
	for _, size := range b.opts.Sizes {
		var columns []result.Column
		var cases []writeCase
		for _, c := range b.cases {
			if c.size == size {
				cases = append(cases, c)
				columns = append(columns, result.Column{Key: c.key(), Title: c.name(), Unit: "s", Better: result.Lower})
			}
		}
		tables = append(tables, b.totals(size, cases))
		for _, kind := range append([]string{"processor"}, waitKinds...) {
			tables = append(tables, result.Table{
				ID: fmt.Sprintf("%s-%d", kind, size), Title: fmt.Sprintf("%s, %d B", kindTitle[kind], size), About: kindAbout[kind],
				Columns: columns, Rows: b.stageRows(kind, cases),
			})
		}
	}
	return tables
}

var kindTitle = map[string]string{
	"processor": "Processor time for a record", "sync": "Waiting for locks and channels",
	"syscall": "Waiting in system calls", "sched": "Waiting for a processor",
}

var kindAbout = map[string]string{
	"processor": "Samples of the kernel's timers, 100 a second for each busy processor, by the innermost function that " +
		"belongs to a stage. On a busy machine samples are lost: the first table has what the kernel counted.",
	"sync": "Sums over all goroutines, for a record. Goroutines wait side by side, so the sum may exceed the time of a " +
		"call. Goroutines that serve no write, such as tickers, wait in \"other\".",
	"syscall": "Sums over all goroutines, for a record.",
	"sched":   "The time for which goroutines could run and had no processor, for a record.",
}

func (b *writePath) totals(size int, cases []writeCase) result.Table {
	t := result.Table{
		ID:    fmt.Sprintf("totals-%d", size),
		Title: fmt.Sprintf("Durable writes of %d B, %d callers, one copy", size, b.opts.Callers),
		Columns: []result.Column{
			{Key: "rate", Title: "records", Unit: "/s", Better: result.Higher},
			{Key: "processor", Title: "processor time of the shard for a record", Unit: "s", Better: result.Lower},
		},
	}
	for _, c := range cases {
		row := result.Row{Labels: result.Labels("call", c.name()), Cells: map[string]result.Value{}}
		for _, key := range []string{"rate", "processor"} {
			row.Cells[key] = result.Of(b.set.Of(c.key(), key)...)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func (b *writePath) stageRows(kind string, cases []writeCase) []result.Row {
	rows := make([]result.Row, 0, len(stages)+1)
	for _, stage := range append(stageNames(), otherStage) {
		row, most := result.Row{Labels: result.Labels("stage", stage), Cells: map[string]result.Value{}}, 0.0
		for _, c := range cases {
			row.Cells[c.key()] = result.Of(b.set.Of(c.key(), kind+"/"+stage)...)
			most = max(most, row.Cells[c.key()].Max)
		}
		if most > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}
