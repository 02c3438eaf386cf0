// Package clitest runs real programs in tests and looks at what they print and how they end.
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
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Outcome of a program that ended.
type Outcome struct {
	Code           int // -1: it was killed
	Stdout, Stderr string
}

// Main is a TestMain: it builds the commands of the packages named, static, into a folder that is there while the tests
// run. set is given that folder first.
func Main(m *testing.M, set func(dir string), packages ...string) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "sheaf-test-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }() // in the folder for temporary files
		build := exec.CommandContext(context.Background(), "go", append([]string{"build", "-o", dir + string(filepath.Separator)}, packages...)...)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "building", packages, err)
			return 1
		}
		set(dir)
		return m.Run()
	}())
}

// longest is how long a program may take, which no test is meant to come near.
const longest = 10 * time.Minute

// Run runs a program to its end, as another user where who is given.
func Run(t testing.TB, stdin io.Reader, who *syscall.Credential, args ...string) Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), longest)
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

// Want fails the test where the program did not end with this code.
func (o Outcome) Want(t testing.TB, code int) Outcome {
	t.Helper()
	if o.Code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", o.Code, code, Shortened(o.Stdout), Shortened(o.Stderr))
	}
	return o
}

// Has fails the test where standard error lacks a text.
func (o Outcome) Has(t testing.TB, text string) Outcome {
	t.Helper()
	if !strings.Contains(o.Stderr, text) {
		t.Fatalf("stderr does not say %q: %s", text, Shortened(o.Stderr))
	}
	return o
}

// JSON reads standard output.
func (o Outcome) JSON(t testing.TB, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(o.Stdout), into); err != nil {
		t.Fatalf("stdout is not JSON: %v: %s", err, Shortened(o.Stdout))
	}
}

// Shortened is the beginning of a long text, for the message of a test.
func Shortened(s string) string {
	if len(s) > 2000 {
		return s[:2000] + "..."
	}
	return s
}
