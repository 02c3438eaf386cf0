package telemetry

import (
	"net/http"
	"net/http/pprof"
)

// Profiles serves the profiles for go tool pprof, below /debug/pprof/. A client that reaches it sees the command line
// and can keep a processor busy: serve it only on a loopback address.
func Profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // and heap, goroutine, allocs, block, mutex by name
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // long questions
	return mux
}
