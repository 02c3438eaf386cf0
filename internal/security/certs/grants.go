package certs

import (
	"bytes"
	"fmt"
)

// GrantsFile is a file that contains the word GrantsRequired if the store has a table of grants. If a process then
// finds no table, because the first table is not written yet or etcd was lost, it admits only administrators and the
// store's own processes. Without the file, a store without a table is open to all its callers.
const GrantsFile = "grants"

// GrantsRequired is the content of GrantsFile.
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

// GrantsRequired reports whether callers must wait for a table of grants if there is none.
func (s *Source) GrantsRequired() bool { return s.current.Load().grantsRequired }
