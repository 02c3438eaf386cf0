package gateway_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

func key(id int64) *recordv1.RecordKey { return &recordv1.RecordKey{Id: id} }

func TestUnaryCallsGoToTheShardOfTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(8), gateway.Config{Registry: prometheus.NewRegistry()}, "a", "b")
		for id := range int64(100) {
			if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(id), Data: []byte(fmt.Sprint(id))}); err != nil {
				t.Fatal(err)
			}
		}
		for id := range int64(100) {
			owner := []string{"a", "b"}[c.meta.Routing.GroupOf(id)%2]
			if _, err := c.shards[owner].get(key(id)); err != nil {
				t.Fatalf("record %d is not on shard %s: %v", id, owner, err)
			}
			got, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(id)})
			if err != nil || string(got.GetRecord().GetData()) != fmt.Sprint(id) {
				t.Fatalf("get %d: %v, %v", id, got, err)
			}
		}
	})
}

func TestUnknownFieldsPassThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		in := &recordv1.PutRequest{Key: key(1)}
		// A client and a shard may both be newer than the gateway, and use fields that the gateway does not know.
		in.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 77, protowire.BytesType), []byte("new")))
		seen := make(chan []byte, 1)
		c.shards["a"].fault = nil
		c.shards["a"].late = nil
		server := c.shards["a"]
		server.fault = func(_ string, k *recordv1.RecordKey) error { seen <- k.ProtoReflect().GetUnknown(); return nil }
		in.Key.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 5))
		if _, err := c.records.Put(c.ctx, in); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; len(got) != 2 {
			t.Fatalf("the shard saw unknown fields %x", got)
		}
	})
}

func TestErrorsPassThroughUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		want := refuse(codes.Aborted, "VERSION_MISMATCH")
		c.shards["a"].failFirst(1, "Put", want)
		_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1)})
		if status.Convert(err).Proto().String() != status.Convert(want).Proto().String() {
			t.Fatalf("got %v, want %v", err, want)
		}
		if n := c.shards["a"].count("Put"); n != 1 {
			t.Fatalf("a final answer was asked for %d times", n)
		}
	})
}

func TestRefusalsAreRepeatedInsideTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		for _, refusal := range []error{
			refuse(codes.Unavailable, "GROUP_LOADING", retryInfo(time.Millisecond)), refuse(codes.Unavailable, "NO_LEADER"),
			refuse(codes.Unavailable, "STOPPING"), refuse(codes.FailedPrecondition, "WRONG_SHARD"),
			refuse(codes.FailedPrecondition, "NOT_LEADER"),
		} {
			fired := c.shards["a"].failFirst(4, "Put", refusal)
			if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1)}); err != nil {
				t.Fatalf("%v: %v", refusal, err)
			}
			if *fired != 4 {
				t.Fatalf("the fault fired %d times", *fired)
			}
		}
	})
}

func TestTrailersPassThroughButNotThoseOfRepeatedAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		s := c.shards["a"]
		fired := s.failFirst(1, "Put", refuse(codes.Unavailable, "GROUP_LOADING"))
		s.trailer = metadata.Pairs("shard", "a")
		var trailer metadata.MD
		if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1)}, grpc.Trailer(&trailer)); err != nil ||
			*fired != 1 {
			t.Fatalf("%v; fault fired %d times", err, *fired)
		}
		if got := trailer.Get("shard"); len(got) != 1 || got[0] != "a" || len(trailer.Get("grpc-status-details-bin")) != 0 {
			t.Fatalf("trailer %v", trailer)
		}
	})
}

func TestLoadingBeyondTheDeadlineIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		c.shards["a"].failFirst(1000, "Get", refuse(codes.Unavailable, "GROUP_LOADING", retryInfo(time.Hour)))
		_, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(1)})
		wantError(t, err, codes.Unavailable, "GROUP_LOADING")
		if n := c.shards["a"].count("Get"); n != 1 {
			t.Fatalf("asked %d times", n)
		}
	})
}

// putRefused returns the error with which a gateway refuses a put. It retries a put that exceeds the gateway's own time
// limit, because on a slow machine a shard may respond too late.
func (c *cluster) putRefused() error {
	for {
		_, err := c.records.Put(c.withoutDeadline(), &recordv1.PutRequest{Key: key(1)})
		if status.Code(err) != codes.DeadlineExceeded || c.ctx.Err() != nil {
			return err
		}
	}
}

func TestARefusalAtTheDeadlineIsReportedUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		c.shards["a"].failFirst(1<<30, "Put", refuse(codes.Unavailable, "NO_LEADER"))
		wantError(t, c.putRefused(), codes.Unavailable, "NO_LEADER")
	})
}

// closeConnections responds to a call by breaking its connection, like a crash between a write and its response.
func closeConnections(s *standIn, times int) *int {
	fired := new(int)
	s.late = func(string, *recordv1.RecordKey) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if *fired == times {
			return nil
		}
		*fired++
		return status.Error(codes.Unavailable, "error reading from server: EOF") // gRPC's own transport uses this message
	}
	return fired
}

func TestAWriteOfUnknownOutcomeIsRepeatedOnlyWithARequestID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		s := c.shards["a"]
		fired := closeConnections(s, 1)
		_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1)})
		wantError(t, err, codes.Unknown, "OUTCOME_UNKNOWN")
		if *fired != 1 || s.applied != 1 {
			t.Fatalf("fault fired %d times, %d writes applied", *fired, s.applied)
		}
		fired = closeConnections(s, 3)
		out, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1), RequestId: []byte("0123456789abcdef")})
		if err != nil || !out.GetRepeated() || s.applied != 2 || *fired != 3 {
			t.Fatalf("%v, %v; fault fired %d times, %d writes applied", out, err, *fired, s.applied)
		}
	})
}

func TestWriteOfUnknownOutcomeIsNotUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		s := c.shards["a"]
		fired := closeConnections(s, 1)
		calls := 0
		s.fault = func(string, *recordv1.RecordKey) error {
			if calls++; calls > 1 {
				return refuse(codes.Unavailable, "NO_LEADER")
			}
			return nil
		}
		_, err := c.records.Put(c.withoutDeadline(), &recordv1.PutRequest{Key: key(1), RequestId: []byte("0123456789abcdef")})
		// If the deadline aborts the call, its outcome is unknown as well.
		if status.Code(err) != codes.DeadlineExceeded {
			wantError(t, err, codes.Unknown, "OUTCOME_UNKNOWN")
		}
		if *fired != 1 || calls < 2 {
			t.Fatalf("fault fired %d times in %d calls", *fired, calls)
		}
	})
}

func TestRequestToStoppedShardWasNotApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		c.shards["a"].server.Stop()
		// The gateway must first notice that its connection is closed. Otherwise the outcome of the put could be unknown.
		synctest.Wait()
		wantError(t, c.putRefused(), codes.Unavailable, "SHARD_UNREACHABLE")
	})
}

func TestCallsWaitForMovedShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		old := c.shards["a"]
		if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1), Data: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		old.server.Stop()
		c.stops["a"]()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				got, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(1)})
				if err != nil || string(got.GetRecord().GetData()) != "x" {
					t.Errorf("%v, %v", got, err)
				}
			})
		}
		c.start("a", old.volume, 2)
		all.Wait()
	})
}

func TestShardWithOtherVolumeIsNotCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		c.shards["a"].server.Stop()
		c.stops["a"]()
		s := c.start("a", uuid.New(), 1)
		if _, err := c.gateway.Addr(), c.gateway.Ready(c.ctx); err != nil {
			t.Fatal(err)
		}
		_, err := c.records.Get(c.withoutDeadline(), &recordv1.GetRequest{Key: key(1)})
		if status.Code(err) != codes.Unavailable {
			t.Fatalf("got %v", err)
		}
		if n := s.count("Get"); n != 0 {
			t.Fatalf("the empty volume was asked %d times", n)
		}
	})
}

func TestNamedGroupsAreMadeByTheFirstWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := named()
		meta.GroupsMax = 2
		c := newCluster(t, meta, gateway.Config{}, "a")
		go c.carryOut()
		in := func(group string) *recordv1.RecordKey { return &recordv1.RecordKey{Id: 7, Group: group} }
		_, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: in("day")})
		wantError(t, err, codes.NotFound, "GROUP_NOT_FOUND")
		var all sync.WaitGroup
		for range 8 { // these calls start at the same time
			all.Go(func() {
				if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: in("day"), Data: []byte("d")}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		got, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: in("day")})
		if err != nil || string(got.GetRecord().GetData()) != "d" {
			t.Fatalf("%v, %v", got, err)
		}
		if _, err := c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: "night"}); err != nil {
			t.Fatal(err)
		}
		_, err = c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: "night"})
		wantError(t, err, codes.AlreadyExists, "GROUP_EXISTS")
		_, err = c.records.Put(c.ctx, &recordv1.PutRequest{Key: in("third")})
		wantError(t, err, codes.ResourceExhausted, "GROUP_LIMIT")
		for _, bad := range []string{"", ".x", "a b", "ä"} {
			_, err = c.records.Put(c.ctx, &recordv1.PutRequest{Key: in(bad)})
			wantFieldViolation(t, err, "key.group")
		}
	})
}

func wantFieldViolation(t *testing.T, err error, field string) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok && bad.GetFieldViolations()[0].GetField() == field &&
			status.Code(err) == codes.InvalidArgument {
			return
		}
	}
	t.Fatalf("got %v %v, want INVALID_ARGUMENT for %s", err, status.Convert(err).Details(), field)
}

func TestWrongRequestsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(2), gateway.Config{}, "a")
		_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Data: []byte("x")})
		wantFieldViolation(t, err, "key")
		if err := c.conn.Invoke(c.ctx, recordv1.RecordService_Put_FullMethodName, []byte{0x0a, 0x7f}, &recordv1.PutResponse{},
			grpc.ForceCodec(rawCodec{})); status.Code(err) != codes.InvalidArgument {
			t.Fatalf("bytes that are no protobuf: %v", err)
		}
		_, err = c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1), Data: make([]byte, 9<<20)})
		wantError(t, err, codes.FailedPrecondition, "USE_UPLOAD")
		_, err = c.records.Delete(c.ctx, &recordv1.DeleteRequest{Key: key(1), RequestId: make([]byte, 9<<20)})
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("9 MiB in one message: %v", err)
		}
		_, err = c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: "x"})
		wantError(t, err, codes.FailedPrecondition, "HASH_ROUTING")
		if n := c.shards["a"].count("Put"); n != 0 {
			t.Fatalf("the shard was asked %d times", n)
		}
	})
}

// rawCodec sends and receives bytes unchanged.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { b, _ := v.([]byte); return b, nil }
func (rawCodec) Unmarshal([]byte, any) error   { return nil }
func (rawCodec) Name() string                  { return "proto" }

func TestTooManyCallsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.CallsMax(2), "a")
		entered, leave := make(chan struct{}, 8), make(chan struct{})
		c.shards["a"].fault = func(string, *recordv1.RecordKey) error {
			entered <- struct{}{}
			<-leave
			return nil
		}
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1)}); err != nil {
					t.Error(err)
				}
			})
		}
		<-entered
		<-entered
		_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1)})
		wantError(t, err, codes.ResourceExhausted, "OVERLOADED")
		close(leave)
		all.Wait()
	})
}

func TestHealthServesOnceThereIsAView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		must.OK(t, c.gateway.Ready(c.ctx))
		health := healthv1.NewHealthClient(c.conn)
		watch, err := health.Watch(c.ctx, &healthv1.HealthCheckRequest{})
		must.OK(t, err)
		for serving := false; !serving; {
			answer, err := watch.Recv()
			must.OK(t, err)
			serving = answer.GetStatus() == healthv1.HealthCheckResponse_SERVING
		}
		// Each service has its own health status, because probes may query it. The gateway sets it right after the status of
		// the whole process.
		synctest.Wait()
		for _, name := range []string{"RecordService", "RoutingService", "AdminService"} {
			answer, err := health.Check(c.ctx, &healthv1.HealthCheckRequest{Service: "sheaf.record.v1." + name})
			if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				t.Fatalf("%s: %v, %v", name, answer, err)
			}
		}
		if _, err := health.Check(c.ctx, &healthv1.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
			t.Errorf("a service that is not there: %v", err)
		}
	})
}

func TestAGatewayWithoutAStoreSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := bubbletest.NewNet()
		store, err := registry.NewStore(memetcdtest.On(t, network, "etcd:2379").Client(t), "none", nil)
		must.OK(t, err)
		g, err := gateway.Start(context.Background(), gateway.Config{Listen: "gateway:0", Store: store,
			Listener: network.Listen})
		must.OK(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := g.Ready(ctx); status.Code(err) != codes.Unavailable {
			t.Fatalf("got %v", err)
		}
		must.OK(t, g.Stop(context.Background()))
	})
}

func TestRestartedShardIsConnectedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1)}); err != nil {
			t.Fatal(err)
		}
		old := c.shards["a"]
		old.server.Stop()
		c.stops["a"]()
		done := make(chan error, 1)
		go func() {
			_, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(1)})
			done <- err
		}()
		c.startAt("a", old.address, old.volume, 2)
		must.OK(t, <-done)
	})
}
