package drive

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Parallel runs n workers and gives the first error.
func Parallel(n int, work func(worker int) error) error {
	var g errgroup.Group
	for worker := range n {
		g.Go(func() error { return work(worker) })
	}
	return g.Wait()
}

// Shared hands the numbers from 0 to n - 1 to so many workers, each to the next that is free; it gives the first error.
func Shared(workers int, n int64, do func(worker int, i int64) error) error {
	var next atomic.Int64
	return Parallel(workers, func(worker int) error {
		for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
			if err := do(worker, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// Load is what callers did in a time.
type Load struct {
	PerSecond float64
	P99       float64 // seconds
}

// Callers call one after another for a time, each once at least, and Callers gives how often and how fast. call gets a
// number that no other call gets.
func Callers(n int, duration time.Duration, call func(worker int, i int64) error) (Load, error) {
	var all Latencies
	calls := make([]int64, n)
	begin := time.Now()
	err := Parallel(n, func(worker int) error {
		times := make([]time.Duration, 0, 1<<14)
		defer func() { all.Add(times...) }()
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
	return Load{PerSecond: float64(len(all.times)) / took, P99: all.At(0.99)}, err
}

// Latencies are the times that calls took. Safe for concurrent use.
type Latencies struct {
	mu    sync.Mutex
	times []time.Duration
}

// Add adds times.
func (l *Latencies) Add(times ...time.Duration) {
	l.mu.Lock()
	l.times = append(l.times, times...)
	l.mu.Unlock()
}

// At gives a quantile in seconds; 0 where there were no calls.
func (l *Latencies) At(q float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Quantile(l.times, q).Seconds()
}

// Quantile of values, which it puts in order; 0 of none.
func Quantile[T int64 | float64 | time.Duration](v []T, q float64) T {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[min(int(q*float64(len(v))), len(v)-1)]
}

// Scatter spreads consecutive numbers: a fixed mix (SplitMix64's finalizer), never negative.
func Scatter(i int64) int64 {
	z := uint64(i) + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64((z ^ z>>31) >> 1)
}

// dropCachesFile takes what the kernel is to forget.
const dropCachesFile = "/proc/sys/vm/drop_caches"

// MayDropCaches tells whether this process may have the kernel forget what it has cached.
func MayDropCaches() bool { return os.Geteuid() == 0 && unix.Access(dropCachesFile, unix.W_OK) == nil }

// DropCaches has the kernel forget the data, names and inodes of all files. It needs root, and what is on disk: what is
// not stays.
func DropCaches() error { return os.WriteFile(dropCachesFile, []byte("3"), 0) }
