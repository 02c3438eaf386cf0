// Package must aborts a test at an error that the test does not expect.
package must

// T has those methods of testing.T and rapid.T with which a test is aborted.
type T interface {
	Helper()
	Fatal(args ...any)
}

// OK aborts the test if err is not nil, and reports err at the caller's line. Like t.Fatal, it may be called only from
// the goroutine that runs the test.
func OK(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
