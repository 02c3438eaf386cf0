package flight

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NotServed refuses the calls of Arrow Flight that Sheaf does not serve. Implementations of the service embed it.
type NotServed struct {
	flight.UnimplementedFlightServiceServer
}

func notServed(method string) error {
	return status.Errorf(codes.Unimplemented,
		"%s is not served: call DoGet, GetFlightInfo, DoPut, or DoAction of a gateway (docs/flight.md)", method)
}

// Handshake is not served, because each call carries its certificate or token.
func (NotServed) Handshake(stream flight.FlightService_HandshakeServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return notServed("Handshake")
}

// ListFlights is not served.
func (NotServed) ListFlights(*flight.Criteria, flight.FlightService_ListFlightsServer) error {
	return notServed("ListFlights")
}

// PollFlightInfo is not served.
func (NotServed) PollFlightInfo(context.Context, *flight.FlightDescriptor) (*flight.PollInfo, error) {
	return nil, notServed("PollFlightInfo")
}

// GetSchema is not served, because there is one schema.
func (NotServed) GetSchema(context.Context, *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	return nil, notServed("GetSchema")
}

// DoExchange is not served.
func (NotServed) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return notServed("DoExchange")
}

// ListActions is not served.
func (NotServed) ListActions(*flight.Empty, flight.FlightService_ListActionsServer) error {
	return notServed("ListActions")
}
