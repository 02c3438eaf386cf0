// Package grouptest holds helpers that the tests of package group share with the tests of the packages below it. It
// does not depend on the format.
package grouptest

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// Bounded runs a decoder. It fails the test if the decoder allocates much more memory than its input occupies.
func Bounded(t *testing.T, input int, decode func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	decode()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > uint64(64*input+1<<20) {
		t.Fatalf("%d bytes allocated for an input of %d", n, input)
	}
}

// AddGolden passes the content of each golden file in dir whose name begins with prefix to add(), which makes it a
// seed of a fuzz test.
func AddGolden(f *testing.F, dir, prefix string, add func(b []byte)) {
	f.Helper()
	names, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil || len(names) == 0 {
		f.Fatal("no golden files", prefix, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		must.OK(f, err)
		add(b)
	}
}

// RandomBytes returns n bytes, which are always the same for a given seed.
func RandomBytes(seed uint64, n int) []byte {
	rnd := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	_, _ = rnd.Read(b)
	return b
}
