package shard

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access"
)

// BenchmarkTenants measures how much one tenant slows down another by calling at ten times its limit or more. The
// result is the ratio between two 99th percentiles of the quiet tenant's get latencies: with the loud tenant and
// without it. Turns with and without the loud tenant alternate, because the load from other programs on the machine
// varies. Each percentile covers all turns of its kind. A turn with the loud tenant begins when that tenant has used
// up its burst.
//
// The loud tenant has its own connection, and behaves in one of these ways:
//   - within: calls as often as it may.
//   - paced: begins calls at ten times its limit, and repeats none.
//   - obeys: 64 callers that wait as RetryInfo says, and up to as long again, as the Go client does.
//   - never-waits: 16 callers that immediately call again.
//   - crowd: 256 callers that immediately call again.
//   - hangs-up: like never-waits, with a deadline of 5 ms for each call.
func BenchmarkTenants(b *testing.B) {
	const limit, paced = 200, 4
	for _, loud := range []struct {
		name    string
		callers int
		timeout time.Duration
		pause   func(n int, refused error) time.Duration
	}{
		{"within", paced, time.Minute, func(int, error) time.Duration { return time.Second * paced / limit }},
		{"paced", paced, time.Minute, func(int, error) time.Duration { return time.Second * paced / (10 * limit) }},
		{"obeys", 64, time.Minute, func(n int, refused error) time.Duration {
			wait := retryAfter(refused)
			return wait + wait*time.Duration(n%16)/16
		}},
		{"never-waits", 16, time.Minute, func(int, error) time.Duration { return 0 }},
		{"crowd", 256, time.Minute, func(int, error) time.Duration { return 0 }},
		{"hangs-up", 16, 5 * time.Millisecond, func(int, error) time.Duration { return 0 }},
	} {
		b.Run(loud.name, func(b *testing.B) {
			f := start(b, withTenants(b, newRegistry(named, "s1", "a-1", "b-1"), teamA(access.Quotas{CallsPerSecond: limit})),
				nil).ready()
			for group, bytes := range map[string]int{"b-1": 1 << 10, "a-1": 100} {
				must(b, f.putIn(f.ctx(), group, 1, make([]byte, bytes)))
			}
			f.limited("a-1")
			conn, err := connect(&f.cfg, f.shard.Addr(),
				grpc.WithDefaultCallOptions(grpc.ForceCodecV2(message.Codec{})))
			must(b, err)
			defer func() { _ = conn.Close() }()
			records := recordv1.NewRecordServiceClient(conn)

			var let, refused atomic.Int64
			call := func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, loud.timeout)
				defer cancel()
				_, err := records.Get(ctx, &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "a-1", Id: 1}})
				if err == nil {
					let.Add(1)
				} else {
					refused.Add(1)
				}
				return err
			}
			const turn, warm = 200 * time.Millisecond, 600 * time.Millisecond
			quiet := func(into *[]float64) {
				for end := time.Now().Add(turn); time.Now().Before(end); {
					began := time.Now()
					if _, err := f.records.Get(context.Background(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "b-1",
						Id: 1}}); err != nil {
						b.Fatal(err)
					}
					*into = append(*into, time.Since(began).Seconds())
				}
			}
			var alone, beside []float64
			var busy time.Duration
			var letAll, refusedAll int64
			for range 10 {
				quiet(&alone)
				ctx, cancel := context.WithCancel(context.Background())
				var wait sync.WaitGroup
				for range loud.callers {
					wait.Go(func() {
						for n := 0; ctx.Err() == nil; n++ {
							if pause := loud.pause(n, call(ctx)); pause > 0 {
								select {
								case <-time.After(pause):
								case <-ctx.Done():
								}
							}
						}
					})
				}
				time.Sleep(warm)
				let.Store(0)
				refused.Store(0)
				quiet(&beside)
				busy += turn
				letAll, refusedAll = letAll+let.Load(), refusedAll+refused.Load()
				cancel()
				wait.Wait()
			}
			p := func(of int, all []float64) float64 {
				slices.Sort(all)
				return all[len(all)*of/100]
			}
			b.ReportMetric(1e6*p(99, alone), "p99-alone-µs")
			b.ReportMetric(1e6*p(99, beside), "p99-beside-µs")
			b.ReportMetric(p(99, beside)/p(99, alone), "p99-ratio")
			b.ReportMetric(p(50, beside)/p(50, alone), "p50-ratio")
			b.ReportMetric(float64(letAll)/busy.Seconds(), "let-in/s")
			b.ReportMetric(float64(refusedAll)/busy.Seconds(), "refused/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
