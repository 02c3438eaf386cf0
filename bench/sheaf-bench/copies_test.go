package main

import (
	"os"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

// Every part of the benchmark runs to its end with a tiny amount of data, using shards in separate processes. The
// results mean nothing, so the test does not check them. A soak test also runs the parts that take longer.
func TestCopiesAreMeasured(t *testing.T) {
	t.Parallel()
	parts := map[string]int{"put": 8, "move": 2, "move --tls": 6, "quiet": 3}
	if soaktest.Long() {
		parts["put --tls"], parts["foreground"], parts["read"], parts["etcd"], parts["failover"] = 12, 3, 8, 12, 4
	}
	for part, rows := range parts {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			var r benchReport
			args := []string{"-o", "json", "--dir", tmp, "copies", "--time", "20ms", "--move", "2MiB", "--kills", "1",
				"--groups", "4", "--only"}
			measure(t, append(args, strings.Fields(part)...)...).Want(t, 0).JSON(t, &r)
			if len(r.Rows) != rows {
				t.Errorf("%d rows, %d are expected: %+v", len(r.Rows), rows, r.Rows)
			}
			for _, row := range r.Rows {
				// With only four groups, the CPU time of a shard may be too short for the kernel to measure.
				if row.Ours < 0 || row.Ours == 0 && part != "quiet" || row.Rounds < 1 {
					t.Errorf("nothing was measured: %+v", row)
				}
			}
			if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
				t.Errorf("left behind: %v %v", names, err)
			}
		})
	}
	for _, args := range [][]string{{"--rounds", "1"}, {"--only", "nonsense"}, {"--kills", "0"},
		{"--tls", "--only", "read"}, {"--move", "1"}, {"--time", "-1s"}} {
		measure(t, append([]string{"copies"}, args...)...).Want(t, 2)
	}
}
