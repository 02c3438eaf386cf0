package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/test/must"
)

// rig is everything that a run creates on this machine: a folder, and processes that hold unnamed namespaces. Two
// runs cannot collide, because other processes can see the name of nothing but the folder. The kernel removes each
// namespace when its last process exits. If the test's process exits for any reason, the kernel also kills the
// processes that it has started. The test itself removes the folder. If the test is killed, the janitor removes the
// folder instead.
type rig struct {
	t       *testing.T
	dir     string
	own     int      // file descriptor of this process's network namespace
	hub     *machine // the machine with the bridge and the clients
	starter chan func()
	janitor io.Closer
	http    *http.Client

	mu        sync.Mutex
	processes []*process
	machines  []*machine
}

// folderPrefix is the prefix of every run's folder.
const folderPrefix = "sheaf-chaos-"

func newRig(t *testing.T) *rig {
	sweep(t)
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", folderPrefix, os.Getpid()))
	must.OK(t, err)
	r := &rig{t: t, dir: dir, starter: make(chan func())}
	t.Cleanup(r.remove)
	r.own, err = unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must.OK(t, err)
	// When a thread exits, the kernel kills the child processes that the thread has started. Therefore all of them are
	// started by a single thread, which never exits.
	go func() {
		runtime.LockOSThread()
		for do := range r.starter {
			do()
		}
	}()
	r.janitor = r.startJanitor()
	must.OK(t, os.Mkdir(filepath.Join(dir, "logs"), 0o755))
	r.hub = r.newMachine("hub", hubAddress)
	r.hub.must("ip", "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0", "stp_state", "0")
	r.hub.must("ip", "address", "add", hubAddress+"/24", "dev", "bridge")
	r.hub.must("ip", "link", "set", "bridge", "up")
	r.http = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: r.dial,
		DisableKeepAlives: true}}
	return r
}

// sweep removes the remains of runs whose process has exited: their folders, and the loop devices on files in these
// folders.
func sweep(t *testing.T) {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	must.OK(t, err)
	for _, dir := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), folderPrefix), "-")
		if comm, err := os.ReadFile("/proc/" + pid + "/comm"); err == nil && strings.Contains(string(comm), "chaos") {
			continue // the run is still in progress
		}
		t.Logf("a run that was killed left %s: removed", dir)
		detachLoops(dir)
		must.OK(t, os.RemoveAll(dir))
	}
}

// startJanitor starts a process that removes the folder after this process has exited. When the returned pipe is
// closed, the janitor assumes that this process has exited.
func (r *rig) startJanitor() io.Closer {
	cmd := exec.Command("sh", "-c", `cat >/dev/null; sleep 1; rm -rf --one-file-system "$0"`, r.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe() // closed when this process exits
	must.OK(r.t, err)
	must.OK(r.t, cmd.Start())
	go func() { _ = cmd.Wait() }() // collects the exit status, so that no zombie remains
	return pipe
}

// remove kills everything, and checks that no process and no file remains.
func (r *rig) remove() {
	r.keepLogs()
	r.mu.Lock()
	processes, machines := r.processes, r.machines
	r.mu.Unlock()
	for _, p := range processes {
		p.kill()
	}
	for _, m := range machines {
		m.remove()
	}
	close(r.starter)
	_ = unix.Close(r.own)
	for deadline := time.Now().Add(20 * time.Second); loopsOn(r.dir) != "" && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond) // the kernel removes mounts shortly after the last process has exited
	}
	if left := loopsOn(r.dir); left != "" {
		r.t.Errorf("loop devices are left: %s", left)
		detachLoops(r.dir)
	}
	if err := os.RemoveAll(r.dir); err != nil {
		r.t.Errorf("removing the folder of the run: %v", err)
	}
	if r.janitor != nil {
		_ = r.janitor.Close()
	}
}

// keepLogs prints the ends of the logs if the test failed, and copies the logs to the folder that -logs names.
func (r *rig) keepLogs() {
	logs := filepath.Join(r.dir, "logs")
	if *logsFlag != "" {
		_ = os.RemoveAll(filepath.Join(*logsFlag, "logs"))
		if err := os.CopyFS(filepath.Join(*logsFlag, "logs"), os.DirFS(logs)); err != nil {
			r.t.Errorf("keeping the logs: %v", err)
		}
	}
	if !r.t.Failed() {
		return
	}
	entries, _ := os.ReadDir(logs)
	for _, e := range entries {
		text, _ := os.ReadFile(filepath.Join(logs, e.Name()))
		r.t.Logf("--- the end of %s:\n%s", e.Name(), text[max(0, len(text)-2500):])
	}
}

func loopsOn(dir string) string {
	out, _ := exec.Command("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").Output()
	text := ""
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) {
			text += line
		}
	}
	return text
}

func detachLoops(dir string) {
	for line := range strings.Lines(loopsOn(dir)) {
		_ = exec.Command("losetup", "--detach", strings.Fields(line)[0]).Run()
	}
}

// start starts a command on the thread that never exits. If another thread started it, the kernel would kill the
// command when that thread exits.
func (r *rig) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	result := make(chan error)
	r.starter <- func() { result <- cmd.Start() }
	return <-result
}

// command runs a command and waits for it.
func (r *rig) command(args ...string) (string, error) {
	cmd := exec.Command(args[0], args[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := r.start(cmd); err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

// dial connects from the hub's network namespace. The thread enters that namespace only to create the socket, because
// a socket stays in the namespace in which it was created.
func (r *rig) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type answer struct {
		conn net.Conn
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(r.hub.netns, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			answers <- answer{err: fmt.Errorf("entering the hub's namespace: %w", err)}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if back := unix.Setns(r.own, unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		} // if the switch back failed, the thread stays locked, and ends with this goroutine
		answers <- answer{conn, err}
	}()
	a := <-answers
	return a.conn, a.err
}

// fetchPage requests a page from a process over HTTP, and returns an error unless the request succeeds.
func (r *rig) fetchPage(address, path string) error {
	response, err := r.http.Get("http://" + address + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 2000))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	return nil
}

// process is a running program of the store.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when the process has exited
}

// launch starts a program in a machine, and appends its output to the log with the given name.
func (m *machine) launch(name string, args ...string) (*process, error) {
	r := m.rig
	p := &process{name: name, log: filepath.Join(r.dir, "logs", name+".log"), ended: make(chan struct{})}
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	fmt.Fprintf(file, "--- %s started at %s\n", name, time.Now().UTC().Format("15:04:05.000"))
	args = m.inside(args...)
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = file, file
	if err := r.start(p.cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // ProcessState records how the process exited
		close(p.ended)
	}()
	r.mu.Lock()
	r.processes = append(r.processes, p)
	r.mu.Unlock()
	return p, nil
}

// kill kills the process with SIGKILL and returns when the process has exited.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // fails if the process has already exited
	<-p.ended
}

// killed reports whether the process was terminated by SIGKILL.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// stop terminates the process with SIGTERM, and returns an error if it did not exit cleanly.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("%s does not stop", p.name)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s: SIGTERM: exit code %d", p.name, code)
	}
	return nil
}

// state returns the letter of the process's state in /proc. The letter T means stopped.
func (p *process) state() string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return err.Error()
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:min(1, len(rest))]
}

// alive reports whether the process runs.
func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// await calls checkNewest() repeatedly until it returns nil.
func await(what string, patience time.Duration, holds func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := holds()
		if err == nil {
			return nil
		}
		if errors.Is(err, errHopeless) || time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// An error that wraps errHopeless makes await return at once, although its patience has not run out.
var errHopeless = errors.New("and it will not")
