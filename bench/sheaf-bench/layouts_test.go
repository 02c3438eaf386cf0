package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/internal/test/clitest"
	"sheaf.dev/sheaf/internal/test/must"
)

// benchUser is an ordinary user, not root.
var benchUser = &syscall.Credential{Uid: 65532, Gid: 65532}

// A user without root privileges can measure an existing file system. The test runs the program as the Job in
// config/samples does.
func TestBenchLayoutsWithoutRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED as another user: this is not root")
	}
	// Only root may enter the test's own temporary folder, so the test creates one for the user.
	dir := filepath.Join(os.TempDir(), "sheaf-bench-user-"+filepath.Base(t.TempDir()))
	must.OK(t, os.Mkdir(dir, 0o700))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.OK(t, os.Chown(dir, int(benchUser.Uid), int(benchUser.Gid)))
	program := filepath.Join(dir, "sheaf-bench")
	if out, err := exec.Command("cp", benchBinary, program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	o := clitest.Run(t, nil, benchUser, program, "layouts", "--dir", dir, "--fs", "ext4,jfs", "--table", "5", "--scale",
		"tiny", "-o", "json").Want(t, 0)
	report, err := result.ReadJSON(strings.NewReader(o.Stdout))
	must.OK(t, err)
	missing := 0
	for _, row := range report.Table("t5-deep").Rows {
		if strings.Contains(row.Missing, "needs root") {
			missing++
		} else if row.Cells["rate"].Median <= 0 {
			t.Errorf("%s: nothing was measured", row.Name())
		}
	}
	if notes := strings.Join(report.Notes, " "); missing != 2 || !strings.Contains(notes, "needs root") ||
		!strings.Contains(notes, "stayed warm") {
		t.Errorf("%d rows say that they need root; notes: %q", missing, report.Notes)
	}
	clitest.Run(t, nil, benchUser, program, "layouts", "--device", "/dev/loop0").Want(t, 2).Has(t, "root")
	rateFile := filepath.Join(dir, "rate.json")
	if err := os.WriteFile(rateFile, nil, 0o666); err != nil { // the file exists and is empty, as the kubelet creates it
		t.Fatal(err)
	}
	must.OK(t, os.Chmod(rateFile, 0o666))
	o = clitest.Run(t, nil, benchUser, program, "layouts", "--path", dir, "--table", "5", "--scale", "tiny",
		"--device-rate", rateFile)
	if !strings.Contains(o.Stderr, "cannot be read past the page cache") { // the file system supports O_DIRECT
		o.Want(t, 0)
		content, err := os.ReadFile(rateFile)
		if err != nil || !strings.HasPrefix(string(content), `{"kind":"sheaf.dev/device-rate","readBytesPerSecond":`) ||
			!strings.Contains(o.Stdout, "past the page cache") {
			t.Errorf("%s %v\n%s", content, err, o.Stdout)
		}
	}
	must.OK(t, os.Remove(rateFile))
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 1 {
		t.Errorf("left behind: %v %v", names, err)
	}
}

// A run leaves no mount and no loop device behind, whether it is interrupted or killed.
func TestBenchLayoutsKilled(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: mounting needs root")
	}
	if _, err := exec.LookPath("mke2fs"); err != nil {
		t.Skipf("NOT TESTED: %v", err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
		dir, out := t.TempDir(), t.TempDir()
		cmd := exec.Command(benchBinary, "layouts", "--fs", "ext4", "--scale", "tiny", "--rounds", "99", "--table", "1",
			"--dir", dir, "--out", out)
		must.OK(t, cmd.Start())
		until(t, "the first figures", func() bool {
			_, err := os.Stat(filepath.Join(out, layoutsState))
			return err == nil
		})
		must.OK(t, cmd.Process.Signal(sig))
		_ = cmd.Wait() // the exit code is checked below, so the error is ignored
		if code := cmd.ProcessState.ExitCode(); sig != syscall.SIGKILL && code != 1 {
			t.Errorf("%v: exit code %d", sig, code)
		}
		until(t, "the loop device to be let go", func() bool { return loopsOn(t, dir) == 0 })
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || strings.Contains(string(mounts), dir+"/") {
			t.Errorf("%v: still mounted: %s %v", sig, mounts, err)
		}
		names, err := os.ReadDir(dir)
		if err != nil || sig != syscall.SIGKILL && len(names) != 0 {
			t.Errorf("%v: left behind: %v %v", sig, names, err)
		}
		if _, err := result.ReadFile(filepath.Join(out, "report.json")); sig != syscall.SIGKILL && err != nil {
			t.Errorf("%v: the report so far: %v", sig, err)
		}
	}
}

// loopsOn returns the number of loop devices on files below a folder.
func loopsOn(t *testing.T, dir string) (n int) {
	t.Helper()
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must.OK(t, err)
	for _, name := range names {
		content, err := os.ReadFile(name) // a device that vanishes meanwhile belongs to another test
		if err == nil && strings.HasPrefix(string(content), dir+"/") {
			n++
		}
	}
	return n
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func TestBenchLayoutsUsage(t *testing.T) {
	for _, args := range [][]string{
		{"--fs", "zfs"}, {"--table", "6"}, {"--table", "two"}, {"--scale", "huge"}, {"--resume"}, {"--destroy"},
		{"--path", "/", "--fs", "xfs"}, {"--rounds", "-1"}, {"--device-rate", "rate.json"},
	} {
		measure(t, append([]string{"layouts"}, args...)...).Want(t, 2)
	}
	measure(t, "layouts", "--compare", "/nowhere.json").Want(t, 1).Has(t, "nowhere")
	measure(t, "layouts", "--fs", "reiserfs").Want(t, 1).Has(t, "6.13")
}
