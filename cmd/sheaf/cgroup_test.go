package main

import (
	"runtime/debug"
	"testing"

	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// All memory that a process may use in addition to the index and the resident data fits into the headroom of its
// cgroup limit.
func TestAllowancesFitTheCgroup(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for limit := int64(64 << 20); limit <= 64<<30; limit += limit / 2 {
		var cfg shard.Config
		fitCgroup(&cfg, limit)
		l, headroom := &cfg.Limits, headroomOf(limit)
		if sum := l.BytesInFlightMax + l.ReplicaBytesInFlightMax + l.AnswerBytesMax +
			int64(l.ScansReadingMax)*segio.ScanBufferBytes; sum > headroom {
			t.Errorf("a shard of %d MiB: %d MiB of allowances, headroom %d MiB: %+v", limit>>20, sum>>20, headroom>>20, l)
		}
		if l.ScansReadingMax < 1 || limit >= 128<<20 && l.ScansReadingMax < 2 || l.AnswerBytesMax < headroom/16 {
			t.Errorf("a shard of %d MiB: %+v", limit>>20, l)
		}
		if cfg.MemoryLimitBytes+headroom != limit {
			t.Errorf("a shard of %d MiB: %d of index and headroom %d", limit>>20, cfg.MemoryLimitBytes, headroom)
		}
		var g gateway.Limits
		fitGatewayCgroup(&g, limit)
		if g.BytesInFlightMax+g.AnswerBytesMax > limit/2 || g.AnswerBytesMax < limit/4 && g.AnswerBytesMax < 512<<20 {
			t.Errorf("a gateway of %d MiB: %+v", limit>>20, g)
		}
	}
}

func TestHeadroom(t *testing.T) {
	for limit, want := range map[int64]int64{64 << 20: 32 << 20, 256 << 20: 128 << 20, 2 << 30: 512 << 20,
		64 << 30: 1 << 30} {
		if got := headroomOf(limit); got != want {
			t.Errorf("headroom of %d: %d, want %d", limit, got, want)
		}
	}
}
