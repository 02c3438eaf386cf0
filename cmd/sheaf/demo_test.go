package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What `make run` shows, on small trees.
func TestRunDemoOnceReportsAndLeavesNothingBehind(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	one, two := filepath.Join(t.TempDir(), "same"), filepath.Join(t.TempDir(), "same")
	for i, dir := range []string{one, two} {
		for n := range 400 {
			name := filepath.Join(dir, "sub "+strconv.Itoa(n%30), []string{"go.mod", "a b", "ü", "-x"}[n%4]+strconv.Itoa(n))
			must(t, os.MkdirAll(filepath.Dir(name), 0o755))
			must(t, os.WriteFile(name, pattern(uint64(n+1000*i), n*50), 0o644))
		}
	}
	server, httpAddress := freeAddress(t), freeAddress(t)
	for _, residency := range []string{"resident", "index"} {
		o := sheaf(t, nil, "run-demo", "--once", "--listen", server, "--http", httpAddress, "--residency", residency, one, two, filepath.Join(tmp, "no-such")).want(t, 0)
		for _, text := range []string{"400 files", "800 records", "SIGKILL", "every byte is there", "one file each", "left out"} {
			if !strings.Contains(o.stdout, text) {
				t.Errorf("%s: the report does not say %q: %s", residency, text, o.stdout)
			}
		}
	}
	if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
	l, err := net.Listen("tcp", server)
	must(t, err)
	defer l.Close()
	sheaf(t, nil, "run-demo", "--once", "--listen", server, "--http", httpAddress, one).want(t, 1).has(t, "is taken").has(t, "ARGS=")
}

// A Ctrl-C ends a put that waits for its input, and nothing is stored.
func TestInterruptedPutStoresNothing(t *testing.T) {
	p := startDev(t, t.TempDir())
	for _, first := range []string{"", "some bytes", strings.Repeat("many bytes", 300_000)} { // not begun, small, an upload under way
		cmd := exec.Command(sheafBinary, "put", "1", "--server", p.server)
		stdin, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		_, err = stdin.Write([]byte(first))
		must(t, err)
		must(t, cmd.Process.Signal(os.Interrupt))
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			_ = cmd.Process.Kill()
			t.Fatal("an interrupted put does not end")
		}
		if cmd.ProcessState.ExitCode() == 0 {
			t.Error("an interrupted put says that it is done")
		}
		p.do(t, "", "get", "1").want(t, 3)
	}
}

// A second signal stops at once, and what was acknowledged is there all the same.
func TestASecondSignalStopsAtOnce(t *testing.T) {
	dir := t.TempDir()
	p := startDev(t, dir)
	p.do(t, "kept", "put", "1").want(t, 0)
	// A stream that does not end by itself holds a graceful stop up.
	reader, writer, err := os.Pipe()
	must(t, err)
	defer writer.Close()
	hold := exec.Command(sheafBinary, "put", "2", "--server", p.server)
	hold.Stdin = reader
	must(t, hold.Start())
	defer func() { _ = hold.Process.Kill(); _ = hold.Wait() }()
	_, err = writer.Write(make([]byte, 3<<20))
	must(t, err)
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	eventually(t, func() bool { return strings.Contains(p.stderr.String(), "stopping") })
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.ended:
	case <-time.After(25 * time.Second): // a graceful stop takes 30 s here: the put holds it up
		t.Fatalf("a second signal does not stop it: %s", p.stderr)
	}
	p = startDev(t, dir)
	if o := p.do(t, "", "get", "1").want(t, 0); o.stdout != "kept" {
		t.Errorf("get 1: %q", o.stdout)
	}
	p.do(t, "", "get", "2").want(t, 3)
}
