package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/loopback"
)

// devStore is a `sheaf dev --tls` that runs in a separate process.
type devStore struct {
	t      *testing.T
	binary string
	server string
	folder string
}

// startStore starts a store with the sheaf program that SHEAF_BIN names. `make test-archive` sets this variable.
func startStore(t *testing.T) *devStore {
	t.Helper()
	s := &devStore{t: t, binary: os.Getenv("SHEAF_BIN"), server: loopback.Free(t),
		folder: filepath.Join(t.TempDir(), "store")}
	if s.binary == "" {
		t.Skip("SHEAF_BIN is not set: make test-archive sets it")
	}
	ctx, stop := context.WithCancel(t.Context())
	process := exec.CommandContext(ctx, s.binary, "dev", "--dir", s.folder, "--tls", "--listen", s.server, "--http", "",
		"--shards", "2", "--groups", "3")
	process.Cancel = func() error { return process.Process.Signal(os.Interrupt) }
	process.WaitDelay = time.Minute
	var log bytes.Buffer
	process.Stdout, process.Stderr = &log, &log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = process.Wait()
	}()
	t.Cleanup(func() {
		stop()
		if <-ended; t.Failed() {
			t.Log(log.String())
		}
	})
	s.await(ended, func() bool {
		_, err := s.sheaf("", "put", "1", "-")
		return err == nil
	})
	return s
}

// await calls the given function repeatedly until it returns true. It fails the test if the process ends first.
func (s *devStore) await(ended <-chan struct{}, is func() bool) {
	s.t.Helper()
	for !is() {
		select {
		case <-ended:
			s.t.Fatal("the store ended")
		case <-s.t.Context().Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// sheaf runs a command of the program sheaf, as the administrator of the store.
func (s *devStore) sheaf(in string, args ...string) (string, error) {
	c := exec.CommandContext(s.t.Context(), s.binary, append(args, "--server", s.server)...)
	admin := filepath.Join(s.folder, "tls", "admin")
	c.Env = append(os.Environ(), "SHEAF_CA="+filepath.Join(admin, "ca.crt"), "SHEAF_CERT="+filepath.Join(admin, "tls.crt"),
		"SHEAF_KEY="+filepath.Join(admin, "tls.key"))
	c.Stdin = strings.NewReader(in)
	out, err := c.Output()
	return string(out), err
}

// archiveWith runs `sheaf-archive run` until the function that it returns is called.
func archiveWith(t *testing.T, s *devStore, url string, flags ...string) (stop func() (code int, errs string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	code, ended := 0, make(chan struct{})
	var errs bytes.Buffer
	go func() {
		defer close(ended)
		code = run(ctx, &bytes.Buffer{}, &errs, append([]string{"run", url, "--server", s.server, "--tls-dir",
			filepath.Join(s.folder, "tls", "archive"), "--interval", "100ms", "--name", "quotes"}, flags...))
	}()
	return func() (int, string) {
		cancel()
		<-ended
		return code, errs.String()
	}
}

// A store is archived while it is written to, first by one process and then by another. The archive contains every
// state of a record, a record above 1 MiB, and a deletion. The command verify finds no problem.
func TestAStoreIsArchived(t *testing.T) {
	s := startStore(t)
	url := "file://" + filepath.Join(t.TempDir(), "archive")
	put := func(id, data string) {
		t.Helper()
		if _, err := s.sheaf(data, "put", id, "-"); err != nil {
			t.Fatal(err)
		}
	}
	// has waits until the newest archived state of a record has this data. If data is empty, it waits until the archive
	// shows that the record does not exist.
	has := func(id, data string) {
		t.Helper()
		s.await(nil, func() bool {
			code, out, _ := runArchive(t, "cat", url, id)
			return data != "" && code == 0 && out == data || data == "" && code == 3
		})
	}
	large := strings.Repeat("sheaf", 1<<19)
	put("42", "first")
	put("43", large)
	says := func(words string) bool {
		out, err := s.sheaf("", "status", "--groups=false")
		return err == nil && strings.Contains(out, "\narchive: "+words)
	}
	if !says("not known") {
		t.Error("sheaf status knows of an archive before there is one")
	}
	stop := archiveWith(t, s, url)
	s.await(nil, func() bool { return says("archived 0 s ago") || says("archived 1 s ago") })
	has("42", "first")
	has("43", large)
	put("42", "second")
	has("42", "second")
	if code, errs := stop(); code != 0 {
		t.Errorf("stopped: %d, %s", code, errs)
	}
	put("42", "third")
	if _, err := s.sheaf("", "rm", "43"); err != nil {
		t.Fatal(err)
	}
	stop = archiveWith(t, s, url)
	has("42", "third")
	has("43", "")
	if code, errs := stop(); code != 0 {
		t.Errorf("stopped: %d, %s", code, errs)
	}
	if code, out, errs := runArchive(t, "verify", url); code != 0 {
		t.Errorf("verify: %d, %s%s", code, out, errs)
	}
	if code, out, _ := runArchive(t, "list", url); code != 0 || !strings.Contains(out, "quotes") {
		t.Errorf("list: %d, %s", code, out)
	}
}

func TestWrongArgumentsOfRun(t *testing.T) {
	folder := "file://" + filepath.Join(t.TempDir(), "archive")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no port":   {[]string{"run", folder, "--server", "gateway"}, "must be HOST:PORT"},
		"too often": {[]string{"run", folder, "--interval", "1ms"}, "at least 100ms"},
		"no folder": {[]string{"run", folder, "--tls-dir", filepath.Join(t.TempDir(), "none")}, "--tls-dir"},
		"no bucket": {[]string{"run"}, "0 arguments given"},
		"no format": {[]string{"run", folder, "--log-format", "xml"}, "text or json"},
	} {
		if code, _, errs := runArchive(t, c.args...); code != 2 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: %d, %s", name, code, errs)
		}
	}
}
