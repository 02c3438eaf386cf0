// Package stoptest suspends the process of a test for a while, as if the machine stalled.
package stoptest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Self stops this process for the duration d, and returns when it continues. All tests in the process are paused
// during that time.
func Self(tb testing.TB, d time.Duration) {
	tb.Helper()
	// Another process must do this, because a stopped process cannot make itself continue.
	script := fmt.Sprintf("kill -STOP %[1]d; sleep %[2]f; kill -CONT %[1]d", os.Getpid(), d.Seconds())
	if out, err := exec.CommandContext(tb.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		tb.Errorf("stop the process of the test: %v: %s", err, out)
	}
}
