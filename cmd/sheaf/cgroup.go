package main

import (
	"os"
	"runtime/debug"

	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// Headroom is what the process needs beside index and resident data: Go's heap, messages in flight, etcd's client.
const (
	headroomMin = 128 << 20
	headroomMax = 1 << 30
)

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
	l.ScansReadingMax = int(min(max(headroom/8/segio.ScanBufferBytes, 2), 16))
	if headroom < 4*segio.ScanBufferBytes {
		l.ScansReadingMax = 1
	}
	// A quarter, or less where the headroom is small: an eighth is for all else.
	rest := headroom - headroom/8 - l.BytesInFlightMax - l.ReplicaBytesInFlightMax - int64(
		l.ScansReadingMax)*segio.ScanBufferBytes
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
