package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A user must give the target of `sheaf wipe` twice, and the target must be a disk.
func TestWipeAsksTwice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, []byte("kept"), 0o600))
	sheaf(t, nil, "wipe", file).Want(t, 1).Has(t, "--confirm "+file)
	sheaf(t, nil, "wipe", file, "--confirm", "yes").Want(t, 1).Has(t, "is lost by this")
	sheaf(t, nil, "wipe", file, "--confirm", file).Want(t, 1).Has(t, "is no block device")
	sheaf(t, nil, "wipe", file+"-none", "--confirm", file+"-none").Want(t, 1).Has(t, "no such file")
	sheaf(t, nil, "wipe").Want(t, 2)
	if text, err := os.ReadFile(file); err != nil || string(text) != "kept" {
		t.Errorf("%q, %v", text, err)
	}
}

// The exit code of `sheaf look` says whether a disk is blank. The operator depends on code 4 (workload.LookNotBlank).
func TestLookSaysWhetherADiskIsBlank(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, make([]byte, 4096), 0o600))
	if o := sheaf(t, nil, "look", file).Want(t, 0); !strings.Contains(o.Stdout, "is blank") {
		t.Errorf("%q", o.Stdout)
	}
	must(t, os.WriteFile(file, []byte("XFSB and more"), 0o600))
	sheaf(t, nil, "look", file).Want(t, 4).Has(t, "holds an xfs file system")
	sheaf(t, nil, "look", file+"-none").Want(t, 1).Has(t, "no such file")
}
