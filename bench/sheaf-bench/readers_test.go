package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// stubPython writes a program that answers as bench/readers/worker.py does, but reads nothing. All readers whose names
// contain the given words are missing.
func stubPython(t *testing.T, missing string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python")
	must.OK(t, os.WriteFile(path, []byte(`#!/bin/sh
case "$2" in `+missing+`) echo '{"missing": "not measured: no module"}'; exit;; esac
echo '{"address": "127.0.0.1:1"}'
while read -r seconds; do echo '{"units": 100, "wall": 0.5, "cpu": 0.25}'; done
`), 0o755))
	return path
}

// All parts run to their end, with a tiny amount of data and a stub instead of Python. What is missing is a row that
// says so, without a figure. `make soak-eco` measures the readers themselves.
func TestReadersAreMeasured(t *testing.T) {
	for name, c := range map[string]struct {
		missing    string
		rows, none int
	}{
		"no Lance": {"lance", 26, 5},
		"nothing":  {"*", 24, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			var r benchReport
			measure(t, "-o", "json", "--dir", tmp, "readers", "--python", stubPython(t, c.missing), "--sizes", "1000",
				"--bytes", "1MB", "--records", "1000", "--time", "5ms").Want(t, 0).JSON(t, &r)
			none := 0
			for _, row := range r.Rows {
				switch {
				case row.Missing != "":
					none++
					if row.Missing != "not measured: no module" || row.Ours != 0 {
						t.Errorf("%+v", row)
					}
				case row.Ours <= 0 || row.Rounds < 5:
					t.Errorf("nothing was measured: %+v", row)
				}
			}
			if len(r.Rows) != c.rows || none != c.none {
				t.Errorf("%d rows, of which %d are not measured: %+v", len(r.Rows), none, r.Rows)
			}
			if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
				t.Errorf("left behind: %v %v", names, err)
			}
		})
	}
}

// A reader that fails ends the run with what it said.
func TestAReaderThatFailsIsNamed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "python")
	must.OK(t, os.WriteFile(path, []byte("#!/bin/sh\necho it is broken >&2\nexit 3\n"), 0o755))
	out := measure(t, "readers", "--python", path, "--only", "order").Want(t, 1)
	for _, want := range []string{"reader order", "exit status 3", "it is broken"} {
		if !strings.Contains(out.Stderr, want) {
			t.Errorf("no %q in %q", want, out.Stderr)
		}
	}
	if out := measure(t, "readers", "--python", filepath.Join(t.TempDir(), "none")).Want(t, 1); !strings.Contains(
		out.Stderr, "make bench-readers") {
		t.Errorf("%q", out.Stderr)
	}
	for _, args := range [][]string{{"--rounds", "1"}, {"--only", "nonsense"}, {"--time", "0s"}, {"--sizes", "0"},
		{"--sizes", ""}, {"--records", "1"}, {"--bytes", "0"}} {
		measure(t, append([]string{"readers"}, args...)...).Want(t, 2)
	}
}
