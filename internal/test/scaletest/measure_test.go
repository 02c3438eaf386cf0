package scaletest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/must"
)

// usage holds the resources that a process has used so far.
type usage struct {
	cpu      time.Duration
	resident int64 // current resident memory in bytes
	peak     int64 // maximum resident memory in bytes
}

func (u usage) String() string {
	return fmt.Sprintf(
		"the operator has taken %.1f s of a core, and uses %d MB (at most %d; wanted of 1000 shards: below 300)",
		u.cpu.Seconds(), u.resident>>20, u.peak>>20)
}

// readUsage reads a process's usage from the kernel.
func readUsage(t *testing.T, pid int) usage {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must.OK(t, err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	ticks := int64(0)
	for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.ParseInt(field, 10, 64)
		must.OK(t, err)
		ticks += n
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.OK(t, err)
	cpu := time.Duration(ticks) * 10 * time.Millisecond
	return usage{cpu: cpu, resident: kibibytes(status, "VmRSS:"), peak: kibibytes(status, "VmHWM:")}
}

// kibibytes returns the value of a line in /proc/PID/status, converted to bytes.
func kibibytes(status []byte, name string) int64 {
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err == nil {
				return n << 10
			}
		}
	}
	return 0
}

// requests counts the operator's requests that the API server has answered, by verb and kind.
type requests map[string]int

// writeCount returns the number of requests that change something. It does not count those for the lease with which
// operators elect their leader.
func (r requests) writeCount() (n int) {
	for what, count := range r {
		if verb, kind, _ := strings.Cut(what, " "); verb != "get" && verb != "list" && kind != "leases" {
			n += count
		}
	}
	return n
}

func (r requests) since(before requests) requests {
	out := requests{}
	for what, count := range r {
		if count > before[what] {
			out[what] = count - before[what]
		}
	}
	return out
}

func (r requests) String() string {
	words := make([]string, 0, len(r))
	for _, what := range slices.Sorted(maps.Keys(r)) {
		words = append(words, fmt.Sprintf("%s %d", what, r[what]))
	}
	return strings.Join(words, ", ")
}

// requests counts the operator's requests in the API server's audit log. Each call continues where the previous one
// ended, and returns the total.
func (c *cluster) requests(t *testing.T) requests {
	t.Helper()
	file, err := os.Open(filepath.Join(c.Dir(), "audit.log"))
	must.OK(t, err)
	defer file.Close() // a failed close does not matter, because the file was only read
	if _, err := file.Seek(c.audited.bytes, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	log, err := io.ReadAll(file)
	must.OK(t, err)
	log = log[:bytes.LastIndexByte(log, '\n')+1] // the API server may still be writing the last line
	for line := range bytes.Lines(log) {
		c.audited.count(t, line)
	}
	c.audited.bytes += int64(len(log))
	return maps.Clone(c.audited.requests)
}

// auditCounts holds the counts for the part of the audit log that has been read so far.
type auditCounts struct {
	bytes    int64 // bytes of the log that were read
	requests requests
}

func (a *auditCounts) count(t *testing.T, line []byte) {
	t.Helper()
	var event struct {
		Verb      string `json:"verb"`
		ObjectRef struct {
			Resource    string `json:"resource"`
			Subresource string `json:"subresource"`
		} `json:"objectRef"`
	}
	if err := json.Unmarshal(line, &event); err != nil {
		t.Fatalf("a line of the audit log cannot be read: %v: %s", err, line)
	}
	kind := event.ObjectRef.Resource
	if kind == "" {
		return // the request is about the API server itself, not about objects
	}
	if event.ObjectRef.Subresource != "" {
		kind += "/" + event.ObjectRef.Subresource
	}
	a.requests[event.Verb+" "+kind]++
}
