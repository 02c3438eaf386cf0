package archivecli

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/local/cli"
)

// anySize matches sizes of objects, which depend on checksums and differ from run to run.
var anySize = regexp.MustCompile(`, [0-9.]+ (B|KiB)`)

// The golden files show the status of the sample archive 4 s after it was archived completely.
func TestStatus(t *testing.T) {
	s, b, w := sample(t)
	status := func(asJSON bool, behind, lagMax time.Duration) commandResult {
		t.Helper()
		return run(asJSON, func(out *cli.Output) error {
			now := func() time.Time { return w.Now().Add(behind) }
			return Status(t.Context(), out, s, StatusOptions{LagMax: lagMax, Now: now})
		})
	}
	for name, asJSON := range map[string]bool{"status.txt": false, "status.json": true} {
		got := status(asJSON, 4*time.Second, time.Minute)
		if got.err != nil {
			t.Errorf("%s: %v", name, got.err)
		}
		golden(t, name, anySize.ReplaceAllString(got.out, ", 0 B"))
	}
	if got := status(false, time.Minute, time.Minute); got.err != nil {
		t.Errorf("a lag that is allowed: %v", got.err)
	}
	got := status(false, time.Minute+time.Second, time.Minute)
	if got.code != 1 || !strings.Contains(got.out, "1m1s ago") ||
		!strings.Contains(got.err.Error(), "the archive is 1m1s") {
		t.Errorf("behind: %d, %q, %v", got.code, got.out, got.err)
	}
	if got := status(false, 0, 0); got.code != 2 {
		t.Errorf("no bound: %d, %v", got.code, got.err)
	}
	// The archive lacks an object that it needs, although later objects exist.
	b.Set(w.Name(object.LogName(2)), nil)
	got = status(true, 0, time.Hour)
	if got.code != 1 || !strings.Contains(got.err.Error(), "objects are missing: group") ||
		!strings.Contains(got.out, `"missing": [`) {
		t.Errorf("a missing object: %d, %q, %v", got.code, got.out, got.err)
	}
}
