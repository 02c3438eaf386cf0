// These tests build and run the real programs.

package main

import (
	"path/filepath"
	"testing"

	"sheaf.dev/sheaf/internal/test/clitest"
)

// benchBinary is the path of the built program. The program sheaf is in the same folder.
var benchBinary string

func TestMain(m *testing.M) {
	clitest.Main(m, func(dir string) {
		benchBinary = filepath.Join(dir, "sheaf-bench")
	}, "sheaf.dev/sheaf/bench/sheaf-bench", "sheaf.dev/sheaf/cmd/sheaf")
}

func measure(t testing.TB, args ...string) clitest.Outcome {
	t.Helper()
	return clitest.Run(t, nil, nil, append([]string{benchBinary}, args...)...)
}
