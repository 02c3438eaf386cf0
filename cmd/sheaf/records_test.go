package main

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/loopback"
)

func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

func TestWrongUsageIsExitCode2(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"},
		{"put"},
		{"put", "1", "a", "b"},
		{"put", "1", "--no-such-flag"},
		{"put", "9223372036854775808"},
		{"put", "0x"},
		{"put", "0x10000000000000000"},
		{"put", "abc"},
		{"put", "1", "--attr", "novalue"},
		{"put", "1", "--attr", "k=1", "--attr", "k=2"},
		{"put", "1", "--timestamp", "yesterday"},
		{"put", "1", "--timestamp", "0001-01-01T00:00:00Z"},
		{"put", "1", "--if-absent", "--if-version", "2"},
		{"get", "1", "--offset", "-1"},
		{"get", "1", "--length", "-2"},
		{"get", "1", "--metadata", "--to", "x"},
		{"get", "1", "-o", "yaml"},
		{"get", "1", "--timeout", "-1s"},
		{"versions", "1", "--limit", "-1"},
		{"scan", "extra"},
		{"scan", "--tar", "--tar-names", "nonsense"},
		{"scan", "--tar-names", "path"},
		{"scan", "--keep-setuid"},
		{"group"},
		{"group", "accept-loss", "0"},
		{"dev", "--listen", "nonsense"},
		{"dev", "--listen", ""},
		{"dev", "--listen", "127.0.0.1:http2"},
		{"dev", "--http", "127.0.0.1:70000"},
		{"shard", "--name", "x", "--dir", t.TempDir(), "--advertise", ":7610"},
		{"dev", "--shards", "0"},
		{"dev", "--shards", "-1"},
		{"dev", "--groups", "0"},
		{"dev", "--groups", "100000"},
		{"dev", "--routing", "nonsense"},
		{"dev", "--residency", "nonsense"},
		{"dev", "--routing", "named", "--groups", "3"},
		{"dev", "--segment-bytes", "-1"},
		{"dev", "--segment-bytes", "1"},
		{"dev", "--memory-limit", "8XB"},
		{"dev", "--retention-versions", "0"},
		{"dev", "--log-level", "loud"},
		{"shard"},
		{"shard", "--name", "x", "--dir", t.TempDir(), "--etcd", ""},
		{"gateway", "--store", "Not A Name"},
		{"dev", "--reserve", "-1"},
		{"dev", "--compaction-share", "NaN"},
		{"dev", "--compaction-share", "0"},
		{"dev", "--compaction-interval", "0s"},
		{"dev", "--retention-min-age", "-1s"},
		{"dev", "--segment-bytes", "100TiB"},
		{"dev", "--shards", "99999"},
		{"put", ""},
		{"put", " 1"},
		{"put", "1", "--attr", "=x"},
		{"get", "1", "--offset", "9223372036854775808"},
		{"import", ""},
		{"import", t.TempDir(), "--workers", "-1"},
		{"import", t.TempDir(), "--senders", "1025"},
		{"import", t.TempDir(), "--id", "nonsense"},
		{"import", t.TempDir(), "--id", "map:"},
		{"import", t.TempDir(), "--first-id", "9223372036854775808"},
		{"import", t.TempDir(), "--prefix", "../x"},
		{"export", ""},
		{"export", t.TempDir(), "--workers", "-3"},
		{"export", t.TempDir(), "--workers", "9223372036854775807"},
		{"group", "compact", "0", "--rate", "-1"},
		{"bench", "load", "--records", "99999999999999999999"},
		{"bench", "nonsense"},
		{"verify"},
		{"dump"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			o := sheaf(t, strings.NewReader(""), args...).Want(t, 2)
			if o.Stdout != "" {
				t.Errorf("words on stdout: %s", o.Stdout)
			}
			if !strings.HasPrefix(o.Stderr, "sheaf: ") {
				t.Errorf("stderr: %s", o.Stderr)
			}
		})
	}
}

func TestUnreachableServerHasExitCode1(t *testing.T) {
	sheaf(t, nil, "get", "1", "--server", loopback.Free(t)).Want(t, 1).Has(t, "sheaf dev")
}

func TestCommandsOnRecords(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir())

	t.Run("put and get at both ends of int64, negative, hexadecimal", func(t *testing.T) {
		for i, id := range []string{"9223372036854775807", "-9223372036854775808", "0", "-5", "0xFFfffffffffffff0", "0x2a"} {
			data := strings.Repeat("x", i) // the data is 0 to 5 bytes long
			p.do(t, data, "put", id).Want(t, 0)
			if o := p.do(t, "", "get", id).Want(t, 0); o.Stdout != data {
				t.Errorf("get %s: %q, want %q", id, o.Stdout, data)
			}
		}
		if o := p.do(t, "", "get", "-16").Want(t, 0); o.Stdout != "xxxx" {
			t.Errorf("0xfffffffffffffff0 is -16: %q", o.Stdout)
		}
		if o := p.do(t, "", "get", "42").Want(t, 0); o.Stdout != "xxxxx" {
			t.Errorf("0x2a is 42: %q", o.Stdout)
		}
	})

	t.Run("not found is exit code 3", func(t *testing.T) {
		for _, command := range []string{"get", "rm", "versions", "find"} {
			p.do(t, "", command, "777777").Want(t, 3)
		}
		p.do(t, "", "rm", "777777", "--ignore-not-found").Want(t, 0)
		p.do(t, "a", "put", "77").Want(t, 0)
		p.do(t, "", "rm", "77").Want(t, 0)
		p.do(t, "", "get", "77").Want(t, 3)
		p.do(t, "", "get", "77", "--version", "nonsense").Want(t, 2)
	})

	t.Run("conditions", func(t *testing.T) {
		first := strings.TrimSpace(p.do(t, "one", "put", "500", "--if-absent").Want(t, 0).Stdout)
		p.do(t, "two", "put", "500", "--if-absent").Want(t, 1).Has(t, "RECORD_EXISTS")
		p.do(t, "two", "put", "500", "--if-version", first).Want(t, 0)
		p.do(t, "three", "put", "500", "--if-version", first).Want(t, 1).Has(t, "VERSION_MISMATCH")
		p.do(t, "", "rm", "500", "--if-version", first).Want(t, 1).Has(t, "VERSION_MISMATCH")
		if o := p.do(t, "", "get", "500").Want(t, 0); o.Stdout != "two" {
			t.Errorf("a refused write shows: %q", o.Stdout)
		}
		if o := p.do(t, "", "get", "500", "--version", first).Want(t, 0); o.Stdout != "one" {
			t.Errorf("the first version: %q", o.Stdout)
		}
	})

	t.Run("attributes, timestamp and JSON", func(t *testing.T) {
		p.do(t, "data\x00\xff", "put", "600", "--attr", "kind=a b", "--attr", "empty=", "--timestamp",
			"2020-02-03T04:05:06.000000007Z").Want(t, 0)
		var r struct {
			ID, Group, Version, Timestamp, Data string
			SizeBytes                           int64 `json:"sizeBytes"`
			Attributes                          map[string]string
		}
		p.do(t, "", "get", "600", "-o", "json").Want(t, 0).JSON(t, &r)
		if r.ID != "600" || r.Timestamp != "2020-02-03T04:05:06.000000007Z" || r.SizeBytes != 6 ||
			r.Attributes["kind"] != "a b" || r.Version == "" {
			t.Errorf("record: %+v", r)
		}
		if _, ok := r.Attributes["empty"]; !ok {
			t.Error("an empty attribute is lost")
		}
		if data, err := base64.StdEncoding.DecodeString(r.Data); err != nil || string(data) != "data\x00\xff" {
			t.Errorf("data %q: %v", data, err)
		}
		o := p.do(t, "", "get", "600", "--metadata", "-o", "json").Want(t, 0)
		if strings.Contains(o.Stdout, `"data"`) {
			t.Errorf("--metadata gave data: %s", o.Stdout)
		}
	})

	t.Run("versions newest first, deletes included", func(t *testing.T) {
		for _, data := range []string{"1", "22", "333"} {
			p.do(t, data, "put", "700").Want(t, 0)
		}
		p.do(t, "", "rm", "700").Want(t, 0)
		var rows []struct {
			SizeBytes int64 `json:"sizeBytes"`
			Deleted   bool
		}
		p.do(t, "", "versions", "700", "-o", "json").Want(t, 0).JSON(t, &rows)
		if len(rows) != 4 || !rows[0].Deleted || rows[1].SizeBytes != 3 || rows[3].SizeBytes != 1 {
			t.Errorf("versions: %+v", rows)
		}
		p.do(t, "", "versions", "700", "--limit", "2", "-o", "json").Want(t, 0).JSON(t, &rows)
		if len(rows) != 2 {
			t.Errorf("--limit 2 gave %d", len(rows))
		}
	})

	t.Run("find", func(t *testing.T) {
		var rows []struct{ ID, Group string }
		p.do(t, "x", "put", "710").Want(t, 0)
		p.do(t, "", "find", "710", "-o", "json").Want(t, 0).JSON(t, &rows)
		if len(rows) != 1 || rows[0].ID != "710" || rows[0].Group == "" {
			t.Errorf("find: %+v", rows)
		}
	})

	t.Run("large records by file, slices, and to a file", func(t *testing.T) {
		for _, size := range []int{1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 + 123} {
			data := pattern(uint64(size), size)
			source := filepath.Join(t.TempDir(), "source")
			must(t, os.WriteFile(source, data, 0o644))
			p.do(t, "", "put", "800", source).Want(t, 0)
			if o := p.do(t, "", "get", "800").Want(t, 0); o.Stdout != string(data) {
				t.Fatalf("%d bytes came back as %d others", size, len(o.Stdout))
			}
			o := p.do(t, "", "get", "800", "--offset", "1000", "--length", "70000").Want(t, 0)
			if o.Stdout != string(data[1000:71000]) {
				t.Errorf("a slice of %d bytes is wrong", size)
			}
			to := filepath.Join(t.TempDir(), "to")
			p.do(t, "", "get", "800", "--to", to).Want(t, 0)
			if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
				t.Errorf("--to: %v", err)
			}
		}
		p.do(t, string(pattern(9, 3<<20)), "put", "801", "-").Want(t, 0) // standard input, whose size is not known in advance
		if o := p.do(t, "", "get", "801").Want(t, 0); o.Stdout != string(pattern(9, 3<<20)) {
			t.Error("an upload from standard input is wrong")
		}
		p.do(t, "", "get", "801", "--offset", "99999999").Want(t, 1).Has(t, "BAD_RANGE")
	})

	t.Run("groups named in Hash routing are refused", func(t *testing.T) {
		p.do(t, "x", "put", "1", "--group", "customers").Want(t, 2)
	})

	t.Run("deadline passed", func(t *testing.T) {
		p.do(t, "x", "put", "1", "--timeout", "1ns").Want(t, 1).Has(t, "DEADLINE_EXCEEDED")
	})

	t.Run("status", func(t *testing.T) {
		var s struct {
			Shards []struct {
				Name       string
				Alive      bool
				FileSystem string `json:"fileSystem"`
			}
			Groups []struct{ State string }
		}
		p.do(t, "", "status", "-o", "json").Want(t, 0).JSON(t, &s)
		if len(s.Shards) != 3 || len(s.Groups) != 16 || s.Shards[0].FileSystem == "" {
			t.Fatalf("status: %+v", s)
		}
		for _, g := range s.Groups {
			if g.State != "Serving" {
				t.Errorf("a group is %s", g.State)
			}
		}
		o := p.do(t, "", "status").Want(t, 0)
		if strings.Contains(o.Stdout, "\x1b") || !strings.Contains(o.Stdout, "shard-2") {
			t.Errorf("status as text: %s", o.Stdout)
		}
	})

	t.Run("verify and compact a group while it serves", func(t *testing.T) {
		p.do(t, "", "group", "verify", "0").Want(t, 0)
		if o := p.do(t, "", "group", "compact", "0", "--why").Want(t, 0); !strings.Contains(o.Stdout, "group 0: ") {
			t.Errorf("why: %s", o.Stdout)
		}
		if o := p.do(t, "", "group", "compact", "0", "--why", "-o", "json").
			Want(t, 0); !strings.Contains(o.Stdout, `"holds"`) {
			t.Errorf("why: %s", o.Stdout)
		}
		p.do(t, "", "group", "compact", "0", "--all").Want(t, 0)
		p.do(t, "", "group", "verify", "no-such").Want(t, 3)
	})
}

// A scan returns each record once, in both formats, including large records.
func TestScanGivesEveryRecordOnce(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir())
	want := map[string][]byte{}
	for i, size := range []int{0, 1, 1000, 100_000, 1 << 20, 1<<20 + 1, 2_500_000} {
		id := []string{"10", "11", "12", "-13", "14", "15", "16"}[i]
		want[id] = pattern(uint64(i), size)
		p.do(t, string(pattern(99, size/2)), "put", id).Want(t, 0) // the next put supersedes this version
		p.do(t, string(want[id]), "put", id, "--attr", "n="+id).Want(t, 0)
	}
	p.do(t, "gone", "put", "17").Want(t, 0)
	p.do(t, "", "rm", "17").Want(t, 0)

	got := map[string][]byte{}
	lines := json.NewDecoder(strings.NewReader(p.do(t, "", "scan").Want(t, 0).Stdout))
	for {
		var r struct {
			ID         string
			Data       []byte
			Attributes map[string]string
		}
		err := lines.Decode(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if _, twice := got[r.ID]; twice {
			t.Errorf("record %s came twice", r.ID)
		}
		if r.Attributes["n"] != r.ID {
			t.Errorf("record %s has attributes %v", r.ID, r.Attributes)
		}
		got[r.ID] = r.Data
	}
	compareRecords(t, got, want)

	got = map[string][]byte{}
	archive := tar.NewReader(strings.NewReader(p.do(t, "", "scan", "--tar").Want(t, 0).Stdout))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		data, err := io.ReadAll(archive)
		must(t, err)
		id := strings.TrimSuffix(filepath.Base(h.Name), ".bin")
		if h.PAXRecords["SCHILY.xattr.user.sheaf.attribute.n"] != id || !strings.HasSuffix(h.Name, ".bin") {
			t.Errorf("%s: PAX records %v", h.Name, h.PAXRecords)
		}
		got[id] = data
	}
	compareRecords(t, got, want)
}

func compareRecords(t *testing.T, got, want map[string][]byte) {
	t.Helper()
	for id, data := range want {
		if have, ok := got[id]; !ok || !bytes.Equal(have, data) {
			t.Errorf("record %s: %d bytes, want %d (there: %v)", id, len(have), len(data), ok)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
}

func TestNamedRoutingNeedsAGroup(t *testing.T) {
	p := startDev(t, t.TempDir(), "--routing", "named")
	p.do(t, "x", "put", "1").Want(t, 2)
	p.do(t, "a", "put", "1", "--group", "alpha").Want(t, 0)
	p.do(t, "b", "put", "1", "--group", "beta").Want(t, 0)
	if o := p.do(t, "", "get", "1", "--group", "alpha").Want(t, 0); o.Stdout != "a" {
		t.Errorf("alpha: %q", o.Stdout)
	}
	p.do(t, "", "get", "1", "--group", "gamma").Want(t, 3)
	p.do(t, "x", "put", "1", "--group", ".hidden").Want(t, 2)
	p.do(t, "x", "put", "1", "--group", strings.Repeat("n", 254)).Want(t, 2)
	p.do(t, "x", "put", "1", "--group", strings.Repeat("n", 253)).Want(t, 0)
	var rows []struct{ Group string }
	p.do(t, "", "find", "1", "-o", "json").Want(t, 0).JSON(t, &rows)
	if len(rows) != 3 {
		t.Errorf("find: %+v", rows)
	}
	p.do(t, "", "group", "create", "delta").Want(t, 0)
	p.do(t, "", "group", "create", "delta").Want(t, 1)
	p.do(t, "", "groups", "delete", "alpha", "delta").Want(t, 1).Has(t, "group delta: deleted").
		Has(t, "deleting group alpha: ").Has(t, "it holds 1 record")
	p.do(t, "", "group", "delete", "delta").Want(t, 3)
	p.do(t, "", "group", "delete").Want(t, 2)
	p.do(t, "d", "put", "1", "--group", "delta").Want(t, 0)
	if o := p.do(t, "", "get", "1", "--group", "alpha").Want(t, 0); o.Stdout != "a" {
		t.Errorf("alpha: %q", o.Stdout)
	}
}
