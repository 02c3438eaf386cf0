package replica

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
)

// idleShards are three shards in one process, each with one member of every group.
type idleShards struct {
	committers [3]*Committer
	members    [3][]*Replica
	inbox      [3]chan groupMessage
	wait       sync.WaitGroup
}

type groupMessage struct {
	group   int
	message *raftpb.Message
}

type idleSender struct {
	shards *idleShards
	group  int
}

func (s idleSender) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		select {
		case s.shards.inbox[m.GetTo()-1] <- groupMessage{s.group, m}:
		default: // the message is lost
		}
	}
}

func startIdle(b *testing.B, groups int, quiet bool) *idleShards {
	s := new(idleShards)
	for i := range s.inbox {
		s.inbox[i] = make(chan groupMessage, 1<<16)
	}
	for i := range s.members {
		c := NewCommitter()
		s.committers[i] = c
		for g := range groups {
			r, err := start(Options{
				Committer: c, RaftID: uint64(i + 1), Transport: idleSender{s, g}, Quiet: quiet,
			}, newMemoryLog(1, 2, 3))
			ok(b, err)
			s.members[i] = append(s.members[i], r)
		}
	}
	for i := range s.members {
		s.wait.Go(func() {
			for m := range s.inbox[i] {
				_ = s.members[i][m.group].Step(m.message) // Raft repeats important messages
			}
		})
	}
	return s
}

func (s *idleShards) stop() {
	for _, c := range s.committers {
		c.Close() // from now on no messages are sent
	}
	for i := range s.inbox {
		close(s.inbox[i])
	}
	s.wait.Wait()
}

func (s *idleShards) leaders() (leaders, resting int) {
	for _, members := range s.members {
		for _, r := range members {
			m := r.Members()
			if m.LeaderID == r.opts.RaftID {
				leaders++
			}
			if m.Quiet {
				resting++
			}
		}
	}
	return leaders, resting
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	ok(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIdleGroups measures how much of one CPU core a shard needs for groups without work. There are 1,024 groups
// of three members in one process. It measures resting groups and, for comparison, groups that send heartbeats. The
// network is a channel, so the cost of gRPC for heartbeats is not included. Run it with -benchtime 1x.
func BenchmarkIdleGroups(b *testing.B) {
	const groups = 1024
	for _, quiet := range []bool{true, false} {
		b.Run(fmt.Sprintf("groups=%d/quiet=%v", groups, quiet), func(b *testing.B) {
			s := startIdle(b, groups, quiet)
			for {
				leaders, resting := s.leaders()
				if leaders == groups && (!quiet || resting == 3*groups) {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			b.ResetTimer()
			for range b.N {
				const span = 5 * time.Second
				before, begin := cpuTime(b), time.Now()
				time.Sleep(span)
				cpu := cpuTime(b) - before
				b.ReportMetric(100*cpu.Seconds()/time.Since(begin).Seconds()/3, "%core/shard")
			}
			b.ReportMetric(0, "ns/op")
			b.StopTimer()
			s.stop()
		})
	}
}
