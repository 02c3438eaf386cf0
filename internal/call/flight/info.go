package flight

import (
	"encoding/json"
	"errors"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"

	"sheaf.dev/sheaf/client/recordv1"
)

// ErrTooLong is the error for a ticket that is longer than a message may be.
var ErrTooLong = errors.New("get: the ticket is too long: give at most 65536 ids")

// ScanOf returns the command of GetFlightInfo.
func ScanOf(in *flight.FlightDescriptor) (*ScanCommand, error) {
	if in.GetType() != flight.FlightDescriptor_CMD {
		return nil, errors.New("the descriptor is a path: give a command")
	}
	return ParseScan(in.GetCmd())
}

// PlanOf returns the plan for which a command asks.
func (c *ScanCommand) PlanOf() *recordv1.PlanScanRequest {
	return &recordv1.PlanScanRequest{Groups: c.Groups, SplitBytes: c.SplitBytes, View: c.View, Shared: c.Shared}
}

// endpoint is the app_metadata of an endpoint.
type endpoint struct {
	Group   string   `json:"group"`
	Records int64    `json:"records"`
	Bytes   int64    `json:"bytes"`
	Nodes   []string `json:"nodes,omitempty"` // in the order of the locations
}

// InfoOf returns the answer of GetFlightInfo for a plan. The plan's splits are sealed where values are sealed. If
// secure is set, the addresses are those of servers with TLS.
func InfoOf(in *flight.FlightDescriptor, plan *recordv1.PlanScanResponse, columns Columns,
	secure bool) *flight.FlightInfo {
	scheme := "grpc+tcp://"
	if secure {
		scheme = "grpc+tls://"
	}
	out := &flight.FlightInfo{Schema: SchemaBytes(), FlightDescriptor: in}
	for _, split := range plan.GetSplits() {
		ticket := Ticket{Columns: columns, Value: split.GetSplit()}
		known, _ := json.Marshal(endpoint{split.GetGroup(), split.GetRecords(), split.GetBytes(),
			split.GetNodes()}) // cannot fail
		e := &flight.FlightEndpoint{Ticket: &flight.Ticket{Ticket: ticket.Encode()}, AppMetadata: known}
		for _, address := range split.GetAddresses() {
			e.Location = append(e.Location, &flight.Location{Uri: scheme + address})
		}
		out.Endpoint = append(out.Endpoint, e)
		out.TotalRecords += split.GetRecords()
		out.TotalBytes += split.GetBytes()
	}
	return out
}
