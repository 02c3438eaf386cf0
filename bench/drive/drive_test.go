package drive

import (
	"errors"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/must"
)

// If a process exits while Eventually waits for it, the error contains the process's own message. Kill terminates a
// process that still runs.
func TestProcesses(t *testing.T) {
	p, err := Start(exec.Command("sh", "-c", "echo that is why >&2; exit 3"), syscall.SIGKILL)
	must.OK(t, err)
	err = Eventually(t.Context(), "it serves", func() error { return errors.New("nobody answers") }, p)
	if err == nil || !strings.Contains(err.Error(), "that is why") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v", err)
	}
	p, err = Start(exec.Command("sleep", "1000"), syscall.SIGKILL)
	must.OK(t, err)
	if p.Err() != nil {
		t.Errorf("it runs: %v", p.Err())
	}
	p.Kill()
	if p.Err() == nil {
		t.Error("it was killed, and says that it runs")
	}
	if _, err := Start(exec.Command("/nowhere"), syscall.SIGKILL); err == nil {
		t.Error("what is not there was started")
	}
}

// Shared hands out every number once, and in Callers every caller makes at least one call.
func TestNumbers(t *testing.T) {
	var sum, calls atomic.Int64
	if err := Shared(7, 1000, func(_ int, i int64) error {
		sum.Add(i)
		return nil
	}); err != nil || sum.Load() != 1000*999/2 {
		t.Errorf("%d, %v", sum.Load(), err)
	}
	load, err := Callers(5, time.Nanosecond, func(int, int64) error { calls.Add(1); return nil })
	if err != nil || calls.Load() != 5 || load.PerSecond <= 0 || load.P99 <= 0 {
		t.Errorf("%d calls, %+v, %v", calls.Load(), load, err)
	}
	if v := Quantile([]float64{3, 1, 2, 4}, 0.5); v != 3 || Quantile([]float64{}, 0.5) != 0 {
		t.Errorf("%v", v)
	}
}
