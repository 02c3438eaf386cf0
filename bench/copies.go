package bench

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"sheaf.dev/sheaf/bench/result"
)

// CopiesOptions of Copies.
type CopiesOptions struct {
	Dir       string // a temporary folder is made in it: all copies are on its device
	Binary    string // sheaf: its processes are those that are killed, and etcd's members
	Rounds    int    // at least RoundsMin
	Time      time.Duration
	MoveBytes int64 // of a group that is moved
	TLS       bool  // only put and move, which then measure mutual TLS between shards in turns with plaintext
	Kills     int   // of a leader
	Groups    int   // that rest
	Only      string
	Say       func(string, ...any)
}

// Parts of the benchmark, in order.
var copiesParts = parts[copiesBench]{
	{"put", (*copiesBench).puts},
	{"move", (*copiesBench).moves},
	{"foreground", (*copiesBench).foreground},
	{"read", (*copiesBench).reads},
	{"etcd", (*copiesBench).peer},
	{"failover", (*copiesBench).failover},
	{"quiet", (*copiesBench).quiet},
}

// CopiesParts names the parts.
func CopiesParts() []string { return copiesParts.names() }

// CopiesPartsTLS names the parts that CopiesOptions.TLS has: those in which a bare stream between shards is measured.
func CopiesPartsTLS() []string { return copiesPartsTLS.names() }

var copiesPartsTLS = copiesParts[:2]

type copiesBench struct {
	opts CopiesOptions
	outcome
}

// Copies measures what copies on several shards cost, and how soon others go on when a shard is killed.
func Copies(ctx context.Context, opts CopiesOptions) (*result.Report, error) {
	b := &copiesBench{opts: opts}
	chosen := copiesParts
	if opts.TLS {
		chosen = copiesPartsTLS
	}
	return chosen.measure(ctx, b, &b.outcome, "copies", opts.Rounds, opts.Dir, opts.Only, opts.Say)
}

// folder makes a folder for one part. What is in it goes when the benchmark ends.
func (b *copiesBench) folder(name string) (string, error) { return os.MkdirTemp(b.dir, name+"-") }

// latencies are the times that calls took. Safe for concurrent use.
type latencies struct {
	mu    sync.Mutex
	times []time.Duration
}

func (l *latencies) add(times ...time.Duration) {
	l.mu.Lock()
	l.times = append(l.times, times...)
	l.mu.Unlock()
}

// at gives a quantile in seconds; 0 where there were no calls.
func (l *latencies) at(q float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.times) == 0 {
		return 0
	}
	slices.Sort(l.times)
	return l.times[min(int(q*float64(len(l.times))), len(l.times)-1)].Seconds()
}

// load is what callers did in a time.
type load struct {
	perSecond float64
	p99       float64 // seconds
}

// callers call one after another for a time, and gives how often and how fast. call gets a number that no other call
// gets.
func callers(n int, duration time.Duration, call func(worker int, i int64) error) (load, error) {
	var all latencies
	calls := make([]int64, n)
	begin := time.Now()
	err := parallel(n, func(worker int) error {
		times := make([]time.Duration, 0, 1<<14)
		defer func() { all.add(times...) }()
		for now := begin; now.Sub(begin) < duration; {
			if err := call(worker, int64(worker)<<32+calls[worker]); err != nil {
				return err
			}
			calls[worker]++
			after := time.Now()
			times = append(times, after.Sub(now))
			now = after
		}
		return nil
	})
	took := time.Since(begin).Seconds()
	sum := int64(0)
	for _, c := range calls {
		sum += c
	}
	return load{perSecond: float64(sum) / took, p99: all.at(0.99)}, err
}

// loads collects what variants did, round by round.
type loads map[string][]load

// variant makes a variant whose loads are kept.
func (l loads) variant(name string, run func() (load, error)) variant {
	return variant{name, func() (float64, error) {
		one, err := run()
		l[name] = append(l[name], one)
		return one.perSecond, err
	}}
}

func (l loads) p99(name string) []float64 {
	out := make([]float64, 0, len(l[name]))
	for _, one := range l[name] {
		out = append(out, one.p99)
	}
	return out
}

func times(v []float64, by float64) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = by * v[i]
	}
	return out
}
