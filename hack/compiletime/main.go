// Command compiletime runs a tool of Go's toolchain and records the tool's CPU time, so that a CI step can distinguish
// compile time from run time. It is used with GOFLAGS=-toolexec=bin/tools/compiletime. It appends a line "SECONDS TOOL"
// to the file that SHEAF_COMPILE_TIMES names. Builds with and without compiletime share the same build cache.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(command []string) int {
	if len(command) == 0 {
		fmt.Fprintln(os.Stderr, "usage: go build -toolexec compiletime ...: go gives it a tool and its arguments")
		return 2
	}
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // go ends it
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintf(os.Stderr, "compiletime: run %s: %v\n", command[0], err)
		return 1
	}
	if name := os.Getenv("SHEAF_COMPILE_TIMES"); name != "" {
		seconds := (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
		if err := note(name, fmt.Sprintf("%.3f %s\n", seconds, filepath.Base(command[0]))); err != nil {
			fmt.Fprintf(os.Stderr, "compiletime: note the time of %s in %s: %v\n", command[0], name, err)
			return 1
		}
	}
	return cmd.ProcessState.ExitCode()
}

// note appends a line. It uses a single write to a file that was opened for appending, so lines from several processes
// are not interleaved.
func note(name, line string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
