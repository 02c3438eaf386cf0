package certs

import (
	"encoding/json"
	"net/http"
	"time"
)

// Report describes the certificates of a process. It contains no secret, and is served as JSON at ReportPath on the
// HTTP port.
type Report struct {
	Identity             string    `json:"identity"`
	Mode                 Mode      `json:"mode"`
	Bundle               string    `json:"bundle"`        // BundleHash of the authorities of the store's processes
	ClientBundle         string    `json:"client_bundle"` // BundleHash of the authorities of callers
	NotAfter             time.Time `json:"not_after"`     // expiry of the certificate that expires first
	PlaintextConnections int       `json:"plaintext_connections"`
	Error                string    `json:"error,omitempty"` // why the newest files in the folder are not used
	Read                 time.Time `json:"-"`               // when the files in use were last found in the folder
	// GrantsVersion is the version of the table of grants in use, or 0 if there is no table. It is nil if the process
	// does not decide about calls, or if its version of Sheaf does not report this number yet.
	GrantsVersion *int64 `json:"grants_version,omitempty"`
	// UnknownKeys is the number of tokens whose key was not in the table, by issuer, since the process was started.
	UnknownKeys map[string]int64 `json:"unknown_keys,omitempty"`
}

// Decides consists of the methods of *guard.Guard that a Report needs.
type Decides interface {
	Version() int64
	UnknownKeys() map[string]int64
}

// ReportPath is the path at which a process serves its Report.
const ReportPath = "/tls"

// Report returns a description of the certificates in use.
func (s *Source) Report() Report {
	m := s.current.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Report{Identity: m.identity.String(), Mode: m.mode, Bundle: m.own.hash, ClientBundle: m.callers.hash,
		NotAfter: m.notAfter, Read: s.read}
	if s.failed != nil {
		out.Error = s.failed.Error()
	}
	for c := range s.conns {
		if c.plain.Load() {
			out.PlaintextConnections++
		}
	}
	return out
}

// Handle serves the Report of the process at ReportPath, and passes all other requests to rest. If source is nil,
// there is no Report. If the process does not decide about calls, grants is nil.
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

// Serve writes the report as the response to a request.
func (r Report) Serve(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(r) // an error means only that the caller has disconnected
}
