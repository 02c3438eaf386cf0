package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/status/page"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// hostFixture is a running host with a client.
type hostFixture struct {
	t        testing.TB
	cfg      Config
	registry *memRegistry
	host     *host.Host
	conn     *grpc.ClientConn
}

// startHost starts a host; change may be nil.
func startHost(t testing.TB, registry *memRegistry, change func(*Config)) *hostFixture {
	t.Helper()
	f := &hostFixture{t: t, registry: registry}
	f.cfg = Config{
		Name: "s1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Placement: registry, SegmentBytes: 1 << 20,
		ReserveBytes: 16 << 20,
		Compaction:   Compaction{Off: true}, Stay: true, times: host.Times{Guard: 20 * time.Millisecond,
			Inspect: 20 * time.Millisecond},
	}
	moveInto(t, &f.cfg)
	if change != nil {
		change(&f.cfg)
	}
	f.run()
	return f
}

func (f *hostFixture) run() {
	f.t.Helper()
	h, err := StartHost(context.Background(), f.cfg)
	must(f.t, err)
	f.host = h
	f.t.Cleanup(f.stop)
	f.conn, err = connect(&f.cfg, h.Addr())
	must(f.t, err)
}

// stop stops the host. It may be called again.
func (f *hostFixture) stop() {
	if f.host == nil {
		return
	}
	_ = f.conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := f.host.Stop(ctx); err != nil {
		f.t.Errorf("stop: %v", err)
	}
	f.host = nil
}

// row returns the row of the shard in AdminService.
func (f *hostFixture) row() *recordv1.Shard {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := recordv1.NewAdminServiceClient(f.conn).ListShards(ctx, &recordv1.ListShardsRequest{},
		grpc.WaitForReady(true))
	if err != nil {
		return &recordv1.Shard{Message: err.Error()} // a server that stops also closes its connections
	}
	return out.GetShards()[0]
}

// reaches waits until the shard has the given state, and its message contains all the given words.
func (f *hostFixture) reaches(state recordv1.ShardState, words ...string) *recordv1.Shard {
	f.t.Helper()
	says := func(message string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(message, word) })
	}
	var row *recordv1.Shard
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if row = f.row(); row.GetState() == state && says(row.GetMessage()) {
			return row
		}
		if time.Now().After(end) {
			f.t.Fatalf("waited in vain for %s %q: %v", state.Word(), words, row)
		}
	}
}

func (f *hostFixture) http(path string) (int, string) {
	f.t.Helper()
	answer := httptest.NewRecorder()
	f.host.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer.Code, answer.Body.String()
}

// holdsBack waits for the given state, in which the shard does not serve, and checks all responses that the shard must
// give in that state.
func (f *hostFixture) holdsBack(state recordv1.ShardState, words ...string) {
	f.t.Helper()
	row := f.reaches(state, words...)
	for path, want := range map[string]int{"/": 200, "/nothing": 404, "/healthz": 200, "/startupz": 200, "/readyz": 503,
		"/status": 200} {
		if code, body := f.http(path); code != want {
			f.t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}
	// A host that retries may have reported the same state with another message in the meantime. In that case, the
	// status and the row are requested once more.
	var st *recordv1.ShardStatus
	for end := time.Now().Add(time.Minute); ; row = f.row() {
		st = &recordv1.ShardStatus{}
		_, body := f.http("/status")
		err := json.Unmarshal([]byte(body), st)
		if err == nil && st.GetShard().GetState().Word() == state.Word() && st.GetShard().Message == row.GetMessage() {
			break
		}
		if err != nil || f.row().GetMessage() == row.GetMessage() || time.Now().After(end) {
			f.t.Errorf("/status: %v: %s, and the row says %s", err, body, row.GetMessage())
			break
		}
	}
	if want := "Not ready: " + state.Word() + ": " + row.GetMessage(); st.Summary.State != page.NotReady ||
		st.Summary.Text != want {
		f.t.Errorf("the sentence is %+v, want %q", st.Summary, want)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	health, err := grpc_health_v1.NewHealthClient(f.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		f.t.Errorf("health: %v %v", health, err)
	}
	_, err = recordv1.NewRecordServiceClient(f.conn).Put(ctx, &recordv1.PutRequest{Key: key(1), Data: []byte("x")})
	want(f.t, err, codes.Unavailable, reason.NotServing)
}

// put retries a put until it succeeds.
func (f *hostFixture) put(id int64, data string) {
	f.t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		_, err = recordv1.NewRecordServiceClient(f.conn).Put(ctx, &recordv1.PutRequest{Key: key(id), Data: []byte(data)})
		if cancel(); err == nil {
			return
		}
	}
	f.t.Fatalf("put %d: %v", id, err)
}

// get waits until the group serves, and checks the record's data.
func (f *hostFixture) get(id int64, data string) {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		out, err := recordv1.NewRecordServiceClient(f.conn).Get(ctx, &recordv1.GetRequest{Key: key(id)})
		cancel()
		if status.Code(err) == codes.Unavailable && time.Now().Before(end) {
			continue
		}
		if err != nil || string(out.GetRecord().GetData()) != data {
			f.t.Errorf("get %d: %q, %v; want %q", id, out.GetRecord().GetData(), err, data)
		}
		return
	}
}

// placed waits until etcd lists members for every group.
func (f *hostFixture) placed() {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		waits := ""
		for name, g := range f.registry.now().Groups {
			if len(g.Members) == 0 {
				waits = name
			}
		}
		if waits == "" {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("waited in vain for group %s", waits)
		}
	}
}

// leaves waits until no shard is registered. A host reports a state before it acts on it, so its shard may still be
// registered for a moment after the state was reported.
func (f *hostFixture) leaves() {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		shards := f.registry.now().Shards
		if len(shards) == 0 {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("still registered: %v", shards)
		}
	}
}

const (
	serving  = recordv1.ShardState_SHARD_STATE_SERVING
	foreign  = recordv1.ShardState_SHARD_STATE_FOREIGN
	diskLost = recordv1.ShardState_SHARD_STATE_DISK_LOST
	mismatch = recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH
	pending  = recordv1.ShardState_SHARD_STATE_PENDING
)

func TestHostServesAndShowsWhatItWasAskedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.Node, c.Zone, c.Registry = "n1", "z1", prometheus.NewRegistry()
		})
		f.put(1, "one")
		row := f.reaches(serving)
		if row.GetNode() != "n1" || row.GetZone() != "z1" || row.GetDomain() != "n1" || row.GetMedium() != "Auto" ||
			row.GetVolumeShard() != "s1" || row.GetStoreUuid() != f.registry.now().Meta.StoreUUID.String() ||
			row.GetMessage() != "" {
			t.Errorf("row: %v", row)
		}
		if got := f.registry.now().Shards["s1"]; got.Node != "n1" || got.Zone != "z1" || got.Domain != "n1" {
			t.Errorf("registration: %+v", got)
		}
		for _, path := range []string{"/healthz", "/startupz", "/readyz", "/status"} {
			if code, body := f.http(path); code != 200 {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		if _, body := f.http("/metrics"); !strings.Contains(body, `sheaf_shard_state{state="Serving"} 1`) {
			t.Errorf("/metrics: %s", body)
		}
		f.registry.change(func(v *placement.View) { v.States = map[string]placement.ShardState{"s1": placement.Draining} })
		f.reaches(recordv1.ShardState_SHARD_STATE_DRAINING)
		f.get(1, "one")
	})
}

func TestHostHoldsBackAnotherFileSystem(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) { c.Wanted.FileSystem = "zfs" })
		f.holdsBack(mismatch, "zfs", "wanted")
		if row := f.row(); row.GetWantedFileSystem() != "zfs" || row.GetFileSystem() == "" || row.GetFileSystem() == "zfs" {
			t.Errorf("row: %v", row)
		}
		if left := filesBelow(t, f.cfg.FS, f.cfg.Dir); len(left) != 0 {
			t.Errorf("something was written: %v", left)
		}
		f.stop()
		f.cfg.Wanted = host.Wanted{MountOptions: []string{"defaults", "no-such-option"}}
		f.run()
		f.holdsBack(mismatch, "no-such-option")
		if left := filesBelow(t, f.cfg.FS, f.cfg.Dir); len(left) != 0 {
			t.Errorf("something was written: %v", left)
		}
	})
}

func TestHostHoldsBackOtherVolumes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(hash4, "s1")
		f := startHost(t, registry, nil)
		f.put(1, "one")
		id := f.reaches(serving).GetVolumeUuid()
		f.stop()
		other := uuid.New()
		for _, c := range []struct {
			change func(*Config)
			state  recordv1.ShardState
			words  []string
		}{
			{func(c *Config) {
				c.Wanted.Store = other
			}, foreign, []string{other.String(), registry.now().Meta.StoreUUID.String()}},
			{func(c *Config) { c.Wanted.Volume = other }, foreign, []string{other.String(), id}},
			{func(c *Config) { c.Name = "s2" }, foreign, []string{`"s1"`, `"s2"`}},
			{func(c *Config) { c.Dir, c.Wanted.Volume = t.TempDir(), other }, diskLost, []string{"blank", other.String()}},
			{func(c *Config) {
				c.Dir = t.TempDir()
				must(t, c.FS.MkdirAll(c.Dir))
				must(t, vfstest.Write(t, c.FS, filepath.Join(c.Dir, "somebody's"), nil).Close())
			}, foreign, []string{"somebody's"}},
		} {
			g := &hostFixture{t: t, cfg: f.cfg, registry: registry}
			c.change(&g.cfg)
			before := filesBelow(t, g.cfg.FS, g.cfg.Dir)
			g.run()
			g.holdsBack(c.state, c.words...)
			if after := filesBelow(t, g.cfg.FS, g.cfg.Dir); len(after) != len(before) {
				t.Errorf("something was written: %v, was %v", after, before)
			}
			g.stop()
		}
		f.run()
		f.reaches(serving)
		f.get(1, "one")
	})
}

func TestHostEndsWithoutStay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) { c.Wanted.FileSystem, c.Stay = "zfs", false })
		select {
		case err := <-f.host.Failed():
			if !errors.Is(err, volume.ErrMount) {
				t.Errorf("error %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it stays up")
		}
	})
}

func TestHostWaitsForEtcdAndTheStore(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(hash4, "s1")
		registry.setDown(true)
		f := startHost(t, registry, func(c *Config) { c.Stay = false })
		f.holdsBack(pending, "etcd does not answer")
		registry.setDown(false)
		f.put(1, "one")
		f.reaches(serving)
	})
}

// lossyFS makes reads of the superblock fail, or return zeros, on request.
type lossyFS struct {
	vfs.FS
	lost chan struct{}
	// mu is held while the disk hangs, so reads wait for it. waited counts these reads.
	mu     longlock.Mutex
	waited atomic.Int32
}

// InMemory reports that there is no mount to inspect.
func (l *lossyFS) InMemory() bool { return true }

func (l *lossyFS) OpenDirect(name string) (vfs.File, error) {
	f, err := l.FS.OpenDirect(name)
	if err == nil && filepath.Base(name) == "superblock" {
		return &lossyFile{f, l}, nil
	}
	return f, err
}

type lossyFile struct {
	vfs.File
	*lossyFS
}

func (l *lossyFile) ReadAt(p []byte, off int64) (int, error) {
	if !l.mu.TryLock() {
		l.waited.Add(1)
		l.mu.Lock()
	}
	l.mu.Unlock()
	select {
	case <-l.lost:
		clear(p)
		return len(p), nil
	default:
		return l.File.ReadAt(p, off)
	}
}

// The same server handles calls in every state. A client that watches the health of a waiting shard is informed when
// the shard serves. If a client has a stream to a shard whose disk is lost, the stream ends with an error.
func TestHostKeepsItsServer(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(hash4, "s1")
		registry.setDown(true)
		lossy := &lossyFS{FS: vfstest.NewMem(), lost: make(chan struct{})}
		f := startHost(t, registry, func(c *Config) { c.FS = lossy })
		f.holdsBack(pending, "etcd does not answer")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		health, err := grpc_health_v1.NewHealthClient(f.conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		must(t, err)
		hears := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
			t.Helper()
			if got, err := health.Recv(); err != nil || got.GetStatus() != want {
				t.Fatalf("the watch of health says %v, %v; want %v", got, err, want)
			}
		}
		hears(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		registry.setDown(false)
		hears(grpc_health_v1.HealthCheckResponse_SERVING)
		// A host reports a state before it acts on it, so the health of a group follows a little later.
		follows := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
			t.Helper()
			for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
				group, err := grpc_health_v1.NewHealthClient(f.conn).Check(ctx,
					&grpc_health_v1.HealthCheckRequest{Service: "group/0"})
				if err == nil && group.GetStatus() == want {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("health of a group: %v, %v; want %v", group, err, want)
				}
			}
		}
		f.put(1, "one")
		follows(grpc_health_v1.HealthCheckResponse_SERVING)
		f.reaches(serving)
		changes, err := recordv1.NewRecordServiceClient(f.conn).Watch(ctx, &recordv1.WatchRequest{Group: "0"})
		must(t, err)
		if _, err := changes.Header(); err != nil {
			t.Fatal(err)
		}
		close(lossy.lost)
		for err == nil {
			_, err = changes.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ends with %v", err)
		}
		f.holdsBack(diskLost, "superblock")
		follows(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	})
}

func TestHostNoticesALostDisk(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		lossy := &lossyFS{FS: vfstest.NewMem(), lost: make(chan struct{})}
		f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) { c.FS = lossy })
		f.put(1, "one")
		id := f.reaches(serving).GetVolumeUuid()
		close(lossy.lost)
		f.holdsBack(diskLost, "superblock")
		row := f.row()
		if row.GetWantedVolumeUuid() != id {
			t.Errorf("the volume that was lost is not named: %v", row)
		}
		f.leaves()
	})
}

// A disk that blocks its shard without an error is reported in a separate field, and the shard continues, because the
// disk may only be slow.
func TestHostReportsADiskThatHangs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		lossy := &lossyFS{FS: vfstest.NewMem(), lost: make(chan struct{})}
		f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.FS, c.times.GuardPatience = lossy, 20*time.Millisecond
		})
		f.put(1, "one")
		// The machine's own disk may also be slow at times, so that the shard reports silence for a moment. Therefore this
		// function polls until the current state is the expected one. It accepts a report of silence only when a read is
		// waiting.
		says := func(silent bool) *recordv1.Shard {
			t.Helper()
			for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
				waits := lossy.waited.Load() > 0
				if row := f.row(); row.GetVolumeSilent() == silent && (waits || !silent) {
					return row
				} else if time.Now().After(end) {
					t.Fatalf("waited in vain for silent: %t: %v", silent, row)
				}
			}
		}
		f.reaches(serving)
		if row := says(false); len(row.GetProblems()) > 0 {
			t.Fatalf("before: %v", row)
		}
		// The kubelet and the disruption budget learn only from /readyz that a disk hangs.
		ready := func(want int, words string) {
			t.Helper()
			if code, said := f.http("/readyz"); code != want || !strings.Contains(said, words) {
				t.Errorf("/readyz: %d %q, wanted is %d with %q", code, said, want, words)
			}
		}
		ready(200, "")
		lossy.mu.Lock()
		answers := sync.OnceFunc(lossy.mu.Unlock)
		t.Cleanup(answers)
		row := says(true)
		if row.GetState() != serving || len(row.GetProblems()) != 1 ||
			!strings.Contains(row.GetProblems()[0], "the volume does not answer") {
			t.Errorf("%v", row)
		}
		ready(503, "the volume does not answer: a read of its superblock takes more than 20ms")
		answers()
		if row := says(false); len(row.GetProblems()) > 0 {
			t.Errorf("afterwards: %v", row)
		}
		ready(200, "")
		f.put(2, "two")
	})
}

// A hanging disk does not delay a stop. The process simply exits, and the disk is left in the same state as after a
// kill.
func TestHostStopsWhileItsDiskHangs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for _, served := range []bool{false, true} {
			t.Run(fmt.Sprintf("served %t", served), func(t *bubble) {
				lossy := &lossyFS{FS: vfstest.NewMem(), lost: make(chan struct{})}
				const patience = 50 * time.Millisecond
				f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) {
					if c.FS = lossy; served {
						c.times.StopPatience = patience
					}
				})
				f.put(1, "one")
				f.reaches(serving)
				if !served {
					f.stop() // the disk still responds, so this stop does not need the short StopPatience
					f.cfg.times.StopPatience = patience
				}
				lossy.mu.Lock()
				answers := sync.OnceFunc(lossy.mu.Unlock)
				t.Cleanup(answers)
				before := lossy.waited.Load()
				if !served {
					f.run()
				}
				for end := time.Now().Add(time.Minute); lossy.waited.Load() == before; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("no read has waited")
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				stopped := make(chan error, 1)
				go func() { stopped <- f.host.Stop(ctx) }()
				select {
				case err := <-stopped:
					if served != (err == nil) || err != nil && !strings.Contains(err.Error(), host.VolumeSilent) {
						t.Errorf("it ends with %v", err)
					}
				case <-ctx.Done():
					t.Error("it waits for the disk")
				}
				answers()
				// None of the host's goroutines may still run when the test ends. Each Stop gives up as early as the first one
				// did, so the test calls Stop again until the disk responds in time.
				for err := f.host.Stop(ctx); err != nil; err = f.host.Stop(ctx) {
					if ctx.Err() != nil {
						t.Fatalf("with a disk that answers: %v", err)
					}
				}
				_ = f.conn.Close()
				f.host = nil // the host has stopped
			})
		}
	})
}

// A sync that hangs does not delay a stop either, even if a write waits for that sync. The stop waits until its
// context ends, and not much longer.
func TestHostStopsWhileASyncHangs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.FS, c.times.StopPatience = faulty, 50*time.Millisecond
		})
		f.put(1, "one")
		f.reaches(serving)
		hangs, answers := make(chan struct{}), make(chan struct{})
		hang := sync.OnceFunc(func() { close(hangs) })
		faulty.Add(&vfstest.Fault{
			Match:  func(op vfstest.Op) bool { return op.Kind == vfstest.OpSync },
			Effect: vfstest.EffectPass,
			Before: func(vfstest.Op) { hang(); <-answers },
		})
		written := make(chan error, 1)
		go func() {
			_, err := recordv1.NewRecordServiceClient(f.conn).Put(t.Context(),
				&recordv1.PutRequest{Key: key(1), Data: []byte("two")})
			written <- err
		}()
		<-hangs
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		stopped := make(chan error, 1)
		go func() { stopped <- f.host.Stop(ctx) }()
		select {
		case err := <-stopped:
			if err == nil || !strings.Contains(err.Error(), host.VolumeSilent) {
				t.Errorf("it ends with %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("it waits for the disk")
		}
		close(answers)
		<-written // the error is not checked, because the record may have been written
		f.stop()
	})
}

// While this shard is silent, a twin that runs on a copy of the shard's volume registers under the same name. From then
// on, the name belongs to the twin.
func TestHostEndsAShardInWhosePlaceAnotherServes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		twin := fmt.Errorf("%w: shard s1 is live on generation 2", placement.ErrNameTaken)
		for _, stay := range []bool{true, false} {
			registry := newRegistry(hash4, "s1")
			f := startHost(t, registry, func(c *Config) { c.Stay = stay })
			f.put(1, "one")
			f.reaches(serving)
			registry.mu.Lock()
			refused := registry.refused["s1"]
			registry.mu.Unlock()
			refused(twin)
			f.holdsBack(foreign, "took the place", "generation 2")
			f.leaves()
			if stay {
				// The host must not start the shard again, because the twin may merely be restarting.
				time.Sleep(10 * f.cfg.times.Inspect)
				if state := f.row().GetState(); state != foreign || len(registry.now().Shards) != 0 {
					t.Errorf("it came back: %v", state)
				}
				f.stop() // Stop must work nevertheless
				continue
			}
			select {
			case err := <-f.host.Failed():
				if !errors.Is(err, placement.ErrNameTaken) {
					t.Errorf("error %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("it stays up")
			}
		}
	})
}

func TestHostAdopts(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(hash4, "s1")
		f := startHost(t, registry, nil)
		f.put(1, "one")
		f.placed()
		f.stop()
		f.cfg.Name, f.cfg.Wanted.Adopt, f.cfg.Wanted.Store = "s2", true, registry.now().Meta.StoreUUID
		f.run()
		f.reaches(serving)
		f.put(2, "two") // the put waits until its group serves
		f.get(1, "one")
		for name, g := range registry.now().Groups {
			if len(g.Members) != 1 || g.Members[0].Shard != "s2" {
				t.Errorf("group %s: %+v", name, g.Members)
			}
		}
		if row := f.row(); row.GetVolumeShard() != "s2" {
			t.Errorf("row: %v", row)
		}
	})
}

func TestHostShowsTooLittleMemory(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(hash4, "s1")
		f := startHost(t, registry, nil)
		for id := range int64(200) {
			f.put(id, strings.Repeat("x", 1000))
		}
		f.stop()
		f.cfg.MemoryLimitBytes = 100
		f.run()
		row := f.reaches(recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL)
		if row.GetMemoryNeedBytes() <= 100 || row.GetMemoryLimitBytes() != 100 || !strings.Contains(row.GetMessage(), "100") {
			t.Errorf("row: %v", row)
		}
		if code, _ := f.http("/readyz"); code != 503 {
			t.Errorf("/readyz: %d", code)
		}
		if code, _ := f.http("/startupz"); code != 200 {
			t.Errorf("/startupz: %d", code)
		}
		f.stop()
		f.cfg.MemoryLimitBytes = 0
		f.run()
		f.reaches(serving)
		f.get(7, strings.Repeat("x", 1000))
	})
}

func TestHostDescribesItsVolume(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(hash4, "s1")
		f := startHost(t, registry, nil)
		f.put(1, "one")
		f.placed()
		describe := func() *recordv1.DescribeVolumeResponse {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			out, err := recordv1.NewAdminServiceClient(f.conn).DescribeVolume(ctx, &recordv1.DescribeVolumeRequest{},
				grpc.WaitForReady(true))
			must(t, err)
			if out.GetFacts().GetRouting() != "Hash" || out.GetFacts().GetGroups() != 4 || out.GetFacts().GetCopies() != 1 ||
				len(out.GetGroups()) != 4 ||
				out.GetStoreUuid() != registry.now().Meta.StoreUUID.String() {
				t.Errorf("answer: %v", out)
			}
			for _, g := range out.GetGroups() {
				state := registry.now().Groups[g.GetGroup()]
				if g.GetUuid() != state.UUID.String() || g.GetRaftId() == 0 || g.GetRaftId() != state.Members[0].RaftID {
					t.Errorf("group: %v; etcd has %+v", g, state)
				}
			}
			return out
		}
		if out := describe(); out.GetFacts().GetEpoch() == 0 {
			t.Errorf("no epoch: %v", out)
		}
		f.stop()
		registry.setDown(true)
		f.run()
		f.reaches(pending, "etcd")
		describe() // does not need etcd, because it reads only the volume's files
	})
}
