// Package soaktest decides what a test does beyond `make test`: in a part of `make soak` it runs more cases, with seeds
// drawn at random, and its seeds and counts go into the report of that part.
//
// In `make test` and in `.ci/run` each seed is fixed, so that a change is never refused because of another change.
package soaktest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
)

// Environment variables, which hack/soak.sh and the gate set.
const (
	// Variable has any non-empty value in a soak.
	Variable = "SHEAF_SOAK"
	// SeedVariable is the seed of a run to repeat, a decimal uint64.
	SeedVariable = "SHEAF_SEED"
	// ReportVariable names the file to which seeds and counts are appended, a line each.
	ReportVariable = "SHEAF_SOAK_REPORT"
	// NotesVariable names the file to which notes are appended, a line each.
	NotesVariable = "SHEAF_NOTES"
)

// Long reports whether this is a soak: a test then runs all its cases.
func Long() bool { return os.Getenv(Variable) != "" }

// Only skips a test that loads the whole machine, draws its cases at random or takes long, unless this is a soak. part
// is the soak that runs it (log, raft, proc, kube or eco); why is the reason in a few words.
func Only(t testing.TB, part, why string) {
	t.Helper()
	if !Long() {
		t.Skipf("of make soak-%s: %s", part, why)
	}
}

// Seed returns the seed of a test: that of SHEAF_SEED if it is set. Otherwise it returns fixed, or, in a soak, a seed
// drawn at random, which is in the report. It fails the test if SHEAF_SEED is not a number.
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

// Report appends one figure of a test to the report of the soak. Without a report it does nothing. Safe for concurrent
// use, also by several processes: each line is a single write to a file opened for appending.
func Report(t testing.TB, what string, figure any) {
	t.Helper()
	appendLine(t, os.Getenv(ReportVariable), fmt.Sprintf("%s: %s %v", t.Name(), what, figure))
}

// Note shows a message to readers of the gate's last lines without failing a test. The message is in the test's log,
// too.
func Note(t testing.TB, format string, args ...any) {
	t.Helper()
	note := fmt.Sprintf(format, args...)
	t.Log(note)
	appendLine(t, os.Getenv(NotesVariable), note)
}

var appending sync.Mutex // one line at a time, within this process

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
