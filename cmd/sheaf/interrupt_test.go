package main

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Ctrl-C ends a put that waits for its input, and the put stores nothing.
func TestInterruptedPutStoresNothing(t *testing.T) {
	// If a shell script runs `make test &`, make ignores interrupts, and so do the programs that make starts. However, if
	// the test itself catches the signal, the programs that it starts do not ignore it.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt)
	defer signal.Stop(caught)
	p := startDev(t, t.TempDir())
	// The three cases are a put that has not begun, a small put, and an upload in progress.
	for _, first := range []string{"", "some bytes", strings.Repeat("many bytes", 300_000)} {
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
		p.do(t, "", "get", "1").Want(t, 3)
	}
}

// A second signal stops the process immediately. Acknowledged records are durable even then.
func TestASecondSignalStopsAtOnce(t *testing.T) {
	dir := t.TempDir()
	p := startDev(t, dir)
	p.do(t, "kept", "put", "1").Want(t, 0)
	// An unfinished upload delays a graceful stop.
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
	case <-time.After(25 * time.Second): // a graceful stop takes 30 s in this test, because the put delays it
		t.Fatalf("a second signal does not stop it: %s", p.stderr)
	}
	p = startDev(t, dir)
	if o := p.do(t, "", "get", "1").Want(t, 0); o.Stdout != "kept" {
		t.Errorf("get 1: %q", o.Stdout)
	}
	p.do(t, "", "get", "2").Want(t, 3)
}
