package telemetry

import (
	"net/http"
	"net/http/pprof"
)

// Profiles serves the profiles for go tool pprof, below /debug/pprof/. A client that can reach the profiles sees the
// command line of the process and can keep a processor busy. Therefore serve them only on a loopback address.
func Profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // also serves heap, goroutine, allocs, block and mutex
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // for questions that are too long for a URL
	return mux
}
