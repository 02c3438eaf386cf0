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

// Parallel runs n workers and returns the first error.
func Parallel(n int, work func(worker int) error) error {
	var g errgroup.Group
	for worker := range n {
		g.Go(func() error { return work(worker) })
	}
	return g.Wait()
}

// Shared calls do() once for each number from 0 to n - 1. A worker takes the next number whenever it is idle. Shared
// returns the first error.
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

// Load holds the rate and the latency that callers saw.
type Load struct {
	PerSecond float64
	P99       float64 // in seconds
}

// Callers runs n callers at the same time. Each caller makes one call after another until the duration is over, and
// at least one call. Each call receives a number that no other call receives. Callers returns the rate and the
// latency of all calls.
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

// Latencies holds the durations of calls. Latencies is safe for concurrent use.
type Latencies struct {
	mu    sync.Mutex
	times []time.Duration
}

// Add adds durations.
func (l *Latencies) Add(times ...time.Duration) {
	l.mu.Lock()
	l.times = append(l.times, times...)
	l.mu.Unlock()
}

// At returns a quantile in seconds, or 0 if there were no calls.
func (l *Latencies) At(q float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Quantile(l.times, q).Seconds()
}

// Quantile returns a quantile of v, or 0 if v is empty. It sorts v.
func Quantile[T int64 | float64 | time.Duration](v []T, q float64) T {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[min(int(q*float64(len(v))), len(v)-1)]
}

// Scatter maps consecutive numbers to numbers that look random and are never negative. It uses SplitMix64's
// finalizer, so a number always has the same result.
func Scatter(i int64) int64 {
	z := uint64(i) + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64((z ^ z>>31) >> 1)
}

// dropCachesFile is the file to which DropCaches writes. The number written to it determines which caches the kernel
// drops.
const dropCachesFile = "/proc/sys/vm/drop_caches"

// MayDropCaches reports whether this process may drop the kernel's caches.
func MayDropCaches() bool { return os.Geteuid() == 0 && unix.Access(dropCachesFile, unix.W_OK) == nil }

// DropCaches makes the kernel drop the cached data, names and inodes of all files. DropCaches needs root. Data that is
// not on disk yet remains in the cache.
func DropCaches() error { return os.WriteFile(dropCachesFile, []byte("3"), 0) }
