package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// watchLine is a line of sheaf watch -o json.
type watchLine struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"`
	Data    []byte `json:"data"`
	Cursor  string `json:"cursor"`
}

// watchProcess is a running sheaf watch.
type watchProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Reader
	said  bytes.Buffer // standard error; complete once the program has ended
}

func (p *process) watch(t *testing.T, args ...string) *watchProcess {
	t.Helper()
	w := &watchProcess{t: t, cmd: exec.Command(sheafBinary, append([]string{"watch", "-o", "json", "--server", p.server},
		args...)...)} //nolint:gosec // the test runs the program it has built
	out, err := w.cmd.StdoutPipe()
	must(t, err)
	w.cmd.Stderr = &w.said
	must(t, w.cmd.Start())
	t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	w.lines = bufio.NewReader(out)
	return w
}

// until reads lines and returns the first one that the given function accepts.
func (w *watchProcess) until(is func(watchLine) bool) watchLine {
	w.t.Helper()
	for {
		text, err := w.lines.ReadString('\n')
		if err != nil {
			ended := w.cmd.Wait()
			w.t.Fatalf("%q, %v, %v\n%s", text, err, ended, w.said.String())
		}
		var line watchLine
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			w.t.Fatalf("%q: %v", text, err)
		}
		if is(line) {
			return line
		}
	}
}

// interrupt ends the command as a user would. The command must not report a failure.
func (w *watchProcess) interrupt() {
	w.t.Helper()
	must(w.t, w.cmd.Process.Signal(syscall.SIGINT))
	_, _ = io.Copy(io.Discard, w.lines)
	if err := w.cmd.Wait(); err != nil {
		w.t.Fatalf("after an interrupt: %v", err)
	}
}

func TestWatchFollowsAGroup(t *testing.T) {
	p := startDev(t, t.TempDir(), "--groups", "1")
	cursor := func(l watchLine) bool { return l.Cursor != "" }
	w := p.watch(t, "0")
	first := w.until(cursor).Cursor
	p.do(t, "hello", "put", "5").Want(t, 0)
	w.until(func(l watchLine) bool { return l.ID == "5" && string(l.Data) == "hello" })
	p.do(t, "", "rm", "5").Want(t, 0)
	w.until(func(l watchLine) bool { return l.ID == "5" && l.Deleted })
	last := w.until(cursor).Cursor
	w.interrupt()

	again := p.watch(t, "0", "--from", first)
	again.until(func(l watchLine) bool { return l.ID == "5" && l.Deleted })
	again.interrupt()
	behind := p.watch(t, "0", "--from", last)
	behind.until(cursor)
	p.do(t, "x", "put", "6").Want(t, 0)
	behind.until(func(l watchLine) bool {
		if l.ID == "5" {
			t.Error("what was told before the cursor came again")
		}
		return l.ID == "6"
	})
	behind.interrupt()
	p.do(t, "", "watch", "0", "--from", "nonsense").Want(t, 2)
	p.do(t, "", "watch", "0", "--from", "%").Want(t, 2)
	if o := p.do(t, "", "watch", "9"); o.Code == 0 {
		t.Error("a group that cannot be is watched")
	}
	if o := p.do(t, "", "moves", "-o", "json").Want(t, 0); strings.TrimSpace(o.Stdout) != "[]" {
		t.Errorf("moves of a settled store: %s", o.Stdout)
	}
	if o := p.do(t, "", "moves", "--watch").Want(t, 0); strings.TrimSpace(o.Stderr) != "nothing moves" {
		t.Errorf("watched moves of a settled store: %s%s", o.Stdout, o.Stderr)
	}
	p.do(t, "", "moves", "--every", "0s").Want(t, 2)
}
