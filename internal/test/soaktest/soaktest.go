// Package soaktest decides how much a test does. In a part of `make soak`, tests run more cases, with random seeds,
// and the seeds and counts are added to the report of that part.
//
// In `make test` and in `.ci/run` each seed is fixed. So a change is never rejected because of a fault that another
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
	// SeedVariable holds the seed with which a run should be repeated, as a decimal uint64.
	SeedVariable = "SHEAF_SEED"
	// ReportVariable names the file to which seeds and counts are appended, one per line.
	ReportVariable = "SHEAF_SOAK_REPORT"
	// NotesVariable names the file to which notes are appended, one per line.
	NotesVariable = "SHEAF_NOTES"
)

// Long reports whether this run is a soak, in which a test runs all its cases.
func Long() bool { return os.Getenv(Variable) != "" }

// Pick returns one of three sizes for a test: normal in `make test`, long in a soak, and short with -short.
func Pick[N any](normal, long, short N) N {
	switch {
	case Long():
		return long
	case testing.Short():
		return short
	}
	return normal
}

// Only is for tests that load the whole machine, draw random cases, or take long. It skips such a test unless this
// run is a soak. The argument part names the part of the soak that runs the test (log, raft, proc, kube or eco). The
// argument why is the reason in a few words.
func Only(t testing.TB, part, why string) {
	t.Helper()
	if !Long() {
		t.Skipf("of make soak-%s: %s", part, why)
	}
}

// Seed returns the seed for a test. If SHEAF_SEED is set, this is its value. Otherwise it is a random number if the
// run is a soak, and the argument fixed in all other runs. In a soak, Seed also writes the seed to the report. Seed
// fails the test if SHEAF_SEED is not a number.
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

// Report appends a result of a test to the report of the soak. If there is no report, it does nothing. Report is safe
// for concurrent use, even by several processes, because it appends each line with a single write.
func Report(t testing.TB, what string, figure any) {
	t.Helper()
	appendLine(t, os.Getenv(ReportVariable), fmt.Sprintf("%s: %s %v", t.Name(), what, figure))
}

// Note logs a message, and also adds it to the last lines of the gate's output. The test does not fail.
func Note(t testing.TB, format string, args ...any) {
	t.Helper()
	note := fmt.Sprintf(format, args...)
	t.Log(note)
	appendLine(t, os.Getenv(NotesVariable), note)
}

var appending sync.Mutex // orders the appends of this process, one after another

// appendLine appends a line to a file. If the name is empty, it does nothing.
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
