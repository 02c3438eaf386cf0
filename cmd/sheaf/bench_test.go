package main

import (
	"os"
	"testing"
)

// benchReport is what bench prints with -o json.
type benchReport struct {
	Machine struct{ CPUs int }
	Rows    []struct {
		Name   string
		Ours   float64
		Ratio  float64
		Target float64
		Rounds int
	}
}

// The benchmarks run to their end at tiny sizes. What they measure then means nothing, so no figure is judged.
func TestBenchmarksRun(t *testing.T) {
	tmp := t.TempDir()
	for _, args := range [][]string{
		{"rpc", "--time", "5ms", "--records", "300", "--sizes", "100", "--callers", "2,64"},
		{"load", "--large", "3MiB", "--small", "1MiB", "--records", "120000", "--put-time", "10ms"},
	} {
		var r benchReport
		sheaf(t, nil, append([]string{"bench", "-o", "json", "--dir", tmp}, args...)...).want(t, 0).json(t, &r)
		if r.Machine.CPUs == 0 || len(r.Rows) < 10 {
			t.Fatalf("%s: %+v", args[0], r)
		}
		targets := 0
		for _, row := range r.Rows {
			if row.Ours <= 0 || row.Rounds < 5 {
				t.Errorf("%s: nothing was measured: %+v", args[0], row)
			}
			if row.Target > 0 {
				targets++
			}
		}
		if targets < 5 {
			t.Errorf("%s: %d rows name a target", args[0], targets)
		}
	}
	if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
	for _, args := range [][]string{{"rpc", "--rounds", "1"}, {"rpc", "--sizes", "0"}, {"load", "--only", "nonsense"}, {"load", "--records", "-1"}, {"load", "--large", "0"}} {
		sheaf(t, nil, append([]string{"bench"}, args...)...).want(t, 2)
	}
}
