package main

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestNoProcessGoesThroughAProxyOfTheEnvironment: HTTPS_PROXY and HTTP_PROXY name a proxy, as in the environment of a
// whole company, and every other process is at an address that is no loopback. Nobody asks the proxy. The processes are
// real, as the variables are read once for each; the addresses are of a network for documentation, where nobody is. It
// costs 1 s of a processor.
func TestNoProcessGoesThroughAProxyOfTheEnvironment(t *testing.T) {
	const nobody = "192.0.2.1"
	store := []string{"--etcd", nobody + ":2379", "--store", "q"}
	for name, args := range map[string][]string{
		"shard": append([]string{"shard", "--name", "a", "--dir", t.TempDir(), "--listen", freeAddress(t), "--http", "",
			"--stay"}, store...),
		"gateway": append([]string{"gateway", "--listen", freeAddress(t), "--http", ""}, store...),
		"status":  {"status", "--server", nobody + ":7600"},
		"get":     {"get", "1", "--server", nobody + ":7600"},
		"recover": {"recover", "placement", "--shards", nobody + ":7600", "--etcd", nobody + ":2379", "--store", "q",
			"--store-uid", "11111111-1111-4111-8111-111111111111"},
		"etcd": {"etcd", "--name", "e", "--dir", t.TempDir(), "--listen-client", freeAddress(t), "--listen-peer",
			freeAddress(t), "--advertise-peer", nobody + ":2380", "--http", "", "--initial-cluster",
			"e=" + nobody + ":2380,f=" + nobody + ":2381"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, url := countingProxy(t)
			p := serveProgram(t, []string{"HTTPS_PROXY=" + url, "HTTP_PROXY=" + url, "https_proxy=" + url, "http_proxy=" + url,
				"NO_PROXY=", "no_proxy="}, sheafBinary, args...)
			select {
			case <-p.ended:
			case <-time.After(5 * time.Second): // by then it has tried to connect
			}
			p.kill()
			if n := asked.Load(); n > 0 {
				t.Errorf("the proxy was asked %d times", n)
			}
			if said := p.stderr.String(); strings.Contains(said, "unknown flag") || strings.Contains(said, "required flag") {
				t.Errorf("the process did nothing: %s", said)
			}
		})
	}
}

// countingProxy counts who connects to it, and gives nobody an answer.
func countingProxy(t *testing.T) (asked *atomic.Int64, url string) {
	t.Helper()
	proxy, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = proxy.Close() })
	asked = new(atomic.Int64)
	go func() {
		for {
			conn, err := proxy.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			_ = conn.Close()
		}
	}()
	return asked, "http://" + proxy.Addr().String()
}
