// The tests run the real binary. They are in package main instead of a separate package, so that the test cache notices
// every change of the binary's sources.

package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/test/clitest"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// sheafBinary is the real program, built once for all tests of this package.
var sheafBinary string

func TestMain(m *testing.M) {
	if name := os.Getenv(floodVariable); name != "" {
		if err := attack(name); err != nil {
			fmt.Fprintln(os.Stderr, "the attacker:", err)
			os.Exit(1)
		}
		return
	}
	// The tests wait for processes longer than they compute, so more of them run at once than the machine has processors.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	clitest.Main(m, func(dir string) { sheafBinary = filepath.Join(dir, "sheaf") }, "sheaf.dev/sheaf/cmd/sheaf")
}

type outcome = clitest.Outcome

// sheaf runs the program to its end.
func sheaf(t testing.TB, stdin io.Reader, args ...string) outcome {
	t.Helper()
	return clitest.Run(t, stdin, nil, append([]string{sheafBinary}, args...)...)
}

// process is a running sheaf dev.
type process struct {
	cmd    *exec.Cmd
	server string // address of the gRPC server
	http   string
	stderr *lockedBuffer
	ended  chan struct{} // closed when the process has ended
}

// lockedBuffer can be read while a process is still writing to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// launch starts sheaf dev without waiting for it.
func launch(t testing.TB, dir, server, httpAddress string, flags ...string) *process {
	t.Helper()
	return launchWith(t, server, httpAddress, append([]string{"dev", "--dir", dir, "--listen", server, "--http",
		httpAddress}, flags...)...)
}

func launchWith(t testing.TB, server, httpAddress string, args ...string) *process {
	t.Helper()
	p := &process{server: server, http: httpAddress, stderr: &lockedBuffer{}, ended: make(chan struct{})}
	p.cmd = exec.Command(sheafBinary, args...)
	p.cmd.Stderr = p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

// startDev starts sheaf dev on free ports and waits until it serves every group.
func startDev(t testing.TB, dir string, flags ...string) *process {
	t.Helper()
	p := launch(t, dir, loopback.Free(t), loopback.Free(t), flags...)
	p.waitReady(t)
	return p
}

// waitReady waits until /readyz reports that the process is ready.
func (p *process) waitReady(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for {
		if p.ready() {
			return
		}
		select {
		case <-p.ended:
			t.Fatalf("sheaf dev ended before it was ready: %s", p.stderr)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("sheaf dev is not ready after 5 minutes: %s", p.stderr)
		}
	}
}

func (p *process) ready() bool { return p.answers("/readyz") }

// kill ends the process by SIGKILL, and waits until it has exited.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.ended
}

// stop ends the process by SIGTERM and returns its exit code.
func (p *process) stop(t testing.TB) int {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(2 * time.Minute):
		t.Fatalf("sheaf dev does not stop: %s", p.stderr)
	}
	return p.cmd.ProcessState.ExitCode()
}

// do runs a command against this store.
func (p *process) do(t testing.TB, stdin string, args ...string) outcome {
	t.Helper()
	return sheaf(t, strings.NewReader(stdin), append(args, "--server", p.server)...)
}

// putEach puts records with the given ids. The data of each record is its id, repeated the given number of times.
func (p *process) putEach(t testing.TB, ids string, times int) {
	t.Helper()
	for id := range strings.FieldsSeq(ids) {
		p.do(t, strings.Repeat(id, times), "put", id).Want(t, 0)
	}
}

// checkEach checks that the store has the records that putEach stored.
func (p *process) checkEach(t testing.TB, ids string, times int) {
	t.Helper()
	for id := range strings.FieldsSeq(ids) {
		if o := p.do(t, "", "get", id).Want(t, 0); o.Stdout != strings.Repeat(id, times) {
			t.Errorf("get %s: %d bytes, which begin with %.20q", id, len(o.Stdout), o.Stdout)
		}
	}
}

// answers reports whether the process answers a request for path with 200.
func (p *process) answers(path string) bool {
	response, err := http.Get("http://" + p.http + path)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// dial connects to a server that may restart (see reconnect).
func dial(t testing.TB, server string) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	must(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

// reconnect waits until the connection to a restarted server is established again.
func reconnect(t testing.TB, cc *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		cc.ResetConnectBackoff()
		cc.Connect()
		state := cc.GetState()
		if state == connectivity.Ready {
			return
		}
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		cc.WaitForStateChange(soon, state)
		cancel()
		if ctx.Err() != nil {
			t.Fatalf("no connection to %s: %v", cc.Target(), state)
		}
	}
}
