package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/apache/arrow-go/v18/arrow/array"
	arrowflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// flightRows reads a ticket, and returns the group, the id and the data of each row, and the ticket for what follows.
func flightRows(ctx context.Context, cc *grpc.ClientConn, ticket []byte) (rows string, last []byte, err error) {
	stream, err := flight.NewFlightServiceClient(cc).DoGet(ctx, &flight.Ticket{Ticket: ticket})
	if err != nil {
		return "", nil, err
	}
	reader, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		return "", nil, err
	}
	defer reader.Release()
	for {
		batch, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return rows, last, nil
		}
		if err != nil {
			return rows, last, err
		}
		last = reader.LatestAppMetadata()
		for i := range int(batch.NumRows()) {
			rows += fmt.Sprintf("%s/%d=%s ", batch.Column(0).(*array.String).Value(i), batch.Column(1).(*array.Int64).Value(i),
				batch.Column(9).(*array.LargeBinary).Value(i))
		}
	}
}

// TestFlightTicketsAreSealed plans a scan at the gateway, and reads its ticket, and the ticket for what follows, at the
// gateway and at the shard. Another caller's ticket and a changed one are refused, and so is a caller without a grant,
// with a text that begins with the reason.
func TestFlightTicketsAreSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a", "b")
		a := access.Groups{Names: []string{"a"}}
		g.set(access.Table{Grants: []access.Grant{toCertificate("one", a, access.Get, access.Scan),
			toCertificate("two", a, access.Scan), toCertificate("three", a, access.Put)}})
		dial := func(at, who string) *grpc.ClientConn { return g.dial(g.servers[at], g.as(identity.Client, who)) }
		refused := func(err error, code codes.Code, text string) {
			t.Helper()
			if status.Code(err) != code || !strings.HasPrefix(status.Convert(err).Message(), text) {
				t.Errorf("got %v, want %s with %q", err, code, text)
			}
		}
		plan := func(at, who, group string) (*flight.FlightInfo, error) {
			return flight.NewFlightServiceClient(dial(at, who)).GetFlightInfo(t.Context(), &flight.FlightDescriptor{
				Type: flight.FlightDescriptor_CMD, Cmd: []byte(`{"scan": {"groups": ["` + group + `"]}}`)})
		}
		for _, planner := range []string{"gateway", "shard"} {
			info, err := plan(planner, "one", "a")
			must.OK(t, err)
			e := info.GetEndpoint()[0]
			if want := "grpc+tls://" + g.servers["shard"]; e.GetLocation()[0].GetUri() != want {
				t.Errorf("location %v instead of %s", e.GetLocation(), want)
			}
			for _, at := range []string{"gateway", "shard"} {
				rows, last, err := flightRows(t.Context(), dial(at, "one"), e.GetTicket().GetTicket())
				if err != nil || rows != "a/1=a " {
					t.Errorf("planned at the %s, read at the %s: %q, %v", planner, at, rows, err)
				}
				for _, next := range []string{"gateway", "shard"} {
					if rows, _, err := flightRows(t.Context(), dial(next, "one"), last); err != nil || rows != "" {
						t.Errorf("behind the end, from the %s at the %s: %q, %v", at, next, rows, err)
					}
					_, _, err := flightRows(t.Context(), dial(next, "two"), last)
					refused(err, codes.InvalidArgument, "[INVALID_ARGUMENT] ")
				}
				_, _, err = flightRows(t.Context(), dial(at, "two"), e.GetTicket().GetTicket())
				refused(err, codes.InvalidArgument, "[INVALID_ARGUMENT] ")
				_, _, err = flightRows(t.Context(), dial(at, "three"), e.GetTicket().GetTicket())
				refused(err, codes.PermissionDenied, "[PERMISSION_DENIED] client/three may not call ")
				changed := append([]byte{}, e.GetTicket().GetTicket()...)
				changed[len(changed)-1] ^= 1
				_, _, err = flightRows(t.Context(), dial(at, "one"), changed)
				refused(err, codes.InvalidArgument, "[INVALID_ARGUMENT] ")
			}
			_, err = plan(planner, "one", "b")
			refused(err, codes.PermissionDenied, "[PERMISSION_DENIED] ")
			get := `{"get": {"group": "a"}}` + "\x01\x00\x00\x00\x00\x00\x00\x00"
			if rows, _, err := flightRows(t.Context(), dial(planner, "one"), []byte(get)); err != nil || rows != "a/1=a " {
				t.Errorf("get at the %s: %q, %v", planner, rows, err)
			}
			_, _, err = flightRows(t.Context(), dial(planner, "two"), []byte(get))
			refused(err, codes.PermissionDenied, "[PERMISSION_DENIED] client/two may not get in group \"a\"")
		}
		_, _, err := flightRows(t.Context(), dial("gateway", "one"),
			[]byte(`{"get": {"group": "c"}}`+"\x01\x00\x00\x00\x00\x00\x00\x00"))
		refused(err, codes.PermissionDenied, "[PERMISSION_DENIED] ")
		action, err := flight.NewFlightServiceClient(dial("gateway", "one")).DoAction(t.Context(),
			&flight.Action{Type: "routing"})
		must.OK(t, err)
		out, err := action.Recv()
		must.OK(t, err)
		if text := string(out.GetBody()); !strings.Contains(text, `"mode":"named","groups":[{"name":"a",`) ||
			strings.Contains(text, `"name":"b"`) {
			t.Errorf("routing: %s", text)
		}
	})
}
