package certs

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// withMode returns a copy of the files in which ModeFile contains the given mode.
func (f files) withMode(mode Mode) files {
	f[ModeFile] = []byte(string(mode) + "\n")
	return f
}

// TestAdjacentModesAreCompatible switches a store to TLS and back, one process at a time. At
// each moment, some processes use one mode and the others the next mode. They must be able to communicate with each
// other, and callers must still be identified.
func TestAdjacentModesAreCompatible(t *testing.T) {
	a := newAuthority(t, "a")
	modes := []Mode{Plaintext, Both, Required}
	for _, caller := range modes {
		for _, called := range modes {
			source, _ := open(t, certFiles(t, a, leaf(gate), a).withMode(called), &clock{})
			address, callers := serve(t, source.Server(ServerOptions{}))
			from, _ := open(t, certFiles(t, a, leaf(shard), a).withMode(caller), &clock{})
			err := check(t, address, from.Client(from.Own(identity.Gateway, "")))
			if apart := caller == Plaintext && called == Required; (err != nil) != apart {
				t.Errorf("%s calls %s: %v", caller, called, err)
			} else if err == nil {
				want := shard
				if caller == Plaintext {
					want = identity.Identity{}
				}
				if who := <-callers; who != want {
					t.Errorf("%s calls %s: it is called by %v", caller, called, who)
				}
			}
		}
	}
	// As long as TLS is not required, callers without a certificate are served.
	for _, mode := range modes {
		source, _ := open(t, certFiles(t, a, leaf(gate), a).withMode(mode), &clock{})
		address, callers := serve(t, source.Server(ServerOptions{}))
		if err := check(t, address, insecure.NewCredentials()); (err != nil) != (mode == Required) {
			t.Errorf("%s is called without TLS: %v", mode, err)
		} else if err == nil {
			<-callers
		}
	}
}

// TestConnectionsWithoutTLSEndWhereItIsRequired checks that existing connections without TLS are closed by both sides
// when TLS becomes required.
func TestConnectionsWithoutTLSEndWhereItIsRequired(t *testing.T) {
	a := newAuthority(t, "a")
	source, err := InMemory(Config{Every: time.Hour}, certFiles(t, a, leaf(gate), a).withMode(Plaintext))
	must.OK(t, err)
	t.Cleanup(source.Close)
	address, _ := serve(t, source.Server(ServerOptions{}))
	from, err := InMemory(Config{Every: time.Hour}, certFiles(t, a, leaf(shard), a).withMode(Plaintext))
	must.OK(t, err)
	t.Cleanup(from.Close)
	stream, err := dial(t, address, from.Client(from.Own(identity.Gateway, ""))).
		Watch(t.Context(), &healthv1.HealthCheckRequest{})
	must.OK(t, err)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Source{source, from} {
		if n := s.Report().PlaintextConnections; n != 1 {
			t.Errorf("%d connections without TLS", n)
		}
		must.OK(t, s.Replace(certFiles(t, a, leaf(s.Identity()), a).withMode(Both)))
		if n := s.Report().PlaintextConnections; n != 1 {
			t.Errorf("both: %d connections without TLS", n)
		}
	}
	must.OK(t, source.Replace(certFiles(t, a, leaf(gate), a).withMode(Required)))
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream: %v", err)
	}
	if r := source.Report(); r.PlaintextConnections != 0 || r.Mode != Required {
		t.Errorf("%+v", r)
	}
	if err := check(t, address, from.Client(from.Own(identity.Gateway, ""))); err != nil {
		t.Error(err)
	}
}

// TestCallerAuthorityIsTrustedOnlyForCallers checks a store with two authorities, one for callers and one for the
// store's processes. Neither of them is trusted for the other's purpose.
func TestCallerAuthorityIsTrustedOnlyForCallers(t *testing.T) {
	parts, people := newAuthority(t, "parts"), newAuthority(t, "people")
	caller := identity.Identity{Store: one, Role: identity.Client, Name: "ada"}
	with := func(by *authority.Authority, id identity.Identity) files {
		all := certFiles(t, by, leaf(id), parts)
		all[ClientBundleFile] = people.CertificatePEM()
		return all
	}
	source, _ := open(t, with(parts, gate), &clock{})
	address, callers := serve(t, source.Server(ServerOptions{}))
	for _, c := range []struct {
		by   *authority.Authority
		id   identity.Identity
		good bool
	}{{parts, shard, true}, {people, caller, true}, {people, shard, false}, {parts, caller, false}} {
		err := check(t, address, as(t, with(c.by, c.id), nil))
		if (err == nil) != c.good {
			t.Errorf("%s: %v", c.id, err)
		}
		if err == nil {
			<-callers
		}
	}
	// A server must not use a certificate that was signed by the authority for callers.
	if _, err := InMemory(Config{}, with(people, gate)); err == nil {
		t.Error("a gateway of the authority of callers starts")
	}
	if r := source.Report(); r.Bundle == r.ClientBundle || r.Bundle == "" || r.ClientBundle == "" {
		t.Errorf("%+v", r)
	}
}

func TestTheReportIsServed(t *testing.T) {
	a := newAuthority(t, "a")
	source, err := InMemory(Config{Every: time.Hour}, certFiles(t, a, leaf(shard), a).withMode(Both))
	must.OK(t, err)
	t.Cleanup(source.Close)
	get := func(handler http.Handler, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}
	rest := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })
	if code := get(Handle(source, nil, rest), "/status").Code; code != http.StatusTeapot {
		t.Errorf("what else is served: %d", code)
	}
	if code := get(Handle(nil, nil, rest), ReportPath).Code; code != http.StatusTeapot {
		t.Errorf("without certificates: %d", code)
	}
	if err := source.Replace(files{ModeFile: []byte("perhaps")}); err == nil {
		t.Error("a mode that does not exist is taken")
	}
	var report Report
	must.OK(t, json.Unmarshal(get(Handle(source, nil, rest), ReportPath).Body.Bytes(), &report))
	if report.Identity != shard.String() || report.Mode != Both || len(report.Bundle) != 64 ||
		report.Bundle != report.ClientBundle || report.NotAfter.IsZero() || report.Error == "" {
		t.Errorf("%+v", report)
	}
}

// TestGrantsAreRequiredByAFile checks that callers must wait for a table if the file "grants" contains the word
// "required". Any other content of the file is an error, and the previous setting then stays in force.
func TestGrantsAreRequiredByAFile(t *testing.T) {
	a := newAuthority(t, "a")
	with := func(word string) map[string][]byte {
		files := certFiles(t, a, leaf(shard), a)
		if word != "" {
			files[GrantsFile] = []byte(word)
		}
		return files
	}
	source, err := InMemory(Config{Every: time.Hour}, with(""))
	must.OK(t, err)
	t.Cleanup(source.Close)
	if source.GrantsRequired() {
		t.Error("required without the file")
	}
	if err := source.Replace(with("required\n")); err != nil || !source.GrantsRequired() {
		t.Error(err)
	}
	if err := source.Replace(with("open")); err == nil || !source.GrantsRequired() {
		t.Errorf("another word: %v", err)
	}
	if err := source.Replace(with("")); err != nil || source.GrantsRequired() {
		t.Error(err)
	}
}
