package main

import (
	"net"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/loopback"
)

// TestProcessesIgnoreProxyVariables sets HTTPS_PROXY and HTTP_PROXY, as a company may do on all its
// machines. Every process connects to the others at 0.0.0.0. Connections to this address stay on the machine, but Go
// does not regard it as a loopback address, and would use the proxy for it. The first connection must arrive at its
// target, and none may arrive at the proxy. The processes and sockets are real, because a process reads these variables
// only once, when it starts. The test takes 1 s of processor time.
func TestProcessesIgnoreProxyVariables(t *testing.T) {
	for name, args := range map[string][]string{
		"shard": {"shard", "--name", "a", "--dir", t.TempDir(), "--listen", loopback.Free(t), "--http", "", "--stay",
			"--etcd", "TARGET", "--store", "q"},
		"gateway": {"gateway", "--listen", loopback.Free(t), "--http", "", "--etcd", "TARGET", "--store", "q"},
		"status":  {"status", "--server", "TARGET"},
		"get":     {"get", "1", "--server", "TARGET"},
		"recover from a shard": {"recover", "placement", "--shards", "TARGET", "--etcd", loopback.Free(t), "--store", "q",
			"--store-uid", "11111111-1111-4111-8111-111111111111"},
		"etcd": {"etcd", "--name", "e", "--dir", t.TempDir(), "--listen-client", loopback.Free(t), "--listen-peer",
			loopback.Free(t), "--advertise-peer", "0.0.0.0:1", "--http", "", "--initial-cluster", "e=0.0.0.0:1,f=TARGET"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, proxy := listen(t), listen(t)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "TARGET", "0.0.0.0:"+target.port)
			}
			url := "http://127.0.0.1:" + proxy.port
			p := serveProgram(t, []string{"HTTPS_PROXY=" + url, "HTTP_PROXY=" + url, "https_proxy=" + url, "http_proxy=" + url,
				"NO_PROXY=", "no_proxy="}, sheafBinary, args...)
			select {
			case <-target.reached:
			case <-proxy.reached:
			case <-p.ended:
			}
			p.kill()
			if n := proxy.count(t); n > 0 {
				t.Errorf("the proxy was asked %d times", n)
			}
			if target.count(t) == 0 {
				t.Errorf("the process has not connected: %s", p.stderr)
			}
		})
	}
}

// target counts the connections to a port, and closes them without an answer.
type target struct {
	port     string
	reached  chan struct{} // closed at the first connection
	accepted chan string   // addresses of the clients, in order
}

func listen(t *testing.T) *target {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must(t, err)
	to := &target{port: port, reached: make(chan struct{}), accepted: make(chan string, 1<<16)}
	go func() {
		for first := true; ; first = false {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if to.accepted <- conn.RemoteAddr().String(); first {
				close(to.reached)
			}
			_ = conn.Close()
		}
	}()
	return to
}

// count returns the number of connections that were made before this call. It makes a connection itself and counts the
// connections before it, because the kernel accepts connections in order.
func (to *target) count(t *testing.T) (n int) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", "127.0.0.1:"+to.port)
	must(t, err)
	defer func() { _ = conn.Close() }()
	for <-to.accepted != conn.LocalAddr().String() {
		n++
	}
	return n
}
