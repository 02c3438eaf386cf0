package shard

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/status/page"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestGroupsServeAsSoonAsTheyAreLoaded blocks one group's reads. The other groups serve, and the blocked group reports
// that it is loading.
func TestGroupsServeAsSoonAsTheyAreLoaded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.FS, c.Residency = faulty, group.Resident }).ready()
		there := f.fill(100, 10_000)
		f.shard.Kill()

		slow, held := f.registry.now().Groups["1"].UUID.String(), make(chan struct{})
		release := sync.OnceFunc(func() { close(held) })
		defer release()
		fault := faulty.Add(&vfstest.Fault{
			Match: func(op vfstest.Op) bool {
				return op.Kind == vfstest.OpRead && strings.Contains(op.Name, slow) && strings.Contains(op.Name, "segment")
			},
			Effect: vfstest.EffectPass,
			Before: func(vfstest.Op) { <-held },
		})
		f.start()
		f.eventually("three groups are loaded", func() bool { return f.shard.Status().GetShard().Load.GroupsLoaded == 3 })
		f.eventually("the fourth is being read", func() bool { return fault.Fired() > 0 })
		for id, d := range there {
			if hash4.GroupOf(id) != 1 {
				f.holds(id, d)
				continue
			}
			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
			want(t, err, codes.Unavailable, reason.GroupLoading)
			if wait := retryAfter(err); wait < 100*time.Millisecond || wait > 30*time.Second {
				t.Errorf("RetryInfo %v", wait)
			}
		}
		health := grpc_health_v1.NewHealthClient(f.conn)
		if out, err := health.Check(f.ctx(), &grpc_health_v1.HealthCheckRequest{Service: "group/0"}); err != nil ||
			out.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health of a loaded group: %v, %v", out, err)
		}
		if out, err := health.Check(f.ctx(), &grpc_health_v1.HealthCheckRequest{Service: "group/1"}); err != nil ||
			out.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health of the group that loads: %v, %v", out, err)
		}
		if s := f.shard.Status().Summary; s.State != page.Loading || !strings.HasPrefix(s.Text, "Loading: 3 of 4 groups, ") {
			t.Errorf("the sentence is %+v", s)
		}
		for path, code := range map[string]int{"/": http.StatusOK, "/healthz": http.StatusOK, "/readyz": http.StatusOK} {
			answer := httptest.NewRecorder()
			handlerOf(f.shard).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
			if answer.Code != code {
				t.Errorf("%s answers %d while loading, want %d", path, answer.Code, code)
			}
		}
		watch, err := f.admin.WatchLoad(f.ctx(), &recordv1.WatchLoadRequest{})
		must(t, err)
		if out, err := watch.Recv(); err != nil || out.GetLoad().GetDone() || out.GetLoad().GetGroupsLoaded() != 3 ||
			out.GetLoad().GetBytesTotal() <= out.GetLoad().GetBytesDone() {
			t.Errorf("load: %v, %v", out, err)
		}
		list, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{Group: "1"})
		if err != nil || list.GetGroups()[0].GetState() != recordv1.GroupState_GROUP_STATE_LOADING {
			t.Errorf("list: %v, %v", list, err)
		}
		release()
		for {
			out, err := watch.Recv()
			if err != nil {
				t.Fatalf("the watch ends before the load: %v", err)
			}
			if out.GetLoad().GetDone() {
				break
			}
		}
		f.holdsAll(there)
	})
}

// TestKillWhileLoading checks that a kill ends a load, and that the next start serves everything.
func TestKillWhileLoading(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.FS, c.Residency = faulty, group.Resident }).ready()
		there := f.fill(100, 10_000)
		f.shard.Kill()
		held := make(chan struct{})
		fault := faulty.Add(&vfstest.Fault{
			Match:  func(op vfstest.Op) bool { return op.Kind == vfstest.OpRead && strings.Contains(op.Name, "segment") },
			Effect: vfstest.EffectPass,
			Before: func(vfstest.Op) { <-held },
		})
		f.start()
		f.eventually("it is loading", func() bool { return fault.Fired() > 0 })
		time.AfterFunc(10*time.Millisecond, func() { close(held) })
		f.shard.Kill()
		fault.Remove()
		f.again(nil)
		f.holdsAll(there)
	})
}

func TestFailedSyncLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.FS = faulty }).ready()
		f.put(1, []byte("before"))
		fault := faulty.Add(&vfstest.Fault{
			Match: func(op vfstest.Op) bool { return op.Kind == vfstest.OpSync && strings.Contains(op.Name, "segment") },
			Count: 1, Err: syscall.EIO,
		})
		acknowledged := map[int64][]byte{}
		for id := range int64(20) {
			if _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: data(id, 1000)}); err == nil {
				acknowledged[id] = data(id, 1000)
			}
		}
		if fault.Fired() != 1 {
			t.Errorf("the fault fired %d times", fault.Fired())
		}
		if len(acknowledged) < 19 {
			t.Errorf("only %d of 20 puts were acknowledged after one failed sync", len(acknowledged))
		}
		f.shard.Kill()
		f.again(nil)
		f.holdsAll(acknowledged)
	})
}

func TestFullDiskInTheMiddleOfAWriteIsDiskFull(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.FS = faulty }).ready()
		f.put(1, []byte("before"))
		fault := faulty.Add(&vfstest.Fault{
			Match: func(op vfstest.Op) bool {
				return (op.Kind == vfstest.OpWrite || op.Kind == vfstest.OpAllocate) && strings.Contains(op.Name, "groups")
			},
			Err: syscall.ENOSPC,
		})
		ctx := f.ctx()
		large := data(7, 3<<20)
		_, err := f.upload(&recordv1.UploadHeader{Key: key(7)}, cut(large, 1<<20)...)
		want(t, err, codes.ResourceExhausted, reason.DiskFull)
		if fault.Fired() == 0 {
			t.Error("the fault never fired")
		}
		f.holds(1, []byte("before"))
		fault.Remove()
		f.eventually("room made is noticed", func() bool {
			_, err := f.records.Put(ctx, &recordv1.PutRequest{Key: key(2), Data: []byte("after")})
			return err == nil
		})
		if _, err := f.upload(&recordv1.UploadHeader{Key: key(7)}, cut(large, 1<<20)...); err != nil {
			t.Errorf("upload with room: %v", err)
		}
		f.stop()
		f.again(nil)
		f.holds(1, []byte("before"))
		f.holds(2, []byte("after"))
		if _, got, err := f.download(&recordv1.DownloadRequest{Key: key(7)}); err != nil || string(got) != string(large) {
			t.Errorf("download: %d bytes, %v", len(got), err)
		}
	})
}
