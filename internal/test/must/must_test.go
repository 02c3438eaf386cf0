package must

import (
	"errors"
	"slices"
	"testing"
)

// recorder stands in for a test. It does nothing but record the error with which the test was aborted.
type recorder struct{ fatal []any }

func (*recorder) Helper()             {}
func (r *recorder) Fatal(args ...any) { r.fatal = append(r.fatal, args...) }

func TestOnlyAnErrorEndsATest(t *testing.T) {
	var r recorder
	OK(&r, nil)
	if len(r.fatal) != 0 {
		t.Fatalf("no error ended the test with %v", r.fatal)
	}
	err := errors.New("the disk is full")
	OK(&r, err)
	if !slices.Equal(r.fatal, []any{err}) {
		t.Fatalf("the error %v ended the test with %v", err, r.fatal)
	}
}
