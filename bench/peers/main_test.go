package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/bench/peers/stores"
	"sheaf.dev/sheaf/bench/result"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := runChild(os.Stdin, os.Stdout); err != nil {
			os.Exit(exitFailed)
		}
		return
	}
	dropsAll = func() bool { return false } // dropping all caches would slow down other tests
	os.Exit(m.Run())
}

// peers runs the program and returns its report.
func peers(t *testing.T, args ...string) *result.Report {
	t.Helper()
	tmp, out := t.TempDir(), t.TempDir()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), append([]string{"--dir", tmp, "--out", out}, args...), &stdout, &stderr)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
	r, err := result.ReadFile(filepath.Join(out, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(stdout.String(), "| "+r.Tables[0].Rows[0].Labels[0].Value+" |") {
		t.Errorf("printed was:\n%s", &stdout)
	}
	return r
}

// The test runs every step with every store. With so few records the results mean nothing, so the test does not check
// them.
func TestEmbeddedRun(t *testing.T) {
	r := peers(t, "--only", "embedded", "--sizes", "300:1000,10240:1000", "--rounds", "1", "--time", "10ms")
	if r.Kind != "peers" || len(r.Tables) != 3 || len(r.Tables[0].Rows) != 16 {
		t.Fatalf("%s: %d tables, %d ratios", r.Kind, len(r.Tables), len(r.Tables[0].Rows))
	}
	for _, row := range r.Tables[0].Rows {
		if row.Missing != "" || row.Cells["ratio"].Median <= 0 {
			t.Errorf("%s: no ratio: %+v", row.Name(), row)
		}
	}
	for _, table := range r.Tables[1:] {
		if len(table.Rows) != len(stores.All()) {
			t.Errorf("%s: %d rows", table.ID, len(table.Rows))
		}
		for _, row := range table.Rows {
			for _, c := range table.Columns {
				if v := row.Cells[c.Key]; row.Missing != "" || v.Rounds != 1 || v.Median <= 0 {
					t.Errorf("%s, %s, %s: nothing was measured: %+v %s", table.ID, row.Name(), c.Key, v, row.Missing)
				}
			}
		}
	}
}

// If a server is not installed, its rows say so, and say how to install it.
func TestMissingServersAreReported(t *testing.T) {
	r := peers(t, "--only", "network", "--sizes", "300:1000", "--rounds", "1", "--time", "5ms", "--sheaf", "/none/sheaf",
		"--etcd", "/none/etcd", "--redis", "/none/redis")
	rows := slices.Concat(r.Table("network").Rows, r.Table("targets").Rows)
	if len(rows) != 2*(len(ways)+6) {
		t.Errorf("%d rows", len(rows))
	}
	for _, row := range rows {
		if !strings.Contains(row.Missing, "is not there") {
			t.Errorf("%s: missing is %q", row.Name(), row.Missing)
		}
	}
}

// The servers that are installed on this machine are measured.
func TestServers(t *testing.T) {
	programs := map[string]string{"sheaf": "../../bin/sheaf", "etcd": "../../bin/kube/etcd", "redis": "redis-server"}
	args := []string{"--only", "network", "--sizes", "300:1000", "--rounds", "1", "--time", "30ms"}
	there := map[string]bool{}
	for name, program := range programs {
		if path, err := exec.LookPath(program); err == nil {
			args, there[strings.ToLower(name)] = append(args, "--"+name, path), true
		} else {
			args = append(args, "--"+name, "/none/"+name)
		}
	}
	if len(there) == 0 {
		t.Skip("neither sheaf, etcd nor redis-server is built or installed")
	}
	for _, row := range peers(t, args...).Table("network").Rows {
		if have := there[strings.ToLower(row.Label("server"))]; have != (row.Missing == "") || have &&
			row.Cells["rate"].Median <= 0 {
			t.Errorf("%s: there %v: %+v", row.Name(), have, row)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, args := range [][]string{
		{"--scale", "paper"}, {"--only", "nonsense"}, {"--rounds", "0"}, {"--stores", "none"}, {"--sizes", "1024"},
		{"--sizes", "8:1000"}, {"--sizes", "100:5"}, {"--time", "-1s"}, {"x"}, {"--nonsense"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), args, &out, &out); code != exitUsage {
			t.Errorf("%v: exit code %d: %s", args, code, &out)
		}
	}
	tmp := t.TempDir()
	for name, args := range map[string][]string{
		"more memory than there is": {"--dir", tmp, "--sizes", "1048576:1000000000"},
		"no folder":                 {"--dir", filepath.Join(tmp, "none")},
		"no old report":             {"--compare", filepath.Join(tmp, "none.json")},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), args, &out, &out); code != exitFailed {
			t.Errorf("%s: exit code %d: %s", name, code, &out)
		}
	}
}

// An interrupted run leaves no files or processes behind.
func TestInterrupted(t *testing.T) {
	tmp := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	stop := writerFunc(func(p []byte) (int, error) { // the first output is the line that reports the first finished store
		cancel()
		return len(p), nil
	})
	if code := run(ctx, []string{"--dir", tmp, "--only", "embedded", "--sizes", "300:1000", "--rounds", "100", "--time",
		"10ms"}, &bytes.Buffer{}, stop); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestJobs(t *testing.T) {
	for _, text := range []string{"", "{", `{"Store":"none","Step":"fill"}`, `{"Store":"Sheaf","Step":"none"}`} {
		if err := runChild(strings.NewReader(text), &bytes.Buffer{}); err == nil {
			t.Errorf("%q was done", text)
		}
	}
	// A step returns an error if records are missing. This folder has fewer records than the job expects.
	j := job{Store: "files", Step: "start", Dir: t.TempDir(), Size: 300, Records: 10, Workers: 2}
	if _, err := j.run(t.Context()); err == nil || !strings.Contains(err.Error(), "0 records were read, 10 are stored") {
		t.Errorf("start of nothing: %v", err)
	}
	a, b := makeData(randomPool(), 7, 1, 100), makeData(randomPool(), 7, 2, 100)
	if bytes.Equal(a, b) || a[0] != 7 || len(a) != 100 {
		t.Errorf("two versions of a record: %x and %x", a, b)
	}
}
