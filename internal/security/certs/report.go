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
	Bundle               string    `json:"bundle"`        // BundleHash of the authorities of the store's processes
	ClientBundle         string    `json:"client_bundle"` // BundleHash of the authorities of callers
	NotAfter             time.Time `json:"not_after"`     // end of the certificate that expires first
	PlaintextConnections int       `json:"plaintext_connections"`
	Error                string    `json:"error,omitempty"` // why newer files are not in use
	Read                 time.Time `json:"-"`               // when the files in use were last found in the folder
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
