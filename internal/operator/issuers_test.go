package operator

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestIssuerKeysAreFetchedSafely checks that the operator contacts an issuer only over HTTPS and within a bounded time,
// and accepts a response only from the intended issuer.
func TestIssuerKeysAreFetchedSafely(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"keys":[]}`)
	}))
	t.Cleanup(plain.Close)
	hang := make(chan struct{})
	var server *httptest.Server
	about := func(issuer, keys string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, issuer, keys)
		}
	}
	mux := http.NewServeMux()
	server = httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hang) })
	at := func(path string, handle http.HandlerFunc) { mux.HandleFunc("GET "+path+discoveryPath, handle) }
	at("/good", about(server.URL+"/good", server.URL+"/keys"))
	at("/slash", about(server.URL+"/slash/", server.URL+"/keys"))
	at("/other", about("https://other.example.org", server.URL+"/keys"))
	at("/plain", about(server.URL+"/plain", plain.URL))
	at("/file", about(server.URL+"/file", "file:///etc/passwd"))
	at("/away", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, plain.URL, http.StatusFound) })
	at("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) })
	at("/large", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat(" ", issuerAnswerMax+1)) })
	at("/words", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secretWords") })
	at("/hang", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[{"kid":"a"}]}`) })
	bundle := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for path, words := range map[string]string{
		"/good": "", "/slash/": "", "/slash": "says that it is the issuer", "/other": "says that it is the issuer",
		"/plain": "no URL with https", "/file": "no URL with https",
		"/away": "another place than by HTTPS", "/round": "too often", "/large": "more than", "/words": "not the JSON",
		"/none": "404", "/hang": "deadline",
	} {
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if path == "/hang" {
			ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
		}
		keys, err := IssuerKeys(ctx, server.URL+path, bundle)
		cancel()
		switch {
		case words == "" && (err != nil || !strings.Contains(string(keys), `"kid":"a"`)):
			t.Errorf("%s: %s, %v", path, keys, err)
		case words != "" && (err == nil || !strings.Contains(err.Error(), words) ||
			strings.Contains(err.Error(), "secretWords")):
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := IssuerKeys(t.Context(), server.URL+"/good", "none"); err == nil ||
		!strings.Contains(err.Error(), "no certificate") {
		t.Error(err)
	}
	if _, err := IssuerKeys(t.Context(), plain.URL, bundle); err == nil {
		t.Error("it was asked by plaintext")
	}
}
