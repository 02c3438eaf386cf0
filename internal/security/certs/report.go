package certs

import (
	"encoding/json"
	"net/http"
	"time"
)

// Report describes the certificates of a process. It is served as JSON at ReportPath of the HTTP port, and contains no
// secret.
type Report struct {
	Identity             string    `json:"identity"`
	Mode                 Mode      `json:"mode"`
	Bundle               string    `json:"bundle"`        // see Status
	ClientBundle         string    `json:"client_bundle"` // see Status
	NotAfter             time.Time `json:"not_after"`
	PlaintextConnections int       `json:"plaintext_connections"`
	Error                string    `json:"error,omitempty"` // why newer files are not in use
	// GrantsVersion is the version of the table of grants in use, or 0 if there is no table. It is nil if the process
	// does not decide about calls, or if its program is too old to report this version.
	GrantsVersion *int64 `json:"grants_version,omitempty"`
	// UnknownKeys has the number of tokens, by issuer, that named a key which was not in the table. It counts from the
	// start of the process.
	UnknownKeys map[string]int64 `json:"unknown_keys,omitempty"`
}

// Decides is implemented by the component that decides about the calls of a process, which is *guard.Guard.
type Decides interface {
	Version() int64
	UnknownKeys() map[string]int64
}

// ReportPath is the path at which a process serves its Report.
const ReportPath = "/tls"

// Report describes the certificates in use.
func (s *Source) Report() Report {
	status := s.Status()
	out := Report{Identity: status.Identity.String(), Mode: status.Mode, Bundle: status.Bundle,
		ClientBundle: status.Clients, NotAfter: status.NotAfter, PlaintextConnections: status.Plain}
	if status.Failed != nil {
		out.Error = status.Failed.Error()
	}
	return out
}

// Handle serves the Report of a process at ReportPath, if the process has certificates, and passes all other requests
// to rest. grants may be nil if the process does not decide about calls.
func Handle(source *Source, grants Decides, rest http.Handler) http.Handler {
	if source == nil {
		return rest
	}
	mux := http.NewServeMux()
	mux.Handle("/", rest)
	mux.HandleFunc("GET "+ReportPath, func(w http.ResponseWriter, _ *http.Request) {
		report := source.Report()
		if grants != nil {
			version := grants.Version()
			report.GrantsVersion, report.UnknownKeys = &version, grants.UnknownKeys()
		}
		report.Serve(w)
	})
	return mux
}

// Serve answers a request with the report.
func (r Report) Serve(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(r) // fails only if the caller has disconnected
}
