package replica

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// gate blocks the syncs of segments until it is opened, and reports each sync that it blocks.
type gate struct {
	fault   *vfstest.Fault
	reached chan string
	open    chan struct{}
	once    sync.Once
}

func isSegmentSync(op vfstest.Op) bool {
	return op.Kind == vfstest.OpSync && strings.Contains(op.Name, "segment")
}

func holdSyncs(faulty *vfstest.Faulty) *gate {
	g := &gate{reached: make(chan string, 1024), open: make(chan struct{})}
	g.fault = faulty.Add(&vfstest.Fault{Match: isSegmentSync, Effect: vfstest.EffectPass, Before: func(op vfstest.Op) {
		g.reached <- op.Name
		<-g.open
	}})
	return g
}

func (g *gate) release() { g.once.Do(func() { g.fault.Remove(); close(g.open) }) }

func answeredYet(p *Pending) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func TestRule1_AcknowledgedOnlyAfterTheSync(t *testing.T) {
	mem := vfstest.NewMem()
	faulty := vfstest.NewFaulty(mem)
	m := newMachine(t, faulty, "/v")
	one := m.open("7", nil)
	g := holdSyncs(faulty)
	defer g.release()
	p := one.Propose(put(1, "a"))
	select {
	case <-g.reached:
	case <-p.Done():
	}
	if answeredYet(p) {
		t.Fatal("acknowledged before the sync")
	}
	cut := newMachine(t, mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}), "/v").open("7", nil)
	if _, found := cut.data(t, 1); found {
		t.Fatal("the sync is held, so a power cut should lose the record: the test does not test")
	}
	g.release()
	_, err := p.Wait(timeout(t))
	ok(t, err)
	kept := newMachine(t, mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}), "/v").open("7", nil)
	kept.wantData(t, 1, "a")
}

func TestRule1_SyncsSixteenGroupsInParallelAndNoMore(t *testing.T) {
	const groups, parallel = 40, 16
	faulty, m := newFaultyMachine(t)
	members := make([]*member, groups)
	for i := range members {
		members[i] = m.open(name(i), func(o *group.Options, _ *Options) { o.Journal = nil })
	}
	g := holdSyncs(faulty)
	defer g.release()
	pending := make([]*Pending, groups)
	for i, one := range members {
		pending[i] = one.Propose(put(1, "a"))
	}
	for range parallel {
		select {
		case <-g.reached:
		case <-timeout(t).Done():
			t.Fatalf("%d syncs in parallel, want %d", g.fault.Fired(), parallel)
		}
	}
	// The other groups have written their entries, and wait for their turn to sync.
	for ctx, waiting := timeout(t), 0; waiting != groups-parallel; time.Sleep(time.Millisecond) {
		waiting = m.committer.Waiting()
		if ctx.Err() != nil {
			t.Fatalf("%d groups wait, want %d", waiting, groups-parallel)
		}
	}
	if n := g.fault.Fired(); n != parallel {
		t.Fatalf("%d syncs in parallel, want %d", n, parallel)
	}
	g.release()
	for _, p := range pending {
		mustWait(t, p)
	}
}

// A slow sync delays only its own group.
func TestASlowGroupHoldsUpNobody(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	slow, other := m.open("slow", nil), m.open("other", nil)
	open, reached := make(chan struct{}), make(chan struct{}, 1)
	held := faulty.Add(&vfstest.Fault{
		Match: func(op vfstest.Op) bool { return isSegmentSync(op) && strings.Contains(op.Name, "/slow/") }, Count: 1,
		Effect: vfstest.EffectPass, Before: func(vfstest.Op) { reached <- struct{}{}; <-open },
	})
	p := slow.Propose(put(1, "a"))
	<-reached
	other.must(t, put(1, "a"))
	if answeredYet(p) || held.Fired() != 1 {
		t.Fatal("the slow group was not slow")
	}
	close(open)
	mustWait(t, p)
}

func TestRule1_OneRoundServesAllThatWait(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", nil)
	g := holdSyncs(faulty)
	defer g.release()
	first := one.Propose(put(0, "a"))
	<-g.reached
	pending := []*Pending{first}
	for i := range 500 {
		pending = append(pending, one.Propose(put(int64(i), "b")))
	}
	before := g.fault.Fired()
	again := faulty.Add(&vfstest.Fault{Match: isSegmentSync, Effect: vfstest.EffectPass})
	g.release()
	for _, p := range pending {
		_, err := p.Wait(timeout(t))
		ok(t, err)
	}
	if before != 1 || again.Fired() != 1 {
		t.Fatalf("%d syncs for the first write, %d for the 500 behind it; want 1 and 1", before, again.Fired())
	}
}

func TestRule2_NothingIsSeenBeforeItIsCommitted(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", nil)
	old := one.must(t, put(1, "old"))
	g := holdSyncs(faulty)
	defer g.release()
	newer := one.Propose(put(1, "new"))
	created := one.Propose(put(2, "x"))
	<-g.reached
	one.wantData(t, 1, "old")
	if _, found := one.data(t, 2); found {
		t.Fatal("an uncommitted record is visible")
	}
	// The outcome of each write below depends on an earlier write that is not committed yet.
	exists := one.Propose(put(2, "y").ifAbsent())
	mismatch := one.Propose(put(1, "z").ifVersion(old.Index))
	gone := one.Propose(del(2))
	nothing := one.Propose(del(2))
	absent := one.Propose(put(2, "z").ifVersion(old.Index))
	for i, p := range []*Pending{newer, created, exists, mismatch, gone, nothing, absent} {
		if answeredYet(p) {
			t.Fatalf("write %d was answered before what it depends on was committed", i)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := exists.Wait(ended); err == nil || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrExists) {
		t.Fatalf("a refusal that is not known yet, and ctx ended: %v", err)
	}
	if _, err := gone.Wait(ended); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("a write on its way, and ctx ended: %v", err)
	}
	g.release()
	wantCondition(t, exists, ErrExists, mustWait(t, created).Index)
	wantCondition(t, mismatch, ErrMismatch, mustWait(t, newer).Index)
	if !mustWait(t, gone).Existed || mustWait(t, nothing) != (Result{}) {
		t.Fatal("the first delete deletes, the second finds nothing")
	}
	wantCondition(t, absent, ErrMismatch, 0)
	one.wantData(t, 1, "new")
}

func mustWait(t *testing.T, p *Pending) Result {
	t.Helper()
	result, err := p.Wait(timeout(t))
	ok(t, err)
	return result
}

func wantCondition(t *testing.T, p *Pending, want error, current uint64) {
	t.Helper()
	_, err := p.Wait(timeout(t))
	var c *ConditionError
	if !errors.As(err, &c) || !errors.Is(err, want) || c.Current != current {
		t.Fatalf("got %v, want %v (current %d)", err, want, current)
	}
}

// A caller receives indexes in results and in refusals. An index that a caller has received is never assigned to
// another write, even after crashes that lose as much unsynced data as possible.
func TestRule8_AnIndexThatWasSeenIsNeverReused(t *testing.T) {
	mem := vfstest.NewMem()
	seen := map[uint64]int64{} // the record that each index belongs to
	random := rand.New(rand.NewPCG(1, 2))
	for crash := range 30 {
		m := newMachine(t, mem, "/v")
		one := m.open("7", func(g *group.Options, _ *Options) { g.SegmentBytes = 16 << 10 })
		pending := map[int64]*Pending{}
		for i := range int64(40) {
			w := put(int64(crash)*1000+i, strings.Repeat("x", random.IntN(2000)))
			pending[w.ID] = one.Propose(w)
			if i == 20 {
				mustWait(t, pending[w.ID])
			}
		}
		mem = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurvivalKinds[crash%len(vfstest.SurvivalKinds)],
			Seed: uint64(crash)})
		m.halt() // stops the old machine, which has kept running for a moment after the power cut
		next := newMachine(t, mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll}), "/v")
		after := next.open("7", func(g *group.Options, _ *Options) { g.SegmentBytes = 16 << 10 })
		for id, p := range pending {
			if !answeredYet(p) {
				continue
			}
			result, err := p.Wait(t.Context())
			if err != nil {
				continue
			}
			head, _, err := after.log.Head(id)
			if err != nil {
				continue // the old machine acknowledged this write only after the power cut, so the write may be lost
			}
			if other, taken := seen[head]; taken && other != id {
				t.Fatalf("crash %d: index %d was seen of record %d, now it is record %d's", crash, head, other, id)
			}
			if head != result.Index {
				t.Fatalf("crash %d: record %d was acknowledged as %d, now it is %d", crash, id, result.Index, head)
			}
			seen[head] = id
		}
		next.halt()
	}
	if len(seen) < 300 {
		t.Fatalf("only %d indexes were seen: the test tests little", len(seen))
	}
}

func TestRule10_FullDiskRefusesEarlyAndSpaceIsNoticed(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	full := errors.New("full")
	var refuse atomic.Bool
	one := m.open("7", func(_ *group.Options, o *Options) {
		o.Admit = func(bytes int64, del bool) error {
			if bytes <= 0 {
				t.Errorf("asked for %d bytes", bytes)
			}
			if refuse.Load() && !del {
				return full
			}
			return nil
		}
	})
	one.must(t, put(1, "a").request(1, 1))
	refuse.Store(true)
	if _, err := one.do(t, put(2, "b")); !errors.Is(err, full) || errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("refused by Admit: %v", err)
	}
	if again := one.must(t, put(1, "a").request(1, 1)); !again.Repeated {
		t.Fatal("a repeated write needs no room")
	}
	one.must(t, del(1))
	refuse.Store(false)

	// Writes to the log fail as well, as if its reserve of space were used up.
	diskFull := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpWrite || op.Kind == vfstest.OpAllocate
	}, Err: syscall.ENOSPC})
	stuck := one.Propose(put(3, "c"))
	for one.Status().Err == nil {
		time.Sleep(time.Millisecond)
	}
	if _, err := one.do(t, put(4, "d")); !errors.Is(err, format.ErrNoSpace) || errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("without room: %v", err)
	}
	if err := one.ReadBarrier(timeout(t)); err != nil {
		t.Fatalf("reads go on: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := stuck.Wait(ended); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("the write that found no room: %v", err)
	}
	if diskFull.Fired() == 0 {
		t.Fatal("the fault did not fire")
	}
	diskFull.Remove()
	mustWait(t, stuck)
	one.must(t, put(4, "d"))
	one.wantData(t, 3, "c")
	if err := one.Status().Err; err != nil {
		t.Fatalf("status: %v", err)
	}
}

func TestRule3_SyncedMarkOfAnIdleGroupIsWritten(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", nil)
	written := make(chan struct{}, 64)
	fault := faulty.Add(&vfstest.Fault{
		Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpSync && strings.HasSuffix(op.Name, "/"+format.MarkName)
		},
		Effect: vfstest.EffectPass, Before: func(vfstest.Op) { written <- struct{}{} },
	})
	for i := range int64(20) { // many writes in quick succession
		one.must(t, put(i, "a"))
	}
	select {
	case <-written:
	case <-timeout(t).Done():
		t.Fatal("the mark of an idle group was not written")
	}
	for ctx := timeout(t); !one.seat.IsMarked(); time.Sleep(time.Millisecond) {
		ok(t, ctx.Err())
	}
	before := fault.Fired()
	time.Sleep(3 * rounds.Interval) // the test really waits, because it checks that nothing happens
	if fault.Fired() != before {
		t.Fatal("the mark of a group at rest is written again")
	}
}

func TestRule10_FreedSpaceIsNoticedAtOnce(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", nil)
	diskFull := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpWrite
	}, Err: syscall.ENOSPC})
	p := one.Propose(put(1, "a"))
	for ctx := timeout(t); one.Status().Err == nil; time.Sleep(time.Millisecond) {
		ok(t, ctx.Err())
	}
	c := one.state.lock()
	c.full.ticks = 1 << 30 // keeps the clock from trying again during this test
	c.unlock()
	diskFull.Remove()
	m.committer.SpaceFreed()
	mustWait(t, p)
	if diskFull.Fired() == 0 {
		t.Fatal("the fault did not fire")
	}
}

// A write may be accepted while the previous round finds that the log has no space. Such a write must be written as
// soon as there is space again, even if no later write requests a round. The clock does not request a round either,
// because a sole voter has no clock.
func TestRule10_AWriteBehindOneWithoutSpaceNeedsNoOtherWrite(t *testing.T) {
	faulty, m := newFaultyMachine(t)
	one := m.open("7", nil)
	var once sync.Once
	behind := make(chan *Pending, 1)
	diskFull := faulty.Add(&vfstest.Fault{
		Match: func(op vfstest.Op) bool { // not the mark, which the clock may write before the first write is proposed
			return op.Kind == vfstest.OpWrite && strings.Contains(op.Name, "/segment-")
		},
		Before: func(vfstest.Op) { once.Do(func() { behind <- one.Propose(put(2, "b")) }) },
		Err:    syscall.ENOSPC,
	})
	first := one.Propose(put(1, "a"))
	for ctx := timeout(t); one.Status().Err == nil; time.Sleep(time.Millisecond) {
		ok(t, ctx.Err())
	}
	second := <-behind
	if !second.IsQueued() {
		t.Fatal("the second write was refused")
	}
	if diskFull.Fired() == 0 {
		t.Fatal("the fault did not fire")
	}
	diskFull.Remove()
	mustWait(t, first)
	mustWait(t, second)
}
