package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/etcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

const (
	shardName = "s1"
	patience  = 2 * time.Minute
)

var routing = placement.Routing{Mode: placement.Hash, Groups: 6}

// storeEtcd is the part of etcd that belongs to one store. Power cuts do not affect etcd, as if it ran on another
// machine.
type storeEtcd struct {
	client *clientv3.Client
	store  *registry.Store
	prefix string
}

var stores atomic.Int64

// newStoreEtcd connects to the etcd that all tests share. The result does not belong to a store yet, so the caller must
// call next().
func newStoreEtcd(t *testing.T) *storeEtcd {
	t.Helper()
	c, err := etcdtest.Shared(t).Client()
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &storeEtcd{client: c}
}

// next returns a storeEtcd for a new store. If the argument before is not nil, the store begins with this content,
// which another store had at an earlier moment. Otherwise the store is empty at first.
func (e *storeEtcd) next(ctx context.Context, before map[string]string) (*storeEtcd, error) {
	name := fmt.Sprintf("cut-%d", stores.Add(1))
	next := &storeEtcd{client: e.client, prefix: registry.PrefixDefault + "/" + name + "/"}
	var err error
	if next.store, err = registry.NewStore(e.client, name, nil); err != nil {
		return nil, err
	}
	puts := make([]clientv3.Op, 0, len(before))
	for key, value := range before {
		puts = append(puts, clientv3.OpPut(next.prefix+key, value))
	}
	_, err = e.client.Txn(ctx).Then(puts...).Commit()
	return next, err
}

// content returns the content of etcd, without registrations, because those expire when their process is gone.
func (e *storeEtcd) content(ctx context.Context) (map[string]string, error) {
	answer, err := e.client.Get(ctx, e.prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, kv := range answer.Kvs {
		if kv.Lease == 0 {
			out[strings.TrimPrefix(string(kv.Key), e.prefix)] = string(kv.Value)
		}
	}
	return out, nil
}

// deleteKeys deletes all keys of the store from etcd.
func (e *storeEtcd) deleteKeys(ctx context.Context) error {
	_, err := e.client.Delete(ctx, e.prefix, clientv3.WithPrefix())
	return err
}

// createStore creates the store, with all groups on its only shard.
func (e *storeEtcd) createStore(ctx context.Context) error {
	if _, err := e.store.InitMeta(ctx, placement.Meta{StoreUUID: uuid.New(), Routing: routing, Copies: 1}); err != nil {
		return err
	}
	targets := make([]placement.Target, 0, routing.Groups)
	for n := range routing.Groups {
		name := placement.GroupName(n)
		if _, _, err := e.store.CreateGroup(ctx, placement.NewGroup(routing, name, n)); err != nil {
			return err
		}
		targets = append(targets, placement.Target{Group: name, Shards: []string{shardName}})
	}
	return e.store.SetTargets(ctx, targets)
}

// runningShard is a shard that runs on a mounted disk, with a client.
type runningShard struct {
	shard   *shard.Shard
	client  *client.Client
	conn    *grpc.ClientConn
	records recordv1.RecordServiceClient // a client that uses conn
	metrics *prometheus.Registry
	log     *bytes.Buffer // warnings; read only after the shard has exited
}

// begin starts a shard on a mounted disk, and waits until all its groups serve, or until one of them reports an error.
func (e *storeEtcd) begin(ctx context.Context, point string, fs vfs.FS, residency group.Residency) (
	*runningShard, error,
) {
	l := &runningShard{log: new(bytes.Buffer), metrics: prometheus.NewRegistry()}
	var err error
	l.shard, err = shard.Start(ctx, shard.Config{
		Name: shardName, Dir: filepath.Join(point, "volume"), Listen: "127.0.0.1:0", Placement: e.store, FS: fs,
		Residency:    residency,
		SegmentBytes: 256 << 10, ReserveBytes: 8 << 20, ReportInterval: 100 * time.Millisecond, TrashDelay: time.Second,
		Compaction: shard.Compaction{SupersededShareMin: 0.2, SupersededBytesMin: 32 << 10, RateBytesPerSecond: -1,
			Interval: 50 * time.Millisecond},
		Registry: l.metrics,
		Logger:   slog.New(slog.NewTextHandler(l.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, l.log)
	}
	l.client, err = client.New(client.Config{Addresses: []string{l.shard.Addr()}, CallTimeout: patience})
	if err == nil {
		l.conn, err = grpc.NewClient(l.shard.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		l.records = recordv1.NewRecordServiceClient(l.conn)
	}
	if err == nil {
		err = l.serves(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, l.kill())
	}
	return l, nil
}

// counter returns the value of one of the shard's counters.
func (l *runningShard) counter(name string) (sum float64, err error) {
	families, err := l.metrics.Gather()
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum, err
}

// errDamaged means that a shard reports, after a start, that one of its groups is damaged.
var errDamaged = errors.New("a group is not whole")

func (l *runningShard) serves(ctx context.Context) error {
	select {
	case <-l.shard.Loaded():
	case <-ctx.Done():
		return fmt.Errorf("waiting until all is loaded: %w", ctx.Err())
	}
	for {
		serving := 0
		for _, g := range l.shard.Status().Groups {
			switch g.GetState().Word() {
			case "Damaged", "Failed":
				return fmt.Errorf("%w: group %s: %s: %s", errDamaged, g.Group, g.State, g.Message)
			case "Serving":
				serving++
			}
		}
		if serving == routing.Groups {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d groups serve: %w: status %+v", serving, routing.Groups, ctx.Err(), l.shard.Status())
		case <-time.After(time.Millisecond):
		}
	}
}

// allRecords returns all records that the shard holds. It scans every group. If a scan leaves out records, allRecords
// reads them one by one.
func (l *runningShard) allRecords(ctx context.Context) (map[int64]uint64, error) {
	found := map[int64]uint64{}
	for n := range routing.Groups {
		for r, err := range l.client.Scan(ctx, &client.ScanOptions{Group: placement.GroupName(n)}) {
			if err != nil {
				return nil, fmt.Errorf("scanning group %d: %w", n, err)
			}
			bytes := r.Data
			if !r.HasData {
				if bytes, err = l.download(ctx, r.Key); err != nil {
					return nil, fmt.Errorf("downloading record %d: %w", r.Key.ID, err)
				}
			}
			if _, twice := found[r.Key.ID]; twice {
				return nil, fmt.Errorf("record %d comes twice in a scan", r.Key.ID)
			}
			if found[r.Key.ID], err = valueOf(bytes); err != nil {
				return nil, fmt.Errorf("record %d: %w", r.Key.ID, err)
			}
		}
	}
	return found, nil
}

func (l *runningShard) download(ctx context.Context, key client.Key) ([]byte, error) {
	var b bytes.Buffer
	_, err := l.client.Download(ctx, key, &b, nil)
	return b.Bytes(), err
}

// kill terminates the shard as SIGKILL would.
func (l *runningShard) kill() error {
	err := errors.Join(l.client.Close(), l.conn.Close())
	l.shard.Kill()
	return err
}

// stop shuts the shard down cleanly.
func (l *runningShard) stop(ctx context.Context) error {
	return errors.Join(l.client.Close(), l.conn.Close(), l.shard.Stop(ctx))
}
