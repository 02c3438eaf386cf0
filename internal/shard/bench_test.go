package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/group"
)

// roundTime is how long each variant runs in each round.
const roundTime = 400 * time.Millisecond

// rate makes as many calls as possible from the given number of concurrent callers during roundTime, and returns the
// number of calls per second.
func rate(b *testing.B, callers int, call func(caller, n int) error) float64 {
	var (
		wait sync.WaitGroup
		over atomic.Bool
		done atomic.Int64
	)
	began := time.Now()
	time.AfterFunc(roundTime, func() { over.Store(true) })
	for c := range callers {
		wait.Go(func() {
			n := 0
			for ; !over.Load(); n++ {
				if err := call(c, n); err != nil {
					b.Error(err)
					return
				}
			}
			done.Add(int64(n))
		})
	}
	wait.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}

// echo starts a minimal gRPC server that returns its requests.
func echo(b *testing.B) *grpc.ClientConn {
	handler := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := &recordv1.DownloadChunk{}
		return in, decode(in)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: handler}},
	}, nil)
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// rounds runs the variants one after another, in each of 5 rounds, and returns each variant's median result. The
// order of the variants changes from round to round, because on a busy machine a variant gets more CPU time than
// usual after one that waits for the disk.
func rounds(variants ...func() float64) []float64 {
	rates := make([][]float64, len(variants))
	for round := range 5 {
		for i := range variants {
			v := (round + i) % len(variants)
			rates[v] = append(rates[v], variants[v]())
		}
	}
	medians := make([]float64, len(variants))
	for v := range rates {
		medians[v] = median(rates[v])
	}
	return medians
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkUnary compares Get and durable Put with a call of the same size that only returns its request. It measures
// them in turn, and reports the medians of 5 rounds.
func BenchmarkUnary(b *testing.B) {
	for _, residency := range []group.Residency{group.Resident, group.Index} {
		f := start(b, newRegistry(hash4, "s1"), func(c *Config) { c.Residency, c.SegmentBytes = residency, 0 }).ready()
		bare := echo(b)
		for _, size := range []int{1 << 10, 10 << 10} {
			d := make([]byte, size)
			if rate(b, 16, func(c, n int) error { // stores the records that are read later
				if id := int64(c + 16*n); id < records {
					_, err := f.records.Put(context.Background(), &recordv1.PutRequest{Key: key(id), Data: d})
					return err
				}
				time.Sleep(time.Millisecond)
				return nil
			}) == 0 {
				b.Fatal("nothing was put")
			}
			there := int64(0)
			for ; there < records; there++ {
				if _, err := f.records.Get(context.Background(), &recordv1.GetRequest{Key: key(there)}); err != nil {
					break
				}
			}
			for _, callers := range []int{16, 64} {
				b.Run(fmt.Sprintf("%s/%d/%d", residency, size, callers), func(b *testing.B) {
					m := rounds(func() float64 {
						return rate(b, callers, func(int, int) error {
							return bare.Invoke(context.Background(), "/echo/Echo", &recordv1.DownloadChunk{Data: d},
								&recordv1.DownloadChunk{})
						})
					}, func() float64 {
						return rate(b, callers, func(c, n int) error {
							_, err := f.records.Get(context.Background(), &recordv1.GetRequest{Key: key(int64(c*977+n*13) % there)})
							return err
						})
					}, func() float64 {
						return rate(b, callers, func(c, n int) error {
							_, err := f.records.Put(context.Background(), &recordv1.PutRequest{Key: key(int64(c*977+n*13) % there), Data: d})
							return err
						})
					})
					b.ReportMetric(m[0], "echo/s")
					b.ReportMetric(m[1], "get/s")
					b.ReportMetric(m[2], "put/s")
					b.ReportMetric(m[1]/m[0], "get/echo")
					b.ReportMetric(m[2]/m[0], "put/echo")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
		f.shard.Kill()
	}
}

// BenchmarkUnaryMemory measures how much memory a single Get and a single durable Put allocate, in the client and the
// server together. There are no concurrent calls.
func BenchmarkUnaryMemory(b *testing.B) {
	f := start(b, newRegistry(hash4, "s1"), func(c *Config) { c.Residency, c.SegmentBytes = group.Resident, 0 }).ready()
	for _, size := range []int{1 << 10, 10 << 10} {
		d := make([]byte, size)
		put := func(id int64) error {
			_, err := f.records.Put(context.Background(), &recordv1.PutRequest{Key: key(id), Data: d})
			return err
		}
		for id := range int64(100) {
			must(b, put(id))
		}
		b.Run(fmt.Sprintf("get/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if _, err := f.records.Get(context.Background(), &recordv1.GetRequest{Key: key(int64(n % 100))}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("put/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				must(b, put(int64(n%100)))
			}
		})
	}
}

// BenchmarkBatch compares BatchGet and BatchPut with unary calls from 16 callers. Each batch has 100 records. The
// benchmark reports records per second.
func BenchmarkBatch(b *testing.B) {
	const callers = 16
	for _, residency := range []group.Residency{group.Resident, group.Index} {
		for _, size := range []int{1 << 10, 10 << 10} {
			b.Run(fmt.Sprintf("%s/%d", residency, size), func(b *testing.B) {
				f := start(b, newRegistry(hash4, "s1"), func(c *Config) { c.Residency, c.SegmentBytes = residency, 0 }).ready()
				d := make([]byte, size)
				streams := make([]recordv1.RecordService_BatchPutClient, callers)
				for i := range streams {
					stream, err := f.records.BatchPut(context.Background())
					must(b, err)
					streams[i] = stream
				}
				batchPut := func(c, n int) error { return putBatch(streams[c], c*batches+n, d) }
				for n := range records / batchRecords {
					must(b, batchPut(0, n))
				}
				batchGet := func(c, n int) error { return getBatch(f, c*batches+n*7) }
				m := rounds(func() float64 {
					return rate(b, callers, func(c, n int) error {
						_, err := f.records.Put(context.Background(), &recordv1.PutRequest{Key: key(int64(c*977+n*13) % records),
							Data: d})
						return err
					})
				}, func() float64 {
					return rate(b, callers, func(c, n int) error {
						_, err := f.records.Get(context.Background(), &recordv1.GetRequest{Key: key(int64(c*977+n*13) % records)})
						return err
					})
				}, func() float64 {
					return batchRecords * rate(b, callers, batchPut)
				}, func() float64 {
					return batchRecords * rate(b, callers, batchGet)
				})
				b.ReportMetric(m[1], "get/s")
				b.ReportMetric(m[3], "batchget-records/s")
				b.ReportMetric(m[3]/m[1], "batchget/get")
				b.ReportMetric(m[0], "put/s")
				b.ReportMetric(m[2], "batchput-records/s")
				b.ReportMetric(m[2]/m[0], "batchput/put")
				b.ReportMetric(0, "ns/op")
				f.shard.Kill()
			})
		}
	}
}

// These constants are used by BenchmarkBatch.
const (
	records      = 10_000
	batchRecords = 100 // number of records in each batch
	batches      = 977 // distance between the numbers of two callers' first batches
)

// putBatch puts the records of the n-th batch.
func putBatch(stream recordv1.RecordService_BatchPutClient, n int, data []byte) error {
	in := &recordv1.BatchPutRequest{}
	for i := range batchRecords {
		in.Puts = append(in.Puts, &recordv1.PutRequest{Key: key(int64(n*batchRecords+i) % records), Data: data})
	}
	if err := stream.Send(in); err != nil {
		return err
	}
	out, err := stream.Recv()
	for _, r := range out.GetResults() {
		if r.GetStatus().GetCode() != 0 {
			return fmt.Errorf("put: %v", r.GetStatus())
		}
	}
	return err
}

// getBatch reads ids that are far apart, in one batch.
func getBatch(f *fixture, n int) error {
	in := &recordv1.BatchGetRequest{}
	for i := range batchRecords {
		in.Gets = append(in.Gets, &recordv1.GetRequest{Key: key(int64(n*batchRecords+i*31) % records)})
	}
	stream, err := f.records.BatchGet(context.Background(), in)
	if err != nil {
		return err
	}
	for got := 0; ; {
		out, err := stream.Recv()
		if errors.Is(err, io.EOF) && got == batchRecords {
			return nil
		}
		if err != nil {
			return err
		}
		got += len(out.GetResults())
	}
}
