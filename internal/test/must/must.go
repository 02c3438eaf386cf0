// Package must aborts a test at an error that the test does not expect.
package must

// T consists of the methods that abort a test. Both testing.T and rapid.T have them.
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
