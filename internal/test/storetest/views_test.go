package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	arrowflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/batchv1"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/must"
)

// viewed is a store, with what its views must contain.
type viewed struct {
	*testing.T
	*Server
	ctx    context.Context
	c      *client.Client
	conns  map[string]*grpc.ClientConn
	now    map[int64][]byte // the newest data of each record
	groups int
}

func newViewed(t *testing.T, cfg Config) *viewed {
	v := &viewed{T: t, Server: StartWith(t, cfg), ctx: t.Context(), conns: map[string]*grpc.ClientConn{},
		now: map[int64][]byte{}, groups: 2}
	v.c = v.Client(t, client.Config{})
	return v
}

func (v *viewed) conn(address string) *grpc.ClientConn {
	v.Helper()
	if v.conns[address] == nil {
		conn, err := grpc.NewClient(bubbletest.Target(address), v.Network.Dialer(), grpc.WithNoProxy(),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		must.OK(v, err)
		v.Cleanup(func() { _ = conn.Close() })
		v.conns[address] = conn
	}
	return v.conns[address]
}

func (v *viewed) views() batchv1.ViewServiceClient {
	return batchv1.NewViewServiceClient(v.conn(v.Addr()))
}

func (v *viewed) open(groups ...string) string {
	v.Helper()
	out, err := v.views().OpenView(v.ctx, &batchv1.OpenViewRequest{Groups: groups})
	must.OK(v, err)
	return out.GetView().GetId()
}

// write puts and deletes n records, beginning with one id.
func (v *viewed) write(first, n int64, round int) {
	v.Helper()
	for id := first; id < first+n; id++ {
		if id%7 == int64(round) {
			_, err := v.c.Delete(v.ctx, client.Key{ID: id}, nil)
			must.OK(v, err)
			delete(v.now, id)
			continue
		}
		data := fmt.Appendf(nil, "record %d of round %d %s", id, round, bytes.Repeat([]byte("x"), 2000))
		_, err := v.c.Put(v.ctx, client.Key{ID: id}, data, nil)
		must.OK(v, err)
		v.now[id] = data
	}
}

func (v *viewed) model() map[int64][]byte {
	out := map[int64][]byte{}
	for id, data := range v.now {
		out[id] = data
	}
	return out
}

// scanned reads splits of a view at one address.
func (v *viewed) scanned(address, view string, splits []*recordv1.ScanSplit) map[int64][]byte {
	v.Helper()
	out := map[int64][]byte{}
	for _, split := range splits {
		stream, err := recordv1.NewRecordServiceClient(v.conn(address)).Scan(v.ctx, &recordv1.ScanRequest{
			Split: split.GetSplit()})
		must.OK(v, err)
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				v.Fatalf("scan of view %s at %s: %v", view, address, err)
			}
			for _, r := range m.GetRecords() {
				if out[r.GetKey().GetId()] != nil {
					v.Errorf("record %d came twice", r.GetKey().GetId())
				}
				out[r.GetKey().GetId()] = r.GetData()
			}
		}
	}
	return out
}

// holds checks that a view has exactly the records of the model, at one address.
func (v *viewed) holds(address, view string, splits []*recordv1.ScanSplit, model map[int64][]byte) {
	v.Helper()
	got := v.scanned(address, view, splits)
	gets := &recordv1.BatchGetRequest{}
	for id := range int64(60) {
		if !bytes.Equal(got[id], model[id]) {
			v.Errorf("%s: the scan has %.30q as record %d, want %.30q", address, got[id], id, model[id])
		}
		gets.Gets = append(gets.Gets, &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: id}, View: view})
	}
	stream, err := recordv1.NewRecordServiceClient(v.conn(address)).BatchGet(v.ctx, gets)
	must.OK(v, err)
	n := 0
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must.OK(v, err)
		for _, r := range m.GetResults() {
			n++
			id := int64(r.GetPosition())
			want := codes.OK
			if model[id] == nil {
				want = codes.NotFound
			}
			if code := codes.Code(r.GetStatus().GetCode()); code != want || !bytes.Equal(r.GetRecord().GetData(), model[id]) {
				v.Errorf("%s: get of record %d: %.30q, %v, want %.30q", address, id, r.GetRecord().GetData(), r.GetStatus(),
					model[id])
			}
		}
	}
	if n != 60 {
		v.Errorf("%s: %d of 60 reads were answered", address, n)
	}
	one, err := recordv1.NewRecordServiceClient(v.conn(address)).Get(v.ctx, &recordv1.GetRequest{
		Key: &recordv1.RecordKey{Id: 5}, View: view})
	if err != nil || !bytes.Equal(one.GetRecord().GetData(), model[5]) {
		v.Errorf("%s: Get: %.30q, %v", address, one.GetRecord().GetData(), err)
	}
}

func (v *viewed) plan(address, view string) []*recordv1.ScanSplit {
	v.Helper()
	out, err := recordv1.NewRecordServiceClient(v.conn(address)).PlanScan(v.ctx, &recordv1.PlanScanRequest{View: view})
	must.OK(v, err)
	return out.GetSplits()
}

// compact drops all that no hold keeps, on every shard that runs.
func (v *viewed) compact(shards ...int) {
	v.Helper()
	time.Sleep(11 * time.Minute) // while a hold is set, versions are kept for 10 minutes anyway
	for _, n := range shards {
		for g := range v.groups {
			_, err := recordv1.NewAdminServiceClient(v.conn(v.ShardAddr(n))).Compact(v.ctx, &recordv1.CompactRequest{
				Group: fmt.Sprint(g), All: true})
			must.OK(v, err)
		}
	}
}

// expired checks that an error says that a view has expired, and names the view.
func (v *viewed) expired(err error, view string) {
	v.Helper()
	if status.Code(err) != codes.OutOfRange || reason.Of(err) != reason.ViewExpired ||
		!bytes.Contains([]byte(err.Error()), []byte(view)) {
		v.Errorf("%v, want VIEW_EXPIRED with the view's name", err)
	}
}

// flights checks that Arrow Flight reads a view at the gateway and at each shard as it was.
func (v *viewed) flights(view string, model map[int64][]byte) {
	v.Helper()
	for _, address := range []string{v.Addr(), v.ShardAddr(0), v.ShardAddr(1), v.ShardAddr(2)} {
		client := flight.NewFlightServiceClient(v.conn(address))
		rows := func(ticket []byte) map[int64][]byte {
			stream, err := client.DoGet(v.ctx, &flight.Ticket{Ticket: ticket})
			must.OK(v, err)
			reader, err := arrowflight.NewRecordReader(stream)
			must.OK(v, err)
			defer reader.Release()
			out := map[int64][]byte{}
			for reader.Next() {
				batch := reader.RecordBatch()
				for i := range int(batch.NumRows()) {
					if data := batch.Column(9).(*array.LargeBinary); !data.IsNull(i) {
						out[batch.Column(1).(*array.Int64).Value(i)] = bytes.Clone(data.Value(i))
					}
				}
			}
			must.OK(v, reader.Err())
			return out
		}
		ticket := []byte(`{"get": {"view": "` + view + `"}}`)
		for id := range int64(60) {
			ticket = binary.LittleEndian.AppendUint64(ticket, uint64(id))
		}
		if got := rows(ticket); !maps.EqualFunc(got, model, bytes.Equal) {
			v.Errorf("%s: DoGet of ids has %d records, want %d", address, len(got), len(model))
		}
		info, err := client.GetFlightInfo(v.ctx, &flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD,
			Cmd: []byte(`{"scan": {"view": "` + view + `"}}`)})
		must.OK(v, err)
		got := map[int64][]byte{}
		for _, e := range info.GetEndpoint() {
			maps.Copy(got, rows(e.GetTicket().GetTicket()))
		}
		if !maps.EqualFunc(got, model, bytes.Equal) {
			v.Errorf("%s: a scan by Flight has %d records, want %d", address, len(got), len(model))
		}
	}
}

// Every copy answers for a view, over writes, compactions, a failover and restarts.
func TestEveryCopyAnswersForAView(t *testing.T) { synctest.Test(t, everyCopyAnswersForAView) }

func everyCopyAnswersForAView(t *testing.T) {
	v := newViewed(t, Config{Groups: 2, Shards: 3, Copies: 3})
	v.write(0, 50, 0)
	v.write(0, 50, 1)
	first := v.open()
	model := v.model()
	v.write(5, 55, 2)
	v.write(0, 30, 3)
	second := v.open()
	later := v.model()
	v.write(0, 60, 4)
	splits, laterSplits := v.plan(v.Addr(), first), v.plan(v.Addr(), second)
	for _, split := range splits {
		if len(split.GetAddresses()) != 3 || len(split.GetNodes()) != 3 {
			t.Errorf("a split of the view is at %v, nodes %q", split.GetAddresses(), split.GetNodes())
		}
	}
	all := func(what string, shards ...int) {
		t.Log(what)
		addresses := []string{v.Addr()}
		for _, n := range shards {
			addresses = append(addresses, v.ShardAddr(n))
		}
		for _, address := range addresses {
			v.holds(address, first, splits, model)
			v.holds(address, second, laterSplits, later)
		}
	}
	all("after writes", 0, 1, 2)
	v.compact(0, 1, 2)
	all("after a compaction", 0, 1, 2)
	for n := range 3 { // among them are the leaders
		v.KillShard(n)
		time.Sleep(20 * time.Second)
		alive := slices.DeleteFunc([]int{0, 1, 2}, func(other int) bool { return other == n })
		all(fmt.Sprintf("without shard %d", n), alive...)
		must.OK(t, v.RestartShard(n))
		time.Sleep(20 * time.Second)
	}
	v.write(0, 60, 5)
	v.compact(0, 1, 2)
	all("after restarts", 0, 1, 2)
	v.flights(first, model)

	if _, err := v.views().CloseView(v.ctx, &batchv1.CloseViewRequest{View: first}); err != nil {
		t.Error(err)
	}
	for n := range 3 {
		time.Sleep(time.Second)
		_, err := recordv1.NewRecordServiceClient(v.conn(v.ShardAddr(n))).Get(v.ctx, &recordv1.GetRequest{
			Key: &recordv1.RecordKey{Id: 1}, View: first})
		v.expired(err, first)
	}
	_, err := v.c.Get(v.ctx, client.Key{ID: 1}, nil)
	must.OK(t, err)
	v.compact(0, 1, 2)
	v.holds(v.Addr(), second, laterSplits, later) // the other view remains exact
}

// Views are listed, renewed, and removed when they have expired. What they kept is freed then.
func TestViewsExpire(t *testing.T) { synctest.Test(t, viewsExpire) }

func viewsExpire(t *testing.T) {
	v := newViewed(t, Config{Groups: 2})
	v.write(0, 50, 0)
	half, err := v.views().OpenView(v.ctx, &batchv1.OpenViewRequest{Groups: []string{"1"}, ExpiresSeconds: 1200})
	must.OK(t, err)
	held := half.GetView().GetId()
	time.Sleep(time.Second)
	out, err := v.views().OpenView(v.ctx, &batchv1.OpenViewRequest{ExpiresSeconds: 60})
	must.OK(t, err)
	short := out.GetView().GetId()
	if got := out.GetView().GetExpiresUnixNs() - time.Now().UnixNano(); got < 50e9 || got > 60e9 {
		t.Errorf("it expires in %d ns", got)
	}
	listed := func(want ...string) {
		t.Helper()
		out, err := v.views().ListViews(v.ctx, &batchv1.ListViewsRequest{})
		must.OK(t, err)
		var got []string
		for _, one := range out.GetViews() {
			got = append(got, one.GetId())
		}
		if !slices.Equal(got, want) {
			t.Errorf("views %v, want %v", got, want)
		}
	}
	listed(held, short)
	_, err = v.views().RenewView(v.ctx, &batchv1.RenewViewRequest{View: short, ExpiresSeconds: 600})
	must.OK(t, err)
	time.Sleep(5 * time.Minute)
	listed(held, short)
	time.Sleep(6 * time.Minute)
	listed(held)
	_, err = v.views().RenewView(v.ctx, &batchv1.RenewViewRequest{View: short})
	v.expired(err, short)
	_, err = recordv1.NewRecordServiceClient(v.conn(v.Addr())).PlanScan(v.ctx, &recordv1.PlanScanRequest{View: short})
	v.expired(err, short)
	time.Sleep(10 * time.Minute)
	listed()
	stored := func() (bytes int64) {
		out, err := recordv1.NewAdminServiceClient(v.conn(v.Addr())).ListGroups(v.ctx, &recordv1.ListGroupsRequest{})
		must.OK(t, err)
		for _, g := range out.GetGroups() {
			bytes += g.GetStoredBytes()
		}
		return bytes
	}
	v.compact(0)
	before := stored()
	for round := range 4 {
		v.write(0, 50, round)
	}
	v.compact(0)
	if after := stored(); after > before+before/2 {
		t.Errorf("%d bytes are stored after views have expired, and %d before", after, before)
	}
}

// If views keep too much, the oldest one breaks in words, and the others remain.
func TestTheOldestViewBreaks(t *testing.T) { synctest.Test(t, theOldestViewBreaks) }

func theOldestViewBreaks(t *testing.T) {
	v := newViewed(t, Config{Groups: 1, Shards: 3, Copies: 3, ViewsHeldMax: 150 << 10})
	v.groups = 1
	v.write(0, 50, 8)
	oldest := v.open()
	first, splits := v.model(), v.plan(v.Addr(), oldest)
	v.write(0, 50, 8)
	v.compact(0, 1, 2)
	time.Sleep(5 * time.Minute)
	v.holds(v.Addr(), oldest, splits, first)
	next := v.open()
	later, laterSplits := v.model(), v.plan(v.Addr(), next)
	v.write(0, 50, 8)
	v.compact(0, 1, 2)
	time.Sleep(5 * time.Minute)
	for _, address := range []string{v.Addr(), v.ShardAddr(0), v.ShardAddr(1), v.ShardAddr(2)} {
		records := recordv1.NewRecordServiceClient(v.conn(address))
		_, err := records.Get(v.ctx, &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: 5}, View: oldest})
		v.expired(err, oldest)
		stream, err := records.Scan(v.ctx, &recordv1.ScanRequest{Split: splits[0].GetSplit()})
		must.OK(t, err)
		_, err = stream.Recv()
		v.expired(err, oldest)
		v.holds(address, next, laterSplits, later)
	}
	out, err := v.views().ListViews(v.ctx, &batchv1.ListViewsRequest{})
	must.OK(t, err)
	if len(out.GetViews()) != 2 || out.GetViews()[0].GetGroups()[0].GetLost() == "" {
		t.Errorf("the list does not say which view was given up: %v", out)
	}
}

func TestWhatIsNoViewIsRefused(t *testing.T) { synctest.Test(t, whatIsNoViewIsRefused) }

func whatIsNoViewIsRefused(t *testing.T) {
	v := newViewed(t, Config{Named: true})
	for _, name := range []string{"a", "b"} {
		_, err := v.c.Put(v.ctx, client.Key{Group: name, ID: 1}, []byte("x"), nil)
		must.OK(t, err)
	}
	view := v.open("a")
	for name, row := range map[string]struct {
		err  error
		code codes.Code
	}{
		"negative": {second(v.views().OpenView(v.ctx, &batchv1.OpenViewRequest{ExpiresSeconds: -1})), codes.InvalidArgument},
		"31 days": {second(v.views().OpenView(v.ctx, &batchv1.OpenViewRequest{ExpiresSeconds: 31 * 86400})),
			codes.InvalidArgument},
		"twice": {second(v.views().OpenView(v.ctx, &batchv1.OpenViewRequest{Groups: []string{"a", "a"}})),
			codes.InvalidArgument},
		"no group": {second(v.views().OpenView(v.ctx, &batchv1.OpenViewRequest{Groups: []string{"c"}})), codes.NotFound},
		"no id":    {second(v.views().CloseView(v.ctx, &batchv1.CloseViewRequest{View: "x"})), codes.InvalidArgument},
	} {
		if status.Code(row.err) != row.code {
			t.Errorf("%s: %v, want %v", name, row.err, row.code)
		}
	}
	for _, address := range []string{v.Addr(), v.ShardAddr(0)} {
		records := recordv1.NewRecordServiceClient(v.conn(address))
		get := func(group, view, version string) error {
			return second(records.Get(v.ctx, &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: group, Id: 1}, View: view,
				Version: version}))
		}
		for name, row := range map[string]struct {
			err  error
			code codes.Code
		}{
			"of the view":   {get("a", view, ""), codes.OK},
			"another group": {get("b", view, ""), codes.InvalidArgument},
			"no id":         {get("a", "nonsense", ""), codes.InvalidArgument},
			"and a version": {get("a", view, "11"), codes.InvalidArgument},
			"unknown":       {get("a", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", ""), codes.OutOfRange},
		} {
			if status.Code(row.err) != row.code {
				t.Errorf("%s, %s: %v, want %v", address, name, row.err, row.code)
			}
		}
		stream, err := records.Scan(v.ctx, &recordv1.ScanRequest{View: view})
		must.OK(t, err)
		if m, err := stream.Recv(); err != nil || len(m.GetRecords()) != 1 || m.GetRecords()[0].GetKey().GetGroup() != "a" {
			t.Errorf("%s: a scan of all groups of the view: %v, %v", address, m, err)
		}
		stream, err = records.Scan(v.ctx, &recordv1.ScanRequest{View: view, Cursor: []byte("x")})
		must.OK(t, err)
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: a view beside a cursor: %v", address, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
