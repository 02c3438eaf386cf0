package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/etcdserver"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// TestProfilesAreServedOnRequest checks that profiles are served only on request, and only at a loopback address.
func TestProfilesAreServedOnRequest(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"192.0.2.1:6060", "0.0.0.0:6060", ":6060", "[::]:6060", "example.com:6060",
		"localhost:6060", "6060"} {
		for _, command := range [][]string{{"dev"}, {"gateway"}, {"shard", "--name", "a", "--dir", t.TempDir()}} {
			sheaf(t, nil, append(command, "--pprof", address)...).Want(t, 2).Has(t, "--pprof")
		}
	}

	server, err := etcdserver.Start(t.TempDir())
	must(t, err)
	defer server.Close()
	common := []string{"--etcd", strings.Join(server.Endpoints(), ","), "--store", "quotes", "--listen", loopback.Free(t),
		"--http", loopback.Free(t)}
	for _, command := range [][]string{
		append([]string{"gateway", "--create"}, common...),
		append([]string{"shard", "--name", "a", "--dir", t.TempDir()}, common...),
		{"dev", "--listen", loopback.Free(t), "--http", loopback.Free(t), "--shards", "1", "--groups", "1", "--dir",
			t.TempDir()},
	} {
		address := loopback.Free(t)
		p := serve(t, append(command, "--pprof", address)...)
		eventually(t, func() bool {
			select {
			case <-p.ended:
				t.Fatalf("%s has ended: %s", command[0], p.stderr)
			default:
			}
			code, body := askFor(t, "http://"+address+"/debug/pprof/goroutine?debug=1")
			return code == http.StatusOK && strings.Contains(body, "goroutine profile:")
		})
		if code, _ := askFor(t, "http://"+address+"/debug/pprof/profile?seconds=1"); code != http.StatusOK {
			t.Errorf("%s: a profile of the processor answers %d", command[0], code)
		}
		for i, arg := range command {
			if arg != "--http" {
				continue
			}
			eventually(t, func() bool { code, _ := askFor(t, "http://"+command[i+1]+"/healthz"); return code == http.StatusOK })
			if code, _ := askFor(t, "http://"+command[i+1]+"/debug/pprof/"); code != http.StatusNotFound {
				t.Errorf("%s: the port that others reach answers %d", command[0], code)
			}
		}
		if code := p.stop(t); code != 0 {
			t.Errorf("%s: exit code %d: %s", command[0], code, p.stderr)
		}
	}
}

// askFor sends a GET request and returns the answer. The code 0 means that there was no answer.
func askFor(t *testing.T, url string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body) // the caller checks the text, so an incomplete text fails the test
	return response.StatusCode, string(text)
}
