// Package cgroup reads the limits that the kernel's control groups set for this process.
package cgroup

import (
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// MemoryLimit returns this process's memory limit in bytes, which is the smallest limit set on its cgroup or any
// ancestor cgroup. It returns 0 if there is no limit. It supports cgroup v1 and v2. The argument root is / except in
// tests.
func MemoryLimit(root string) int64 {
	own, _ := os.ReadFile(path.Join(root, "proc/self/cgroup")) // a missing file means that there are no cgroups
	limit := int64(0)
	for line := range strings.SplitSeq(string(own), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, file := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" { // cgroup v1 has one hierarchy for each controller
			if !strings.Contains(","+parts[1]+",", ",memory,") {
				continue
			}
			base, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// In a container, the root of the mounted cgroup file system is the process's own cgroup, whatever its path is.
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

// readLimit reads the limit in bytes from one cgroup file. It returns 0 if the file sets no limit. In cgroup v1, a
// number near 2^63 means no limit.
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
