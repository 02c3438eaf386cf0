// Package page serves the page at / on the HTTP ports of shards, gateways and sheaf dev: one HTML file, which polls
// /status on the same port and shows the result. summary.go computes the summary sentence in the /status response.
package page

import (
	"crypto/sha256"
	_ "embed" // the page is embedded in the binary
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
)

//go:embed page.html
var html string

// policy allows the page only to run its own style and script, which are named by their hashes, and to call its own
// port.
var policy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; " +
	"img-src data:; style-src " +
	hashOf("style") + "; script-src " + hashOf("script")

// hashOf returns the hash of the page's only element with this tag name, in Content-Security-Policy syntax.
func hashOf(element string) string {
	_, from, _ := strings.Cut(html, "<"+element+">")
	content, _, _ := strings.Cut(from, "</"+element+">")
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// HandleStatus serves the page at /, and the result of status as JSON at /status.
func HandleStatus(mux *http.ServeMux, logger *slog.Logger, status func() any) {
	Handle(mux)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(status()); err != nil {
			logger.Debug("/status was not read to its end", "error", err)
		}
	})
}

// Handle registers the page at / on a mux, for GET and HEAD. It serves no other path, so the mux answers unknown paths
// with 404.
func Handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Length", strconv.Itoa(len(html)))
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		_, _ = w.Write([]byte(html)) // an error only says that the client has disconnected
	})
}
