// Package stoptest stops the process of a test for a while, as a machine that stands still does.
package stoptest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Self stops this process for so long, and returns when it goes on. All its tests stand still meanwhile.
func Self(tb testing.TB, d time.Duration) {
	tb.Helper()
	// By another process: one that is stopped cannot wake itself.
	script := fmt.Sprintf("kill -STOP %[1]d; sleep %[2]f; kill -CONT %[1]d", os.Getpid(), d.Seconds())
	if out, err := exec.CommandContext(tb.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		tb.Errorf("stop the process of the test: %v: %s", err, out)
	}
}
