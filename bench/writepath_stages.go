package bench

import (
	"strings"

	"github.com/google/pprof/profile"
)

// stage is a part of a write's path through a shard. A stack belongs to the stage of the innermost function that has a
// stage. For example, copying a record's bytes into a frame belongs to the frame and not to the round that writes it.
type stage struct {
	name      string
	functions []string // prefixes of function names; if several match, the longest decides
}

const (
	sheaf      = "sheaf.dev/sheaf/internal/"
	shared     = "sheaf.dev/sheaf/client/"
	transport  = "google.golang.org/grpc/internal/transport."
	protobuf   = "google.golang.org/protobuf/"
	http2      = "golang.org/x/net/http2"
	otherStage = "other"
)

var stages = []stage{
	{"receive", []string{
		transport + "(*http2Server)", transport + "(*recvBuffer", transport + "(*framer)", http2 + ".(*Framer).Read",
		sheaf + "security/ratelimit",
	}},
	{"decode", []string{
		protobuf + "proto.Unmarshal", protobuf + "internal/impl.(*MessageInfo).unmarshal", shared + "call/message",
		"google.golang.org/grpc.recv", "google.golang.org/grpc.(*parser)",
	}},
	{"admit", []string{
		sheaf + "security", sheaf + "shard/quota", sheaf + "base/telemetry", "go.opentelemetry.io", "github.com/prometheus",
	}},
	{"serve", []string{sheaf + "shard", "google.golang.org/grpc.(*Server)", "google.golang.org/grpc.(*serverStream)"}},
	{"queue", []string{sheaf + "consensus/replica/writes"}},
	{"round", []string{sheaf + "consensus/replica"}},
	{"raft", []string{"go.etcd.io/raft"}},
	{"frame", []string{sheaf + "storage/group/format", sheaf + "storage/group/segio"}},
	{"CRC", []string{"hash/crc32"}},
	{"log", []string{sheaf + "storage/group"}},
	{"index", []string{sheaf + "storage/index"}},
	{"journal", []string{sheaf + "storage/journal"}},
	{"write", []string{sheaf + "storage/vfs"}},
	{"sync", []string{
		sheaf + "storage/vfs.(*syncer)", sheaf + "storage/vfs.(*aio)", sheaf + "storage/vfs.(*osFile).Sync",
	}},
	{"answer", []string{protobuf + "proto.Marshal", "google.golang.org/grpc.encode", "google.golang.org/grpc.prepareMsg"}},
	{"send", []string{
		transport + "(*loopyWriter)", transport + "(*controlBuffer)", transport + "(*bufWriter)", http2 + ".(*Framer).Write",
		http2 + "/hpack",
	}},
	{"wake", []string{
		"runtime.schedule", "runtime.findRunnable", "runtime.mcall", "runtime.park_m", "runtime.goready", "runtime.ready",
		"runtime.wakep", "runtime.stopm", "runtime.startm", "runtime.netpoll", "runtime.sysmon", "runtime.goexit0",
		"runtime.gopreempt_m", "runtime.goschedImpl", "runtime.exitsyscall", "runtime.entersyscall", "runtime.newproc",
		"runtime.semasleep", "runtime.mstart",
	}},
	{"allocate", []string{
		"runtime.mallocgc", "runtime.growslice", "runtime.newobject", "runtime.makeslice", "runtime.deductAssistCredit",
	}},
	{"collect garbage", []string{
		"runtime.gcBgMarkWorker", "runtime.bgsweep", "runtime.bgscavenge", "runtime.gcAssistAlloc", "runtime.gcStart",
		"runtime.gcDrain", "runtime.gcMarkDone",
	}},
}

func stageNames() []string {
	names := make([]string, 0, len(stages))
	for _, s := range stages {
		names = append(names, s.name)
	}
	return names
}

// stageOf returns the stage of a stack. The first function is the innermost one.
func stageOf(functions []string) string {
	for _, function := range functions {
		longest, found := 0, ""
		for _, s := range stages {
			for _, beginning := range s.functions {
				if len(beginning) > longest && strings.HasPrefix(function, beginning) {
					longest, found = len(beginning), s.name
				}
			}
		}
		if found != "" {
			return found
		}
	}
	return otherStage
}

// stageTimes sums a profile's times by stage, in seconds.
func stageTimes(p *profile.Profile) map[string]float64 {
	times := map[string]float64{}
	value := len(p.SampleType) - 1 // each sample has the values count and time, in this order
	for _, s := range p.Sample {
		var functions []string
		for _, l := range s.Location {
			for _, line := range l.Line {
				if line.Function != nil {
					functions = append(functions, line.Function.Name)
				}
			}
		}
		times[stageOf(functions)] += float64(s.Value[value]) / 1e9
	}
	return times
}
