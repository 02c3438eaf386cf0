package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPythonProgram runs the client of docs/clients.md, as it stands there, against a store of three copies whose
// shards and gateway are killed one after another while it writes: no call fails, and all that was acknowledged is read
// back. SHEAF_PYTHON is a Python with the packages of hack/python/requirements.txt (make test-python).
func TestPythonProgram(t *testing.T) {
	python := os.Getenv("SHEAF_PYTHON")
	if python == "" {
		t.Skip("SHEAF_PYTHON names no Python: make test-python")
	}
	dir := pythonClient(t, python)
	s := newCopiesStore(t)
	s.waitReady()
	cmd := exec.Command(python, filepath.Join(dir, "driver.py"), s.address)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	stderr := &lockedBuffer{}
	cmd.Stderr = stderr
	must(t, cmd.Start())
	ended := time.AfterFunc(10*time.Minute, func() { _ = cmd.Process.Kill() })
	defer ended.Stop()
	lines := bufio.NewScanner(stdout)
	rounds := func(n int) {
		t.Helper()
		for range n {
			if !lines.Scan() {
				_ = cmd.Wait()
				t.Fatalf("the program ended early: %s", stderr)
			}
		}
	}
	for _, name := range copiesShards { // one of them leads whatever group is written just then
		rounds(10)
		s.shards[name].kill()
		rounds(30)
		s.start(name)
		s.shards[name].waitReady(t)
	}
	for range 3 { // what the gateway does not repeat, the program must
		rounds(10)
		s.gateway.kill()
		s.startGateway()
	}
	rounds(10)
	_, err = io.WriteString(stdin, "stop\n")
	must(t, err)
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(last, "all ") {
		t.Fatalf("%v, the last line is %q: %s", err, last, stderr)
	}
	t.Log(last)
}

// pythonClient makes a folder with the program of docs/clients.md, what it needs, and the driver of this test.
func pythonClient(t *testing.T, python string) string {
	t.Helper()
	dir := t.TempDir()
	page, err := os.ReadFile("../../docs/clients.md")
	must(t, err)
	_, program, found := strings.Cut(string(page), "```python\n# sheaf_client.py")
	program, _, closed := strings.Cut(program, "\n```\n")
	if !found || !closed {
		t.Fatal("docs/clients.md has no sheaf_client.py")
	}
	must(t, os.WriteFile(filepath.Join(dir, "sheaf_client.py"), []byte("# sheaf_client.py"+program+"\n"), 0o600))
	driver, err := os.ReadFile("testdata/driver.py")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "driver.py"), driver, 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "gen"), 0o700))
	// As the page says.
	where, err := exec.Command(python, "-c", "import google.rpc as g; print(list(g.__path__)[0])").Output()
	must(t, err)
	site := filepath.Dir(filepath.Dir(strings.TrimSpace(string(where))))
	protos, err := filepath.Glob("../../api/sheaf/record/v1/*.proto")
	must(t, err)
	gen := filepath.Join(dir, "gen")
	out, err := exec.Command(python, append([]string{"-m", "grpc_tools.protoc", "-I", "../../api", "-I", site, "--python_out=" + gen, "--grpc_python_out=" + gen},
		protos...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}
