package peer

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/internal/test/stoptest"
)

func TestMessagesComeInTheirOrder(t *testing.T) {
	a, b := connect(t, newNetwork(t), nil)
	const messages = 5000
	for i := range messages {
		a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgApp, uint64(i), i%3*1000)})
	}
	b.until(t, "all came", func() bool { return len(b.came) == messages })
	for i, m := range b.came {
		if m.GetIndex() != uint64(i) {
			t.Fatalf("message %d is number %d", i, m.GetIndex())
		}
	}
	if c := a.Counters(); c.Sent.Load() != messages || c.DroppedFull.Load()+c.DroppedDown.Load() != 0 {
		t.Errorf("counters: %+v", c)
	}
}

func TestAPeerThatStartsAgainElsewhereIsFound(t *testing.T) {
	n := newNetwork(t)
	a, b := connect(t, n, func(o *Options) { o.silenceMax = 200 * time.Millisecond })
	b.stop()
	a.until(t, "b is silent", func() bool { return !a.alive["b"] })
	eventually(t, "messages are lost", func() bool {
		a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgApp, 1, 10)})
		return a.Counters().DroppedDown.Load() > 0
	})
	a.until(t, "the group is told", func() bool {
		return len(a.local) > 0 && a.local[0].GetFrom() == 2 && a.local[0].GetTo() == 1
	})
	b = n.start("b", nil)
	a.until(t, "b is alive", func() bool { return a.alive["b"] })
	// Repeat the message, because on a slow machine b may fall silent again, and a single message may be lost.
	eventually(t, "a message comes", func() bool {
		a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgHeartbeat, 7, 0)})
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.came) > 0 && b.came[len(b.came)-1].GetIndex() == 7
	})
	if _, since := a.Alive("b"); since.IsZero() {
		t.Error("not known since when")
	}
}

func TestAPeerThatNeverAnswersIsDown(t *testing.T) {
	a := newNetwork(t).start("a", func(o *Options) { o.silenceMax = 50 * time.Millisecond })
	a.SetPeers([]string{"b"})
	a.until(t, "b is down", func() bool { alive, known := a.alive["b"]; return known && !alive })
}

// A peer that sends counts as alive, even if it has sent no response.
func TestAPeerThatSpeaksIsAlive(t *testing.T) {
	n := newNetwork(t)
	a, b := n.start("a", nil), n.start("b", func(o *Options) {
		o.Address = func(string) (string, bool) { return "", false }
	})
	a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgVote, 1, 0)})
	b.until(t, "a is alive", func() bool { return b.alive["a"] })
}

// TestAPeerThatBeganAnewWasSilent checks that a restarted peer is first reported as silent, no matter how fast it
// restarts. The report is necessary because agreements with the old process do not bind the new one.
func TestAPeerThatBeganAnewWasSilent(t *testing.T) {
	n := newNetwork(t)
	a, b := connect(t, n, func(o *Options) { o.silenceMax = time.Hour })
	b.SetPeers([]string{"a"})
	b.until(t, "a is alive", func() bool { return b.alive["a"] })
	b.stop()
	a.note(func() { a.downs = 0 })
	b = n.start("b", nil)
	b.SetPeers([]string{"a"})
	a.until(t, "b was silent and is alive", func() bool { return a.downs == 1 && a.alive["b"] })
}

// A process that was itself suspended has received nothing meanwhile. When it resumes, it must not conclude that its
// peers were silent.
func TestAProcessThatWasHeldUpTakesNobodyForSilent(t *testing.T) {
	const silenceMax = 3 * time.Second
	n := newNetwork(t)
	a, b := connect(t, n, func(o *Options) { o.silenceMax = silenceMax })
	b.SetPeers([]string{"a"})
	b.until(t, "a is alive", func() bool { return b.alive["a"] })
	var downs int
	a.note(func() { downs = a.downs })
	for range 2 { // after the first suspension, buffered messages of the peer may be read before the monitor runs
		stoptest.Self(t, silenceMax+silenceMax/2)
		time.Sleep(silenceMax / 4) // long enough for the monitor to look twice
	}
	a.note(func() {
		if a.downs != downs {
			t.Errorf("a peer was taken for silent %d times", a.downs-downs)
		}
	})
}

func TestFullQueueLosesAppendsBeforeVotes(t *testing.T) {
	a, b := connect(t, newNetwork(t), func(o *Options) { o.queueBytesMax = 1 << 20 })
	b.block()
	eventually(t, "the queue is full", func() bool {
		a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgApp, 1, 256<<10)})
		return a.Counters().DroppedFull.Load() > 0
	})
	a.until(t, "the group is told", func() bool { return len(a.local) > 0 })
	dropped := a.Counters().DroppedFull.Load()
	a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgVote, 99, 0)})
	if a.Counters().DroppedFull.Load() != dropped {
		t.Error("a vote was lost for want of room")
	}
	if kept := a.Peers()[0].Bytes; kept > 2<<20 {
		t.Errorf("%d bytes are kept, the limit is 1 MiB", kept)
	}
	b.release()
	b.until(t, "the vote came", func() bool {
		for _, m := range b.came {
			if m.GetIndex() == 99 {
				return true
			}
		}
		return false
	})
}

func TestUrgentMessagesGoFirst(t *testing.T) {
	q := newQueue(1 << 20)
	for i, kind := range []raftpb.MessageType{raftpb.MsgApp, raftpb.MsgVote, raftpb.MsgApp, raftpb.MsgHeartbeat} {
		if f := q.push(testGroup, msg(kind, uint64(i), 0)); f != queued {
			t.Fatal(f)
		}
	}
	var got []uint64
	for _, it := range q.take(nil, 1<<20) {
		got = append(got, it.m.GetIndex())
	}
	if want := []uint64{1, 3, 0, 2}; len(got) != 4 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] ||
		got[3] != want[3] {
		t.Errorf("taken in the order %v, want %v", got, want)
	}
	if n, bytes := q.held(); n != 0 || bytes != 0 {
		t.Errorf("%d messages of %d bytes are left", n, bytes)
	}
}

func TestQueueIsBoundedInMessages(t *testing.T) {
	q := newQueue(1 << 40)
	for range queuedMax {
		q.push(testGroup, msg(raftpb.MsgHeartbeat, 1, 0))
	}
	if f := q.push(testGroup, msg(raftpb.MsgHeartbeat, 1, 0)); f != full {
		t.Errorf("message %d: %v", queuedMax+1, f)
	}
	if f := q.push(testGroup, msg(raftpb.MsgApp, 1, 0)); f != queued {
		t.Errorf("an append: %v", f)
	}
}

func TestASlowPeerHoldsUpNobodyElse(t *testing.T) {
	n := newNetwork(t)
	a, b := connect(t, n, nil)
	c := n.start("c", nil)
	b.block()
	for i := range 200 {
		a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgApp, uint64(i), 256<<10)})
		a.to("c").Send([]*raftpb.Message{msg(raftpb.MsgHeartbeat, uint64(i), 0)})
	}
	c.until(t, "all came", func() bool { return len(c.came) == 200 })
	if len(b.came) > 0 {
		t.Error("b was not held up")
	}
	b.release()
	b.until(t, "all came", func() bool { return len(b.came) == 200 })
}

func TestStrayMessagesAreCounted(t *testing.T) {
	a, b := connect(t, newNetwork(t), nil)
	stray := msg(raftpb.MsgVote, 1, 0)
	*stray.To = strayID
	a.to("b").Send([]*raftpb.Message{stray, msg(raftpb.MsgVote, 2, 0)})
	b.until(t, "both came", func() bool { return len(b.came) == 2 })
	eventually(t, "it is counted", func() bool { return b.Counters().DroppedStray.Load() == 1 })
}

// A process must not accept local messages from other shards. These are messages that only the process itself may
// send to its own Raft node.
func TestLocalMessagesAreNotTaken(t *testing.T) {
	a, b := connect(t, newNetwork(t), nil)
	for _, kind := range []raftpb.MessageType{raftpb.MsgHup, raftpb.MsgBeat, raftpb.MsgProp, raftpb.MsgUnreachable,
		raftpb.MsgCheckQuorum, raftpb.MsgStorageAppend} {
		a.to("b").Send([]*raftpb.Message{msg(kind, 1, 0)})
	}
	a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgVote, 2, 0)})
	b.until(t, "the vote came", func() bool { return len(b.came) > 0 })
	if len(b.came)+len(b.local) != 1 || b.Counters().DroppedBad.Load() != 6 {
		t.Errorf("%d came, stats %+v", len(b.came)+len(b.local), b.Counters())
	}
}

func TestCallsForOthersAreRefused(t *testing.T) {
	n := newNetwork(t)
	a, b := n.start("a", nil), n.start("b", nil)
	for name, header := range map[string]*peerv1.PeerHeader{
		"another store": {Store: make([]byte, 16), FromShard: "a", ToShard: "b", Instance: 1},
		"another shard": {Store: n.store[:], FromShard: "a", ToShard: "c", Instance: 1},
		"itself":        {Store: n.store[:], FromShard: "b", ToShard: "b", Instance: 1},
		"no process":    {Store: n.store[:], FromShard: "a", ToShard: "b"},
		"nobody":        {Store: n.store[:], ToShard: "b", Instance: 1},
	} {
		if err := b.admit(t.Context(), header); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.admit(t.Context(), nil); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no header: %v", err)
	}
	// An address may belong to another shard than expected, for example after a shard was removed. The hub must not
	// connect to that other shard.
	address, _ := n.address("b")
	n.move("c", address)
	a.SetPeers([]string{"c"})
	a.until(t, "c is down", func() bool { alive, known := a.alive["c"]; return known && !alive })
	if n := a.Counters().Connects.Load(); n != 0 {
		t.Errorf("connected to the wrong shard %d times", n)
	}
}

// If connections show the identity of the caller, a shard may speak only for itself.
func TestAShardSpeaksOnlyForItself(t *testing.T) {
	type caller struct{}
	n := newNetwork(t)
	b := n.start("b", func(o *Options) {
		o.SpeaksFor = func(ctx context.Context, shard string) bool {
			shown, ok := ctx.Value(caller{}).(string)
			return ok && shown == shard
		}
	})
	header := &peerv1.PeerHeader{Store: n.store[:], FromShard: "a", ToShard: "b", Instance: 1}
	if err := b.admit(context.WithValue(t.Context(), caller{}, "a"), header); err != nil {
		t.Error(err)
	}
	for name, ctx := range map[string]context.Context{"another shard": context.WithValue(t.Context(), caller{}, "c"),
		"nobody": t.Context()} {
		if err := b.admit(ctx, header); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Every method of the service makes this check.
	a := n.start("a", nil)
	a.SetPeers([]string{"b"})
	a.until(t, "b is down", func() bool { alive, known := a.alive["b"]; return known && !alive })
	if _, err := a.Fetcher("b").Entries(t.Context(), uuid.New(), 1, 1); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a fetch: %v", err)
	}
}

// A connection to a peer that no longer responds is closed.
func TestAStalledConnectionIsEnded(t *testing.T) {
	a, b := connect(t, newNetwork(t), func(o *Options) { o.stallMax = 300 * time.Millisecond })
	b.block()
	before := a.Counters().Connects.Load()
	a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgVote, 1, 0)})
	eventually(t, "a connects again", func() bool { return a.Counters().Connects.Load() > before })
}

func TestPeersNotWantedAnyMoreAreLeft(t *testing.T) {
	a, _ := connect(t, newNetwork(t), nil)
	a.SetPeers(nil)
	if alive, _ := a.Alive("b"); alive {
		t.Error("b is still a peer")
	}
	a.Close()
	a.to("b").Send([]*raftpb.Message{msg(raftpb.MsgVote, 1, 0)}) // the hub is closed, so nobody receives this message
	a.Transport(uuid.New(), func(uint64) (string, bool) {
		return "", false
	}).Send([]*raftpb.Message{msg(raftpb.MsgVote, 1, 0)})
}
