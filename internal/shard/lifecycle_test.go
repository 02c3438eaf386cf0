package shard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/leaktest"
)

func TestRestartServesWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for name, end := range map[string]func(f *fixture){
			"after Stop": func(f *fixture) { f.stop() },
			"after Kill": func(f *fixture) { f.shard.Kill() },
		} {
			t.Run(name, func(t *bubble) {
				residencies(t, func(t *bubble, f *fixture) {
					there := f.fill(200, 20_000)
					large := data(1, 3<<20)
					if _, err := f.upload(&recordv1.UploadHeader{Key: key(-7)}, cut(large, 1<<20)...); err != nil {
						t.Fatal(err)
					}
					for round := range 3 {
						end(f)
						f.again(nil)
						for id := range int64(200) {
							if d, ok := there[id]; ok {
								f.holds(id, d)
							} else {
								f.absent(id)
							}
						}
						if _, got, err := f.download(&recordv1.DownloadRequest{Key: key(-7)}); err != nil ||
							string(got) != string(large) {
							t.Errorf("the large record: %d bytes, %v", len(got), err)
						}
						there[3] = data(int64(round), 777)
						f.put(3, there[3])
						st := f.shard.Status()
						if !st.GetShard().Load.Done || st.GetShard().Load.GroupsLoaded != 4 ||
							st.GetShard().Generation != uint64(round+2) || len(st.GetShard().Problems) > 0 {
							t.Errorf("status %+v", st)
						}
					}
				})
			})
		}
	})
}

func TestStopLetsCallsEndAndRefusesNewOnes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		stream, err := f.records.Upload(f.ctx())
		must(t, err)
		must(t, stream.Send(
			&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(
				1)}}}))
		f.eventually("the upload has begun", func() bool { return f.shard.calls.Calls() == 1 })
		idle, err := f.records.BatchPut(f.ctx()) // this call never returns by itself
		must(t, err)
		f.eventually("the batch has begun", func() bool { return f.shard.calls.Calls() == 2 })
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			done <- f.shard.Stop(ctx)
		}()
		_, err = idle.Recv()
		want(t, err, codes.Unavailable, reason.Stopping)
		_, err = f.shard.calls.Unary(f.ctx(), &recordv1.GetRequest{Key: key(1)},
			&grpc.UnaryServerInfo{FullMethod: recordv1.RecordService_Get_FullMethodName},
			func(context.Context, any) (any, error) { return nil, nil })
		want(t, err, codes.Unavailable, reason.Stopping)
		// All data of the pending upload has arrived before the stop, so the upload is stored.
		out, err := stream.CloseAndRecv()
		if err != nil {
			t.Errorf("the upload under way: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("stop: %v", err)
		}
		f.again(nil)
		if err == nil && f.get(1).GetVersion() != out.GetPut().GetVersion() {
			t.Error("the upload under way was lost")
		}
	})
}

func TestStopDoesNotWaitForVerify(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		f.fill(100, 20_000)
		done := make(chan error, 1)
		go func() {
			_, err := f.admin.Verify(f.ctx(), &recordv1.VerifyRequest{Group: "0", RateBytesPerSecond: 1})
			done <- err
		}()
		f.eventually("verify is under way", func() bool { return f.shard.calls.Calls() == 1 })
		f.stop()
		want(t, <-done, codes.Unavailable, reason.Stopping)
	})
}

func TestStopEndsCallsWhenItsTimeIsUp(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		stream, err := f.records.Upload(f.ctx())
		must(t, err)
		must(t, stream.Send(
			&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(
				1)}}}))
		f.eventually("the upload has begun", func() bool { return f.shard.calls.Calls() == 1 })
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := f.shard.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if _, err := stream.CloseAndRecv(); status.Code(err) == codes.OK {
			t.Error("the upload was answered")
		}
		f.again(nil)
		f.absent(1)
	})
}

// This test runs in real time, because it finds leaked goroutines of disks and sockets. A bubble finds other leaks.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := goleak.IgnoreCurrent()
	f := start(t, newRegistry(hash4, "s1"), nil).ready()
	f.fill(20, 1000)
	stream, err := f.records.BatchPut(f.ctx())
	must(t, err)
	must(t, stream.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: key(1)}}}))
	f.stop()
	_ = f.conn.Close()
	leaktest.VerifyNone(t, before)
}

func TestForeignVolumeIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		ctx := f.ctx()
		second := f.cfg
		if _, err := Start(ctx, second); err == nil {
			t.Error("two shards on one volume")
		}
		f.stop()
		second.Name = "s2"
		if _, err := Start(ctx, second); err == nil {
			t.Error("the volume of another shard is taken")
		}
		second = f.cfg
		second.Placement = newRegistry(hash4, "s1")
		if _, err := Start(ctx, second); err == nil {
			t.Error("the volume of another store is taken")
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		good := Config{Name: "s1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Placement: newRegistry(hash4, "s1")}
		for name, change := range map[string]func(*Config){
			"no name":            func(c *Config) { c.Name = "" },
			"bad name":           func(c *Config) { c.Name = "S 1" },
			"long name":          func(c *Config) { c.Name = strings.Repeat("s", 254) },
			"no dir":             func(c *Config) { c.Dir = "" },
			"no address":         func(c *Config) { c.Listen = "" },
			"bad address":        func(c *Config) { c.Listen = "nonsense" },
			"no placement":       func(c *Config) { c.Placement = nil },
			"bad residency":      func(c *Config) { c.Residency = 7 },
			"bad medium":         func(c *Config) { c.Medium = "Tape" },
			"negative memory":    func(c *Config) { c.MemoryLimitBytes = -1 },
			"negative reserve":   func(c *Config) { c.ReserveBytes = -1 },
			"negative segment":   func(c *Config) { c.SegmentBytes = -1 },
			"negative versions":  func(c *Config) { c.Retention.Versions = -1 },
			"share above 1":      func(c *Config) { c.Compaction.SupersededShareMin = 1.5 },
			"negative in flight": func(c *Config) { c.Limits.BytesInFlightMax = -1 },
		} {
			cfg := good
			change(&cfg)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			if s, err := Start(ctx, cfg); err == nil {
				s.Kill()
				t.Errorf("%s is accepted", name)
			}
			cancel()
		}
	})
}

func TestMemoryLimitTooSmallIsAClearError(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.Residency = group.Resident }).ready()
		there := f.fill(200, 50_000)
		f.stop()
		f.again(func(c *Config) { c.MemoryLimitBytes = 5 << 20 })
		st := f.shard.Status()
		if st.GetShard().MemoryNeedBytes <= 5<<20 || st.GetShard().MemoryLimitBytes != 5<<20 ||
			st.GetShard().MemoryUsedBytes > 5<<20 ||
			len(st.GetShard().Problems) != 1 {
			t.Errorf("need %d, limit %d, used %d, problems %v", st.GetShard().MemoryNeedBytes, st.GetShard().MemoryLimitBytes,
				st.GetShard().MemoryUsedBytes,
				st.GetShard().Problems)
		}
		failed, served := 0, 0
		for _, g := range st.Groups {
			switch g.GetState().Word() {
			case "Failed":
				failed++
				if !strings.Contains(g.Message, units.Bytes(st.GetShard().MemoryNeedBytes)) ||
					!strings.Contains(g.Message, units.Bytes(5<<20)) {
					t.Errorf("message %q names neither need nor limit", g.Message)
				}
				id := idsOf(hash4, atoi(t, g.Group), 1)[0]
				_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
				want(t, err, codes.ResourceExhausted, reason.MemoryFull)
			case "Serving":
				served++
			}
		}
		if failed == 0 || served == 0 {
			t.Errorf("%d groups failed, %d serve: the limit is to hold some", failed, served)
		}
		if (forHost{f.shard}).Ready() == nil {
			t.Error("ready without all groups")
		}
		f.stop()
		f.again(func(c *Config) { c.MemoryLimitBytes = 0 })
		f.holdsAll(there)
	})
}

func atoi(t testing.TB, s string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMemoryBudgetGatesWrites(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.Residency, c.MemoryLimitBytes = group.Resident, 24<<20
		}).ready()
		var refused error
		var n int64
		for ; refused == nil && n < 100; n++ {
			_, refused = f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(n), Data: data(n, 1<<20)})
		}
		want(t, refused, codes.ResourceExhausted, reason.MemoryFull)
		if used := f.shard.volume.MemoryUsed(); used > 24<<20 {
			t.Errorf("%d bytes in use, limit %d", used, 24<<20)
		}
		f.holds(0, data(0, 1<<20))
		f.delete(0)
		f.absent(0)
	})
}

// This test runs in real time, because HTTP goes over a socket.
func TestHealthReflectionMetricsStatus(t *testing.T) {
	metrics := prometheus.NewRegistry()
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.Registry, c.Version = metrics, "v1.2.3" }).ready()
	f.put(1, []byte("x"))
	f.absent(2)
	health := grpc_health_v1.NewHealthClient(f.conn)
	for _, service := range []string{"", "sheaf.record.v1.RecordService", "group/0", "group/3"} {
		out, err := health.Check(f.ctx(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || out.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, out, err)
		}
	}
	if _, err := health.Check(f.ctx(), &grpc_health_v1.HealthCheckRequest{Service: "group/4"}); status.Code(
		err) != codes.NotFound {
		t.Errorf("health of no group: %v", err)
	}
	stream, err := grpc_reflection_v1.NewServerReflectionClient(f.conn).ServerReflectionInfo(f.ctx())
	must(t, err)
	must(t, stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: "sheaf.record.v1.RecordService"},
	}))
	if out, err := stream.Recv(); err != nil || out.GetFileDescriptorResponse() == nil {
		t.Errorf("reflection: %v, %v", out, err)
	}
	_ = stream.CloseSend()

	server := httptest.NewServer(handlerOf(f.shard))
	defer server.Close()
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get(server.URL + path)
		must(t, err)
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(body)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	_, body := get("/metrics")
	for _, line := range []string{
		`sheaf_shard_calls_total{code="OK",method="Put",shard="s1"} 1`,
		`sheaf_shard_calls_total{code="NotFound",method="Get",shard="s1"} 1`,
		`sheaf_shard_groups{shard="s1",state="serving"} 4`,
		`sheaf_shard_load_done_bytes{shard="s1"}`,
		`sheaf_shard_call_duration_seconds_count{method="Put",shard="s1"} 1`,
		`sheaf_shard_volume_free_bytes{shard="s1"}`,
	} {
		if !strings.Contains(body, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
	st := &recordv1.ShardStatus{}
	if _, body := get("/status"); json.Unmarshal([]byte(body), st) != nil || st.GetShard().Name != "s1" ||
		st.GetShard().Version != "v1.2.3" ||
		len(st.Groups) != 4 || st.GetShard().FileSystem == "" || st.GetShard().CapacityBytes == 0 {
		t.Errorf("status: %+v", st)
	}
	// The shard can run a second time in the same process, with the same names.
	f.stop()
	f.again(nil)
}

func TestPanicInACallStopsOnlyTheCall(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		info := &grpc.UnaryServerInfo{FullMethod: recordv1.RecordService_Get_FullMethodName}
		_, err := f.shard.calls.Unary(f.ctx(), nil, info, func(context.Context, any) (any, error) { panic("a bug") })
		want(t, err, codes.Internal, "")
		err = f.shard.calls.Stream(nil, nil, &grpc.StreamServerInfo{FullMethod: recordv1.RecordService_Scan_FullMethodName},
			func(any, grpc.ServerStream) error { panic("a bug") })
		want(t, err, codes.Internal, "")
		if n := f.shard.calls.Calls(); n != 0 {
			t.Errorf("%d calls under way", n)
		}
		f.put(1, []byte("goes on"))
	})
}

func TestOverloaded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.callsMax, c.Limits = 2, Limits{BytesInFlightMax: 1000}
		}).ready()
		ctx, cancel := context.WithCancel(f.ctx())
		defer cancel()
		upload, err := f.records.Upload(ctx)
		must(t, err)
		for _, part := range []*recordv1.UploadRequest{
			{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(2)}}},
			{Part: &recordv1.UploadRequest_Chunk{Chunk: []byte("x")}},
		} {
			must(t, upload.Send(part))
		}
		f.eventually("a byte is in flight", func() bool { return f.shard.calls.BytesInFlight() == 1 })
		stream, err := f.records.BatchPut(f.ctx())
		must(t, err)
		f.eventually("two calls are under way", func() bool { return f.shard.calls.Calls() == 2 })
		_, err = f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(1)})
		want(t, err, codes.ResourceExhausted, reason.Overloaded)
		if retryAfter(err) == 0 {
			t.Error("no RetryInfo")
		}
		// A put that exceeds the limit is refused while another write is in flight, and is admitted when it is the only
		// one.
		must(t, stream.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: key(1),
			Data: make([]byte, 5000)}}}))
		out, err := stream.Recv()
		if err != nil || codes.Code(out.GetResults()[0].GetStatus().GetCode()) != codes.ResourceExhausted {
			t.Errorf("beyond the bytes in flight: %v, %v", out, err)
		}
		cancel()
		f.eventually("the byte is given back", func() bool { return f.shard.calls.BytesInFlight() == 0 })
		must(t, stream.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: key(1),
			Data: make([]byte, 5000)}}}))
		if out, err := stream.Recv(); err != nil || out.GetResults()[0].GetStatus().GetCode() != 0 {
			t.Errorf("with room: %v, %v", out, err)
		}
	})
}
