package dev

import (
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/batchv1"
	"sheaf.dev/sheaf/client/recordv1"
	tickets "sheaf.dev/sheaf/internal/call/flight"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// endOfSeal returns the time until which a signed value is valid, as Unix time in seconds; 0 means forever.
func endOfSeal(t *testing.T, value []byte) uint64 {
	t.Helper()
	if len(value) < 33 || value[0] != 2 && value[0] != 3 {
		t.Fatalf("this value is not signed: %x", value)
	}
	return binary.LittleEndian.Uint64(value[9:])
}

// The seals of splits, cursors and tickets of a view have no end of their own: they are valid as long as the view,
// which may be renewed. Those of snapshots end.
func TestSealsOfViewsHaveNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a")
		g.set(access.Table{Grants: []access.Grant{toCertificate("c", access.Groups{All: true}, access.Scan)}})
		conn := func(at string) *grpc.ClientConn { return g.dial(g.servers[at], g.as(identity.Client, "c")) }
		out, err := batchv1.NewViewServiceClient(conn("gateway")).OpenView(t.Context(), &batchv1.OpenViewRequest{})
		must.OK(t, err)
		for at := range g.servers {
			records := recordv1.NewRecordServiceClient(conn(at))
			for _, view := range []string{"", out.GetView().GetId()} {
				for _, shared := range []bool{false, true} {
					plan, err := records.PlanScan(t.Context(), &recordv1.PlanScanRequest{View: view, Shared: shared})
					must.OK(t, err)
					split := plan.GetSplits()[0].GetSplit()
					if end := endOfSeal(t, split); (end == 0) != (view != "") {
						t.Errorf("%s: a split of view %q (shared %v) ends at %d", at, view, shared, end)
					}
					stream, err := records.Scan(t.Context(), &recordv1.ScanRequest{Split: split})
					must.OK(t, err)
					part, err := stream.Recv()
					must.OK(t, err)
					if end := endOfSeal(t, part.GetCursor()); (end == 0) != (view != "") {
						t.Errorf("%s: a cursor of view %q ends at %d", at, view, end)
					}
					ticket := tickets.Ticket{Columns: tickets.AllColumns, Value: split}
					get, err := flight.NewFlightServiceClient(conn(at)).DoGet(t.Context(),
						&flight.Ticket{Ticket: ticket.Encode()})
					must.OK(t, err)
					var next []byte
					for err == nil && len(next) == 0 {
						var data *flight.FlightData
						data, err = get.Recv()
						next = data.GetAppMetadata()
					}
					must.OK(t, err)
					ticket, err = tickets.ParseTicket(next)
					must.OK(t, err)
					if end := endOfSeal(t, ticket.Value); (end == 0) != (view != "") {
						t.Errorf("%s: a ticket of view %q ends at %d", at, view, end)
					}
				}
			}
		}
	})
}
