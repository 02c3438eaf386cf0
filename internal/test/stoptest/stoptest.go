// Package stoptest stops the process of a test for a while, as a stalled machine does.
package stoptest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Self stops this process for the duration d, and returns when it continues. All its tests pause meanwhile.
func Self(tb testing.TB, d time.Duration) {
	tb.Helper()
	// Another process does this: a stopped process cannot wake itself.
	script := fmt.Sprintf("kill -STOP %[1]d; sleep %[2]f; kill -CONT %[1]d", os.Getpid(), d.Seconds())
	if out, err := exec.CommandContext(tb.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		tb.Errorf("stop the process of the test: %v: %s", err, out)
	}
}
