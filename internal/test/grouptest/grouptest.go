// Package grouptest holds what the tests of group and of the packages below it share. It knows no format.
package grouptest

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Bounded runs a decoder and fails where it allocates more than a multiple of its input.
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

// AddGolden seeds with the golden files in dir whose name begins with prefix.
func AddGolden(f *testing.F, dir, prefix string, add func(b []byte)) {
	f.Helper()
	names, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil || len(names) == 0 {
		f.Fatal("no golden files", prefix, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		add(b)
	}
}

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// RandomBytes are n bytes that are always the same for a seed.
func RandomBytes(seed uint64, n int) []byte {
	rnd := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	_, _ = rnd.Read(b)
	return b
}
