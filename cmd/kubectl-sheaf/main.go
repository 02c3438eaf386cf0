// Command kubectl-sheaf is a kubectl plugin. `kubectl sheaf` shows a Sheaf store on one screen, and helps to find and
// solve its problems.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the build.
var version = "unknown"

// These exit codes are the same as those of the sheaf program.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newApp(os.Stdout, os.Stderr).command().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "kubectl sheaf: %v\n", err)
	os.Exit(exitCode(err))
}

// failure is an error that occurs while a command runs. Any other error is an error in the command line.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

func failf(format string, args ...any) error { return failure{fmt.Errorf(format, args...)} }

// exitCode returns the exit code for err, which tells a failure from a wrong command line.
func exitCode(err error) int {
	if _, ok := errors.AsType[failure](err); ok {
		return exitFailed
	}
	return exitUsage
}
