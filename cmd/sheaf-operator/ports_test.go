package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/clitest"
	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/pagetest"
)

const (
	metricsFlag = "--metrics-bind-address"
	healthFlag  = "--health-probe-bind-address"
)

// ports maps each address flag to the name of its port in the metrics.
var ports = map[string]string{metricsFlag: "metrics", healthFlag: "health"}

// startOperator starts the operator's program on an API server and waits until it is healthy. It returns the process
// id, and the address for each address flag.
func startOperator(t *testing.T) (pid int, addresses map[string]string) {
	t.Helper()
	server, err := kubetest.Start("../../config/crd/bases")
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, server.Stop()) })
	programs, err := clitest.Programs(t.Context(), t.TempDir(), "sheaf.dev/sheaf/cmd/sheaf-operator")
	must.OK(t, err)
	addresses = map[string]string{}
	args := []string{"--shard-image=sheaf:1", "--leader-elect=false"}
	for _, flag := range []string{metricsFlag, healthFlag} {
		addresses[flag], err = loopback.FreeAddress()
		must.OK(t, err)
		args = append(args, flag+"="+addresses[flag])
	}
	var words bytes.Buffer
	cmd := exec.Command(programs+"/sheaf-operator", args...)
	cmd.Stderr, cmd.Env = &words, append(os.Environ(), "KUBECONFIG="+server.Kubeconfig)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.OK(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // returns an error, because this test stops the process by a signal
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if the process has already ended
		<-ended
		if t.Failed() {
			t.Logf("the operator: %s", words.String())
		}
	})
	for {
		answer, err := http.Get("http://" + addresses[healthFlag] + "/readyz")
		if err == nil {
			must.OK(t, answer.Body.Close())
			if answer.StatusCode == http.StatusOK {
				return cmd.Process.Pid, addresses
			}
		}
		select {
		case <-ended:
			t.Fatal("the operator ended")
		case <-time.After(50 * time.Millisecond): // polls the port, because another process opens it
		}
	}
}

// Each socket on which the operator listens is in the table of docs/security.md, and each row of the table is one of
// its sockets. A socket uses plaintext HTTP, as the table says, and holds at most 256 connections; beyond that, it
// closes the oldest ones. The test runs the real program, because only the real program would open an unexpected
// socket.
func TestEachPortIsInTheTable(t *testing.T) {
	kubetest.Only(t)
	pid, addresses := startOperator(t)
	table, err := pagetest.Ports("../..")
	must.OK(t, err)
	table = slices.DeleteFunc(table, func(p pagetest.Port) bool { return p.Process != "sheaf-operator" })
	sockets, err := loopback.Listeners(pid)
	must.OK(t, err)
	if len(sockets) != len(table) {
		t.Errorf("the operator listens on %v, and docs/security.md, \"Ports\", has %v", sockets, table)
	}
	for _, row := range table {
		at := addresses[row.At]
		if row.TLS || !slices.Contains(sockets, loopback.Listener{Network: "tcp", Address: at}) {
			t.Errorf("docs/security.md: %+v: the operator listens on %v, by HTTP", row, sockets)
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		secured, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", at)
		cancel()
		if err == nil {
			_ = secured.Close() // an unused connection
			t.Errorf("%s answers by TLS", row.At)
		}
		checkConnectionLimit(t, ports[row.At], at, addresses[metricsFlag])
	}
}

// checkConnectionLimit opens more connections than a socket may hold. The next caller has to be served, and the metrics
// have to report that the oldest connections were closed. On a busy machine, some connections may time out first,
// because they send no request. checkConnectionLimit then opens more.
func checkConnectionLimit(t *testing.T, port, address, metrics string) {
	t.Helper()
	const most = 256
	for range 10 {
		for range most + 20 {
			conn, err := net.Dial("tcp", address)
			must.OK(t, err)
			defer conn.Close()
		}
		read(t, "http://"+address+"/") // the server accepts connections in order, so it has seen all others
		text := read(t, "http://"+metrics+"/metrics")
		if held := series(t, text, `sheaf_http_connections{port="`+port+`"}`); held > most {
			t.Errorf("the port for %s holds %v connections", port, held)
		}
		if series(t, text, `sheaf_http_closed_connections_total{port="`+port+`"}`) > 0 {
			return
		}
	}
	t.Errorf("the port for %s closes no connection", port)
}

// read returns the text of a page, whatever its status is.
func read(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	must.OK(t, err)
	text, err := io.ReadAll(answer.Body)
	must.OK(t, errors.Join(err, answer.Body.Close()))
	return string(text)
}

// series returns the value of a series in the text of a metrics page.
func series(t *testing.T, text, name string) float64 {
	t.Helper()
	_, after, found := strings.Cut("\n"+text, "\n"+name+" ")
	if !found {
		t.Fatalf("there is no series %s", name)
	}
	line, _, _ := strings.Cut(after, "\n")
	value, err := strconv.ParseFloat(line, 64)
	must.OK(t, err)
	return value
}
