package flight

import (
	"encoding/binary"
	"errors"
)

// Ticket is a ticket of a scan. Its value is a split or a cursor as PlanScan and Scan give them, sealed for the caller
// where these are sealed. The rest decides nothing about rights, and is therefore outside of the seal.
type Ticket struct {
	Resume  bool // Value is the cursor of a scan that has begun, instead of a split
	Columns Columns
	Value   []byte
}

// The bytes of a ticket are: format (1), kind (1), columns (2, little-endian), value. A command begins with another
// byte than the format.
const (
	ticketFormat = 1
	ticketBytes  = 4
)

// ErrTicket is the error for bytes that no server has given as a ticket.
var ErrTicket = errors.New("not a ticket that GetFlightInfo gave out")

// IsTicket reports whether the ticket of DoGet is one of a scan, and not a command.
func IsTicket(b []byte) bool { return len(b) > 0 && b[0] == ticketFormat }

// Encode returns the bytes of the ticket.
func (t *Ticket) Encode() []byte {
	out := append(make([]byte, 0, ticketBytes+len(t.Value)), ticketFormat, 0)
	if t.Resume {
		out[1] = 1
	}
	out = binary.LittleEndian.AppendUint16(out, uint16(t.Columns))
	return append(out, t.Value...)
}

// ParseTicket is the inverse of Encode.
func ParseTicket(b []byte) (t Ticket, err error) {
	if len(b) <= ticketBytes || b[0] != ticketFormat || b[1] > 1 {
		return t, ErrTicket
	}
	t = Ticket{Resume: b[1] == 1, Columns: Columns(binary.LittleEndian.Uint16(b[2:])), Value: b[ticketBytes:]}
	if t.Columns&^AllColumns != 0 || t.Columns&alwaysFilled != alwaysFilled {
		return Ticket{}, ErrTicket
	}
	return t, nil
}
