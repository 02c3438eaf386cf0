package etcd_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/test/etcdtest"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// The tests in this table check the etcd behaviour on which Sheaf depends. Each row runs both on a real etcd and on
// the in-memory etcd that other tests use, so that any difference between the two is found. If another test reveals a
// difference, a row is added here.

// row describes one behaviour of etcd, together with the code that checks it.
type row struct {
	name string
	run  func(e *underTest)
	// waits means that the row has to wait in real time if it runs on a real etcd. Such rows run in parallel. Therefore
	// they must not read a revision that another row may compact, and must not assume that they are the only writers.
	waits bool
}

var contract = slices.Concat(rowsOfKeys, rowsOfTransactions, rowsOfLeases, rowsOfWatches, rowsOfElections,
	rowsOfOutages)

// underTest is an etcd and one client of that etcd.
type underTest struct {
	*testing.T
	ctx     context.Context
	client  *clientv3.Client
	connect func() *clientv3.Client // creates another client of the etcd
	prefix  string                  // prefix that all keys of this row share
	server  server
}

// server performs operations on an etcd from the outside, such as an outage or the restore of a backup.
type server interface {
	Away()
	Back()
	Backup() (restore func())
}

func TestContractOnEtcd(t *testing.T) {
	own := &ownServer{Own: etcdtest.NewOwn(t)}
	connect := func(t *testing.T) *clientv3.Client {
		return dial(t, etcd.ClientConfig{Endpoints: []string{own.Address}})
	}
	for _, r := range contract {
		t.Run(r.name, func(t *testing.T) {
			if r.waits {
				t.Parallel()
			}
			e := &underTest{T: t, ctx: testContext(t), client: connect(t), prefix: "/" + t.Name() + "/", server: own}
			e.connect = func() *clientv3.Client { return connect(t) }
			r.run(e)
		})
	}
}

func TestContractInMemory(t *testing.T) {
	for _, r := range contract {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := memetcdtest.New(t)
				e := &underTest{T: t, ctx: testContext(t), client: memory.Client(t), prefix: "/row/", server: memoryServer{memory}}
				e.connect = func() *clientv3.Client { return memory.Client(t) }
				r.run(e)
			})
		})
	}
}

type ownServer struct{ *etcdtest.Own }

func (o *ownServer) Away() { o.Stop() }
func (o *ownServer) Back() { o.Start() }

func (o *ownServer) Backup() (restore func()) {
	backup := o.Own.Backup()
	return func() {
		o.Stop()
		o.Restore(backup)
	}
}

type memoryServer struct{ *memetcdtest.Server }

func (m memoryServer) Backup() (restore func()) {
	backup := m.Server.Backup()
	return func() { m.Restore(backup) }
}

// put writes a key of this row.
func (e *underTest) put(name, value string, options ...clientv3.OpOption) *clientv3.PutResponse {
	e.Helper()
	answer, err := e.client.Put(e.ctx, e.prefix+name, value, options...)
	if err != nil {
		e.Fatalf("put %s: %v", name, err)
	}
	return answer
}

func (e *underTest) get(name string, options ...clientv3.OpOption) *clientv3.GetResponse {
	e.Helper()
	answer, err := e.client.Get(e.ctx, e.prefix+name, options...)
	if err != nil {
		e.Fatalf("get %s: %v", name, err)
	}
	return answer
}

func (e *underTest) remove(name string, options ...clientv3.OpOption) *clientv3.DeleteResponse {
	e.Helper()
	answer, err := e.client.Delete(e.ctx, e.prefix+name, options...)
	if err != nil {
		e.Fatalf("delete %s: %v", name, err)
	}
	return answer
}

// txn commits a transaction that has no conditions.
func (e *underTest) txn(ops ...clientv3.Op) *clientv3.TxnResponse {
	e.Helper()
	answer, err := e.client.Txn(e.ctx).Then(ops...).Commit()
	if err != nil {
		e.Fatalf("transaction: %v", err)
	}
	return answer
}

func (e *underTest) opPut(name, value string, options ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpPut(e.prefix+name, value, options...)
}

// revision returns the revision of the newest write to etcd.
func (e *underTest) revision() int64 {
	e.Helper()
	return e.get("nothing").Header.Revision
}

func (e *underTest) isError(what string, got, want error) {
	e.Helper()
	if !errors.Is(got, want) {
		e.Errorf("%s: error %v, want %v", what, got, want)
	}
}

func is[T comparable](e *underTest, what string, got, want T) {
	e.Helper()
	if got != want {
		e.Errorf("%s: %v, want %v", what, got, want)
	}
}

// found lists the names and values of the keys in a response, as "name=value name=value".
func (e *underTest) found(answer *clientv3.GetResponse) string {
	var words []string
	for _, kv := range answer.Kvs {
		words = append(words, strings.TrimPrefix(string(kv.Key), e.prefix)+"="+string(kv.Value))
	}
	return strings.Join(words, " ")
}

// soon waits until condition returns true.
func (e *underTest) soon(what string, condition func() bool) {
	e.Helper()
	for ; !condition(); time.Sleep(10 * time.Millisecond) {
		if e.ctx.Err() != nil {
			e.Fatalf("%s: not within the time of the test", what)
		}
	}
}

var rowsOfOutages = []row{
	{name: "an etcd that was away goes on", run: func(e *underTest) {
		e.put("a", "1")
		granted, err := e.client.Grant(e.ctx, 60)
		must.OK(e, err)
		e.put("leased", "1", clientv3.WithLease(granted.ID))
		renewals, err := e.client.KeepAlive(e.ctx, granted.ID)
		must.OK(e, err)
		<-renewals
		watched := e.client.Watch(e.ctx, e.prefix+"a")
		e.put("a", "2")
		is(e, "events before", len((<-watched).Events), 1)
		before := e.get("a")

		e.server.Away()
		brief, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
		defer cancel()
		_, err = e.client.Put(brief, e.prefix+"a", "lost")
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded &&
			!errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("a write to an etcd that is away: %v", err)
		}
		e.server.Back()

		var after *clientv3.PutResponse
		e.soon("a write after", func() bool {
			after, err = e.client.Put(e.ctx, e.prefix+"a", "3")
			return err == nil
		})
		is(e, "the cluster", after.Header.ClusterId, before.Header.ClusterId)
		is(e, "the revision", after.Header.Revision, before.Header.Revision+1)
		change := <-watched
		if len(change.Events) != 1 || string(change.Events[0].Kv.Value) != "3" {
			e.Errorf("the watch went on with %+v, %v", change.Events, change.Err())
		}
		is(e, "the key under a lease", e.found(e.get("leased")), "leased=1")
		select {
		case _, open := <-renewals:
			is(e, "the lease is renewed", open, true)
		default:
		}
	}},
	{name: "an etcd that is set back has the earlier revision", run: func(e *underTest) {
		e.put("a", "1")
		first := e.get("a")
		restore := e.server.Backup()
		e.soon("writes after the backup", func() bool {
			_, err := e.client.Put(e.ctx, e.prefix+"a", "2")
			return err == nil
		})
		restore()
		var again *clientv3.GetResponse
		e.soon("a read after", func() (ok bool) {
			var err error
			again, err = e.client.Get(e.ctx, e.prefix+"a")
			return err == nil
		})
		is(e, "the key", e.found(again), "a=1")
		is(e, "the revision", again.Header.Revision, first.Header.Revision)
		is(e, "the cluster", again.Header.ClusterId, first.Header.ClusterId)
		is(e, "the next revision", e.put("a", "3").Header.Revision, first.Header.Revision+1)
	}},
}
