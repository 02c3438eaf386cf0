package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

// A large record is stored and read back through the gateway, byte for byte. Neither the command, nor the process
// that runs the gateway and the shards, holds the whole record in memory.
func TestLargeRecordThroughTheGatewayInBoundedMemory(t *testing.T) {
	soaktest.Only(t, "proc", "it writes gigabytes")
	size, most := int64(3<<30), int64(256<<20)
	dir := t.TempDir()
	name, want := largeFile(t, dir, size)
	p := startDev(t, t.TempDir(), "--residency", "index")
	before := peakMemory(t, p.cmd.Process.Pid)
	peak := runLarge(t, io.Discard, "put", "7", name, "--server", p.server)
	if peak > most {
		t.Errorf("put took %d MiB of memory, at most %d are meant", peak>>20, most>>20)
	}
	must(t, os.Remove(name))
	sum := sha256.New()
	if peak = runLarge(t, sum, "get", "7", "--server", p.server); peak > most {
		t.Errorf("get took %d MiB of memory, at most %d are meant", peak>>20, most>>20)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		t.Errorf("the record came back with SHA-256 %s, stored was %s", got, want)
	}
	after := peakMemory(t, p.cmd.Process.Pid)
	if after-before > most {
		t.Errorf("gateway and shards took %d MiB, %d before the record of %d MiB came", after>>20, before>>20, size>>20)
	}
	t.Logf("%d MiB: gateway and shards took %d MiB, %d before; get %d MiB", size>>20, after>>20, before>>20, peak>>20)
}

// largeFile writes random bytes and returns their SHA-256.
func largeFile(t *testing.T, dir string, size int64) (name, sum string) {
	t.Helper()
	name = filepath.Join(dir, "large")
	f, err := os.Create(name)
	must(t, err)
	hash := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, hash), rand.NewChaCha8([32]byte{3}), size)
	must(t, errors.Join(err, f.Close()))
	return name, hex.EncodeToString(hash.Sum(nil))
}

// runLarge runs sheaf without a time limit, and returns its peak memory in bytes.
func runLarge(t *testing.T, stdout io.Writer, args ...string) (peak int64) {
	t.Helper()
	cmd := exec.Command(sheafBinary, args...)
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("sheaf %s: %v: %s", strings.Join(args, " "), err, &stderr)
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		t.Skip("the system does not say how much memory a process took")
	}
	return usage.Maxrss << 10
}

// peakMemory returns the peak memory of a process, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			must(t, err)
			return kib << 10
		}
	}
	t.Skip("the kernel does not say how much memory a process had")
	return 0
}
