package shard

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/access"
)

// BenchmarkTenants measures what a tenant that calls ten times as often as it may does to another one: the 99th
// percentile of the other's gets beside it, as a multiple of that when it is alone; medians of five rounds, in turns.
func BenchmarkTenants(b *testing.B) {
	const limit, callers = 200, 4
	f := start(b, withTenants(b, newRegistry(named, "s1", "a-1", "b-1"), teamA(access.Quotas{CallsPerSecond: limit})), nil).ready()
	if err := f.putIn(f.ctx(), "b-1", 1, make([]byte, 1<<10)); err != nil {
		b.Fatal(err)
	}
	if err := f.putIn(f.ctx(), "a-1", 1, make([]byte, 100)); err != nil {
		b.Fatal(err)
	}
	f.limited("a-1")
	p99 := func() float64 {
		var all []float64
		for end := time.Now().Add(roundTime); time.Now().Before(end); {
			began := time.Now()
			if _, err := f.records.Get(context.Background(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "b-1", Id: 1}}); err != nil {
				b.Fatal(err)
			}
			all = append(all, time.Since(began).Seconds())
		}
		slices.Sort(all)
		return all[len(all)*99/100]
	}
	var let, refused atomic.Int64
	var alone, beside []float64
	busy := time.Duration(0)
	for range 5 {
		alone = append(alone, p99())
		ctx, cancel := context.WithCancel(context.Background())
		var wait sync.WaitGroup
		began := time.Now()
		for range callers {
			wait.Go(func() {
				tick := time.NewTicker(time.Second * callers / (10 * limit))
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
					case <-ctx.Done():
						return
					}
					if _, err := f.records.Get(context.Background(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "a-1", Id: 1}}); err == nil {
						let.Add(1)
					} else {
						refused.Add(1)
					}
				}
			})
		}
		beside = append(beside, p99())
		cancel()
		wait.Wait()
		busy += time.Since(began)
	}
	b.ReportMetric(1e6*median(alone), "p99-alone-µs")
	b.ReportMetric(1e6*median(beside), "p99-beside-µs")
	b.ReportMetric(median(beside)/median(alone), "p99-ratio")
	b.ReportMetric(float64(let.Load())/busy.Seconds(), "let-in/s")
	b.ReportMetric(float64(refused.Load())/busy.Seconds(), "refused/s")
	b.ReportMetric(0, "ns/op")
}
