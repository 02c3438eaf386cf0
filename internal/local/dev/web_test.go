package dev

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// web returns a client of records over HTTP that shows a certificate with this identity, or none if it is nil.
func (g *granted) web(as *identity.Identity) *http.Client {
	g.t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}
	if as != nil {
		cert, key, err := g.secured.authority.Issue(authority.Leaf{Identity: *as, Server: true, Client: true,
			Now: time.Now(), Lifetime: time.Hour})
		must.OK(g.t, err)
		pair, err := tls.X509KeyPair(cert, key)
		must.OK(g.t, err)
		config.Certificates = []tls.Certificate{pair}
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return g.cfg.seams.dial(ctx, g.RecordsHTTPAddr())
		},
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			raw, err := g.cfg.seams.dial(ctx, g.RecordsHTTPAddr())
			if err != nil {
				return nil, err
			}
			conn := tls.Client(raw, config)
			return conn, conn.HandshakeContext(ctx)
		},
	}
	g.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (g *granted) client(name string) *identity.Identity {
	return &identity.Identity{Store: g.secured.store, Role: identity.Client, Name: name}
}

// The rules of gRPC apply to records over HTTP: certificates, tokens, grants, seals and the audit log. No header names
// another caller, and the status page has no records.
func TestRecordsOverHTTPHaveTheRulesOfGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit")
		audit, err := guard.OpenAudit(guard.AuditConfig{Path: path, Server: "s"})
		must.OK(t, err)
		g := startSeamed(t, seams{audit: audit}, "a", "b")
		a := access.Groups{Names: []string{"a"}}
		const audience = "sheaf/prod/quotes"
		table := access.Table{Grants: []access.Grant{toCertificate("reader", a, access.Get),
			toCertificate("scanner", a, access.Scan), toCertificate("writer", a, access.Put)}}
		g.set(table)
		ask := func(c *http.Client, method, path, body string, headers ...string) (status int, text string) {
			r, err := http.NewRequestWithContext(t.Context(), method, "https://gateway"+path, strings.NewReader(body))
			must.OK(t, err)
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			answer, err := c.Do(r)
			if err != nil {
				return 0, err.Error()
			}
			defer func() { _ = answer.Body.Close() }()
			all, err := io.ReadAll(answer.Body)
			must.OK(t, err)
			return answer.StatusCode, string(all)
		}
		const get, getB, scanA, scan, batch = "GET /v1/records/a/1", "GET /v1/records/b/1", "GET /v1/scan.tar?group=a",
			"GET /v1/scan.tar", "POST /v1/batch.tar"
		check := func(who string, c *http.Client, want map[string]int, headers ...string) {
			t.Helper()
			for request, status := range want {
				method, path, _ := strings.Cut(request, " ")
				path, body, _ := strings.Cut(path, " ")
				if method == "POST" && body == "" {
					body = `{"group":"a","ids":[1]}`
				}
				if got, text := ask(c, method, path, body, headers...); got != status {
					t.Errorf("%s, %s: %d instead of %d: %s", who, request, got, status, text)
				}
			}
		}
		admin := &identity.Identity{Store: g.secured.store, Role: identity.Admin, Name: "a"}
		stranger := g.client("reader")
		stranger.UID = uuid.UUID{9}
		check("reader", g.web(g.client("reader")), map[string]int{get: 200, "HEAD /v1/records/a/1": 200, getB: 403,
			scanA: 403, scan: 403, batch: 200, batch + ` {"group":"b","ids":[1]}`: 403, "GET /v1/records/c/1": 403})
		check("scanner", g.web(g.client("scanner")), map[string]int{get: 403, scanA: 200, scan: 403, batch: 403,
			"GET /v1/scan.tar?group=b": 403, "GET /v1/scan.tar?group=none": 403})
		check("writer", g.web(g.client("writer")), map[string]int{get: 403, scanA: 403, batch: 403},
			"Sheaf-Caller", "admin/a", "Sheaf-Unnamed", "process", "Grpc-Metadata-Authorization", "Bearer x")
		check("admin", g.web(admin), map[string]int{get: 200, getB: 200, scan: 200})
		check("another store", g.web(stranger), map[string]int{get: 403, scan: 403, batch: 403})
		check("nobody, and no issuers", g.web(nil), map[string]int{get: 0})
		check("a token and a certificate", g.web(admin), map[string]int{get: 401}, "Authorization", "Bearer x")

		issuer := newTokens(t, "https://kubernetes.default.svc")
		table.Audience, table.Issuers = audience, []access.Issuer{issuer.issuer()}
		table.Grants = append(table.Grants, access.Grant{Name: "loaders", Subjects: []access.Subject{{
			Kind: access.ServiceAccount, Namespace: "prod", Name: "loader"}}, Verbs: []access.Verb{access.Get}, Groups: a})
		g.set(table)
		token := func(account string, ends time.Duration) string {
			return "Bearer " + issuer.issue(account, audience, time.Now().Add(ends))
		}
		check("a token", g.web(nil), map[string]int{get: 200, getB: 403, batch: 200, scanA: 403}, "Authorization",
			token("loader", time.Hour))
		check("another account", g.web(nil), map[string]int{get: 403}, "Authorization", token("x", time.Hour))
		check("a token that has ended", g.web(nil), map[string]int{get: 401, batch: 401}, "Authorization",
			token("loader", -time.Minute))
		check("nobody", g.web(nil), map[string]int{get: 401, scan: 401, batch: 401})

		raw, err := g.cfg.seams.dial(t.Context(), g.RecordsHTTPAddr())
		must.OK(t, err)
		_, err = io.WriteString(raw, "GET /v1/records/a/1 HTTP/1.1\r\nHost: g\r\n\r\n")
		must.OK(t, err)
		if answer, _ := io.ReadAll(raw); bytes.Contains(answer, []byte("200 OK")) {
			t.Errorf("plaintext is answered: %q", answer)
		}
		page := httptest.NewRecorder()
		g.handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/v1/records/a/1", nil))
		if page.Code != http.StatusNotFound {
			t.Errorf("the status page answers %d", page.Code)
		}
		must.OK(t, audit.Close())
		text, err := os.ReadFile(path)
		must.OK(t, err)
		found := map[string]bool{}
		for line := range bytes.Lines(text) {
			var e guard.Event
			must.OK(t, json.Unmarshal(line, &e))
			method := e.Method[strings.LastIndex(e.Method, "/")+1:]
			if e.Kind == "first-use" {
				method = "any" // the requests above are made in any order
			}
			if e.Via == "" {
				found[strings.Join([]string{e.Kind, e.Caller, method, e.Group}, " ")] = true
			}
		}
		for _, want := range []string{"refusal client/reader Get b", "refusal client/reader Scan ",
			"refusal client/scanner Get ",
			"refusal client/scanner Scan b", "refusal client/writer BatchGet ", "first-use client/reader any a"} {
			if !found[want] {
				t.Errorf("%q is not in the audit log: %v", want, found)
			}
		}
	})
}
