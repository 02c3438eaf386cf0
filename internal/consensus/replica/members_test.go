package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// network carries messages between the members of one group, in this process.
type network struct {
	t       *testing.T
	quiet   bool
	change  func(id uint64, o *Options) // may be nil
	mu      sync.Mutex
	members map[uint64]*member
	disks   map[uint64]*vfstest.Mem
	faulty  map[uint64]*vfstest.Faulty // the disks of the started members, to which faults can be added
	cut     map[uint64]bool            // members that are partitioned from all others
	group   sync.WaitGroup
	inbox   map[uint64]chan *raftpb.Message
	sent    map[raftpb.MessageType]int
	lost    func(*raftpb.Message) bool // selects the messages to lose; if nil, none are lost
}

type sender struct {
	net  *network
	from uint64
}

func (s sender) Send(messages []*raftpb.Message) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	for _, m := range messages {
		s.net.sent[m.GetType()]++
		if s.net.cut[s.from] || s.net.cut[m.GetTo()] || s.net.lost != nil && s.net.lost(m) {
			continue
		}
		select {
		case s.net.inbox[m.GetTo()] <- proto.Clone(m).(*raftpb.Message):
		default: // the inbox is full, so the message is lost
		}
	}
}

func (n *network) isolate(id uint64, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[id] = cut
}

// lose sets which messages are lost from now on; nil means none.
func (n *network) lose(which func(*raftpb.Message) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = which
}

// startAll starts the three voters.
func (n *network) startAll() {
	n.t.Helper()
	for _, id := range voters {
		n.start(id)
	}
}

// addLearner adds member 4 to a group of three, starts it, and waits until it has caught up with the leader.
func (n *network) addLearner(leader *member) {
	n.t.Helper()
	ok(n.t, leader.ChangeMembers(timeout(n.t), change(learner(4))))
	n.start(4)
	until(n.t, "the learner has everything", func() bool {
		m := leader.Members()
		return m.Progress[3].Match == m.LastIndex
	})
}

// newNetwork starts a group of three voters, each on a separate machine.
func newNetwork(t *testing.T) *network {
	n := makeNetwork(t)
	n.startAll()
	return n
}

var voters = []uint64{1, 2, 3}

func makeNetwork(t *testing.T) *network {
	n := &network{
		t: t, members: map[uint64]*member{}, disks: map[uint64]*vfstest.Mem{}, faulty: map[uint64]*vfstest.Faulty{},
		cut:   map[uint64]bool{},
		inbox: map[uint64]chan *raftpb.Message{}, sent: map[raftpb.MessageType]int{},
	}
	t.Cleanup(func() {
		for id := range n.members {
			n.stop(id)
		}
		n.group.Wait()
	})
	return n
}

// start starts a member, on its existing log or on an empty one.
func (n *network) start(id uint64) *member {
	n.t.Helper()
	if n.disks[id] == nil {
		n.disks[id] = vfstest.NewMem()
	}
	n.faulty[id] = vfstest.NewFaulty(n.disks[id])
	m := newMachine(n.t, n.faulty[id], "/v")
	if _, err := m.fs.Stat("/v/7/manifest"); err != nil {
		ok(n.t, group.Create(m.logOptions("7"), &raftpb.ConfState{Voters: voters}))
	}
	inbox := make(chan *raftpb.Message, 4096)
	one := m.open("7", func(_ *group.Options, o *Options) {
		o.RaftID, o.Transport, o.Quiet = id, sender{n, id}, n.quiet
		if n.change != nil {
			n.change(id, o)
		}
	})
	n.mu.Lock()
	n.members[id], n.inbox[id] = one, inbox
	n.mu.Unlock()
	n.group.Go(func() {
		for m := range inbox {
			_ = one.Step(m) // a message to a replica that failed or stopped is lost
		}
	})
	return one
}

// stop stops a member as if its process were killed.
func (n *network) stop(id uint64) {
	n.mu.Lock()
	one, inbox := n.members[id], n.inbox[id]
	delete(n.members, id)
	n.inbox[id] = nil
	n.mu.Unlock()
	if inbox != nil {
		close(inbox)
		one.machine.halt()
	}
}

// leader waits until a member leads and accepts writes. It ignores the member whose id is in the argument but.
func (n *network) leader(t *testing.T, but uint64) (uint64, *member) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for id, one := range n.members {
			if id != but && one.Status().Leader {
				return id, one
			}
		}
	}
	t.Fatal("no leader")
	return 0, nil
}

// write proposes w to the current leader, and tries again until the write succeeds, because on a slow machine the
// leader may change at any moment.
func (n *network) write(t *testing.T, but uint64, w write) (Result, error) {
	t.Helper()
	for ctx := timeout(t); ; {
		_, leader := n.leader(t, but)
		result, err := leader.do(t, w)
		if !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrOutcomeUnknown) {
			return result, err
		}
		ok(t, ctx.Err())
	}
}

// wantData checks that a read through one member returns the wanted data. It waits until there is a leader.
func (n *network) wantData(t *testing.T, one *member, id int64, want string) {
	t.Helper()
	ctx := timeout(t)
	for errors.Is(one.ReadBarrier(ctx), ErrNoLeader) {
		time.Sleep(5 * time.Millisecond)
	}
	ok(t, ctx.Err())
	record, err := one.log.Get(id, group.GetOptions{})
	if err != nil || string(record.Data) != want {
		t.Fatalf("record %d: got %q, %v, want %q", id, record.Data, err, want)
	}
}

// isolateAndWrite isolates the leader, and proposes a write that this leader still accepts.
func (n *network) isolateAndWrite(t *testing.T, w write) (uint64, *member, *Pending) {
	t.Helper()
	for ctx := timeout(t); ; {
		id, leader := n.leader(t, 0)
		n.isolate(id, true)
		p := leader.Propose(w)
		if leader.Status().Leader {
			return id, leader, p
		}
		n.isolate(id, false) // the member had already lost the leadership, so try again
		_, _ = p.Wait(ctx)
		ok(t, ctx.Err())
	}
}

// A deposed leader, for example one whose process was suspended, declines a write before it learns of the new leader.
// It then asks a majority whether it still leads. The new leader answers that question too, and the old leader must
// not take this answer as a confirmation that its own data are the newest.
func TestARefusalOfADeposedLeaderIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		id, old := n.lead()
		first := old.must(t, put(1, "first"))
		n.isolate(id, true)
		mismatch := old.Propose(put(1, "x").ifVersion(first.Index + 1000))
		exists := old.Propose(put(1, "x").ifAbsent().request(1, 1))
		again := old.Propose(put(1, "x").ifAbsent().request(1, 1))
		gone := old.Propose(del(2))
		reads := make(chan error, 1)
		go func() { reads <- old.ReadBarrier(timeout(t)) }()
		for i := range int64(2) {
			_, err := n.write(t, id, put(1+i, "second"))
			ok(t, err)
		}
		n.isolate(id, false)
		for i, p := range []*Pending{mismatch, exists, again, gone} {
			if result, err := p.Wait(timeout(t)); !errors.Is(err, ErrNoLeader) {
				t.Errorf("write %d that was declined by the old leader: %+v, %v", i, result, err)
			}
		}
		ok(t, <-reads) // succeeds, because the replica asks the new leader
		n.wantData(t, old, 1, "second")
	})
}

// keeping holds back the acknowledgements to one leader, as if that leader's process were suspended and did not read
// them.
type keeping struct {
	Transport
	to   *atomic.Uint64 // Raft id of that leader; 0 means no leader
	kept chan *raftpb.Message
}

func (k keeping) Send(messages []*raftpb.Message) {
	k.Transport.Send(slices.DeleteFunc(slices.Clone(messages), func(m *raftpb.Message) bool {
		keep := m.GetType() == raftpb.MsgAppResp && m.GetTo() == k.to.Load()
		if keep {
			k.kept <- proto.Clone(m).(*raftpb.Message)
		}
		return keep
	}))
}

// Held-back acknowledgements commit a write when they arrive, but they do not show which member leads now. Therefore a
// refusal that waits for that write must also be confirmed by a majority.
func TestARefusalBehindAWriteAsksTheMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		to, kept := &atomic.Uint64{}, make(chan *raftpb.Message, 100)
		n.change = func(_ uint64, o *Options) { o.Transport = keeping{o.Transport, to, kept} }
		n.startAll()
		id, leader := n.lead()
		synctest.Wait()
		to.Store(id)
		write := leader.Propose(put(1, "a"))
		exists := leader.Propose(put(1, "x").ifAbsent())
		gone := leader.Propose(del(1))
		nothing := leader.Propose(del(1))
		synctest.Wait()
		n.isolate(id, true)
		to.Store(0)
		for len(kept) > 0 {
			ok(t, leader.Step(<-kept))
		}
		synctest.Wait()
		if !answeredYet(write) || answeredYet(exists) || answeredYet(nothing) {
			t.Fatalf("the write is answered: %v, what was declined: %v, %v", answeredYet(write), answeredYet(exists),
				answeredYet(nothing))
		}
		n.isolate(id, false)
		wantCondition(t, exists, ErrExists, mustWait(t, write).Index)
		if !mustWait(t, gone).Existed || mustWait(t, nothing) != (Result{}) {
			t.Error("the first delete deletes, the second finds nothing")
		}
	})
}

func TestThreeVotersTakeTheSameWritePath(t *testing.T) {
	synctest.Test(t, testThreeVoters)
}

func testThreeVoters(t *testing.T) {
	n := newNetwork(t)
	for i := range int64(50) {
		_, err := n.write(t, 0, put(i, fmt.Sprint(i)).request(uint64(i), 1))
		ok(t, err)
	}
	if _, err := n.write(t, 0, put(1, "x").ifAbsent()); !errors.Is(err, ErrExists) {
		t.Fatalf("if absent: %v", err)
	}
	// If the follower has become the leader, the test tries again.
	for refused, ctx := false, timeout(t); !refused; ok(t, ctx.Err()) {
		first, _ := n.leader(t, 0)
		follower := n.members[first%3+1]
		n.wantData(t, follower, 49, "49") // the barrier of this read asks the leader
		_, err := follower.do(t, put(1, "1"))
		if refused = errors.Is(err, ErrNoLeader); !refused && !follower.Status().Leader {
			t.Fatalf("write to a follower: %v", err)
		}
	}

	// The leader is partitioned, so a write that it accepts now is not acknowledged, and it answers no linearizable
	// read.
	first, leader, lost := n.isolateAndWrite(t, put(100, "lost"))
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := leader.ReadBarrier(short); err == nil {
		t.Fatal("a leader that is cut off lets reads pass")
	}
	_, err := n.write(t, first, put(100, "kept"))
	ok(t, err)
	if again, err := n.write(t, first, put(7, "7").request(7, 1)); err != nil || !again.Repeated {
		t.Fatalf("the new leader does not know a request id of the old one: %v", err)
	}
	if _, err := lost.Wait(timeout(t)); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("write of the leader that was cut off: %v", err)
	}
	n.isolate(first, false)
	n.wantData(t, leader, 100, "kept")
}
