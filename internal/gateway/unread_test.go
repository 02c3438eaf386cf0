package gateway_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/test/must"
)

// startUnread starts a cluster with one group, which has 12 MB of records, and a gateway with little memory for
// responses. The function held returns the bytes that the gateway holds for responses. The function ended returns the
// number of calls that ended with the given code.
func startUnread(t *testing.T, limits gateway.Limits, records ...string) (
	c *cluster, held func() int64, ended func(code codes.Code) int64,
) {
	registry := prometheus.NewRegistry()
	c = newCluster(t, hash(1), gateway.Config{Limits: limits, Registry: registry,
		RecordsHTTP: strings.Join(records, "")}, "a")
	for id := range int64(24) {
		if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(id + 1), Data: make([]byte, 500_000)}); err != nil {
			t.Fatal(err)
		}
	}
	value := func(name, code string) (n int64) {
		families, err := registry.Gather()
		must.OK(t, err)
		for _, f := range families {
			if f.GetName() != name {
				continue
			}
			for _, m := range f.GetMetric() {
				is := code == ""
				for _, l := range m.GetLabel() {
					is = is || l.GetName() == "code" && strings.EqualFold(l.GetValue(), code)
				}
				if is {
					n += int64(m.GetGauge().GetValue() + m.GetCounter().GetValue())
				}
			}
		}
		return n
	}
	held = func() int64 { return value("sheaf_gateway_answer_bytes", "") }
	ended = func(code codes.Code) int64 { return value("sheaf_gateway_calls_total", code.String()) }
	return c, held, ended
}

// recvAll reads a stream to its end.
func recvAll[M any](recv func() (M, error)) (err error) {
	for err == nil {
		_, err = recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func reasonAndRetry(err error) (reason string, retry time.Duration) {
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason = d.GetReason()
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	return reason, retry
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func TestUnreadStreamsAreBoundedInTheGateway(t *testing.T) {
	calls := map[string]func(ctx context.Context, c *cluster) func() error{
		"Scan": func(ctx context.Context, c *cluster) func() error {
			stream, err := c.records.Scan(ctx, &recordv1.ScanRequest{Group: "0"})
			must.OK(c.t, err)
			return func() error { return recvAll(stream.Recv) }
		},
		"BatchGet": func(ctx context.Context, c *cluster) func() error {
			in := &recordv1.BatchGetRequest{}
			for id := range int64(24) {
				in.Gets = append(in.Gets, &recordv1.GetRequest{Key: key(id + 1)})
			}
			stream, err := c.records.BatchGet(ctx, in)
			must.OK(c.t, err)
			return func() error { return recvAll(stream.Recv) }
		},
		"Download": func(ctx context.Context, c *cluster) func() error {
			stream, err := c.records.Download(ctx, &recordv1.DownloadRequest{Key: key(1)})
			must.OK(c.t, err)
			return func() error { return recvAll(stream.Recv) }
		},
	}
	for name, open := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 8 << 20
				c, held, ended := startUnread(t, gateway.Limits{AnswerBytesMax: limit})
				ctx, cancel := context.WithCancel(c.ctx)
				defer cancel()
				var reads []func() error
				for range 40 {
					reads = append(reads, open(ctx, c))
				}
				until(t, "the limit is met", func() bool { return held() > limit/2 && ended(codes.ResourceExhausted) > 0 })
				// Other callers can still write and read small records.
				if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1000), Data: make([]byte, 100_000)}); err != nil {
					t.Error(err)
				}
				if _, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(1000)}); err != nil {
					t.Error(err)
				}
				refused := 0
				for _, read := range reads {
					if err := read(); err != nil {
						refused++
						if reason, retry := reasonAndRetry(err); status.Code(err) != codes.ResourceExhausted || reason != "OVERLOADED" ||
							retry <= 0 {
							t.Fatalf("%v, reason %q, try again in %v", err, reason, retry)
						}
					}
				}
				if refused == 0 {
					t.Error("none of 40 calls was refused")
				}
				if err := open(ctx, c)(); err != nil {
					t.Errorf("when all have ended: %v", err)
				}
				until(t, "all is given back", func() bool { return held() == 0 })
			})
		})
	}
}

func TestAReaderThatDoesNotReadIsDisconnectedByTheGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, held, ended := startUnread(t, gateway.Limits{})
		ctx, cancel := context.WithCancel(c.ctx)
		defer cancel()
		stream, err := c.records.Scan(ctx, &recordv1.ScanRequest{Group: "0"})
		must.OK(t, err)
		until(t, "the stream holds something", func() bool { return held() > 0 })
		until(t, "the stream is cut off, but for what the transport has", func() bool {
			return ended(codes.Unavailable) > 0 && held() <= 1<<20
		})
		err = recvAll(stream.Recv)
		if reason, _ := reasonAndRetry(err); status.Code(err) != codes.Unavailable || reason != "SLOW_READER" {
			t.Errorf("%v, reason %q", err, reason)
		}
		until(t, "all is given back", func() bool { return held() == 0 })
	})
}

// TestGatewayStopDoesNotWaitForStalledReaders also checks that the stop does not wait for watchers of the
// gateway's health.
func TestGatewayStopDoesNotWaitForStalledReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, held, _ := startUnread(t, gateway.Limits{})
		ctx, end := context.WithCancel(c.ctx)
		defer end()
		watch, err := healthv1.NewHealthClient(c.conn).Watch(ctx, &healthv1.HealthCheckRequest{})
		must.OK(t, err)
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.records.Scan(ctx, &recordv1.ScanRequest{Group: "0"}); err != nil {
			t.Fatal(err)
		}
		until(t, "the stream holds something", func() bool { return held() > 0 })
		stop, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := c.gateway.Stop(stop); err != nil || stop.Err() != nil {
			t.Errorf("stopping: %v; waited for the end: %v", err, stop.Err())
		}
		c.gateway = nil
	})
}
