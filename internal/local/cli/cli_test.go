package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

func TestParseIDReadsEveryIDInBothWritings(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		id := rapid.Int64().Draw(t, "id")
		for _, s := range []string{fmt.Sprint(id), fmt.Sprintf("0x%x", uint64(id)), fmt.Sprintf("0X%016X", uint64(id))} {
			if got, err := ParseID(s); err != nil || got != id {
				t.Fatalf("%s: %d, %v", s, got, err)
			}
		}
	})
}

func TestParseNeverPanicsAndRefusesByUsage(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		_, err1 := ParseID(s)
		_, err2 := ParseTimestamp(s)
		_, err3 := parseSize(s)
		_, err4 := ParseAttributes([]string{s})
		for _, err := range []error{err1, err2, err3, err4} {
			if err != nil && ExitCode(err) != exitUsage {
				t.Fatalf("%q: %v is no wrong usage", s, err)
			}
		}
	})
}

func TestNegativeIDsNeedNoDashes(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"get -5", "get 0xfffffffffffffffb"},
		{"get -9223372036854775808", "get 0x8000000000000000"},
		{"put 1 --timestamp -5", "put 1 --timestamp -5"},
		{"put -- -5", "put -- -5"},
		{"get -5x", "get -5x"},
		{"-5", "-5"},
	} {
		if got := strings.Join(protectNegativeIDs(strings.Fields(c.in)), " "); got != c.out {
			t.Errorf("%s: %s, want %s", c.in, got, c.out)
		}
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "17": 17, "1k": 1000, "1KiB": 1024, "256MiB": 256 << 20, "8M": 8 << 20,
		"8MB": 8e6, "2 GiB": 2 << 30} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("%q: %d %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "-1", "1.5G", "9999999TiB", "x", "MiB"} {
		if n, err := parseSize(s); err == nil {
			t.Errorf("%q was read as %d", s, n)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1.0 MiB",
		5 << 30: "5.0 GiB", -3: "-3 B"} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := FormatCount(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestExitCodesAndWordsOfAStatus(t *testing.T) {
	s, err := status.New(codes.Aborted, "the version is another").WithDetails(
		&errdetails.ErrorInfo{Reason: "VERSION_MISMATCH", Domain: "sheaf.dev", Metadata: map[string]string{"version": "7"}})
	must.OK(t, err)
	wrapped := fmt.Errorf("put 5: %w", s.Err())
	if got := Describe(wrapped, ""); got != "put 5: ABORTED VERSION_MISMATCH: the version is another: (version=7)" {
		t.Error(got)
	}
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, exitDone},
		{errors.New("x"), exitFailed},
		{wrapped, exitFailed},
		{fmt.Errorf("a: %w", status.Error(codes.NotFound, "x")), exitNotFound},
		{fmt.Errorf("a: %w", status.Error(codes.InvalidArgument, "x")), exitUsage},
		{fmt.Errorf("a: %w", Usagef("x")), exitUsage},
		{fmt.Errorf("a: %w", NotFoundf("x")), exitNotFound},
	} {
		if got := ExitCode(c.err); got != c.code {
			t.Errorf("%v: %d, want %d", c.err, got, c.code)
		}
	}
}

// The message of an error that joins other errors has several lines, but the description of an error must be one line.
func TestADescriptionIsOneLine(t *testing.T) {
	err := fmt.Errorf("put 5: %w", status.Error(codes.FailedPrecondition, "write a: read-only\ntruncate a: read-only"))
	if got := Describe(err, ""); got != "put 5: FAILED_PRECONDITION: write a: read-only; truncate a: read-only" {
		t.Error(got)
	}
}

// If a gateway cannot reach a shard, the gateway itself still answers. The description must not blame --server.
func TestUnreachableShardIsNotMistakenForServer(t *testing.T) {
	s, err := status.New(codes.Unavailable, "shard a does not answer: connection error: refused").WithDetails(
		&errdetails.ErrorInfo{Reason: "SHARD_UNREACHABLE", Domain: "sheaf.dev"})
	must.OK(t, err)
	if got := Describe(s.Err(), "127.0.0.1:7600"); strings.Contains(got, "--server") {
		t.Error(got)
	}
}

// Cobra's "accepts 1 arg(s), received 0" does not say which argument is missing.
func TestAMissingArgumentIsNamed(t *testing.T) {
	p := &Program{Out: &Output{Out: io.Discard, Err: io.Discard}}
	for args, want := range map[string]string{"": "0 arguments given", "a b": "2 arguments given"} {
		root := &cobra.Command{Use: "sheaf"}
		root.AddCommand(&cobra.Command{Use: "export DIR", Args: cobra.ExactArgs(1),
			RunE: func(*cobra.Command, []string) error { return nil }})
		err := p.Run(t.Context(), root, append([]string{"export"}, strings.Fields(args)...))
		if ExitCode(err) != exitUsage || !strings.Contains(err.Error(), want+", and it takes: sheaf export DIR") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// A size of 0 means that the program chooses the size. The help of a flag says so, and "(default 0 B)" after it would
// contradict the help.
func TestHelpOmitsZeroDefaults(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	none, some := Size(0), Size(64<<20)
	flags.Var(&none, "reserve", "0: 5 %")
	flags.Var(&some, "rate", "bytes")
	if help := flags.FlagUsages(); strings.Contains(help, "default 0") || !strings.Contains(help, "default 64.0 MiB") {
		t.Error(help)
	}
}

// A certificate that was issued in Kubernetes contains only DNS names, but the default of --server is an IP address.
// The message quoted here is Go's.
func TestErrorAsksForNameInCertificate(t *testing.T) {
	refused := x509.HostnameError{Certificate: &x509.Certificate{}, Host: "127.0.0.1"}
	err := status.Errorf(codes.Unavailable, "connection error: tls: failed to verify certificate: %v", refused)
	if got := Describe(err, "127.0.0.1:7600"); !strings.Contains(got, "give one with --server, such as localhost:7600") {
		t.Error(got)
	}
}

// Both the sorted and the concurrent walk visit every file exactly once, whatever the shape of the tree.
func TestWalkVisitsEveryFileOnce(t *testing.T) {
	root := t.TempDir()
	var want []string
	for d := range 12 {
		for f := range 9 * d {
			name := filepath.Join(strings.Repeat("sub/", d%4)+fmt.Sprint(d), fmt.Sprint(f))
			must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
			must.OK(t, os.WriteFile(filepath.Join(root, name), nil, 0o644))
			want = append(want, name)
		}
	}
	sort.Strings(want)
	for _, sorted := range []bool{false, true} {
		var mu sync.Mutex
		var got []string
		err := Walk(t.Context(), root, 4, sorted, func(item Item) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, item.Path)
			return item.Err
		})
		must.OK(t, err)
		sort.Strings(got)
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("sorted %v: %d files, want %d", sorted, len(got), len(want))
		}
		stop := errors.New("enough")
		if err := Walk(t.Context(), root, 4, sorted, func(Item) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("sorted %v: the error of visit is lost: %v", sorted, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Walk(ctx, root, 4, sorted, func(Item) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("sorted %v: a cancelled walk says %v", sorted, err)
		}
	}
	if err := Walk(t.Context(), filepath.Join(root, "no-such"), 4, false, nil); err == nil {
		t.Error("a folder that is not there was walked")
	}
}

// If somebody replaces a folder by a link while the tree is walked, the target of the link is not visited.
func TestWalkFollowsNoLink(t *testing.T) {
	for _, sorted := range []bool{false, true} {
		base := t.TempDir()
		root := filepath.Join(base, "root")
		for _, name := range []string{"root/1/file", "root/2/a/file", "root/empty/x", "outside/a/secret"} {
			must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755))
			must.OK(t, os.WriteFile(filepath.Join(base, name), nil, 0o644))
		}
		must.OK(t, os.Remove(filepath.Join(root, "empty/x")))
		must.OK(t, os.WriteFile(filepath.Join(root, "0"), nil, 0o644))
		var got, bad []string
		must.OK(t, Walk(t.Context(), root, 1, sorted, func(item Item) error {
			switch {
			case item.Path == "0":
				must.OK(t, os.Rename(filepath.Join(root, "2"), filepath.Join(base, "2")))
				must.OK(t, os.Symlink("../outside", filepath.Join(root, "2")))
				fallthrough
			case item.Err == nil:
				got = append(got, item.Path)
			default:
				bad = append(bad, item.Path+": "+whatOf(item.Err))
			}
			return nil
		}))
		sort.Strings(got)
		if fmt.Sprint(got) != "[0 1/file empty]" || fmt.Sprint(bad) != "[2: open: 2 is a symbolic link]" {
			t.Errorf("sorted %v: visited %v, failed %v", sorted, got, bad)
		}
		at, err := openFolder(root)
		must.OK(t, err)
		for _, name := range []string{"2/a/secret", "2/a", "2"} {
			if f, err := at.open(name, 0); err == nil {
				t.Errorf("%s was opened through a link: %s", name, f.Name())
			}
		}
		if info, err := at.lstat("2"); err != nil || info.Mode().Type() != os.ModeSymlink {
			t.Errorf("the link itself: %v %v", info, err)
		}
		at.close()
	}
}

func TestGroupNamesFromFoldersAreValidAndDistinguishFolders(t *testing.T) {
	allowed := "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	soaktest.Check(t, func(t *rapid.T) {
		dir := string(rapid.SliceOfN(rapid.Byte(), 1, 255).Draw(t, "dir"))
		name := groupName(dir)
		if len(name) < 1 || len(name) > 253 || name[0] == '.' || strings.Trim(name, allowed) != "" {
			t.Fatalf("%q gave %q", dir, name)
		}
	})
	for dir, want := range map[string]string{"acme": "acme", "a b": "a_20b", ".git": "_2egit", "x.y-z_1": "x.y-z_1"} {
		if got := groupName(dir); got != want {
			t.Errorf("%q: %q, want %q", dir, got, want)
		}
	}
	long := strings.Repeat("é", 120)
	if groupName(long+"1") == groupName(long+"2") {
		t.Error("two long names became one group")
	}
}

func TestOddTextNeverReachesTheTerminalAsItIs(t *testing.T) {
	for _, s := range []string{"\x1b[31m", "a\nb", "\xff", "a\tb", "\u202e"} {
		if got := displayName(s); got == s || strings.ContainsAny(got, "\x1b\n\t") {
			t.Errorf("%q is shown as %q", s, got)
		}
	}
	for _, s := range []string{"plain", "two words", "ünïcödé"} {
		if got := displayName(s); got != s {
			t.Errorf("%q is shown as %q", s, got)
		}
	}
	if got := attributeWords(map[string][]byte{"k": []byte("\x1b[2J")}); strings.Contains(got, "\x1b") {
		t.Errorf("attributes: %q", got)
	}
}

// Modes and times that no file can have, but that any client may store, are replaced by a default, and do not cause an
// error.
func TestModeAndTimeOfARecord(t *testing.T) {
	record := func(mode, mtime string) client.Record {
		return client.Record{Timestamp: time.Unix(5, 7), Attributes: map[string][]byte{attributeMode: []byte(mode),
			attributeMtime: []byte(mtime)}}
	}
	for mode, want := range map[string]uint32{
		"0644": 0o644, "4755": 0o4755, "1777": 0o1777, "2755": 0o2755, "": 0o644, "99999": 0o644, "-1": 0o644, "0000": 0,
	} {
		if got, left := modeOf(record(mode, ""), true); got != want || left {
			t.Errorf("%q: %o, want %o; a bit is left out: %v", mode, got, want, left)
		}
		if got, left := modeOf(record(mode, ""), false); got != want&0o777 || left != (want&0o7000 != 0) {
			t.Errorf("%q without privileges: %o, want %o; a bit is left out: %v", mode, got, want&0o777, left)
		}
	}
	for mtime, want := range map[string][2]int64{"3.000000004": {3, 4}, "-3.000000004": {-3, 4},
		"17179869185.000000000": {17179869185, 0}, "3": {5, 7}, "3.-4": {5, 7}, "x.y": {5, 7}, "3.1000000000": {5, 7}} {
		if got := mtimeOf(record("", mtime)); got.Sec != want[0] || got.Nsec != want[1] {
			t.Errorf("%q: %+v, want %v", mtime, got, want)
		}
	}
}

// Each row of a table takes one line, whatever its cells contain.
func TestARowIsALine(t *testing.T) {
	table := Table{Header: []string{"A", "B"}, Rows: [][]Cell{{Text("one\ntwo"), Text("x")}}}
	if got, want := table.Format(false), "A         B\none; two  x\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
