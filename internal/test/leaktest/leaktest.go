// Package leaktest finds goroutines that a test has left running. Unlike goleak, which waits half a second, it waits
// long enough for goroutines that return slowly on a slow machine.
package leaktest

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to return.
const patience = time.Minute

// lifetimeFunc is the function of the goroutine that a process starts when it first syncs a real file, as opposed to a
// file in memory. This goroutine runs until the process exits.
const lifetimeFunc = "sheaf.dev/sheaf/internal/storage/vfs.(*aio).complete"

// VerifyNone is like goleak.VerifyNone, except that it does not report the goroutine that lives as long as the
// process.
func VerifyNone(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := find(patience, options); err != nil {
		t.Error(err)
	}
}

// VerifyTestMain is like goleak.VerifyTestMain: it runs a package's tests and exits the process. Like VerifyNone, it
// does not report the goroutine that lives as long as the process.
func VerifyTestMain(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := find(patience, options); err != nil {
			fmt.Fprintf(os.Stderr, "all tests have passed, but: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

func find(patience time.Duration, options []goleak.Option) error {
	options = append(slices.Clone(options), goleak.IgnoreAnyFunction(lifetimeFunc))
	for end := time.Now().Add(patience); ; {
		err := goleak.Find(options...) // goleak.Find already tries several times, with pauses
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
