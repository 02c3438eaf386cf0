package main

import (
	"os"
	"runtime/debug"

	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// These constants bound the headroom, which is the memory of a process beyond the index and the resident data: Go's
// heap, messages in flight and etcd's client.
const (
	headroomMin = 128 << 20
	headroomMax = 1 << 30
)

// headroomOf returns the headroom for a limit of the whole process.
func headroomOf(limit int64) int64 {
	return min(max(limit/4, headroomMin), headroomMax, limit/2)
}

// fitCgroup bounds the index, the resident data and the other memory of a shard by the cgroup's limit, so that the
// kernel never has to kill the process. All allowances together fit into the headroom.
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
	// AnswerBytesMax is a quarter of the headroom, or less if the headroom is small, because an eighth of the headroom
	// is reserved for everything else.
	rest := headroom - headroom/8 - l.BytesInFlightMax - l.ReplicaBytesInFlightMax - int64(
		l.ScansReadingMax)*segio.ScanBufferBytes
	l.AnswerBytesMax = max(min(256<<20, headroom/4, rest), headroom/16)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(headroom)
	}
}

// fitGatewayCgroup bounds the memory for requests and answers in a gateway by the cgroup's limit. Each gets a
// quarter. The rest is for connections and for garbage that is not collected yet.
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
