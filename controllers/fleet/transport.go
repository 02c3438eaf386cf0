package fleet

import (
	"context"
	"time"
)

// TransportReport is what a process says of its certificates, by GET /tls on its HTTP port.
type TransportReport struct {
	Identity             string
	Mode                 string // as v1alpha1.TLSTransport
	Bundle, ClientBundle string // SHA-256 of the authorities that it trusts
	NotAfter             time.Time
	Error                string // why the files that it has now are not used; empty: they are
	PlaintextConnections int32
	// Grants is the version of the table of grants by which it decides; 0: it has none; nil: it does not tell.
	Grants *int64
	// UnknownKeys counts, by issuer, the tokens that it was shown since its start by keys that are not in the table.
	UnknownKeys map[string]int64
}

// TransportAsker asks processes for their certificates. internal/operator implements it.
type TransportAsker interface {
	// Transport asks the process whose HTTP port is at host:port. Any error means that it has said nothing.
	Transport(ctx context.Context, address string) (TransportReport, error)
}

// Credentials are what the operator speaks to the processes of stores with. internal/operator implements it.
type Credentials interface {
	// Set takes what the operator has for the store namespace/name, as the files of a folder: tls.crt, tls.key, ca.crt,
	// client-ca.crt and mode. Connections that are made from now on use it.
	Set(store string, files map[string][]byte) error
	// Forget what the operator has for a store that is gone.
	Forget(store string)
}
