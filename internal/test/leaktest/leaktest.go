// Package leaktest finds goroutines that a test has left running. It is patient: goleak by itself waits half a second,
// and on a slow machine goroutines that were told to end take longer.
package leaktest

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end.
const patience = time.Minute

// forLife is the goroutine that the first synced file of the operating system starts. It ends with the process.
const forLife = "sheaf.dev/sheaf/internal/storage/vfs.(*aio).complete"

// VerifyNone calls goleak.VerifyNone, but does not report a goroutine that lives as long as the process.
func VerifyNone(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := find(patience, options); err != nil {
		t.Error(err)
	}
}

// VerifyTestMain calls goleak.VerifyTestMain with the exception of VerifyNone: it runs the tests of a package, and ends
// the process.
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
	options = append(slices.Clone(options), goleak.IgnoreAnyFunction(forLife))
	for end := time.Now().Add(patience); ; {
		err := goleak.Find(options...) // it looks more than once, with pauses
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
