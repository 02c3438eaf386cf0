// Package soaktest determines what a test does in a soak. In a part of `make soak`, a test runs more cases than in
// `make test`, with random seeds, and its seeds and counts are added to the report of that part.
//
// In `make test` and in `.ci/run` each seed is fixed, so that a change is never rejected for a fault that another
// change has caused.
package soaktest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
)

// These are the environment variables that hack/soak.sh and the gate set.
const (
	// Variable is set to a non-empty value in a soak.
	Variable = "SHEAF_SOAK"
	// SeedVariable holds the seed of a run to be repeated, as a decimal uint64.
	SeedVariable = "SHEAF_SEED"
	// ReportVariable names the file to which seeds and counts are appended, one per line.
	ReportVariable = "SHEAF_SOAK_REPORT"
	// NotesVariable names the file to which notes are appended, one per line.
	NotesVariable = "SHEAF_NOTES"
)

// Long reports whether this run is a soak, in which a test runs all its cases.
func Long() bool { return os.Getenv(Variable) != "" }

// Pick returns how much a test does: normal in `make test`, long in a soak, and short with -short.
func Pick[N any](normal, long, short N) N {
	switch {
	case Long():
		return long
	case testing.Short():
		return short
	}
	return normal
}

// Only skips a test outside of a soak. It is for tests that load the whole machine, draw random cases, or take long.
// The argument part names the soak that runs the test (log, raft, proc, kube or eco), and why is the reason in a few
// words.
func Only(t testing.TB, part, why string) {
	t.Helper()
	if !Long() {
		t.Skipf("of make soak-%s: %s", part, why)
	}
}

// Seed returns the seed for a test. It is the value of SHEAF_SEED if that is set. Otherwise it is a random seed in a
// soak, and the argument fixed outside of a soak. A soak also writes the seed to its report. Seed fails the test if
// SHEAF_SEED is not a number.
func Seed(t testing.TB, fixed uint64) uint64 {
	t.Helper()
	seed := fixed
	switch text := os.Getenv(SeedVariable); {
	case text != "":
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s=%q is no seed, such as 77: %v", SeedVariable, text, err)
		}
	case Long():
		seed = rand.Uint64()
	}
	t.Logf("seed %d; again: %s=%d", seed, SeedVariable, seed)
	Report(t, "seed", seed)
	return seed
}

// Report appends one of a test's results to the soak's report. Without a report it does nothing. Report is safe for
// concurrent use, even by several processes, because each line is a single write to a file that was opened for
// appending.
func Report(t testing.TB, what string, figure any) {
	t.Helper()
	appendLine(t, os.Getenv(ReportVariable), fmt.Sprintf("%s: %s %v", t.Name(), what, figure))
}

// Note adds a message to the last lines of the gate's output without failing the test. It also logs the message.
func Note(t testing.TB, format string, args ...any) {
	t.Helper()
	note := fmt.Sprintf(format, args...)
	t.Log(note)
	appendLine(t, os.Getenv(NotesVariable), note)
}

var appending sync.Mutex // serializes appends within this process

// appendLine appends a line to a file. Without a name it does nothing.
func appendLine(t testing.TB, name, line string) {
	t.Helper()
	if name == "" {
		return
	}
	appending.Lock()
	defer appending.Unlock()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatalf("cannot tell %q: %v", line, err)
	}
	_, err = fmt.Fprintln(f, line)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		t.Fatalf("cannot tell %q: %v", line, err)
	}
}
