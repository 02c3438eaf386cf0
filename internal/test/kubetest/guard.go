package kubetest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// guardVariable is an environment variable with the name of a folder. If it is set, a process that imports this
// package does not run tests, but becomes the guard of that folder.
const guardVariable = "SHEAF_KUBETEST_GUARD"

// The guard process runs the same binary as the test. It exits in init(), before any test starts.
func init() {
	dir := os.Getenv(guardVariable)
	if dir == "" {
		return
	}
	// Standard input is a pipe whose other end the test's process holds. The pipe is closed when the test stops the
	// server, or when the test's process exits for any reason.
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := sweep(dir); err != nil {
		fmt.Fprintln(os.Stderr, "kubetest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// sweep kills all processes that have the folder on their command line, and then removes the folder.
func sweep(dir string) error {
	for {
		left, err := users(dir)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return os.RemoveAll(dir)
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the process may have exited in the meantime
		}
		time.Sleep(10 * time.Millisecond) // a process can wait only for its own children to exit, so poll
	}
}

// users returns the processes that have the folder on their command lines. The folder's name is random, so the
// command line of an unrelated process cannot contain it.
func users(dir string) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(line, []byte(dir)) {
			continue // the process has exited, or belongs to another user
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
