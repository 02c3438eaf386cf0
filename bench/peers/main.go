// Command peers compares Sheaf with other stores at equal durability, on one machine and in one run. Some of the
// other stores are embedded and run in a process of their own. The others are servers, which are called over
// loopback. The stores take turns in every round. The report shows medians over the rounds, and the ratios between
// Sheaf and the others.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/peers/stores"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
)

// version is set when the program is built.
var version = "unknown"

// These exit codes are the same as those of the sheaf program.
const (
	exitFailed = 1
	exitUsage  = 2
)

// These constants determine the number of concurrent callers and the size of batches. They are the same for all
// stores.
const (
	fillCallers = 8
	fillBatch   = 100
	loadWorkers = 8 // number of concurrent reads while Sheaf loads its groups
	getCallers  = 16
)

type options struct {
	dir, out, compare  string
	only               string
	scale              string
	rounds             int
	stores             map[string]bool // names of the stores to measure; empty means all
	sizes              []size
	callers            []int
	time               time.Duration // duration of the warm gets, and of each measurement over the network
	netRecords         int64
	sheaf, etcd, redis string
}

type size struct {
	bytes   int
	records int64
}

type bench struct {
	opts  options
	dir   string // temporary folder
	began time.Time
	err   io.Writer
}

func main() {
	if os.Getenv(childEnv) != "" {
		if err := runChild(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitFailed)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs the program and returns its exit code. A missed target is shown but is not a failure, because a machine
// under load misses targets.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		fmt.Fprintln(stderr, "peers:", err)
		return exitUsage
	}
	b := &bench{opts: opts, began: time.Now(), err: stderr}
	report, err := b.run(ctx)
	if err == nil {
		err = report.WriteMarkdown(stdout, "")
	}
	if err == nil && opts.out != "" {
		err = report.WriteDir(opts.out)
		b.say("wrote %s", filepath.Join(opts.out, "report.html"))
	}
	if err != nil {
		fmt.Fprintln(stderr, "peers:", err)
		return exitFailed
	}
	return 0
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.dir, "dir", "", "where to make a temporary folder: the disk that is measured (default: the system's)")
	f.StringVar(&o.out, "out", "", "folder for report.json, report.md, report.html and plots; empty: only print")
	f.StringVar(&o.compare, "compare", "", "report.json of an earlier run: mark what got worse beyond the spread")
	f.StringVar(&o.only, "only", "", "one part: embedded or network")
	f.StringVar(&o.scale, "scale", "quick", "quick (50,000 x 1 KiB, 8,000 x 10 KiB), full (1M x 1 KiB, 200,000 x 10 KiB)")
	f.IntVar(&o.rounds, "rounds", 3, "rounds to take medians of")
	names := f.String("stores", "", "some of the embedded stores, with commas (default: all)")
	sizes := f.String("sizes", "", "records of other sizes, as bytes:count with commas, in place of those of --scale")
	f.DurationVar(&o.time, "time", 0, "of one kind of calls in one round (default: by --scale, 300ms or 2s)")
	f.StringVar(&o.sheaf, "sheaf", "sheaf", "the program sheaf")
	f.StringVar(&o.etcd, "etcd", "etcd", "the program etcd")
	f.StringVar(&o.redis, "redis", "redis-server", "the program redis-server")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	return o, o.settle(f.Args(), *names, *sizes)
}

// settle checks the flags and sets the options that depend on them.
func (o *options) settle(rest []string, names, sizes string) error {
	o.callers = []int{16, 64}
	t := 2 * time.Second
	switch o.scale {
	case "quick":
		o.sizes, o.netRecords, t = []size{{1 << 10, 50_000}, {10 << 10, 8_000}}, 4_000, 300*time.Millisecond
	case "full":
		o.sizes, o.netRecords = []size{{1 << 10, 1_000_000}, {10 << 10, 200_000}}, 20_000
	default:
		return fmt.Errorf("--scale %q: must be quick or full", o.scale)
	}
	if o.time == 0 {
		o.time = t
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q: this program takes flags only", rest[0])
	case o.only != "" && o.only != "embedded" && o.only != "network":
		return fmt.Errorf("--only %q: must be embedded or network", o.only)
	case o.rounds < 1 || o.rounds > 100 || o.time <= 0:
		return errors.New("--rounds must be 1 to 100, --time positive")
	}
	if sizes != "" {
		o.sizes = nil
		for text := range strings.SplitSeq(sizes, ",") {
			bytes, count, _ := strings.Cut(text, ":")
			n, err := strconv.Atoi(bytes)
			records, countErr := strconv.ParseInt(count, 10, 64)
			if err != nil || countErr != nil || n < 16 || n > 1<<20 || records < 1000 {
				return fmt.Errorf("--sizes %q: must be bytes:count, 16 to 1048576 bytes, at least 1000 records", text)
			}
			o.sizes = append(o.sizes, size{n, records})
		}
	}
	if names != "" {
		o.stores = map[string]bool{}
		for name := range strings.SplitSeq(names, ",") {
			if stores.Find(name) == nil {
				return fmt.Errorf("--stores: there is no store %q", name)
			}
			o.stores[name] = true
		}
	}
	return nil
}

func (b *bench) say(format string, a ...any) {
	fmt.Fprintf(b.err, "%6.0f s  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, a...))
}

// run performs the measurements and returns the report. It removes its temporary folder before it returns.
func (b *bench) run(ctx context.Context) (r *result.Report, err error) {
	var old *result.Report
	// The older report is read first, so that an unreadable one does not waste an hour of measurements.
	if b.opts.compare != "" {
		if old, err = result.ReadFile(b.opts.compare); err != nil {
			return nil, err
		}
	}
	if b.dir, err = os.MkdirTemp(b.opts.dir, "sheaf-peers-"); err != nil {
		return nil, fmt.Errorf("making a temporary folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := b.checkSpace(); err != nil {
		return nil, err
	}
	r = &result.Report{Schema: result.Schema, Kind: "peers", Title: "Sheaf and its peers at equal durability",
		Started: b.began, Version: version, Machine: result.ThisMachine(b.dir)}
	r.Machine.Dir = filepath.Dir(b.dir)
	r.Settings = b.settings()
	var ratios []result.Ratio
	if b.opts.only != "network" {
		if ratios, err = b.allEmbedded(ctx, r); err != nil {
			return nil, err
		}
	}
	if b.opts.only != "embedded" {
		more, err := b.allNetwork(ctx, r)
		if err != nil {
			return nil, err
		}
		ratios = append(ratios, more...)
	}
	targets := result.Ratios("targets", "Ours against the best peer",
		"Each row is a ratio of medians of this run; the range beside it is that of the single rounds.", ratios)
	r.Tables = slices.Insert(r.Tables, 0, targets)
	r.Notes = notes()
	r.Ended = time.Now()
	if old != nil {
		err = r.Compare(old)
	}
	return r, err
}

func (b *bench) settings() []result.Label {
	caches := "dropped by the kernel (drop_caches) before each cold step"
	if !dropsAll() {
		caches = "pages of the files dropped before each cold step (fadvise); run as root to drop folders and inodes as " +
			"well: the files gain by this"
	}
	labels := result.Labels("scale", b.opts.scale, "rounds", strconv.Itoa(b.opts.rounds), "fill",
		fmt.Sprintf("%d callers, %d records a batch, ids ascending, data that cannot be compressed", fillCallers, fillBatch),
		"load", fmt.Sprintf("%d workers", loadWorkers), "get", fmt.Sprintf("%d callers", getCallers), "caches", caches)
	for _, k := range b.kinds() {
		labels = append(labels, result.Label{Name: k.Name + " " + k.Version, Value: k.Settings})
	}
	if b.opts.only != "embedded" {
		for _, s := range b.servers() {
			labels = append(labels, result.Label{Name: s.name + ", server", Value: s.settings + s.missing})
		}
	}
	return labels
}

func notes() []string {
	return []string{
		"All wait for the disk: what was acknowledged survives a power cut. Data is random, so compression would gain " +
			"nothing and is off where it costs.",
		"Peak memory is VmHWM: it counts pages of mapped files (bbolt, Badger, SQLite), which the kernel may take back. " +
			"The column beside it leaves them out.",
		"Ids ascend in the fill, which suits the trees; Sheaf and files do not mind their order.",
	}
}

func (b *bench) allEmbedded(ctx context.Context, r *result.Report) (ratios []result.Ratio, err error) {
	for _, s := range b.opts.sizes {
		found, err := b.embedded(ctx, s.bytes, s.records)
		if err != nil {
			return nil, err
		}
		r.Tables = append(r.Tables, b.embeddedTable(s.bytes, s.records, found))
		ratios = append(ratios, b.embeddedRatios(s.bytes, found)...)
	}
	return ratios, nil
}

func (b *bench) allNetwork(ctx context.Context, r *result.Report) (ratios []result.Ratio, err error) {
	t := result.Table{
		ID: "network", Title: "Over the network",
		About:   "Loopback; client and server share the machine. Each server is one process with one copy.",
		Columns: []result.Column{{Key: rounds.Rate, Title: "rate", Unit: "/s", Better: result.Higher}},
	}
	for _, s := range b.opts.sizes {
		p := result.Plot{
			ID: fmt.Sprintf("network-%d", s.bytes), Title: "Records per second, " + bytesName(s.bytes),
			XLabel: "callers", YLabel: "records per second", YUnit: "/s", LogX: true, LogY: true,
		}
		for _, w := range ways {
			p.Series = append(p.Series, result.Series{Name: w.server + ": " + w.name})
		}
		for _, callers := range b.opts.callers {
			found, err := b.network(ctx, s.bytes, callers)
			if err != nil {
				return nil, err
			}
			for i, w := range ways {
				t.Rows = append(t.Rows, found.Row(w.key(), result.Labels("server", w.server, "call", w.name,
					"records", bytesName(s.bytes), "callers", strconv.Itoa(callers))))
				if v := result.Of(found.Rate(w.key())...).Median; v > 0 {
					p.Series[i].Points = append(p.Series[i].Points, [2]float64{float64(callers), v})
				}
			}
			ratios = append(ratios, networkRatios(s.bytes, callers, found)...)
		}
		p.Series = slices.DeleteFunc(p.Series, func(s result.Series) bool { return len(s.Points) == 0 })
		t.Plots = append(t.Plots, p)
	}
	r.Tables = append(r.Tables, t)
	return ratios, nil
}

// checkSpace returns an error if the disk or the memory is too small for the run. While a store compacts, it needs up
// to four times the size of its data. A store of one file per record needs 4 KiB and an inode for a record of 1 KiB. If
// a peer maps its files into memory, the memory must hold the data twice.
func (b *bench) checkSpace() error {
	var disk, memory int64
	for _, s := range b.opts.sizes {
		disk = max(disk, 4*s.records*int64(s.bytes), s.records*(int64(s.bytes+4095)/4096*4096+512))
		memory = max(memory, s.records*int64(s.bytes)*5/2)
	}
	disk += 1 << 30
	if b.opts.only == "network" {
		disk, memory = 4<<30, 1<<30
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(b.dir, &fs); err != nil {
		return fmt.Errorf("looking at %s: %w", b.dir, err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < disk {
		return fmt.Errorf("%s has %s free, this run needs %s: use --dir on another disk, or --scale quick",
			b.dir, result.Format(float64(free), "B"), result.Format(float64(disk), "B"))
	}
	kib, err := result.ProcNumber("/proc/meminfo", "MemAvailable")
	if free := kib << 10; err == nil && free < memory { // if the available memory is unknown, the run is attempted
		return fmt.Errorf("the machine has %s of memory available, this run needs %s: use --scale quick, or --sizes",
			result.Format(float64(free), "B"), result.Format(float64(memory), "B"))
	}
	return nil
}
