// Package clitest runs real programs in tests and checks their output and their exit codes.
package clitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Outcome is the result of a program that has exited.
type Outcome struct {
	Code           int // -1 if it was killed
	Stdout, Stderr string
}

// BinVariable is the name of the environment variable that holds the folder of the programs that `make build` has
// built. `make test` sets it.
const BinVariable = "SHEAF_BIN"

// Programs returns the folder that holds the commands of the named packages. If SHEAF_BIN is set, it names the
// folder, and a missing program is an error. Otherwise Programs builds the commands, with the flags of `make build`,
// in a folder that the caller chooses (the argument into).
func Programs(ctx context.Context, into string, packages ...string) (dir string, err error) {
	dir = os.Getenv(BinVariable)
	if dir == "" {
		build := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o",
			into + string(filepath.Separator)}, packages...)...)
		// Programs are built without cgo, even if the race detector needs it for the tests.
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %v: %w: %s", packages, err, out)
		}
		return into, nil
	}
	for _, name := range packages {
		// Go's cache of test results records which files a test inspects. Because of this call to os.Stat, the test runs
		// again if the program has changed.
		if _, err := os.Stat(filepath.Join(dir, path.Base(name))); err != nil {
			return "", fmt.Errorf("%s=%s: run `make build`: %w", BinVariable, dir, err)
		}
	}
	return dir, nil
}

// Main implements TestMain for a package that runs programs. It first calls set() with the folder that contains the
// commands of the named packages (see Programs), and then runs the tests.
func Main(m *testing.M, set func(dir string), packages ...string) {
	os.Exit(func() int {
		into, err := os.MkdirTemp("", "sheaf-test-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(into) }() // a folder for temporary files
		dir, err := Programs(context.Background(), into, packages...)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		set(dir)
		return m.Run()
	}())
}

// runTimeout is how long a program may run before it is killed. All programs should exit much sooner.
const runTimeout = 10 * time.Minute

// Run runs a program and waits for it. If the argument who is not nil, the program runs as that user.
func Run(t testing.TB, stdin io.Reader, who *syscall.Credential, args ...string) Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if who != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return Outcome{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// Want fails the test if the program did not exit with this code.
func (o Outcome) Want(t testing.TB, code int) Outcome {
	t.Helper()
	if o.Code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", o.Code, code, Shortened(o.Stdout), Shortened(o.Stderr))
	}
	return o
}

// Has fails the test if standard error does not contain the text.
func (o Outcome) Has(t testing.TB, text string) Outcome {
	t.Helper()
	if !strings.Contains(o.Stderr, text) {
		t.Fatalf("stderr does not say %q: %s", text, Shortened(o.Stderr))
	}
	return o
}

// JSON decodes the program's standard output into the argument.
func (o Outcome) JSON(t testing.TB, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(o.Stdout), into); err != nil {
		t.Fatalf("stdout is not JSON: %v: %s", err, Shortened(o.Stdout))
	}
}

// Shortened returns the beginning of a long string, for use in a test's message.
func Shortened(s string) string {
	if len(s) > 2000 {
		return s[:2000] + "..."
	}
	return s
}
