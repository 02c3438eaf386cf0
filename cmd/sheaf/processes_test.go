package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/etcdserver"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// serve starts sheaf shard or sheaf gateway.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	return serveProgram(t, nil, sheafBinary, args...)
}

// serveProgram starts another program, with additional environment variables.
func serveProgram(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{stderr: &lockedBuffer{}, ended: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stderr, p.cmd.Env = p.stderr, append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

// The store runs etcd, two shards and a gateway as separate processes.
func TestRealProcesses(t *testing.T) {
	t.Parallel()
	server, err := etcdserver.Start(t.TempDir())
	must(t, err)
	defer server.Close()
	endpoints := strings.Join(server.Endpoints(), ",")
	common := []string{"--etcd", endpoints, "--store", "quotes"}

	sheaf(t, nil, append([]string{"gateway", "--listen", loopback.Free(t), "--http", ""}, common...)...).Want(t, 1).
		Has(t, "--create")

	gateway := serve(t, append([]string{"gateway", "--listen", loopback.Free(t), "--http", loopback.Free(t), "--create",
		"--groups", "6"}, common...)...)
	gateway.server, gateway.http = gateway.cmd.Args[3], gateway.cmd.Args[5]
	gateway.waitReady(t)
	for _, command := range []string{"doctor", "status"} { // no shard runs, so no command may report success
		sheaf(t, nil, command, "--server", gateway.server).Want(t, 1).Has(t, "1 problem")
	}
	shards := map[string]*process{}
	dirs := map[string]string{"a": t.TempDir(), "b": t.TempDir()}
	startShard := func(name string) {
		p := serve(t, append([]string{"shard", "--name", name, "--dir", dirs[name], "--listen", loopback.Free(t), "--http",
			loopback.Free(t)}, common...)...)
		p.http = p.cmd.Args[9]
		shards[name] = p
	}
	startShard("a")
	startShard("b")
	for id := range strings.FieldsSeq("1 2 3 4 5 6 7 8 9 10 11 12") {
		eventually(t, func() bool { return sheaf(t, strings.NewReader(id), "put", id, "--server", gateway.server).Code == 0 })
	}
	sheaf(t, nil, "shard", "--name", "a", "--dir", dirs["b"], "--listen", loopback.Free(t), "--etcd", endpoints, "--store",
		"quotes", "--http", "").Want(t, 1)

	// One shard is killed, and the other one is stopped gracefully. Both are started again.
	shards["a"].kill()
	startShard("a")
	if code := shards["b"].stop(t); code != 0 {
		t.Errorf("SIGTERM: exit code %d: %s", code, shards["b"].stderr)
	}
	startShard("b")
	shards["a"].waitReady(t)
	shards["b"].waitReady(t)
	for id := range strings.FieldsSeq("1 2 3 4 5 6 7 8 9 10 11 12") {
		eventually(t, func() bool {
			o := sheaf(t, nil, "get", id, "--server", gateway.server)
			if o.Code == 0 && o.Stdout != id {
				t.Fatalf("get %s: %q", id, o.Stdout)
			}
			return o.Code == 0
		})
	}
	if code := gateway.stop(t); code != 0 {
		t.Errorf("SIGTERM: exit code %d: %s", code, gateway.stderr)
	}
}

// eventually polls a condition that other processes bring about.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatal("it does not become so within 5 minutes")
		}
		time.Sleep(20 * time.Millisecond)
	}
}
