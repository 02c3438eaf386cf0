package shard

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/etcdserver"
)

// memRegistry is an in-memory registry. Revisions, conditional writes and views follow the same rules as in
// registry.Store.
type memRegistry struct {
	mu       sync.Mutex
	view     placement.View
	watchers map[chan placement.View]bool
	seen     map[uuid.UUID]placement.VolumeRecord
	down     bool                   // etcd does not respond
	refuse   bool                   // writes to groups fail, and everything else works
	puts     int                    // number of times that a group or weights were written
	taken    bool                   // the registry acts as if another process had taken every shard name
	asked    int                    // number of times a shard asked whether it may register
	refused  map[string]func(error) // for each registered shard, by name: tells the shard that it is refused, and why
	unmade   error                  // if not nil, Meta returns this error
	silent   time.Duration          // time since etcd last responded
	changed  func(placement.View)   // if not nil, called with each view
	weights  map[string]map[string]registry.Weight
	table    []byte // grants table; nil if there is none
	ledgers  map[string]registry.Ledger
}

var errDown = errors.New("etcd is down")

// newRegistry creates a store whose groups do not exist on any shard yet. The named shard is every group's target.
func newRegistry(routing placement.Routing, shard string, names ...string) *memRegistry {
	r := &memRegistry{seen: map[uuid.UUID]placement.VolumeRecord{}, refused: map[string]func(error){},
		watchers: map[chan placement.View]bool{}}
	r.view = placement.View{
		Epoch: 1, Meta: placement.Meta{StoreUUID: uuid.New(), Routing: routing, Copies: 1},
		Shards: map[string]placement.Shard{}, Groups: map[string]placement.Group{}, Targets: map[string]placement.Target{},
	}
	for n := range routing.Groups {
		names = append(names, placement.GroupName(n))
	}
	for n, name := range names {
		g := placement.NewGroup(routing, name, n)
		g.Revision = 1
		r.view.Groups[name] = g
		r.view.Targets[name] = placement.Target{Group: name, Shards: []string{shard}}
	}
	return r
}

// change alters the view and sends it to the watchers. An altered group gets a new revision, as in etcd, so a write
// that is based on the previous revision is refused.
func (r *memRegistry) change(do func(v *placement.View)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changeLocked(do)
}

func (r *memRegistry) changeLocked(do func(v *placement.View)) {
	v := r.view
	v.Shards, v.Groups, v.Targets = maps.Clone(v.Shards), maps.Clone(v.Groups), maps.Clone(v.Targets)
	v.Epoch++
	do(&v)
	for name, g := range v.Groups {
		if was := r.view.Groups[name]; was.Revision == g.Revision && !reflect.DeepEqual(was, g) {
			g.Revision = int64(v.Epoch)
			v.Groups[name] = g
		}
	}
	r.view = v
	v.Own = true
	if r.changed != nil {
		r.changed(v)
	}
	if r.down {
		return
	}
	for w := range r.watchers {
		select {
		case <-w:
		default:
		}
		w <- v
	}
}

func (r *memRegistry) now() placement.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view
}

func (r *memRegistry) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
	if !down {
		r.changeLocked(func(*placement.View) {})
	}
}

func (r *memRegistry) Meta(context.Context) (placement.Meta, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return placement.Meta{}, errDown
	}
	return r.view.Meta, r.unmade
}

func (r *memRegistry) MayRegister(_ context.Context, s placement.Shard) (placement.Step, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return r.seen[s.VolumeUUID].Step, r.mayRegister(s)
}

// mayRegister refuses a shard that may not be registered. Called with mu held.
func (r *memRegistry) mayRegister(s placement.Shard) error {
	if r.down {
		return errDown
	}
	if r.taken {
		return placement.ErrNameTaken
	}
	for name, there := range r.view.Shards {
		if name == s.Name {
			if err := placement.MayReplace(there, s); err != nil {
				return err
			}
		} else if there.VolumeUUID == s.VolumeUUID {
			return placement.ErrNameTaken
		}
	}
	if seen, ok := r.seen[s.VolumeUUID]; ok {
		return placement.MayFollow(seen, s)
	}
	return nil
}

func (r *memRegistry) NextStep(_ context.Context, s placement.Shard) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return errDown
	}
	if seen, ok := r.seen[s.VolumeUUID]; ok {
		if err := placement.MayFollow(seen, s); err != nil {
			return err
		}
	}
	r.seen[s.VolumeUUID] = s.Record()
	return nil
}

func (r *memRegistry) RegisterShard(_ context.Context, s placement.Shard, refused ...func(error)) (func(), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.mayRegister(s); err != nil {
		return nil, err
	}
	r.seen[s.VolumeUUID] = s.Record()
	s.Alive = true
	r.refused[s.Name] = func(err error) {
		for _, tell := range refused {
			tell(err)
		}
	}
	r.changeLocked(func(v *placement.View) { v.Shards[s.Name] = s })
	return func() { r.change(func(v *placement.View) { delete(v.Shards, s.Name) }) }, nil
}

func (r *memRegistry) Freeze(context.Context, string, string) error { return nil }

func (r *memRegistry) Reconcile(context.Context, rescue.Rebuilt, []string) (rescue.Reconciled, error) {
	return rescue.Reconciled{}, nil
}

func (r *memRegistry) Unreconciled(context.Context, ...string) error { return nil }

func (r *memRegistry) Newest(m placement.Mark) placement.Mark { return m }

func (r *memRegistry) LastAnswer() (last time.Time, held string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Add(-r.silent), ""
}

// Look returns a view that contains one group and the shards that the group names.
func (r *memRegistry) Look(_ context.Context, group string) (placement.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return placement.View{}, errDown
	}
	v := r.view
	v.Own, v.Groups, v.Targets = true, map[string]placement.Group{}, map[string]placement.Target{}
	if g, ok := r.view.Groups[group]; ok {
		v.Groups[group] = g
	}
	if t, ok := r.view.Targets[group]; ok {
		v.Targets[group] = t
	}
	return v, nil
}

func (r *memRegistry) PutWeights(_ context.Context, shard string, weights map[string]registry.Weight) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return errDown
	}
	if r.weights == nil {
		r.weights = map[string]map[string]registry.Weight{}
	}
	r.weights[shard] = maps.Clone(weights)
	r.puts++
	return nil
}

func (r *memRegistry) Weights(_ context.Context, shard string) (map[string]registry.Weight, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return nil, errDown
	}
	return r.weights[shard], nil
}

// told returns the weights that a shard last reported for the groups that it leads.
func (r *memRegistry) told(shard string) map[string]registry.Weight {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.weights[shard]
}

// WatchAccess implements Registry. It sends only the grants table that the test has set before the call.
func (r *memRegistry) WatchAccess(ctx context.Context) <-chan registry.Access {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(chan registry.Access, 1)
	out <- registry.Access{Table: r.table}
	context.AfterFunc(ctx, func() { close(out) })
	return out
}

// Ledgers implements Registry.
func (r *memRegistry) Ledgers(_ context.Context, tenants []registry.TenantKey) (out []registry.Ledger, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return nil, errDown
	}
	for _, t := range tenants {
		l := r.ledgers[t.Name]
		for name := range r.view.Groups {
			if strings.HasPrefix(name, t.Prefix) {
				l.Groups++
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// AreRegistered implements Registry.
func (r *memRegistry) AreRegistered(_ context.Context, shards []string) (map[string]bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]bool{}
	for _, name := range shards {
		_, out[name] = r.view.Shards[name]
	}
	return out, nil
}

// PutLedger implements Registry.
func (r *memRegistry) PutLedger(_ context.Context, tenant string, value []byte, revision int64) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return false, errDown
	}
	if r.ledgers[tenant].Revision != revision {
		return false, nil
	}
	if r.ledgers == nil {
		r.ledgers = map[string]registry.Ledger{}
	}
	r.ledgers[tenant] = registry.Ledger{Value: value, Revision: revision + 1}
	return true, nil
}

// SigningKey implements Registry.
func (r *memRegistry) WatchDataViews(ctx context.Context) <-chan registry.DataViews {
	out := make(chan registry.DataViews, 1)
	go func() {
		defer close(out)
		out <- registry.DataViews{}
		<-ctx.Done()
	}()
	return out
}

func (r *memRegistry) DataView(context.Context, uuid.UUID) (placement.DataView, bool, error) {
	return placement.DataView{}, false, nil
}

func (r *memRegistry) PutDataView(_ context.Context, v placement.DataView) (placement.DataView, error) {
	return v, placement.ErrChanged
}

func (r *memRegistry) SigningKey(context.Context) ([]byte, error) { return make([]byte, 32), nil }

// Follow implements Registry. It returns complete views; the shard picks the groups that concern it.
func (r *memRegistry) Follow(ctx context.Context, _ placement.Progress, _ placement.Own) <-chan placement.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := make(chan placement.View, 1)
	v := r.view
	v.Own = true
	w <- v
	r.watchers[w] = true
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, w)
		close(w)
	})
	return w
}

func (r *memRegistry) PutGroup(_ context.Context, g placement.Group) (placement.Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down || r.refuse {
		return g, errDown
	}
	if r.view.Groups[g.Name].Revision != g.Revision {
		return g, placement.ErrChanged
	}
	r.puts++
	g.WritesFrom = placement.WritesAfter(r.view.Groups[g.Name], g)
	r.changeLocked(func(v *placement.View) {
		g.Revision = int64(v.Epoch)
		v.Groups[g.Name] = g
	})
	return g, nil
}

func (r *memRegistry) PutGroupAsLeader(ctx context.Context, g placement.Group) (placement.Group, error) {
	if there := r.now().Groups[g.Name]; g.Term < there.Term || g.ConfIndex < there.ConfIndex {
		return g, placement.ErrStaleLeader
	}
	return r.PutGroup(ctx, g)
}

func (r *memRegistry) DeleteGroup(_ context.Context, g placement.Group) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.down || r.refuse:
		return errDown
	case r.view.Groups[g.Name].Revision != g.Revision:
		return placement.ErrChanged
	}
	r.changeLocked(func(v *placement.View) {
		deleted := map[string]uuid.UUID{g.Name: g.UUID}
		maps.Copy(deleted, v.Deleted)
		delete(v.Groups, g.Name)
		v.Deleted = deleted
	})
	return nil
}

// fixture is a running shard with a client.
type fixture struct {
	t        testing.TB
	cfg      Config
	registry *memRegistry
	shard    *Shard
	conn     *grpc.ClientConn
	records  recordv1.RecordServiceClient
	admin    recordv1.AdminServiceClient
}

// handlerOf returns an HTTP handler for a shard that has no Host. It serves the same paths as the Host's handler.
func handlerOf(s *Shard) http.Handler {
	return host.NewHandler(s.cfg.Registry, s.logger, func() any { return s.Status() }, map[string]func() error{
		"/readyz": forHost{s}.Ready,
	})
}

var hash4 = placement.Routing{Mode: placement.Hash, Groups: 4}
var named = placement.Routing{Mode: placement.Named}

// start starts a shard with the given registry in a new folder. If change is not nil, it may change the configuration
// first.
func start(t testing.TB, registry *memRegistry, change func(*Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, registry: registry}
	f.cfg = Config{
		Name: "s1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Placement: registry, SegmentBytes: 1 << 20,
		ReserveBytes: 16 << 20, Compaction: Compaction{Off: true}, ReportInterval: 20 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn})), FS: vfs.OS{},
	}
	moveInto(t, &f.cfg)
	if change != nil {
		change(&f.cfg)
	}
	f.run()
	return f
}

// run starts the fixture's shard, and waits until the shard has loaded everything.
func (f *fixture) run() {
	f.t.Helper()
	f.start()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	select {
	case <-f.shard.Loaded():
	case <-ctx.Done():
		f.t.Fatalf("loading: %v", ctx.Err())
	}
}

// start starts the fixture's shard and connects to it.
func (f *fixture) start() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := Start(ctx, f.cfg)
	if err != nil {
		f.t.Fatalf("start: %v", err)
	}
	f.shard = s
	f.t.Cleanup(s.Kill)
	f.conn, err = connect(&f.cfg, s.Addr(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(64<<20)))
	must(f.t, err)
	conn := f.conn // the cleanup needs its own copy, because a later start replaces f.conn
	f.t.Cleanup(func() { _ = conn.Close() })
	f.records, f.admin = recordv1.NewRecordServiceClient(f.conn), recordv1.NewAdminServiceClient(f.conn)
}

// ready waits until the shard serves every group that has a target.
func (f *fixture) ready() *fixture {
	f.t.Helper()
	f.eventually("all groups serve", func() bool {
		for name := range f.registry.now().Targets {
			if _, err := (forCalls{f.shard}).Group(f.ctx(), name, 0); err != nil {
				return false
			}
		}
		return true
	})
	return f
}

// again restarts the shard on the same folder.
func (f *fixture) again(change func(*Config)) *fixture {
	f.t.Helper()
	_ = f.conn.Close()
	if change != nil {
		change(&f.cfg)
	}
	f.run()
	return f
}

func (f *fixture) stop() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := f.shard.Stop(ctx); err != nil {
		f.t.Fatalf("stop: %v", err)
	}
}

func (f *fixture) eventually(what string, is func() bool) {
	f.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("waited in vain: %s; status %+v", what, f.shard.Status())
		}
	}
}

// ctx returns a context for one call.
func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *fixture) put(id int64, data []byte) *recordv1.PutResponse {
	f.t.Helper()
	out, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: data})
	if err != nil {
		f.t.Fatalf("put %d: %v", id, err)
	}
	return out
}

func (f *fixture) delete(id int64) *recordv1.DeleteResponse {
	f.t.Helper()
	out, err := f.records.Delete(f.ctx(), &recordv1.DeleteRequest{Key: key(id)})
	if err != nil {
		f.t.Fatalf("delete %d: %v", id, err)
	}
	return out
}

func (f *fixture) get(id int64) *recordv1.Record {
	f.t.Helper()
	out, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
	if err != nil {
		f.t.Fatalf("get %d: %v", id, err)
	}
	return out.GetRecord()
}

// holds checks that the newest version of the record has exactly the given data.
func (f *fixture) holds(id int64, data []byte) {
	f.t.Helper()
	rec := f.get(id)
	if !bytes.Equal(rec.GetData(), data) || rec.GetSizeBytes() != int64(len(data)) ||
		rec.DataCrc32C == nil || rec.GetDataCrc32C() != crc32c.Of(data) {
		f.t.Errorf("record %d: %d bytes, size %d, crc %08x; want %d bytes", id, len(rec.GetData()), rec.GetSizeBytes(),
			rec.GetDataCrc32C(), len(data))
	}
}

// putEach puts the records 0 to n-1, each with size bytes of its own data.
func (f *fixture) putEach(n int64, size int) {
	f.t.Helper()
	for id := range n {
		f.put(id, data(id, size))
	}
}

// holdsAll checks that each of the records has exactly the given data.
func (f *fixture) holdsAll(there map[int64][]byte) {
	f.t.Helper()
	for id, d := range there {
		f.holds(id, d)
	}
}

func (f *fixture) absent(id int64) {
	f.t.Helper()
	_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
	want(f.t, err, codes.NotFound, reason.RecordNotFound)
}

func key(id int64) *recordv1.RecordKey { return &recordv1.RecordKey{Id: id} }

// idsOf returns n ids of records in one group, with Hash routing.
func idsOf(routing placement.Routing, group, n int) []int64 {
	var ids []int64
	for id := int64(0); len(ids) < n; id++ {
		if routing.GroupOf(id) == group {
			ids = append(ids, id)
		}
	}
	return ids
}

// want checks that err has the given code and reason. If the reason is empty and the code is InvalidArgument, err
// must also name the invalid fields.
func want(t testing.TB, err error, code codes.Code, reason string) {
	t.Helper()
	if got := status.Code(err); got != code || reasonOf(err) != reason {
		t.Errorf("error %v, code %v, reason %q; want code %v, reason %q", err, got, reasonOf(err), code, reason)
	}
	if code == codes.InvalidArgument && len(violationsOf(err)) == 0 {
		t.Errorf("error %v names no field", err)
	}
}

func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if info.GetDomain() != "sheaf.dev" {
				return "domain " + info.GetDomain()
			}
			return info.GetReason()
		}
	}
	return ""
}

func metadataOf(err error, key string) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetMetadata()[key]
		}
	}
	return ""
}

func violationsOf(err error) []string {
	var fields []string
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	return fields
}

func retryAfter(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// testWriter writes a shard's log to the test's log. The test fails if a replica made an illegal transition.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(b), "\n"))
	if strings.Contains(string(b), replicas.NoTransition) {
		w.t.Error("a replica went through a transition that must not be")
	}
	return len(b), nil
}

// data returns n bytes of test data, which begin with the record's id in decimal digits and "/". The data differ
// between records, and between positions in a record.
func data(id int64, n int) []byte {
	b := make([]byte, 0, n+64)
	b = append(strconv.AppendInt(b, id, 10), '/')
	for len(b) < n {
		at := len(b)
		b = binary.LittleEndian.AppendUint64(b, uint64(id))
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
	}
	return b[:n]
}

// newEtcd starts a real etcd and returns a store in it.
func newEtcd(t *testing.T) *registry.Store {
	t.Helper()
	server, err := etcdserver.Start(t.TempDir())
	must(t, err)
	t.Cleanup(server.Close)
	client, err := server.Client()
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	store, err := registry.NewStore(client, "test", nil)
	must(t, err)
	return store
}
