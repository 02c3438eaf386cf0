package fleet

import (
	"context"
	"time"
)

// TransportReport is what a process reports about its certificates, in its answer to GET /tls on its HTTP port.
type TransportReport struct {
	Identity             string
	Mode                 string // spelled as in v1alpha1.TLSTransport
	Bundle, ClientBundle string // SHA-256 of the authorities that it trusts
	NotAfter             time.Time
	Error                string // why it does not use its current files; empty: it uses them
	PlaintextConnections int32
	// Grants is the version of the grant table that the process uses. 0 means that it has no table, nil that it does
	// not report a version.
	Grants *int64
	// UnknownKeys counts, by issuer, the tokens received since the process started that were signed by keys missing
	// from the table.
	UnknownKeys map[string]int64
}

// TransportClient asks processes for their certificates. internal/operator implements it.
type TransportClient interface {
	// Transport asks the process whose HTTP port is at host:port. Any error means that the process gave no report.
	Transport(ctx context.Context, address string) (TransportReport, error)
}

// Credentials keeps the credentials with which the operator talks to the processes of stores. internal/operator
// implements it.
type Credentials interface {
	// Set replaces the operator's credentials for the store namespace/name. The argument files has the contents of a
	// folder: tls.crt, tls.key, ca.crt, client-ca.crt and mode. New connections use them.
	Set(store string, files map[string][]byte) error
	// Forget removes the operator's credentials for a deleted store.
	Forget(store string)
}
