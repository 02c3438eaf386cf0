package serve

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	arrow "sheaf.dev/sheaf/internal/call/flight"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
)

// flightServer serves Arrow Flight. The text of each error begins with its reason, which the interceptors add.
type flightServer struct {
	arrow.NotServed
	*recordServer
}

// Flight returns the implementation of Arrow Flight's service.
func (s *Server) Flight() flight.FlightServiceServer {
	return &flightServer{recordServer: s.Records().(*recordServer)}
}

// badCommand returns the error for a command or ticket that cannot be carried out.
func badCommand(err error) error {
	return answer.Fail(codes.InvalidArgument, "", "%v", err)
}

// receiveTicket receives the request of DoGet.
func receiveTicket(stream grpc.ServerStream) ([]byte, error) {
	var in flight.Ticket
	if err := stream.RecvMsg(&in); err != nil {
		return nil, err
	}
	if len(in.GetTicket()) > message.BytesMax {
		return nil, badCommand(arrow.ErrTooLong)
	}
	return in.GetTicket(), nil
}

// FlightService describes the gRPC service. DoGet receives its ticket itself, and sends messages of its own.
func FlightService() *grpc.ServiceDesc {
	d := flight.FlightService_ServiceDesc
	d.Streams = append([]grpc.StreamDesc(nil), d.Streams...)
	for i := range d.Streams {
		if d.Streams[i].StreamName == "DoGet" {
			d.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error { return srv.(*flightServer).get(stream) }
		}
	}
	return &d
}

// get handles DoGet.
func (s *flightServer) get(stream grpc.ServerStream) error {
	ticket, err := receiveTicket(stream)
	if err != nil {
		return err
	}
	if arrow.IsTicket(ticket) {
		return s.scanTicket(ticket, stream)
	}
	command, err := arrow.ParseGet(ticket)
	if err != nil {
		return badCommand(err)
	}
	return s.getIDs(command, stream)
}

// scanTicket reads what a ticket of GetFlightInfo names. It is a Scan whose messages are batches.
func (s *flightServer) scanTicket(ticket []byte, stream grpc.ServerStream) error {
	t, err := arrow.ParseTicket(ticket)
	if err != nil {
		return answer.Invalid("ticket", "is %v", err)
	}
	in := &recordv1.ScanRequest{MetadataOnly: !t.Columns.NeedsData()}
	if t.Resume {
		in.Cursor = t.Value
	} else {
		in.Split = t.Value
	}
	to := &flightScan{ServerStream: stream, columns: t.Columns}
	err = s.scan(in, to, doGet)
	if err == nil || answer.CodeOf(err) == codes.DataLoss {
		if sent := to.begin(); sent != nil {
			return sent
		}
	}
	return err
}

// doGet is the method under which reads by Flight are counted.
const doGet = reason.FlightService + "DoGet"

// flightScan sends the messages of a Scan as record batches.
type flightScan struct {
	grpc.ServerStream
	columns arrow.Columns
	batch   *arrow.Batch
}

// begin sends the schema, if no message was sent yet. Until then, a gateway can send the call to another shard.
func (f *flightScan) begin() error {
	if f.batch != nil {
		return nil
	}
	f.batch = arrow.NewBatch(f.columns, 0)
	return f.SendMsg(arrow.Schema())
}

// Send implements recordv1.RecordService_ScanServer.
func (f *flightScan) Send(m *recordv1.ScanResponse) error {
	_, err := f.sendData(m, nil)
	return err
}

// sendData implements dataTaker.
func (f *flightScan) sendData(m *recordv1.ScanResponse, arena *[]byte) (taken bool, err error) {
	if err := f.begin(); err != nil {
		return false, err
	}
	bytes := 0 // the scan has asked for memory for messages of this size, which is often far below ResultBytes
	for _, r := range m.GetRecords() {
		bytes += len(r.GetData())
	}
	f.batch.Expect(bytes)
	// What is held for the message is counted by its length. So a buffer that is mostly empty is not taken.
	if taken = arena != nil && f.columns.Has(arrow.Data) && 2*bytes > cap(*arena); taken {
		f.batch.Adopt(arena)
	}
	for _, r := range m.GetRecords() {
		row := arrow.RowOf(r)
		if !row.Filled.Has(arrow.Data) && f.columns.NeedsData() {
			row.Status = reason.UseDownload
		}
		f.batch.Add(&row)
	}
	if f.batch.Rows() == 0 {
		return taken, nil
	}
	ticket := arrow.Ticket{Resume: true, Columns: f.columns, Value: m.GetCursor()}
	return taken, f.SendMsg(f.batch.Take(ticket.Encode()))
}

// GetFlightInfo plans a scan.
func (s *flightServer) GetFlightInfo(ctx context.Context, in *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	command, err := arrow.ScanOf(in)
	if err != nil {
		return nil, badCommand(err)
	}
	plan, err := s.PlanScan(ctx, command.PlanOf())
	if err != nil {
		return nil, err
	}
	return arrow.InfoOf(in, plan, command.Columns, secure(ctx)), nil
}

// DoPut stores batches of records. It is a BatchPut whose messages are record batches.
func (s *flightServer) DoPut(stream flight.FlightService_DoPutServer) error {
	puts, err := arrow.NewPuts(stream, message.Codec{})
	if err != nil {
		return err
	}
	return s.BatchPut(puts)
}

// DoGet is not called, because FlightService has its own handler.
func (s *flightServer) DoGet(*flight.Ticket, flight.FlightService_DoGetServer) error {
	return answer.NotHere("DoGet")
}

// DoAction refuses all actions: a shard knows only its own groups.
func (s *flightServer) DoAction(in *flight.Action, _ flight.FlightService_DoActionServer) error {
	return answer.Fail(codes.Unimplemented, "", "action %.40q is not served by a shard: ask a gateway", in.GetType())
}

// secure reports whether a call came over TLS. Every caller over TLS is identified, and no other caller is.
func secure(ctx context.Context) bool { return access.Identified(ctx) }

// NoFlight stands for the implementation while there is none. The server refuses its calls.
type NoFlight struct{ arrow.NotServed }
