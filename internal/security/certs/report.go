package certs

import (
	"encoding/json"
	"net/http"
	"time"
)

// Report is what a process tells of its certificates, as JSON at ReportPath of its HTTP port. Nothing of it is secret.
type Report struct {
	Identity             string    `json:"identity"`
	Mode                 Mode      `json:"mode"`
	Bundle               string    `json:"bundle"`        // see Status
	ClientBundle         string    `json:"client_bundle"` // see Status
	NotAfter             time.Time `json:"not_after"`
	PlaintextConnections int       `json:"plaintext_connections"`
	Error                string    `json:"error,omitempty"` // why newer files are not used
	// GrantsVersion is that of the table of grants by which the process decides, 0 where it has none; nil: it decides
	// about no calls, or is of a version that does not tell.
	GrantsVersion *int64 `json:"grants_version,omitempty"`
	// UnknownKeys counts, by issuer, the tokens since the start of the process that name a key which is not in the table.
	UnknownKeys map[string]int64 `json:"unknown_keys,omitempty"`
}

// Decides is what decides about the calls of a process. *guard.Guard implements it.
type Decides interface {
	Version() int64
	UnknownKeys() map[string]int64
}

// ReportPath is where a process serves its Report.
const ReportPath = "/tls"

// Report tells what is in use.
func (s *Source) Report() Report {
	status := s.Status()
	out := Report{Identity: status.Identity.String(), Mode: status.Mode, Bundle: status.Bundle,
		ClientBundle: status.Clients, NotAfter: status.NotAfter, PlaintextConnections: status.Plain}
	if status.Failed != nil {
		out.Error = status.Failed.Error()
	}
	return out
}

// Handle serves the Report of a process, where it has certificates, beside what else it serves by HTTP. grants may be
// nil: the process decides about no calls.
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
	_ = json.NewEncoder(w).Encode(r) // the caller went away
}
