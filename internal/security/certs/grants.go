package certs

import (
	"bytes"
	"fmt"
)

// GrantsFile says by the word GrantsRequired that the store has a table of grants: a process that finds none, as before
// the first one is written and where etcd was lost, lets no caller in but administrators and the store's own processes.
// Without the file a store without a table is open to all its callers.
const GrantsFile = "grants"

// GrantsRequired is what GrantsFile holds.
const GrantsRequired = "required"

// grants reads GrantsFile.
func (f files) grants() (required bool, err error) {
	if f[GrantsFile] == nil {
		return false, nil
	}
	if word := string(bytes.TrimSpace(f[GrantsFile])); word != GrantsRequired {
		return false, fmt.Errorf("%s holds %.40q: it must be %s", GrantsFile, word, GrantsRequired)
	}
	return true, nil
}

// GrantsRequired tells whether callers wait for a table of grants where there is none.
func (s *Source) GrantsRequired() bool { return s.current.Load().grantsRequired }
