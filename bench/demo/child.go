package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/internal/local/dev"
)

const (
	requestMax = 5 * time.Second  // maximum duration of an HTTP request
	stopMax    = 30 * time.Second // maximum duration of a graceful stop
	goneMax    = time.Minute      // maximum time until the kernel has removed a killed process
	statusMax  = 64 << 20         // maximum size of a response in bytes
)

// child is `sheaf dev` running as a separate process.
type child struct {
	*drive.Process
	began time.Time
}

// launch runs `sheaf dev` on the folder. Its output goes to the log.
func (d *demo) launch() error {
	log, err := os.OpenFile(d.logName(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("making a log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the child process has its own descriptor of the file
	args := []string{
		"dev", "--dir", filepath.Join(d.dir, "store"), "--listen", d.Listen, "--http", d.HTTP, "--residency", d.Residency,
	}
	cmd := exec.Command(d.Program, args...) //nolint:noctx // the method end stops the process
	cmd.Stderr = log
	c := &child{began: time.Now()}
	if c.Process, err = drive.Start(cmd, syscall.SIGTERM); err != nil {
		return err
	}
	d.child = c
	return nil
}

func (c *child) pid() int { return c.Cmd.Process.Pid }

// kill sends SIGKILL to the process, and returns when the process has exited.
func (c *child) kill() error {
	_ = c.Cmd.Process.Kill() // an error means that the process has already exited
	select {
	case <-c.Ended:
		return nil
	case <-time.After(goneMax):
		return fmt.Errorf("process %d does not end within %v of SIGKILL: the kernel holds it in %s: see dmesg and the disk",
			c.pid(), goneMax, c.kernelPlace())
	}
}

// kernelPlace returns the name of the kernel function in which the process waits.
func (c *child) kernelPlace() string {
	place, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", c.pid()))
	if err != nil || len(place) == 0 {
		return "a place that it does not tell"
	}
	return string(place)
}

// end stops the process if it is running.
func (d *demo) end() error {
	if d.child == nil {
		return nil
	}
	_ = d.child.Cmd.Process.Signal(syscall.SIGTERM) // an error means that the process has already exited
	select {
	case <-d.child.Ended:
		return nil
	case <-time.After(stopMax):
		return d.child.kill()
	}
}

// procNumber returns a number from one of the process's files in /proc, in that file's unit. It returns 0 if the
// number is unknown.
func (c *child) procNumber(file, name string) int64 {
	n, _ := result.ProcNumber(fmt.Sprintf("/proc/%d/%s", c.pid(), file), name)
	return n
}

func (d *demo) ready(ctx context.Context) bool {
	body, err := d.get(ctx, "/readyz")
	return err == nil && strings.HasPrefix(string(body), "ok")
}

// status requests /status, and keeps the response as evidence for an error.
func (d *demo) status(ctx context.Context) (dev.Status, error) {
	var s dev.Status
	body, err := d.get(ctx, "/status")
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	if err != nil {
		return s, fmt.Errorf("asking for the status: %w", err)
	}
	d.last, d.lastBody = s, body
	return s, nil
}

// get sends one HTTP request, without retries.
func (d *demo) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, min(requestMax, d.StallMax/4))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.HTTP+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, statusMax))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", response.Status, body)
	}
	return body, nil
}
