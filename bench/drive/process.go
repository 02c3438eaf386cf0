// Package drive provides tools for benchmarks, such as goroutines, calls for a given duration, processes, and cold
// caches.
package drive

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that runs next to the benchmark. The kernel kills it if the benchmark dies.
type Process struct {
	Cmd   *exec.Cmd
	Ended chan struct{} // closed after the process has exited
	said  tail
}

// Start starts a program and keeps the end of its output, unless the command directs the output elsewhere. The kernel
// sends the signal to the program when the thread that started it exits. A goroutine therefore occupies that thread
// until the program has exited.
func Start(cmd *exec.Cmd, signal syscall.Signal) (*Process, error) {
	p := &Process{Cmd: cmd, Ended: make(chan struct{})}
	if cmd.Stderr == nil {
		cmd.Stdout, cmd.Stderr = &p.said, &p.said
	}
	// The program runs in its own process group, so that Ctrl-C reaches only this process, which then terminates the
	// program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: signal, Setpgid: true}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the error is ignored, because ProcessState also records how the process exited
			close(p.Ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", strings.Join(cmd.Args, " "), err)
	}
	return p, nil
}

// Kill kills the process, and returns when the process has exited.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill() // an error means that the process has already exited
	<-p.Ended
}

// Err returns an error with the last output of the process after it has exited, and nil while it runs.
func (p *Process) Err() error {
	select {
	case <-p.Ended:
		return fmt.Errorf("%s has ended: %s: %s", p.Cmd.Path, p.Cmd.ProcessState, p.said.String())
	default:
		return nil
	}
}

// Eventually calls try() until it succeeds. It gives up with an error if one of the processes exits, if ctx is done,
// or after two minutes.
func Eventually(ctx context.Context, what string, try func() error, processes ...*Process) error {
	const patience = 2 * time.Minute
	end := time.Now().Add(patience)
	for {
		err := try()
		if err == nil {
			return nil
		}
		for _, p := range processes {
			if ended := p.Err(); ended != nil {
				return fmt.Errorf("%s: %w", what, errors.Join(ended, err))
			}
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("%s: not within %v: %w", what, patience, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// tail keeps the end of a process's output. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const most = 16 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-most):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
