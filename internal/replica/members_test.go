package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/vfs"
)

// network carries messages between the members of one group, in this process.
type network struct {
	mu      sync.Mutex
	members map[uint64]*member
	cut     map[uint64]bool // hears and says nothing
	group   sync.WaitGroup
	inbox   map[uint64]chan *raftpb.Message
}

type sender struct {
	net  *network
	from uint64
}

func (s sender) Send(messages []*raftpb.Message) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	for _, m := range messages {
		if s.net.cut[s.from] || s.net.cut[m.GetTo()] {
			continue
		}
		select {
		case s.net.inbox[m.GetTo()] <- proto.Clone(m).(*raftpb.Message):
		default: // lost
		}
	}
}

func (n *network) isolate(id uint64, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[id] = cut
}

// newNetwork starts a group of three voters, each on a machine of its own.
func newNetwork(t *testing.T) *network {
	n := &network{members: map[uint64]*member{}, cut: map[uint64]bool{}, inbox: map[uint64]chan *raftpb.Message{}}
	voters := []uint64{1, 2, 3}
	for _, id := range voters {
		n.inbox[id] = make(chan *raftpb.Message, 4096)
	}
	for _, id := range voters {
		fs := vfs.NewMem()
		m := newMachine(t, fs, "/v")
		ok(t, group.Create(m.logOptions("7"), &raftpb.ConfState{Voters: voters}))
		n.members[id] = m.open("7", func(_ *group.Options, o *Options) { o.RaftID, o.Transport = id, sender{n, id} })
	}
	for _, id := range voters {
		n.group.Go(func() {
			for m := range n.inbox[id] {
				_ = n.members[id].Step(m) // a message to a replica that failed or stopped is lost
			}
		})
	}
	t.Cleanup(func() {
		for _, id := range voters {
			n.isolate(id, true)
			close(n.inbox[id])
		}
		n.group.Wait()
	})
	return n
}

// leader waits until one of the members leads and accepts writes.
func (n *network) leader(t *testing.T, but uint64) (uint64, *member) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for id, one := range n.members {
			if id != but && one.Status().Leader {
				return id, one
			}
		}
	}
	t.Fatal("no leader")
	return 0, nil
}

func TestThreeVotersTakeTheSameWritePath(t *testing.T) {
	n := newNetwork(t)
	first, leader := n.leader(t, 0)
	for i := range int64(50) {
		leader.must(t, put(i, fmt.Sprint(i)).request(uint64(i), 1))
	}
	if _, err := leader.do(t, put(1, "x").ifAbsent()); !errors.Is(err, ErrExists) {
		t.Fatalf("if absent: %v", err)
	}
	follower := n.members[first%3+1]
	follower.wantData(t, 49, "49") // the barrier asks the leader
	if _, err := follower.do(t, put(1, "x")); !errors.Is(err, ErrNoLeader) {
		t.Fatalf("write to a follower: %v", err)
	}

	// The leader is cut off: what it accepts then is not acknowledged, and it answers no linearizable read.
	n.isolate(first, true)
	lost := leader.Propose(put(100, "lost"))
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := leader.ReadBarrier(short); err == nil {
		t.Fatal("a leader that is cut off lets reads pass")
	}
	second, next := n.leader(t, first)
	next.must(t, put(100, "kept"))
	if again := next.must(t, put(7, "x").request(7, 1)); !again.Repeated {
		t.Fatal("the new leader does not know a request id of the old one")
	}
	if _, err := lost.Wait(timeout(t)); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("write of the leader that was cut off: %v", err)
	}
	n.isolate(first, false)
	leader.wantData(t, 100, "kept")
	if second == first {
		t.Fatal("the same leader")
	}
}
