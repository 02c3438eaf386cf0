package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// The guard must kill the processes that use its folder, even if the test itself is killed.
func TestGuardSweepsWhenTheTestDies(t *testing.T) {
	dir := t.TempDir() + "/guarded"
	must.OK(t, os.Mkdir(dir, 0o700))
	guard, pipe, err := startGuard(dir)
	must.OK(t, err)
	server := exec.Command("tail", "-f", "/dev/null", "--", os.DevNull, filepath.Join(dir, "absent"))
	must.OK(t, server.Start())
	if left, err := users(dir); err != nil || len(left) != 1 || left[0] != server.Process.Pid {
		t.Fatalf("users %v, %v, want %d", left, err, server.Process.Pid)
	}
	// If a process is killed, the kernel closes its pipe, too.
	must.OK(t, pipe.Close())
	if err := server.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("server ended by %v, want killed", err)
	}
	must.OK(t, guard.Wait())
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatalf("folder is still there: %v", err)
	}
}

func TestMissingAssetsSayWhatToDo(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	_, err := Start("unused")
	if err == nil || !strings.Contains(err.Error(), "make envtest-assets") {
		t.Fatalf("error %v, want what to do", err)
	}
}

func TestOnlySkipsOutsideOfTestAPI(t *testing.T) {
	ran := func(value string) (ran bool) {
		t.Setenv(Variable, value)
		t.Run(value, func(t *testing.T) {
			Only(t)
			ran = true
		})
		return ran
	}
	if ran("") || ran("1") {
		t.Error("a test that needs an API server ran where none is asked for")
	}
	if !ran(Required) || !ran(Everything) {
		t.Error("make test-api skips a test that needs an API server")
	}
}
