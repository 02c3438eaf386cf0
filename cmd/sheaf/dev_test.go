package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/local/dev"
	"sheaf.dev/sheaf/internal/test/clitest"
	"sheaf.dev/sheaf/internal/test/loopback"
)

func TestDevRemembersOverStopAndKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, residency := range []string{"index", "resident"} {
		p := startDev(t, dir, "--residency", residency)
		p.do(t, residency, "put", "1").Want(t, 0)
		p.do(t, string(pattern(1, 2<<20)), "put", "2").Want(t, 0)
		p.kill()

		p = startDev(t, dir, "--residency", residency)
		if o := p.do(t, "", "get", "1").Want(t, 0); o.Stdout != residency {
			t.Errorf("after a kill: %q", o.Stdout)
		}
		if o := p.do(t, "", "get", "2").Want(t, 0); o.Stdout != string(pattern(1, 2<<20)) {
			t.Error("a large record is gone after a kill")
		}
		if code := p.stop(t); code != 0 {
			t.Errorf("SIGTERM: exit code %d: %s", code, p.stderr)
		}
		p = startDev(t, dir)
		if o := p.do(t, "", "get", "1").Want(t, 0); o.Stdout != residency {
			t.Errorf("after a stop: %q", o.Stdout)
		}
		p.stop(t)
	}
}

func TestASecondDevIsRefused(t *testing.T) {
	dir := t.TempDir()
	p := startDev(t, dir)
	p.do(t, "x", "put", "1").Want(t, 0)
	sheaf(t, nil, "dev", "--dir", dir, "--listen", loopback.Free(t), "--http", loopback.Free(t)).Want(t, 1).
		Has(t, "another sheaf dev runs on")
	sheaf(t, nil, "dev", "--dir", t.TempDir(), "--listen", p.server, "--http", loopback.Free(t)).Want(t, 1).
		Has(t, "--listen")
	sheaf(t, nil, "dev", "--dir", t.TempDir(), "--listen", loopback.Free(t), "--http", p.http).Want(t, 1).Has(t, "--http")
	if o := p.do(t, "", "get", "1").Want(t, 0); o.Stdout != "x" {
		t.Errorf("the first one was disturbed: %q", o.Stdout)
	}
}

func TestDevRefusesWhatDoesNotFitItsFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startDev(t, dir, "--shards", "4", "--groups", "8")
	p.putEach(t, "1 2 3 4 5 6 7 8", 1)
	p.stop(t)
	again := func(flags ...string) outcome {
		return sheaf(t, nil, append([]string{"dev", "--dir", dir, "--listen", loopback.Free(t), "--http", loopback.Free(t)},
			flags...)...)
	}
	again("--groups", "9").Want(t, 1).Has(t, "--groups 8").Has(t, "--dir")
	again("--routing", "named").Want(t, 1).Has(t, "--routing hash").Has(t, "--dir")
	again("--shards", "3").Want(t, 1).Has(t, "--shards 4")

	// The store accepts the flags with which it was created, no flags at all, and a larger number of shards.
	for _, flags := range [][]string{{"--shards", "4", "--groups", "8"}, {}, {"--shards", "5"}} {
		p := startDev(t, dir, flags...)
		p.checkEach(t, "1 2 3 4 5 6 7 8", 1)
		p.stop(t)
	}

	foreign := t.TempDir()
	must(t, os.WriteFile(filepath.Join(foreign, "thesis.tex"), []byte("mine"), 0o644))
	sheaf(t, nil, "dev", "--dir", foreign, "--listen", loopback.Free(t), "--http", loopback.Free(t)).Want(t, 1).
		Has(t, "thesis.tex").Has(t, "empty folder")
	if names, err := os.ReadDir(foreign); err != nil || len(names) != 1 {
		t.Errorf("something was written into a foreign folder: %v", names)
	}
	sheaf(t, nil, "dev", "--dir", filepath.Join(dir, "shards", "shard-0"), "--listen", loopback.Free(t), "--http",
		loopback.Free(t)).
		Want(t, 1).Has(t, "sheaf shard")

	must(t, os.RemoveAll(filepath.Join(dir, "etcd")))
	again().Want(t, 1).Has(t, "etcd has lost")
}

func TestDevWithoutAFolderRemovesItsOwn(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	server, httpAddress := loopback.Free(t), loopback.Free(t)
	p := launchWith(t, server, httpAddress, "dev", "--listen", server, "--http", httpAddress)
	p.waitReady(t)
	names, err := os.ReadDir(tmp)
	if err != nil || len(names) != 1 || !strings.Contains(p.stderr.String(), names[0].Name()) {
		t.Errorf("the temporary folder %v is not said: %s", names, p.stderr)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
	if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
}

func TestDevHTTP(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "2")
	get := func(path string) (int, string) {
		response, err := http.Get("http://" + p.http + path)
		must(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		must(t, err)
		return response.StatusCode, string(body)
	}
	for path, want := range map[string]string{"/": "<!doctype html>", "/healthz": "ok", "/readyz": "ok",
		"/metrics": "process=\"shard-1\""} {
		if code, body := get(path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, clitest.Shortened(body))
		}
	}
	_, body := get("/status")
	var status struct {
		Ready   bool
		Summary struct{ State, Text string }
		Shards  []struct{ Name string }
	}
	must(t, json.Unmarshal([]byte(body), &status))
	if !status.Ready || len(status.Shards) != 2 || status.Summary.State != "Ready" ||
		status.Summary.Text != "Ready: 16 groups on 2 shards serve" {
		t.Errorf("/status: %s", body)
	}
	if code, _ := get("/nonsense"); code != http.StatusNotFound {
		t.Errorf("/nonsense: %d", code)
	}
}

// After a SIGKILL, a shard's old registration remains in etcd for some seconds. If another program listens on the
// registered address when the shard starts again, the shard waits until the registration has expired. Meanwhile,
// /readyz and the output of the process say what it is waiting for.
func TestAStartSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startDev(t, dir)
	p.do(t, "x", "put", "1").Want(t, 0)
	const waits = "the start waits for volumes to be opened and registered: "
	// Try again if the old registration expired before the test asked, because the machine was slow.
	for began, seen := time.Now(), false; !seen; {
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("it never said what it waited for: %s", p.stderr)
		}
		var status dev.Status
		must(t, json.Unmarshal([]byte(get(t, p.http, "/status")), &status))
		p.kill()
		l, err := net.Listen("tcp", status.Shards[1].GetShard().GetAddress())
		must(t, err)
		defer l.Close()
		p = launch(t, dir, loopback.Free(t), loopback.Free(t))
		// The message has to name shard-1; it may also name another shard, but not all three.
		seen = p.saysUntilReady(t, func(words string) bool {
			left, found := strings.CutPrefix(words, waits)
			return found && strings.Contains(left, "shard-1") && left != "shard-0, shard-1, shard-2"
		}) && strings.Contains(p.stderr.String(), waits)
	}
	if o := p.do(t, "", "get", "1").Want(t, 0); o.Stdout != "x" {
		t.Errorf("get 1: %q", o.Stdout)
	}
}

// saysUntilReady polls /readyz until the process is ready. It reports whether the function holds returned true for at
// least one of the answers.
func (p *process) saysUntilReady(t *testing.T, holds func(words string) bool) (said bool) {
	t.Helper()
	eventually(t, func() bool {
		response, err := http.Get("http://" + p.http + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		must(t, err)
		said = said || holds(strings.TrimSpace(string(body)))
		return response.StatusCode == http.StatusOK
	})
	return said
}

// get returns the body of an HTTP response.
func get(t *testing.T, address, path string) string {
	t.Helper()
	response, err := http.Get("http://" + address + path)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return string(body)
}

func TestVerifyFindsDamageAndNamesIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startDev(t, dir, "--shards", "2", "--groups", "4")
	p.putEach(t, "1 2 3 4 5 6 7 8", 5000)
	sheaf(t, nil, "verify", dir).Want(t, 1).Has(t, "a process serves")
	p.stop(t)
	sheaf(t, nil, "verify", dir).Want(t, 0).Has(t, "4 groups")

	segments, err := filepath.Glob(filepath.Join(dir, "shards", "*", "groups", "*", "segment-*"))
	must(t, err)
	var hit string
	for _, name := range segments {
		data, err := os.ReadFile(name)
		must(t, err)
		at := strings.Index(string(data), strings.Repeat("5", 100))
		if at < 0 {
			continue
		}
		hit = name
		data[at+10] ^= 0x40
		must(t, os.WriteFile(name, data, 0o644))
	}
	if hit == "" {
		t.Fatalf("the record is in none of %v", segments)
	}
	sheaf(t, nil, "dump", hit).Want(t, 0)
	o := sheaf(t, nil, "verify", dir).Want(t, 1)
	if !strings.Contains(o.Stdout, filepath.Base(hit)) || !strings.Contains(o.Stdout, "offset") {
		t.Errorf("verify: %s", o.Stdout)
	}
	var r struct {
		Groups []struct {
			Damages []struct{ IDs []int64 }
		}
	}
	sheaf(t, nil, "verify", dir, "-o", "json").Want(t, 1).JSON(t, &r)
	found := 0
	for _, g := range r.Groups {
		for _, d := range g.Damages {
			if len(d.IDs) == 1 && d.IDs[0] == 5 {
				found++
			}
		}
	}
	if found != 1 {
		t.Errorf("verify -o json: %+v", r)
	}

	// The other records are still served, and the damaged record answers DATA_LOSS.
	p = startDev(t, dir)
	p.do(t, "", "get", "5").Want(t, 1).Has(t, "DATA_LOSS")
	p.checkEach(t, "1 2 3 4 6 7 8", 5000)
	p.do(t, "", "status").Want(t, 1)
	p.do(t, "", "group", "accept-loss", "0").Want(t, 2).Has(t, "--yes")
	p.stop(t)

	// A repair happens only on request. It reports what it did, and leaves the other records unchanged.
	sheaf(t, nil, "verify", dir).Want(t, 1)
	sheaf(t, nil, "verify", dir, "--repair").Want(t, 1).Has(t, "quarantine")
	sheaf(t, nil, "verify", dir).Want(t, 0)
	p = startDev(t, dir)
	p.do(t, "", "get", "5").Want(t, 3)
	p.checkEach(t, "1 2 3 4 6 7 8", 5000)
	p.do(t, "", "status").Want(t, 0)
	p.stop(t)
	sheaf(t, nil, "verify", t.TempDir()).Want(t, 1).Has(t, "neither a volume nor a group")
	sheaf(t, nil, "verify", filepath.Join(dir, "no-such")).Want(t, 1)
	sheaf(t, nil, "dump", filepath.Join(dir, "dev.json")).Want(t, 1)
}

func TestPortTakenBySomethingElse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	sheaf(t, nil, "dev", "--dir", t.TempDir(), "--listen", l.Addr().String(), "--http", loopback.Free(t)).Want(t, 1).
		Has(t, "in use")
}

func TestDevWithCopies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dev := func(flags ...string) outcome {
		return sheaf(t, nil, append([]string{"dev", "--dir", dir, "--listen", loopback.Free(t), "--http", loopback.Free(t)},
			flags...)...)
	}
	dev("--copies", "2").Want(t, 2).Has(t, "--copies 2")
	dev("--copies", "0").Want(t, 2).Has(t, "--copies 0")
	dev("--copies", "5").Want(t, 2).Has(t, "--shards 5 or more")
	dev("--copies", "5", "--shards", "3").Want(t, 2).Has(t, "--shards 5 or more")
	dev("--copies", "3", "--shards", "2").Want(t, 2).Has(t, "--shards 3 or more")

	p := startDev(t, dir, "--copies", "3", "--groups", "4")
	p.putEach(t, "1 2 3 4 5 6 7 8", 1)
	p.do(t, string(pattern(1, 2<<20)), "put", "9").Want(t, 0)
	p.kill()
	dev("--copies", "1").Want(t, 1).Has(t, "--copies 3")
	dev("--shards", "2").Want(t, 1).Has(t, "--shards 3")
	p = startDev(t, dir) // the settings come from the folder
	p.checkEach(t, "1 2 3 4 5 6 7 8", 1)
	if o := p.do(t, "", "get", "9").Want(t, 0); o.Stdout != string(pattern(1, 2<<20)) {
		t.Error("a large record is gone")
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("SIGTERM: exit code %d: %s", code, p.stderr)
	}
}

// A new shard automatically receives its share of the groups.
func TestDevWithAnotherShard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startDev(t, dir, "--groups", "12", "--shards", "3")
	for id := range 40 {
		p.do(t, fmt.Sprint(id), "put", fmt.Sprint(id)).Want(t, 0)
	}
	p.stop(t)
	p = startDev(t, dir, "--shards", "4")
	var got struct {
		Shards []struct {
			Name   string `json:"name"`
			Groups int    `json:"groups"`
		} `json:"shards"`
	}
	for full := false; !full; time.Sleep(20 * time.Millisecond) {
		o := p.do(t, "", "status", "-o", "json")
		if err := json.Unmarshal([]byte(o.Stdout), &got); err != nil {
			t.Fatalf("status: %v: %s", err, o.Stdout)
		}
		full = len(got.Shards) == 4
		for _, s := range got.Shards {
			full = full && s.Groups == 3
		}
	}
	for id := range 40 {
		if o := p.do(t, "", "get", fmt.Sprint(id)).Want(t, 0); o.Stdout != fmt.Sprint(id) {
			t.Errorf("get %d: %q", id, o.Stdout)
		}
	}
	p.stop(t)
	sheaf(t, nil, "dev", "--dir", dir, "--listen", loopback.Free(t), "--http", loopback.Free(t), "--shards", "3").
		Want(t, 1).Has(t, "--shards 4")
}
