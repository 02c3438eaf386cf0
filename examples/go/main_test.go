package main

import (
	"strings"
	"testing"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/sheaftest"
)

// TestRun runs the program against a store in this process. README.md shows the same calls and output.
func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), sheaftest.Start(t).Client(t, client.Config{}), &out); err != nil {
		t.Fatal(err)
	}
	const want = "hello again\nversion mismatch: true\n1000 records written\nrecord 42 is now \"changed\"\n"
	if out.String() != want {
		t.Errorf("the program printed\n%s\nnot\n%s", out.String(), want)
	}
}
