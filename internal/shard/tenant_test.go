package shard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/quota"
)

// withTenants adds a table with the given tenants to the store.
func withTenants(t testing.TB, r *memRegistry, tenants ...access.Tenant) *memRegistry {
	t.Helper()
	text, err := (&access.Table{Version: 1, Grants: []access.Grant{}, Tenants: tenants}).Encode()
	must(t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.table = text
	return r
}

// limited waits until the groups have tenants, so that quotas apply.
func (f *fixture) limited(groups ...string) *fixture {
	f.t.Helper()
	f.eventually("groups have a tenant", func() bool {
		for _, name := range groups {
			if sv := f.shard.replicas.Routes().ByName[name].Served(); sv == nil || sv.Tenant() == nil {
				return false
			}
		}
		return true
	})
	return f
}

func (f *fixture) putIn(ctx context.Context, group string, id int64, data []byte) error {
	_, err := f.records.Put(ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: group, Id: id}, Data: data})
	return err
}

// putDecided retries putIn until etcd has granted or refused quota, because on a slow machine that decision may take
// longer than a put waits.
func (f *fixture) putDecided(group string, id int64, data []byte) (err error) {
	f.t.Helper()
	f.eventually("etcd says whether there is room", func() bool {
		err = f.putIn(f.ctx(), group, id, data)
		return retryAfter(err) == 0
	})
	return err
}

// isQuota checks that err is a refusal because of the given quota and limit.
func isQuota(t testing.TB, err error, quota access.Quota, limit int64, retry bool) {
	t.Helper()
	want(t, err, codes.ResourceExhausted, reason.QuotaExceeded)
	for key, value := range map[string]string{"tenant": "team-a", "quota": string(quota),
		"limit": strconv.FormatInt(limit, 10)} {
		if got := metadataOf(err, key); got != value {
			t.Errorf("%s is %q, and must be %q: %v", key, got, value, err)
		}
	}
	if got := retryAfter(err) > 0; got != retry {
		t.Errorf("it says when to try again: %v, and must: %v: %v", got, retry, err)
	}
}

func teamA(quotas access.Quotas) access.Tenant {
	return access.Tenant{Name: "team-a", Prefix: "a-", Quotas: quotas}
}

// Stored data stays within its quota, however many callers put concurrently. Refused puts leave nothing on the disk,
// and other tenants, gets and deletes continue.
func TestAStoredQuotaHolds(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		const limit, size = 400 << 10, 10 << 10
		f := start(t, withTenants(t, newRegistry(named, "s1", "a-1", "a-2", "b-1"), teamA(access.Quotas{StoredBytes: limit})),
			nil).ready().limited("a-1", "a-2")
		var wait sync.WaitGroup
		for w := range 8 {
			wait.Go(func() {
				for n := range 20 {
					group := []string{"a-1", "a-2"}[n%2]
					switch err := f.putIn(f.ctx(), group, int64(100*w+n), make([]byte, size)); {
					case err == nil:
					case retryAfter(err) > 0: // the shard has not yet read from etcd how much it may store
					default:
						isQuota(t, err, access.StoredBytes, limit, false)
					}
				}
			})
		}
		wait.Wait()
		more := int64(1_000_000)
		f.eventually("the quota is used up", func() bool {
			more++
			err := f.putIn(f.ctx(), "a-1", more, make([]byte, size))
			return err != nil && retryAfter(err) == 0
		})
		held := int64(0)
		for _, name := range []string{"a-1", "a-2"} {
			held += f.shard.replicas.Routes().ByName[name].Served().Log().Stats().StoredBytes
		}
		if held > limit+2*size || held < limit-2*size { // stored bytes include some that belong to no record
			t.Errorf("%d bytes are stored, of %d", held, limit)
		}
		before := filesBelow(t, f.cfg.FS, filepath.Join(f.cfg.Dir, "groups"))
		if len(before) == 0 {
			t.Fatal("there are no files of groups")
		}
		isQuota(t, f.putDecided("a-1", 900_000, make([]byte, size)), access.StoredBytes, limit, false)
		up, err := f.records.Upload(f.ctx())
		must(t, err)
		big := int64(3 << 20)
		_ = up.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{
			Key: &recordv1.RecordKey{Group: "a-1", Id: 2_000_000}, SizeBytes: &big}}})
		_, err = up.CloseAndRecv()
		isQuota(t, err, access.StoredBytes, limit, false)
		batch, err := f.records.BatchPut(f.ctx())
		must(t, err)
		var results *recordv1.BatchPutResponse
		var refused error
		f.eventually("etcd says that there is no room", func() bool {
			must(t, batch.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{
				{Key: &recordv1.RecordKey{Group: "a-1", Id: 3_000_000}, Data: make([]byte, size)},
				{Key: &recordv1.RecordKey{Group: "b-1", Id: 1}, Data: []byte("b")},
			}}))
			if results, err = batch.Recv(); err != nil {
				t.Fatal(err)
			}
			refused = status.FromProto(results.GetResults()[0].GetStatus()).Err()
			return retryAfter(refused) == 0
		})
		isQuota(t, refused, access.StoredBytes, limit, false)
		if results.GetResults()[1].GetPut() == nil {
			t.Errorf("a put of another tenant in the same message: %v", results.GetResults()[1].GetStatus())
		}
		for path, size := range filesBelow(t, f.cfg.FS, filepath.Join(f.cfg.Dir, "groups")) {
			if name := f.shard.replicas.Routes().ByName["b-1"].UUID.String(); size != before[path] &&
				!bytes.Contains([]byte(path), []byte(name)) {
				t.Errorf("%s had %d bytes before puts that were refused, and has %d", path, before[path], size)
			}
		}
		var id int64
		for id = 0; ; id++ { // finds a record that is stored
			if _, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "a-1",
				Id: id}}); err == nil {
				break
			} else if status.Code(err) != codes.NotFound {
				t.Fatal(err)
			}
		}
		for n := id; n < id+800; n++ {
			if _, err := f.records.Delete(f.ctx(), &recordv1.DeleteRequest{Key: &recordv1.RecordKey{Group: "a-1",
				Id: n}}); err != nil {
				t.Fatal(err)
			}
		}
		f.eventually("what is deleted makes room", func() bool {
			return f.putIn(f.ctx(), "a-2", 4_000_000, make([]byte, size)) == nil
		})
	})
}

func TestAQuotaOfRecords(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, withTenants(t, newRegistry(named, "s1", "a-1"), teamA(access.Quotas{Records: 3})), nil).ready().
			limited("a-1")
		for id := range int64(3) {
			must(t, f.putDecided("a-1", id, []byte("x")))
		}
		isQuota(t, f.putDecided("a-1", 3, []byte("x")), access.Records, 3, false)
		if err := f.putDecided("a-1", 1, []byte("another version")); err != nil {
			t.Errorf("a record that is replaced: %v", err)
		}
	})
}

// A call that exceeds the rate is refused with a retry delay, calls from another tenant continue, and streams wait.
func TestRatesOfATenant(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		const limit = 50
		f := start(t, withTenants(t, newRegistry(named, "s1", "a-1", "b-1"), teamA(access.Quotas{CallsPerSecond: limit})),
			nil).ready().limited("a-1")
		for _, group := range []string{"a-1", "b-1"} {
			must(t, f.putIn(f.ctx(), group, 1, []byte("x")))
		}
		get := func(group string) error { // gets exceed the rate even on a slow disk
			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: group, Id: 1}})
			return err
		}
		began, let, refused := time.Now(), 0, 0
		for refused < limit {
			err := get("a-1")
			if err == nil {
				let++
				continue
			}
			isQuota(t, err, access.CallsPerSecond, limit, true)
			refused++
			if err := get("b-1"); err != nil {
				t.Fatalf("another tenant: %v", err)
			}
		}
		if most := limit*time.Since(began).Seconds()*1.1 + limit/2 + 1; float64(let) > most {
			t.Errorf("%d calls were let in, and %.0f may be", let, most)
		}
		batch, err := f.records.BatchPut(f.ctx())
		must(t, err)
		for n := range int64(5) {
			if err := batch.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: &recordv1.RecordKey{Group: "a-1",
				Id: n}, Data: []byte("x")}}}); err != nil {
				t.Fatal(err)
			}
			out, err := batch.Recv()
			if err != nil || out.GetResults()[0].GetPut() == nil {
				t.Fatalf("a message of a stream must wait: %v, %v", out, err)
			}
		}
	})
}

// If a tenant ignores refusals, its further calls wait for their turn, and such a call fails when the shard stops.
func TestWhoGoesOnIsAnsweredLate(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, withTenants(t, newRegistry(named, "s1", "a-1", "b-1"), teamA(access.Quotas{CallsPerSecond: 1})), nil).
			ready().limited("a-1")
		tenant := f.shard.replicas.Routes().ByName["a-1"].Served().Tenant()
		for _, group := range []string{"a-1", "b-1"} {
			must(t, f.putIn(f.ctx(), group, 1, []byte("x")))
		}
		get := func(group string) error {
			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: group, Id: 1}})
			return err
		}
		for tenant.Usage().Waited[access.CallsPerSecond] == 0 {
			if err := get("a-1"); err != nil {
				isQuota(t, err, access.CallsPerSecond, 1, true)
			}
		}
		ended := make(chan error, 1)
		waited := tenant.Usage().Waited[access.CallsPerSecond]
		go func() {
			var err error
			for err == nil || status.Code(err) == codes.ResourceExhausted {
				err = get("a-1")
			}
			ended <- err
		}()
		f.eventually("a call is kept", func() bool { return tenant.Usage().Waited[access.CallsPerSecond] > waited })
		if err := get("b-1"); err != nil {
			t.Errorf("a call of another tenant: %v", err)
		}
		f.stop()
		if err := <-ended; status.Code(err) != codes.Unavailable {
			t.Errorf("a call that is kept while the shard stops ends with %v", err)
		}
	})
}

// Every call that reads or writes data is counted: Put, Get, Upload, Download, BatchPut, BatchGet, Scan, Watch,
// ListVersions, PlanScan. Streams wait for their turn if the quota of bytes is used up, and are aborted when the shard
// stops.
func TestEveryCallIsCounted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		const limit, size = 8 << 20, 64 << 10
		f := start(t, withTenants(t, newRegistry(named, "s1", "a-1"), teamA(access.Quotas{BytesPerSecond: limit})), nil).
			ready().limited("a-1")
		tenant := f.shard.replicas.Routes().ByName["a-1"].Served().Tenant()
		a := func(id int64) *recordv1.RecordKey { return &recordv1.RecordKey{Group: "a-1", Id: id} }
		drain := func(recv func() error) error {
			for {
				if err := recv(); err != nil {
					if errors.Is(err, io.EOF) {
						return nil
					}
					return err
				}
			}
		}
		for _, c := range []struct {
			name  string
			bytes int64
			do    func() error
		}{
			{"Put", size, func() error { return f.putIn(f.ctx(), "a-1", 1, make([]byte, size)) }},
			{"Get", size, func() error {
				_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: a(1)})
				return err
			}},
			{"Upload", size, func() error {
				up, err := f.records.Upload(f.ctx())
				if err != nil {
					return err
				}
				_ = up.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: a(
					2)}}})
				_ = up.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: make([]byte, size)}})
				_, err = up.CloseAndRecv()
				return err
			}},
			{"Download", size, func() error {
				down, err := f.records.Download(f.ctx(), &recordv1.DownloadRequest{Key: a(2)})
				if err != nil {
					return err
				}
				return drain(func() error { _, err := down.Recv(); return err })
			}},
			{"BatchPut", size, func() error {
				batch, err := f.records.BatchPut(f.ctx())
				if err != nil {
					return err
				}
				_ = batch.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: a(3), Data: make([]byte, size)}}})
				_ = batch.CloseSend()
				return drain(func() error { _, err := batch.Recv(); return err })
			}},
			{"BatchGet", 3 * size, func() error {
				batch, err := f.records.BatchGet(f.ctx(), &recordv1.BatchGetRequest{Gets: []*recordv1.GetRequest{{Key: a(1)},
					{Key: a(2)}, {Key: a(3)}}})
				if err != nil {
					return err
				}
				return drain(func() error { _, err := batch.Recv(); return err })
			}},
			{"Scan", 3 * size, func() error {
				scan, err := f.records.Scan(f.ctx(), &recordv1.ScanRequest{Group: "a-1"})
				if err != nil {
					return err
				}
				return drain(func() error { _, err := scan.Recv(); return err })
			}},
			{"DoGet", 3 * size, func() error {
				rows, err := f.flightGet(`{"get": {"group": "a-1"}}`, 1, 2, 3)
				if err == nil && len(rows) != 3 {
					err = fmt.Errorf("%d rows", len(rows))
				}
				return err
			}},
			{"DoGet of a ticket", 3 * size, func() error {
				info, err := flight.NewFlightServiceClient(f.conn).GetFlightInfo(f.ctx(), &flight.FlightDescriptor{
					Type: flight.FlightDescriptor_CMD, Cmd: []byte(`{"scan": {"groups": ["a-1"]}}`)})
				if err != nil {
					return err
				}
				_, err = f.flightRead(info.GetEndpoint()[0].GetTicket())
				return err
			}},
			{"Delete", 0, func() error {
				_, err := f.records.Delete(f.ctx(), &recordv1.DeleteRequest{Key: a(3)})
				return err
			}},
			{"ListVersions", 0, func() error {
				_, err := f.records.ListVersions(f.ctx(), &recordv1.ListVersionsRequest{Key: a(1)})
				return err
			}},
			{"PlanScan", 0, func() error {
				_, err := f.records.PlanScan(f.ctx(), &recordv1.PlanScanRequest{Groups: []string{"a-1"}})
				return err
			}},
			{"Watch", 2 * size, func() error {
				ctx, cancel := context.WithCancel(f.ctx())
				defer cancel()
				watch, err := f.records.Watch(ctx, &recordv1.WatchRequest{Group: "a-1"})
				if err != nil {
					return err
				}
				if _, err := watch.Recv(); err != nil {
					return err
				}
				if err := f.putIn(f.ctx(), "a-1", 4, make([]byte, size)); err != nil {
					return err
				}
				_, err = watch.Recv()
				return err
			}},
		} {
			before := tenant.Usage()
			if err := c.do(); err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			var now quota.Usage
			f.eventually(c.name+" has ended", func() bool {
				now = tenant.Usage()
				return now.Calls > before.Calls && now.Bytes >= before.Bytes+c.bytes && now.Open == 0
			})
			if now.Bytes != before.Bytes+c.bytes {
				t.Errorf("%s has moved %d bytes, and must have moved %d", c.name, now.Bytes-before.Bytes, c.bytes)
			}
		}
		// The tenant's debt now takes an hour to pay off.
		tenant.Moved(3600 * limit)
		scan, err := f.records.Scan(f.ctx(), &recordv1.ScanRequest{Group: "a-1"})
		if err == nil {
			_, err = scan.Recv()
		}
		isQuota(t, err, access.BytesPerSecond, limit, true)
		batch, err := f.records.BatchPut(f.ctx())
		must(t, err)
		must(t, batch.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: a(9),
			Data: []byte("x")}}}))
		f.eventually("a message waits", func() bool { return tenant.Usage().Waited[access.BytesPerSecond] > 0 })
		f.stop()
		if _, err := batch.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("a stream that waits when the shard stops: %v", err)
		}
	})
}

// putAnywhere puts a record at the shard that leads its group. It returns that shard's error.
func (c *cluster) putAnywhere(group string, id int64, data []byte) (err error) {
	c.t.Helper()
	c.eventually("a leader answers", func() bool {
		for _, f := range c.shards {
			if err = f.putIn(f.ctx(), group, id, data); err == nil || reasonOf(err) == reason.QuotaExceeded {
				return true
			}
		}
		return false
	})
	return err
}

// leaderOf returns the name of the shard that leads a group.
func (c *cluster) leaderOf(group string) (name string) {
	c.t.Helper()
	c.eventually("the group has a leader", func() bool {
		for shard, f := range c.shards {
			if g := f.shard.replicas.Routes().ByName[group]; g != nil {
				if sv := g.Served(); sv != nil && sv.Replica().Status().Leader {
					name = shard
					return true
				}
			}
		}
		return false
	})
	return name
}

// The quota belongs to the tenant, and does not depend on which shard leads its groups.
func TestAQuotaStaysWhenTheLeadMoves(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		const limit = 300 << 10
		registry := withTenants(t, newRegistry(named, "a", "a-1", "a-2"), teamA(access.Quotas{StoredBytes: limit}))
		registry.view.Meta.Copies = 3
		for _, name := range []string{"a-1", "a-2"} {
			registry.view.Targets[name] = placement.Target{Group: name, Shards: abc}
		}
		c := &cluster{t: t, registry: registry, shards: map[string]*fixture{}, stopped: map[string]*fixture{}}
		for _, name := range abc {
			c.add(name, nil)
		}
		c.settled(slices.Clone(abc)...)
		fill := func() (stored int) {
			for id := int64(0); ; id++ {
				err := c.putAnywhere("a-1", id, make([]byte, 10<<10))
				if err != nil && retryAfter(err) == 0 {
					isQuota(t, err, access.StoredBytes, limit, false)
					return stored
				}
				if err == nil {
					stored++
				}
			}
		}
		if n := fill(); n == 0 || n > limit/(10<<10) {
			t.Fatalf("%d records were stored", n)
		}
		leader := c.leaderOf("a-1")
		c.kill(leader)
		if n := fill(); n > limit/(10<<10) {
			t.Errorf("%d records were stored beyond a quota that is used up", n)
		}
		held := int64(0)
		for _, name := range []string{"a-1", "a-2"} {
			held += c.shards[c.leaderOf(name)].shard.replicas.Routes().ByName[name].Served().Log().Stats().StoredBytes
		}
		if held > limit+20<<10 {
			t.Errorf("%d bytes are stored, of %d", held, limit)
		}
		var ledger struct {
			Shards map[string]struct{ Used struct{ Bytes int64 } }
		}
		registry.mu.Lock()
		defer registry.mu.Unlock()
		if err := json.Unmarshal(registry.ledgers["team-a"].Value, &ledger); err != nil || len(ledger.Shards) == 0 {
			t.Errorf("the ledger: %+v, %v", ledger, err)
		}
	})
}
