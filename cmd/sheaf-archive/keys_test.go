package main

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// secretOf returns the bytes of a key.
func secretOf(first byte) []byte {
	secret := make([]byte, object.KeyBytes)
	for i := range secret {
		secret[i] = first + byte(i)
	}
	return secret
}

func keyOf(t *testing.T, first byte) object.Key {
	t.Helper()
	key, err := object.NewKey(secretOf(first))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// keysFolder makes a folder of keys, whose files are named by letters from a on.
func keysFolder(t *testing.T, firsts ...byte) string {
	t.Helper()
	dir := t.TempDir()
	for i, first := range firsts {
		name := filepath.Join(dir, string(rune('a'+i)))
		if err := os.WriteFile(name, []byte(base64.StdEncoding.EncodeToString(secretOf(first))+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// files returns the names and contents of all files below a folder.
func files(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Without its key, no command reads an encrypted archive, and none changes it. Each says which key is missing. verify
// checks the bytes, and says what it did not check. With the key, all commands work, and what they create is encrypted.
func TestCommandsOfAnEncryptedArchive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archive")
	b, err := bucket.OpenFolder(vfs.OS{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	archivetest.Sample(t, b, keyOf(t, 1), 50)
	url, id := "file://"+dir, keyOf(t, 1).ID().String()
	commands := [][]string{
		{"list", url}, {"status", url, "--lag-max", "1000000h"}, {"show", url, "--group", "alpha"},
		{"show", url, "log/00/0000000000000000004"}, {"cat", url, "12", "--group", "beta"},
		{"point", "create", url, "before-1.2"}, {"point", "list", url},
		{"source", url, "--into", "ffffffff-1111-4111-8111-111111111111", "--time", "2026-11-01T12:00:20Z", "--dry-run"},
		{"prune", url, "--keep", "1ns"}, {"point", "delete", url, "before-1.2"},
	}
	before := files(t, dir)
	wrong := keysFolder(t, 2)
	for _, args := range commands {
		if args[1] == "list" || args[1] == "delete" {
			continue // without points, there is nothing to decrypt
		}
		for _, flags := range [][]string{nil, {"--encryption-keys", wrong}} {
			code, out, errs := runArchive(t, append(args, flags...)...)
			if code == 0 || !strings.Contains(out+errs, "key id "+id) {
				t.Errorf("%q %q: %d, %q, %q", args, flags, code, out, errs)
			}
		}
	}
	if code, _, errs := runArchive(t, "verify", url); code != 0 || !strings.Contains(errs, id) ||
		!strings.Contains(errs, "What the encrypted objects contain") || !strings.Contains(errs, "--encryption-keys") {
		t.Errorf("verify without the key: %d, %q", code, errs)
	}
	if code, out, errs := runArchive(t, "verify", url, "--encryption-keys", wrong); code != 1 ||
		!strings.Contains(out, "key id "+id+", which is not among the keys") {
		t.Errorf("verify with a wrong key: %d, %q, %q", code, out, errs)
	}
	if after := files(t, dir); len(after) != len(before) {
		t.Errorf("%d files became %d", len(before), len(after))
	}
	for name, content := range files(t, dir) {
		if before[name] != content {
			t.Errorf("%s was created or changed", name)
		}
	}
	secret := base64.StdEncoding.EncodeToString(secretOf(1))
	right := keysFolder(t, 2, 1) // the first one is another: it encrypts what is made from now on
	for _, args := range append(commands, []string{"verify", url}) {
		code, out, errs := runArchive(t, append(args, "--encryption-keys", right)...)
		if status := args[0] == "status"; code != 0 && !status || strings.Contains(out+errs, secret[:12]) {
			t.Errorf("%q: %d, %q, %q", args, code, out, errs)
		}
	}
	created := 0
	for name, content := range files(t, dir) {
		if before[name] != "" {
			continue
		}
		created++
		e, err := object.DecodeEnvelope([]byte(content))
		if err != nil || e.KeyID != keyOf(t, 2).ID() {
			t.Errorf("%s is not encrypted with the first key: %v", name, err)
		}
	}
	if created == 0 {
		t.Error("no command created an object")
	}
}

func TestKeysAreListedAndRefused(t *testing.T) {
	dir := keysFolder(t, 1, 2)
	if err := os.WriteFile(filepath.Join(dir, "current"), []byte("b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, _ := runArchive(t, "keys", dir, "-o", "json")
	if first := strings.Index(out, keyOf(t, 2).ID().String()); code != 0 || first < 0 ||
		first > strings.Index(out, keyOf(t, 1).ID().String()) || !strings.Contains(out, `"writes": true`) {
		t.Errorf("%d, %q", code, out)
	}
	bad := t.TempDir()
	if err := os.WriteFile(filepath.Join(bad, "k"), bytes.Repeat([]byte("password"), 4), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"keys", bad}, {"list", "file:///none", "--encryption-keys", bad},
		{"run", "file:///none", "--encryption-keys", bad}, {"list", "file:///none", "--encryption-keys", bad + "/none"}} {
		if code, _, errs := runArchive(t, args...); code != 2 || !strings.Contains(errs, "encryption keys cannot be used") ||
			strings.Contains(errs, "password") {
			t.Errorf("%q: %d, %q", args, code, errs)
		}
	}
}
