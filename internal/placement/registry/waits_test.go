package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// captured collects the messages of a logger.
type captured struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (c *captured) logger() *slog.Logger { return slog.New(slog.NewTextHandler(c, nil)) }

func (c *captured) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.Write(p)
}

func (c *captured) has(words string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Contains(c.b.String(), words)
}

// An old registration that nobody renews may nevertheless never expire, for example because etcd does not let leases
// expire. A shard must not wait for its expiry forever.
func TestARegistrationThatDoesNotRunOutIsNotWaitedForWithoutEnd(t *testing.T) {
	synctest.Test(t, aRegistrationThatDoesNotRunOutIsNotWaitedForWithoutEnd)
}

func aRegistrationThatDoesNotRunOutIsNotWaitedForWithoutEnd(t *testing.T) {
	client, ctx := ownEtcd(t)
	log := &captured{}
	defer func(before time.Duration) { goneMax = before }(goneMax)
	goneMax = time.Second
	store, err := NewStore(client, "s", log.logger())
	must.OK(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer l.Close()
	old := placement.Shard{Name: "a", Address: l.Addr().String(), VolumeUUID: uuid.New(), Generation: 1}
	value, err := json.Marshal(old)
	must.OK(t, err)
	lease, err := client.Grant(ctx, 1000)
	must.OK(t, err)
	if _, err := client.Put(ctx, store.prefix+shardsKey+"a", string(value), clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	next := old
	next.Address, next.Generation = "127.0.0.1:1", 2
	soon, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err = store.MayRegister(soon, next)
	if err == nil || soon.Err() != nil || !strings.Contains(err.Error(), "neither runs out nor is renewed") {
		t.Errorf("it is waited for: %v", err)
	}
	if !log.has("somebody listens at the address of an earlier process") {
		t.Error("the wait is not said")
	}
}

// slowEtcd behaves, in some calls, like an etcd whose disk stalls: requests for a lease time out, and a lease expires
// before it is used.
type slowEtcd struct {
	clientv3.Lease
	clientv3.KV
	grants, writes int // number of calls that still fail
}

func (s *slowEtcd) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	if s.grants--; s.grants >= 0 {
		return nil, rpctypes.ErrTimeout
	}
	return s.Lease.Grant(ctx, ttl)
}

func (s *slowEtcd) Txn(ctx context.Context) clientv3.Txn { return &slowTxn{s.KV.Txn(ctx), s, false} }

type slowTxn struct {
	clientv3.Txn
	etcd   *slowEtcd
	writes bool
}

func (t *slowTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.Txn, t.writes = t.Txn.If(cs...), true
	return t
}

func (t *slowTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *slowTxn) Commit() (*clientv3.TxnResponse, error) {
	if !t.writes {
		return t.Txn.Commit()
	}
	t.etcd.writes--
	switch t.etcd.writes {
	case 1:
		if _, err := t.Txn.Commit(); err != nil { // the write is applied, but its response is lost
			return nil, err
		}
		return nil, rpctypes.ErrTimeout
	case 0:
		return nil, rpctypes.ErrLeaseNotFound
	}
	return t.Txn.Commit()
}

// If etcd's disk stalls while a shard registers for the first time, the registration waits until the disk works
// again. The start of the shard must not fail.
func TestAStartOutlastsASlowEtcd(t *testing.T) { synctest.Test(t, aStartOutlastsASlowEtcd) }

func aStartOutlastsASlowEtcd(t *testing.T) {
	client, ctx := ownEtcd(t)
	store, err := NewStore(client, "s", nil)
	must.OK(t, err)
	slow := &slowEtcd{Lease: client.Lease, KV: client.KV, grants: 2, writes: 2}
	client.Lease, client.KV = slow, slow
	stop, err := store.RegisterShard(ctx, placement.Shard{Name: "a", Address: "127.0.0.1:1", VolumeUUID: uuid.New(),
		Generation: 1})
	must.OK(t, err)
	defer stop()
	if slow.grants >= 0 || slow.writes > 0 {
		t.Errorf("not all failures came: %d grants and %d writes are left", slow.grants, slow.writes)
	}
	st, err := store.list(ctx)
	if err != nil || len(st.shards) != 1 {
		t.Errorf("registered: %v %v", st, err)
	}
}

// If a watch cannot list the keys in etcd, it logs that once. It continues when a listing succeeds again.
func TestAWatchThatCannotListSaysSo(t *testing.T) { synctest.Test(t, aWatchThatCannotListSaysSo) }

func aWatchThatCannotListSaysSo(t *testing.T) {
	client, ctx := ownEtcd(t)
	log := &captured{}
	defer func(before time.Duration) { sayFailing = before }(sayFailing)
	sayFailing = 100 * time.Millisecond
	store, err := NewStore(client, "s", log.logger())
	must.OK(t, err)
	// No listing succeeds without meta, which is the only key that is required.
	if _, err := client.Put(ctx, store.prefix+metaKey, "{"); err != nil {
		t.Fatal(err)
	}
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	views := store.Watch(watched)
	for !log.has("etcd cannot be listed") || !log.has("/s/meta") {
		select {
		case view := <-views:
			t.Fatalf("a view was given: %+v", view)
		case <-ctx.Done():
			t.Fatal("nothing is said")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if _, err := client.Delete(ctx, store.prefix+metaKey); err != nil {
		t.Fatal(err)
	}
	if _, err := store.InitMeta(ctx, placement.Meta{StoreUUID: uuid.New(),
		Routing: placement.Routing{Mode: placement.Named}, Copies: 1}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-views:
	case <-ctx.Done():
		t.Fatal("it does not go on")
	}
	cancel()
	// The channel is closed when the watch has ended. The test must not end before that, because its end restores
	// sayFailing, which the watch reads.
	for range views {
	}
}
