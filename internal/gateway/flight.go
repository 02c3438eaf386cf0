package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/call/cursor"
	arrow "sheaf.dev/sheaf/internal/call/flight"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
)

// These are the full names of Arrow Flight's methods.
const (
	flightDoGet   = reason.FlightService + "DoGet"
	flightDoPut   = reason.FlightService + "DoPut"
	flightAction  = reason.FlightService + "DoAction"
	flightGetInfo = reason.FlightService + "GetFlightInfo"
)

// flightServer serves the unary calls of Arrow Flight. The text of each error begins with its reason, which the
// interceptors add.
type flightServer struct {
	arrow.NotServed
	g *Gateway
}

// flightService returns the service. Its streams have the limits of all streams.
func (g *Gateway) flightService() *grpc.ServiceDesc {
	handlers := map[string]grpc.StreamHandler{
		"DoGet": g.counted(flightDoGet, g.flightGet), "DoPut": g.counted(flightDoPut, g.flightPut),
		"DoAction": g.counted(flightAction, g.flightAction),
	}
	d := flight.FlightService_ServiceDesc
	d.Streams = slices.Clone(d.Streams)
	for i := range d.Streams {
		if handler, ok := handlers[d.Streams[i].StreamName]; ok {
			d.Streams[i].Handler = handler
		}
	}
	return &d
}

// badCommand returns the error for a command that cannot be carried out.
func badCommand(err error) error {
	return status.Error(codes.InvalidArgument, err.Error())
}

// flightGet handles DoGet. If one shard has all the rows, its batches are forwarded. Otherwise the records come from
// several shards by BatchGet.
func (g *Gateway) flightGet(stream grpc.ServerStream) error {
	var in flight.Ticket
	if err := stream.RecvMsg(&in); err != nil {
		return err
	}
	if len(in.GetTicket()) > message.BytesMax {
		return badCommand(arrow.ErrTooLong)
	}
	if arrow.IsTicket(in.GetTicket()) {
		return g.flightScan(stream, in.GetTicket())
	}
	command, err := arrow.ParseGet(in.GetTicket())
	if err != nil {
		return badCommand(err)
	}
	ctx := stream.Context()
	t, err := g.router.wait(ctx)
	if err != nil {
		return err
	}
	if t.hash != nil && command.Group == "" {
		return g.flightGetMany(stream, command)
	}
	if err := placement.ValidateGroupName(command.Group); err != nil {
		return invalid("group", "%v", err)
	}
	if err := access.May(ctx, access.Get, command.Group); err != nil {
		return err
	}
	return g.pumpGroup(ctx, stream, command.Group, flightDoGet, &in, nil)
}

// flightScan forwards the batches of a ticket that GetFlightInfo gave out.
func (g *Gateway) flightScan(stream grpc.ServerStream, encoded []byte) error {
	ctx := stream.Context()
	t, err := arrow.ParseTicket(encoded)
	if err != nil {
		return invalid("ticket", "is %v", err)
	}
	if t.Value, err = opened(ctx, "ticket", t.Value); err != nil {
		return err
	}
	c, err := cursor.Decode(t.Value)
	if err != nil || c.All || t.Resume != (c.Kind == cursor.Resume) {
		return invalid("ticket", "is %v", arrow.ErrTicket)
	}
	if err := access.May(ctx, access.Scan, c.Group); err != nil {
		return err
	}
	var change func(*frame) error
	if access.Identified(ctx) {
		change = func(out *frame) error { return sealTicket(ctx, out) }
	}
	return g.pumpGroup(ctx, stream, c.Group, flightDoGet, &flight.Ticket{Ticket: t.Encode()}, change)
}

// appMetadataField is the field of FlightData that holds the ticket for what follows a batch.
const appMetadataField = 3

// sealTicket seals the ticket of a batch for the caller. The shard has not sealed it, because the gateway has called.
func sealTicket(ctx context.Context, out *frame) error {
	encoded, err := bytesOf(out, appMetadataField)
	if err != nil || len(encoded) == 0 {
		return err
	}
	t, err := arrow.ParseTicket(encoded)
	if err != nil {
		return status.Error(codes.Internal, "the shard's ticket cannot be read")
	}
	c, err := cursor.Decode(t.Value)
	if err != nil {
		return status.Error(codes.Internal, "the shard's ticket cannot be read: "+err.Error())
	}
	if t.Value, err = access.Sign(ctx, t.Value, c.Lasts()); err != nil {
		return err
	}
	replaceBytes(out, appMetadataField, t.Encode())
	return nil
}

// GetFlightInfo plans a scan.
func (f *flightServer) GetFlightInfo(ctx context.Context, in *flight.FlightDescriptor) (out *flight.FlightInfo,
	err error) {
	m, began := f.g.metrics.method(flightGetInfo), time.Now()
	defer func() { m.done(status.Code(err), began) }()
	command, err := arrow.ScanOf(in)
	if err != nil {
		return nil, badCommand(err)
	}
	plan, err := f.g.plan(ctx, command.PlanOf())
	if err != nil {
		return nil, err
	}
	return arrow.InfoOf(in, plan, command.Columns, access.Identified(ctx)), nil
}

// flightPut handles DoPut. It is a BatchPut whose messages are record batches.
func (g *Gateway) flightPut(stream grpc.ServerStream) error {
	puts, err := arrow.NewPuts(stream, codec{})
	if err != nil {
		return err
	}
	return g.batchPut(puts)
}

// flightAction handles DoAction.
func (g *Gateway) flightAction(stream grpc.ServerStream) error {
	var in flight.Action
	if err := stream.RecvMsg(&in); err != nil {
		return err
	}
	ctx := stream.Context()
	switch in.GetType() {
	case "routing":
	case "list-views":
		return g.flightListViews(stream, in.GetBody())
	case "open-view", "renew-view", "close-view":
		body, err := g.viewAction(ctx, in.GetType(), in.GetBody())
		if err != nil {
			return err
		}
		return stream.SendMsg(&flight.Result{Body: body})
	default:
		return invalid("type", "%.40q is no action: there are routing, open-view, renew-view, close-view and list-views",
			in.GetType())
	}
	t, err := g.router.wait(ctx)
	if err != nil {
		return err
	}
	groups := 0
	if t.hash != nil {
		groups = t.view.Meta.Routing.Groups
	}
	return arrow.EachRouting(seen(ctx, t.message()), groups, func(result []byte) error {
		return stream.SendMsg(&flight.Result{Body: result})
	})
}
