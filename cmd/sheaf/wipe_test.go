package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The target of `sheaf wipe` must be named twice, and must be a disk.
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
