// Package page is the page at / of the HTTP ports of shards, gateways and sheaf dev: one file, which asks /status of
// the same port again and again and shows what it says. What the state is in a sentence is decided here (summary.go),
// as a part of that answer.
package page

import (
	"crypto/sha256"
	_ "embed" // for the page
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
)

//go:embed page.html
var html string

// policy lets the page run its own style and script, which are named by their hashes, and ask its own port: nothing
// else.
var policy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; " +
	"img-src data:; style-src " +
	hashOf("style") + "; script-src " + hashOf("script")

// hashOf is the source expression of the one element of that name.
func hashOf(element string) string {
	_, from, _ := strings.Cut(html, "<"+element+">")
	content, _, _ := strings.Cut(from, "</"+element+">")
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Handle serves the page at / of a mux, for GET and HEAD. No other path is taken: what is not there answers 404.
func Handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Length", strconv.Itoa(len(html)))
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		_, _ = w.Write([]byte(html)) // the caller went away
	})
}
