package shard

import (
	"errors"
	"fmt"
	"testing"

	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// A replica that lacks entries fetches files, but it may receive the entries themselves in the meantime. Its log then
// holds more than the fetched files, so the install is refused. This must not be recorded as a problem: no further
// install follows, so nothing would ever remove the problem.
func TestAnInstallThatEntriesHaveOvertakenIsNoProblem(t *testing.T) {
	disk := errors.New("the disk is full")
	for _, c := range []struct{ err, problem error }{
		{nil, nil},
		{fmt.Errorf("install: %w: index 9", transfer.ErrBehind), nil},
		{disk, disk},
	} {
		known, problem := problemOfInstall(c.err)
		if !known || !errors.Is(problem, c.problem) || (problem == nil) != (c.problem == nil) {
			t.Errorf("%v: problem %v, known: %t", c.err, problem, known)
		}
	}
	for _, err := range []error{peer.ErrBusy, peer.ErrNotHere} {
		if known, _ := problemOfInstall(fmt.Errorf("install: %w", err)); known {
			t.Errorf("%v changes what is known", err)
		}
	}
}
