package keys

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/archive/object"
)

// encoded returns a key of 32 different bytes in base64.
func encoded(first byte) string { return base64.StdEncoding.EncodeToString(secret(first)) }

func secret(first byte) []byte {
	b := make([]byte, object.KeyBytes)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestKeysOfAFolder(t *testing.T) {
	a, b, c := encoded(1), encoded(2), encoded(3)
	for what, test := range map[string]struct {
		files map[string]string
		names string
	}{
		"one key":                       {map[string]string{"k": a}, "k"},
		"a line":                        {map[string]string{"k": a + "\n"}, "k"},
		"a line of Windows":             {map[string]string{"k": a + "\r\n"}, "k"},
		"the first name writes":         {map[string]string{"2026": a, "2025": b, "2027": c}, "2025 2026 2027"},
		"the named key writes":          {map[string]string{"1": a, "2": b, "3": c, "current": "2\n"}, "2 1 3"},
		"hidden files of Kubernetes":    {map[string]string{"1": a, "..data": "x", ".gone": ""}, "1"},
		"the first one is named itself": {map[string]string{"1": a, "2": b, "current": "1"}, "1 2"},
	} {
		all, err := Load(folder(t, test.files))
		var names []string
		for _, k := range all {
			names = append(names, k.Name)
		}
		if got := strings.Join(names, " "); err != nil || got != test.names {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	all, err := Load(folder(t, map[string]string{"k": a}))
	want, _ := object.NewKey(secret(1))
	if err != nil || Of(all).First().ID() != want.ID() {
		t.Errorf("another key was read: %v", err)
	}
}

func TestOtherFilesAreRefused(t *testing.T) {
	a := encoded(1)
	for what, test := range map[string]struct {
		files map[string]string
		says  string
	}{
		"an empty folder":    {nil, "there is no key"},
		"only current":       {map[string]string{"current": "k"}, "there is no key"},
		"an empty file":      {map[string]string{"k": ""}, "k: it has 0 bytes"},
		"32 raw bytes":       {map[string]string{"k": string(secret(1))}, "k: it has 32 bytes"},
		"hexadecimal digits": {map[string]string{"k": strings.Repeat("0a", 32)}, "k: it has 64 bytes"},
		"31 bytes": {map[string]string{"k": base64.StdEncoding.EncodeToString(secret(1)[:31])},
			"is not the base64 of 32 bytes"},
		"no padding":             {map[string]string{"k": strings.TrimRight(a, "=")}, "k: it has 43 bytes"},
		"two lines":              {map[string]string{"k": a + "\n" + a + "\n"}, "k: it has 90 bytes"},
		"an empty line":          {map[string]string{"k": a + "\n\n"}, "k: it has 46 bytes"},
		"a line within":          {map[string]string{"k": a[:20] + "\n" + a[21:]}, "is not the base64 of 32 bytes"},
		"base64 for URLs":        {map[string]string{"k": "_" + a[1:]}, "is not the base64 of 32 bytes"},
		"bits that count no bit": {map[string]string{"k": a[:42] + "B="}, "is not the base64 of 32 bytes"},
		"a placeholder":          {map[string]string{"k": strings.Repeat("A", 43) + "="}, "are equal"},
		"the same key twice":     {map[string]string{"k1": a, "k2": a + "\n"}, "k1 and k2 have the same key"},
		"current names none":     {map[string]string{"k": a, "current": "k2"}, "current must have the name"},
		"current names itself":   {map[string]string{"k": a, "current": "current"}, "current must have the name"},
		"current has a key":      {map[string]string{"k": a, "current": encoded(2)}, "current must have the name"},
		"a large file":           {map[string]string{"k": strings.Repeat("x", 100<<10)}, "k: it has 4096 bytes"},
	} {
		_, err := Load(folder(t, test.files))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", what, err)
		}
		for name, content := range test.files {
			for at := 0; err != nil && len(content) > 8 && at+8 <= min(len(content), 200); at++ {
				if strings.Contains(err.Error(), content[at:at+8]) {
					t.Fatalf("%s: the error has content of file %s: %v", what, name, err)
				}
			}
		}
	}
	dir := folder(t, map[string]string{"k": a})
	if err := os.Mkdir(filepath.Join(dir, "older"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "older") {
		t.Errorf("a folder in the folder: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, ErrInvalid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}
