package main

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/shard"
)

// Headroom is what the process needs beside index and resident data: Go's heap, messages in flight, etcd's client.
const (
	headroomMin = 128 << 20
	headroomMax = 1 << 30
)

// cgroupLimit is the memory limit of this process's cgroup in bytes; 0: none. root is / but in tests.
func cgroupLimit(root string) int64 {
	own, _ := os.ReadFile(path.Join(root, "proc/self/cgroup")) // not there: no cgroups
	limit := int64(0)
	for _, line := range strings.Split(string(own), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, file := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" { // v1: one hierarchy per controller
			if !strings.Contains(","+parts[1]+",", ",memory,") {
				continue
			}
			base, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// In a container the own cgroup is mounted as the root of the file system, whatever its path says.
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			if l := readLimit(path.Join(root, base, dir, file)); l > 0 && (limit == 0 || l < limit) {
				limit = l
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}

// readLimit reads one file; 0: none. v1 says a number near 2^63 where there is no limit.
func readLimit(file string) int64 {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil || limit <= 0 || limit > math.MaxInt64/2 {
		return 0
	}
	return limit
}

// headroomOf a limit of the whole process.
func headroomOf(limit int64) int64 {
	return min(max(limit/4, headroomMin), headroomMax, limit/2)
}

// fitCgroup bounds index and resident data, and what surrounds them, by the limit of the cgroup: the kernel must never
// have to kill the process. All allowances together fit the headroom.
func fitCgroup(cfg *shard.Config, limit int64) {
	if limit == 0 {
		return
	}
	headroom := headroomOf(limit)
	cfg.MemoryLimitBytes = limit - headroom
	l := &cfg.Limits
	l.BytesInFlightMax = min(256<<20, headroom/4)
	l.ReplicaBytesInFlightMax = min(64<<20, headroom/8)
	l.ScansReadingMax = int(min(max(headroom/8/group.ScanBufferBytes, 2), 16))
	if headroom < 4*group.ScanBufferBytes {
		l.ScansReadingMax = 1
	}
	// A quarter, or less where the headroom is small: an eighth is for all else.
	rest := headroom - headroom/8 - l.BytesInFlightMax - l.ReplicaBytesInFlightMax - int64(l.ScansReadingMax)*group.ScanBufferBytes
	l.AnswerBytesMax = max(min(256<<20, headroom/4, rest), headroom/16)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(headroom)
	}
}

// fitGatewayCgroup bounds what a gateway holds of requests and answers by the limit of the cgroup: a quarter each, the
// rest is for connections and what the garbage collector has not come to.
func fitGatewayCgroup(l *gateway.Limits, limit int64) {
	if limit == 0 {
		return
	}
	l.BytesInFlightMax = min(512<<20, limit/4)
	l.AnswerBytesMax = min(512<<20, limit/4)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit - limit/8)
	}
}
