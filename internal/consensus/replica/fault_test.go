package replica

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/consensus/replica/writes"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestFailedSyncIsSurvivedOnce(t *testing.T) {
	mem := vfstest.NewMem()
	faulty := vfstest.NewFaulty(mem)
	m := newMachine(t, faulty, "/v")
	one := m.open("7", nil)
	one.must(t, put(1, "a"))
	fault := faulty.Add(&vfstest.Fault{Match: isSegmentSync, Count: 1, Effect: vfstest.EffectDrop})
	one.must(t, put(2, "b")) // the sync fails and loses this write, so the log writes it again to a new segment
	if fault.Fired() != 1 {
		t.Fatalf("fired %d times", fault.Fired())
	}
	after := newMachine(t, mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}), "/v").open("7", nil)
	after.wantData(t, 1, "a")
	after.wantData(t, 2, "b")
}

func TestFailedSyncsFailOnlyTheReplicaAndAcknowledgeNothing(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	bad, good := m.open("bad", nil), m.open("good", nil)
	bad.must(t, put(1, "a"))
	fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return isSegmentSync(op) && strings.Contains(op.Name, "/bad/")
	}})
	pending := []*Pending{bad.Propose(put(2, "b")), bad.Propose(put(3, "c").request(1, 1)),
		bad.Propose(put(3, "c").request(1, 1))}
	for i, p := range pending {
		if _, err := p.Wait(timeout(t)); !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrFailed) {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	if fault.Fired() < 2 {
		t.Fatalf("the fault fired %d times", fault.Fired())
	}
	if s := bad.Status(); s.Err == nil || s.Leader || s.InFlightBytes != 0 || !errors.Is(s.Err, group.ErrPoisoned) {
		t.Fatalf("status %+v", s)
	}
	if _, err := bad.do(t, put(4, "d")); !errors.Is(err, ErrFailed) || errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("new write: %v", err)
	}
	bad.wantData(t, 1, "a")
	if _, found := bad.data(t, 2); found {
		t.Fatal("a write whose sync failed is visible")
	}
	good.must(t, put(1, "a"))
	ok(t, bad.Stop(timeout(t)))
}

// A leader whose disk hangs is deposed. Its waiting callers get an error while the disk still hangs, so that they can
// turn to other members. When the disk works again, the leader's unfinished writes continue.
func TestADeposedLeaderWhoseDiskHangsLetsItsCallersGo(t *testing.T) {
	n := newNetwork(t)
	id, leader := n.lead()
	leader.must(t, put(1, "a"))
	g := holdSyncs(n.faulty[id])
	defer g.release()
	logged := leader.Propose(put(2, "b").request(1, 1))
	<-g.reached
	queued := leader.Propose(put(3, "c"))
	for _, p := range []*Pending{logged, queued} {
		if _, err := p.Wait(timeout(t)); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, writes.ErrDiskHangs) {
			t.Fatalf("a write at the leader whose disk hangs: %v", err)
		}
	}
	if err := leader.ReadBarrier(timeout(t)); !errors.Is(err, ErrNoLeader) {
		t.Fatalf("a read at the leader whose disk hangs: %v", err)
	}
	if _, err := n.write(t, id, put(2, "b").request(1, 1)); err != nil {
		t.Fatalf("the write again, at the others: %v", err)
	}
	if answeredYet(logged) {
		t.Fatal("a write was answered by the disk that hangs")
	}
	g.release()
	n.wantData(t, leader, 2, "b")
}

func TestStopAnswersWhatIsOnItsWay(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", nil)
	g := holdSyncs(faulty)
	defer g.release()
	first := one.Propose(put(1, "a"))
	<-g.reached
	second := one.Propose(put(2, "b"))
	stopped := make(chan error)
	go func() { stopped <- one.Stop(timeout(t)) }()
	for stopping := false; !stopping; time.Sleep(time.Millisecond) {
		c := one.state.lock()
		stopping = c.stopping
		c.unlock()
	}
	if _, err := one.do(t, put(3, "c")); !errors.Is(err, ErrStopping) {
		t.Fatalf("write while it stops: %v", err)
	}
	g.release()
	ok(t, <-stopped)
	mustWait(t, first)
	mustWait(t, second)
	if err := one.ReadBarrier(timeout(t)); !errors.Is(err, ErrStopping) {
		t.Fatalf("read barrier after Stop: %v", err)
	}
	ok(t, one.Stop(timeout(t)))
}

func TestStopAbandonsWhatCannotBeWritten(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", nil)
	fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpWrite
	}, Err: errNoSpace})
	p := one.Propose(put(1, "a"))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := one.Stop(ctx); err == nil || !strings.Contains(err.Error(), "1 writes") {
		t.Fatalf("Stop: %v", err)
	}
	if _, err := p.Wait(timeout(t)); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("write: %v", err)
	}
	if fault.Fired() == 0 {
		t.Fatal("the fault did not fire")
	}
}

func TestCommitterCloseAnswersEverything(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", nil)
	faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool { return op.Kind == vfstest.OpWrite }, Err: errNoSpace})
	p := one.Propose(put(1, "a"))
	m.committer.Close()
	if _, err := p.Wait(timeout(t)); err == nil {
		t.Fatal("acknowledged without room")
	}
	if _, err := one.do(t, put(2, "b")); !errors.Is(err, ErrStopping) {
		t.Fatalf("write after Close: %v", err)
	}
	ok(t, one.Stop(timeout(t)))
}

// A new membership is recorded in a new file, for which there is no space on a full disk.
func TestMembershipWaitsForSpace(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", nil)
	one.must(t, put(1, "a"))
	fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpCreate
	}, Err: errNoSpace})
	changed := make(chan error, 1)
	go func() { changed <- one.ChangeMembers(timeout(t), change(learner(4))) }()
	until(t, "it says that there is no room", func() bool { return errors.Is(one.Status().Err, format.ErrNoSpace) })
	if fault.Fired() == 0 {
		t.Fatal("the fault did not fire")
	}
	fault.Remove()
	ok(t, <-changed)
	until(t, "it has room", func() bool { return one.Status().Err == nil })
	one.must(t, put(2, "b"))
	if got := one.Members().Conf.GetLearners(); !slices.Equal(got, []uint64{4}) {
		t.Fatalf("learners: %v", got)
	}
	if _, conf, err := one.log.InitialState(); err != nil || !slices.Equal(conf.GetLearners(), []uint64{4}) {
		t.Fatalf("the log has learners %v (%v)", conf.GetLearners(), err)
	}
}

func TestInFlightBytesAreBounded(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", func(_ *group.Options, o *Options) { o.InFlightBytesMax = 10000 })
	g := holdSyncs(faulty)
	defer g.release()
	big := one.Propose(put(1, strings.Repeat("x", 20000))) // a single write is admitted regardless of its size
	if _, err := one.do(t, put(2, "x")); !errors.Is(err, ErrOverloaded) || errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("beyond the bound: %v", err)
	}
	if n := one.Status().InFlightBytes; n < 20000 {
		t.Fatalf("in flight: %d", n)
	}
	g.release()
	mustWait(t, big)
	one.must(t, put(2, "x"))
	if n := one.Status().InFlightBytes; n != 0 {
		t.Fatalf("in flight at rest: %d", n)
	}
}

func TestWritesThatAreNotValidAreRefused(t *testing.T) {
	m := newMachine(t, vfstest.NewMem(), "/v")
	one := m.open("7", nil)
	for what, w := range map[string]Write{
		"data":              {Data: make([]byte, format.DataBytesMax+1)},
		"attributes":        {Attributes: make([]byte, format.AttributesBytesMax+1)},
		"blob and data":     {Data: []byte("x"), Blob: &format.BlobRef{}},
		"delete with data":  {Delete: true, Data: []byte("x")},
		"delete with attrs": {Delete: true, Attributes: []byte("x")},
	} {
		if _, err := one.do(t, write{w}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	one.must(t, write{Write{ID: 5, Data: make([]byte, format.DataBytesMax)}})
	one.must(t, put(5, ""))
	one.wantData(t, 5, "")
}

const errNoSpace = syscall.ENOSPC
