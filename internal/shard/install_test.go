package shard

import (
	"errors"
	"fmt"
	"testing"

	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// A replica may receive the entries that it lacked while it fetches files because of them. Its log then holds more than
// the files, so the install is refused. A problem that was noted at this moment would stay, because nothing installs
// the replica again.
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
