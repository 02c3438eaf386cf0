package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clientProgram is a program in examples/, in one language. Each program has a driver in testdata. If the driver is
// called with only an address, it makes rounds of writes until it reads "stop" from standard input. Then it reads all
// records back. If it is called with an address and "answers", it makes the calls that TestClientsHeedAnswers checks.
type clientProgram struct {
	language string
	variable string // environment variable that says where the tools of the language are; `make test-clients` sets it
	file     string // path below examples/
	driver   string
	calls    string // calls beyond put and get: "" or "all"
	// command prepares the folder dir, which contains the program and its driver, and returns the command to run there.
	// The argument with is the value of the environment variable.
	command func(t *testing.T, with, dir string) []string
}

const examples = "../../examples"

var clientPrograms = []clientProgram{pythonClient, nodeClient, javaClient, grpcurlClient}

// TestClients runs the programs of examples/ against a store of three copies. The store's shards and its gateway are
// killed one after another while the programs write. No call fails, and all acknowledged records are read back.
func TestClients(t *testing.T) {
	for _, program := range clientPrograms {
		t.Run(program.language, func(t *testing.T) {
			command := program.driverCommand(t)
			s := newCopiesStore(t)
			s.waitReady()
			d := startDriver(t, append(command, s.address))
			for _, name := range copiesShards { // every shard is killed once, so the leader of each group is killed, too
				d.awaitRounds(10)
				s.shards[name].kill()
				d.awaitRounds(30)
				s.start(name)
				s.shards[name].waitReady(t)
			}
			for range 3 { // the gateway cannot repeat calls while it is down, so the program must repeat them
				d.awaitRounds(10)
				s.gateway.kill()
				s.startGateway()
			}
			d.awaitRounds(10)
			_, err := io.WriteString(d.stdin, "stop\n")
			must(t, err)
			lines := d.awaitExit()
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, "all ") {
				t.Fatalf("the last line is %q", last)
			}
			t.Log(lines[len(lines)-1])
		})
	}
}

// driverCommand returns the command that runs the driver, without arguments for the driver. It skips the test if the
// environment variable for the language is not set.
func (p *clientProgram) driverCommand(t *testing.T) []string {
	t.Helper()
	with := os.Getenv(p.variable)
	if with == "" {
		t.Skip(p.variable + " is not set: make test-clients")
	}
	dir := t.TempDir()
	for _, from := range []string{filepath.Join(examples, p.file), filepath.Join("testdata", p.driver)} {
		content, err := os.ReadFile(from)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, filepath.Base(from)), content, 0o600))
	}
	return p.command(t, with, dir)
}

// clientDriver is a running driver.
type clientDriver struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.Writer
	stdout *bufio.Scanner
	stderr *lockedBuffer
}

func startDriver(t *testing.T, command []string) *clientDriver {
	t.Helper()
	d := &clientDriver{t: t, cmd: exec.Command(command[0], command[1:]...), stderr: &lockedBuffer{}}
	stdin, err := d.cmd.StdinPipe()
	must(t, err)
	stdout, err := d.cmd.StdoutPipe()
	must(t, err)
	d.stdin, d.stdout, d.cmd.Stderr = stdin, bufio.NewScanner(stdout), d.stderr
	must(t, d.cmd.Start())
	end := time.AfterFunc(10*time.Minute, func() { _ = d.cmd.Process.Kill() })
	t.Cleanup(func() {
		end.Stop()
		_ = d.cmd.Process.Kill()
	})
	return d
}

// awaitRounds waits until the driver has printed n more lines.
func (d *clientDriver) awaitRounds(n int) {
	d.t.Helper()
	for range n {
		if !d.stdout.Scan() {
			_ = d.cmd.Wait()
			d.t.Fatalf("the program ended early: %s", d.stderr)
		}
	}
}

// awaitExit waits until the driver has exited successfully. It returns the lines that the driver has printed and that
// no earlier call has read.
func (d *clientDriver) awaitExit() (lines []string) {
	d.t.Helper()
	for d.stdout.Scan() {
		lines = append(lines, d.stdout.Text())
	}
	if err := d.cmd.Wait(); err != nil || len(lines) == 0 {
		d.t.Fatalf("%v, after %q: %s", err, lines, d.stderr)
	}
	return lines
}

// output runs a command that prepares the test, and returns its output. The command must succeed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}
