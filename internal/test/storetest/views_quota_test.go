package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/test/must"
)

// A copy that does not lead its group answers reads of a view, and charges them to the quotas of the group's tenant, as
// the leader does.
func TestReadsOfAViewAreWithinTheQuotas(t *testing.T) {
	synctest.Test(t, readsOfAViewAreWithinTheQuotas)
}

func readsOfAViewAreWithinTheQuotas(t *testing.T) {
	const records, size, rate = 60, 2000, 40_000 // the quota is rate bytes per second in the whole store
	v := newViewed(t, Config{Named: true, Shards: 3, Copies: 3})
	for _, group := range []string{"a-1", "b-1"} {
		for id := range int64(records) {
			_, err := v.c.Put(v.ctx, client.Key{Group: group, ID: id}, make([]byte, size), nil)
			must.OK(t, err)
		}
	}
	view := v.open("a-1", "b-1")
	table := access.Table{Version: 1, Grants: []access.Grant{}, Tenants: []access.Tenant{{Name: "team-a", Prefix: "a-",
		Quotas: access.Quotas{BytesPerSecond: rate}}}}
	text, err := table.Encode()
	must.OK(t, err)
	must.OK(t, v.Store.PutAccess(v.ctx, text, 0))
	time.Sleep(time.Minute) // all shards have adopted the table

	for n := range 3 {
		address := v.ShardAddr(n)
		ways := v.waysToReadAView(address, view, records)
		for name, read := range ways {
			began := time.Now()
			read("b-1")
			if took := time.Since(began); took > 0 {
				t.Errorf("%s at %s: a group without a tenant took %v", name, address, took)
			}
			time.Sleep(4 * time.Second) // debts are paid, and the bucket is full
			began = time.Now()
			read("a-1")
			// A full bucket has half a second of the rate, and what a read moves last is paid by the next one.
			least := time.Duration(records*size-rate/2-records*size/2) * time.Second / rate
			if took := time.Since(began); took < least {
				t.Errorf("%s at %s: %d bytes were read in %v, want at least %v", name, address, records*size, took, least)
			}
		}
	}
}

// waysToReadAView returns functions that read all records of a group in a view, one for each way. They wait for the
// quotas.
func (v *viewed) waysToReadAView(address, view string, records int) map[string]func(group string) {
	calls := recordv1.NewRecordServiceClient(v.conn(address))
	flights := flight.NewFlightServiceClient(v.conn(address))
	key := func(group string, id int) *recordv1.RecordKey {
		return &recordv1.RecordKey{Group: group, Id: int64(id)}
	}
	return map[string]func(group string){
		"Get": func(group string) {
			for id := range records {
				v.patiently(func(ctx context.Context) error {
					_, err := calls.Get(ctx, &recordv1.GetRequest{Key: key(group, id), View: view})
					return err
				})
			}
		},
		"BatchGet": func(group string) {
			half := func(from, to int) error {
				in := &recordv1.BatchGetRequest{}
				for id := from; id < to; id++ {
					in.Gets = append(in.Gets, &recordv1.GetRequest{Key: key(group, id), View: view})
				}
				stream, err := calls.BatchGet(v.ctx, in)
				return drained(stream, err)
			}
			must.OK(v, half(0, records/2))
			must.OK(v, half(records/2, records))
		},
		"Scan": func(group string) {
			plan, err := calls.PlanScan(v.ctx, &recordv1.PlanScanRequest{Groups: []string{group}, View: view})
			must.OK(v, err)
			for _, split := range plan.GetSplits() {
				v.patiently(func(ctx context.Context) error {
					stream, err := calls.Scan(ctx, &recordv1.ScanRequest{Split: split.GetSplit()})
					return drained(stream, err)
				})
			}
		},
		"DoGet": func(group string) {
			for _, first := range []int{0, records / 2} {
				ticket := fmt.Appendf(nil, `{"get": {"group": %q, "view": %q}}`, group, view)
				for id := first; id < first+records/2; id++ {
					ticket = binary.LittleEndian.AppendUint64(ticket, uint64(id))
				}
				stream, err := flights.DoGet(v.ctx, &flight.Ticket{Ticket: ticket})
				must.OK(v, drained(stream, err))
			}
		},
	}
}

// drained reads a stream to its end.
func drained[M any](stream interface{ Recv() (M, error) }, err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// patiently repeats a call that a quota refuses, after the time that the refusal gives.
func (v *viewed) patiently(call func(ctx context.Context) error) {
	v.Helper()
	for {
		err := call(v.ctx)
		if reason.Of(err) != reason.QuotaExceeded {
			must.OK(v, err)
			return
		}
		wait := routing.Judge(status.Convert(err), true).Wait
		if wait <= 0 {
			v.Fatalf("a rate refuses a call without a time: %v", err)
		}
		time.Sleep(wait)
	}
}
