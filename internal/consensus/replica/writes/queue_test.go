package writes

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// fakeLog is a log whose content a test sets.
type fakeLog struct {
	applied  uint64
	heads    map[int64]uint64
	recent   []format.Request
	damaged  bool
	headErr  error
	lastTime int64
}

func (l *fakeLog) AppliedIndex() uint64          { return l.applied }
func (l *fakeLog) LastCommitTime() int64         { return l.lastTime }
func (l *fakeLog) Head(id int64) (uint64, error) { return l.heads[id], l.headErr }
func (l *fakeLog) Damaged() bool                 { return l.damaged }
func (l *fakeLog) RecentRequests(format.RequestWindow, int64) iter.Seq[format.Request] {
	return slices.Values(l.recent)
}

// leader is a queue and the parts of a replica around it, without Raft.
type leader struct {
	*Queue
	log      *fakeLog
	lead     Lead
	entries  []entry // the log's unapplied entries
	next     uint64  // index of the next entry
	declined map[*Pending]uint64
	syncs    SyncLog
}

type entry struct {
	p       *Pending // only the id and the kind of this write are read
	index   uint64
	request format.Request
}

const term = 7

func newLeader(change func(*Options)) *leader {
	l := &leader{
		log: &fakeLog{heads: map[int64]uint64{}}, lead: Lead{Sole: true, Hangs: make(chan struct{})}, next: 100,
		declined: map[*Pending]uint64{},
	}
	opts := Options{
		Log: l.log, Now: time.Now, Window: format.RequestWindow{Age: time.Hour, Writes: 1000, WritesMax: 1000},
		InFlightBytesMax: 1 << 20,
	}
	if change != nil {
		change(&opts)
	}
	opts.Declined = func(p *Pending, current uint64) {
		if l.lead.Sole {
			l.Answer(p, current)
			return
		}
		l.declined[p] = current
	}
	l.Queue = New(opts)
	l.Extends(l.next - 1)
	return l
}

func (l *leader) propose(w Write) *Pending { return l.Accept(&w, Prepare(&w, l.log), l.lead) }

// store writes the queued writes to the log.
func (l *leader) store() {
	writes := l.Take()
	l.Taken(writes)
	for _, p := range writes {
		l.entries = append(l.entries, entry{p: p, index: l.next, request: p.request})
		if len(l.Index(l.next, term)) == 0 {
			panic("an entry without a payload")
		}
		l.next++
	}
	l.Extends(l.next - 1)
}

// apply commits the first n entries, and wakes their callers.
func (l *leader) apply(n int) {
	for _, e := range l.entries[:n] {
		l.log.applied, l.log.heads[e.p.id] = e.index, e.index
		if e.p.delete {
			l.log.heads[e.p.id] = 0
		}
		if e.request.RequestID != ([16]byte{}) {
			e.request.Index = e.index
			l.Remember([]format.Request{e.request})
		}
		l.Commit(e.index, term, &l.syncs)
	}
	l.entries = l.entries[n:]
	Wake(l.Answered(nil))
}

func (l *leader) all() {
	l.store()
	l.apply(len(l.entries))
}

func put(id int64, data string) Write { return Write{ID: id, Data: []byte(data)} }

func isAnswered(p *Pending) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func answer(t testing.TB, p *Pending) (Result, error) {
	t.Helper()
	if !isAnswered(p) {
		t.Fatal("not answered")
	}
	return p.Wait(context.Background())
}

func mustAnswer(t testing.TB, p *Pending) Result {
	t.Helper()
	result, err := answer(t, p)
	must.OK(t, err)
	return result
}

func wantRefusal(t testing.TB, p *Pending, why error, current uint64) {
	t.Helper()
	_, err := answer(t, p)
	var c *ConditionError
	if !errors.As(err, &c) || !errors.Is(err, why) || c.Current != current {
		t.Fatalf("got %v, want %v (current %d)", err, why, current)
	}
}

func TestAWriteIsAnsweredWhenItIsApplied(t *testing.T) {
	l := newLeader(nil)
	first, second := l.propose(put(1, "a")), l.propose(Write{ID: 1, Delete: true})
	l.store()
	if isAnswered(first) || isAnswered(second) || l.IsEmpty() || l.Logged() != 2 || l.InFlightBytes() == 0 {
		t.Fatal("answered before it is applied")
	}
	l.apply(1)
	if r := mustAnswer(t, first); r.Index != 100 || r.CommitTime == 0 || r.Existed || isAnswered(second) {
		t.Fatalf("%+v", r)
	}
	l.apply(1)
	if r := mustAnswer(t, second); r.Index != 101 || !r.Existed || !l.IsEmpty() || l.InFlightBytes() != 0 {
		t.Fatalf("%+v", r)
	}
}

// TestARefusalWaitsForWhatItDependsOn tests safety rule 2. A refusal names a version, so it waits until that version
// is committed.
func TestARefusalWaitsForWhatItDependsOn(t *testing.T) {
	l := newLeader(nil)
	first := l.propose(put(1, "a"))
	exists := l.propose(Write{ID: 1, Condition: Condition{IfAbsent: true}})
	mismatch := l.propose(Write{ID: 1, Condition: Condition{IfVersion: 5}})
	gone := l.propose(Write{ID: 1, Delete: true})
	nothing := l.propose(Write{ID: 1, Delete: true})
	l.store()
	if isAnswered(exists) || isAnswered(mismatch) || isAnswered(nothing) {
		t.Fatal("refused because of a version that is not committed")
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := exists.Wait(ended); err == nil || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrExists) {
		t.Fatalf("a refusal that is not known yet, and ctx ended: %v", err)
	}
	l.apply(1)
	wantRefusal(t, exists, ErrExists, mustAnswer(t, first).Index)
	wantRefusal(t, mismatch, ErrMismatch, mustAnswer(t, first).Index)
	l.apply(1)
	if !mustAnswer(t, gone).Existed || mustAnswer(t, nothing) != (Result{}) {
		t.Fatal("the first delete deletes, the second finds nothing")
	}
}

func TestAConditionSeesWhatWasAppliedSinceTheLogWasAsked(t *testing.T) {
	l := newLeader(nil)
	w := Write{ID: 1, Condition: Condition{IfAbsent: true}}
	draft := Prepare(&w, l.log)
	l.propose(put(1, "other"))
	l.all()
	wantRefusal(t, l.Accept(&w, draft, l.lead), ErrExists, 100)
}

// TestWhatIsDeclinedIsAnsweredByTheCallerWhereOthersCanLead covers a write that is declined because of a committed
// version. That version may be outdated, because other members can lead. The caller answers the write once it knows
// that the version is current.
func TestWhatIsDeclinedIsAnsweredByTheCallerWhereOthersCanLead(t *testing.T) {
	l := newLeader(nil)
	l.lead.Sole = false
	first := l.propose(put(1, "a"))
	behind := l.propose(Write{ID: 1, Condition: Condition{IfAbsent: true}})
	l.all()
	exists := l.propose(Write{ID: 1, Condition: Condition{IfAbsent: true}, RequestID: requestID(1, 1)})
	again := l.propose(Write{ID: 1, Condition: Condition{IfAbsent: true}, RequestID: requestID(1, 1)})
	mustAnswer(t, first)
	if isAnswered(behind) || isAnswered(exists) || l.declined[behind] != 100 || l.declined[exists] != 100 {
		t.Fatalf("declined: %v", l.declined)
	}
	l.Answer(behind, 100)
	l.Refuse(exists, ErrNoLeader)
	Wake(l.Answered(nil))
	wantRefusal(t, behind, ErrExists, 100)
	for _, p := range []*Pending{exists, again} {
		if _, err := answer(t, p); !errors.Is(err, ErrNoLeader) {
			t.Fatal(err)
		}
	}
}

func TestARequestIDHasOneWrite(t *testing.T) {
	l := newLeader(nil)
	w := put(1, "a")
	w.RequestID = requestID(1, 1)
	other := put(1, "b")
	other.RequestID = w.RequestID
	first, again := l.propose(w), l.propose(w)
	if _, err := answer(t, l.propose(other)); !errors.Is(err, ErrReused) {
		t.Fatalf("another write under an id on its way: %v", err)
	}
	l.all()
	later := l.propose(w)
	for _, p := range []*Pending{again, later} {
		if r := mustAnswer(t, p); !r.Repeated || r.Index != mustAnswer(t, first).Index {
			t.Fatalf("%+v", r)
		}
	}
	if _, err := answer(t, l.propose(other)); !errors.Is(err, ErrReused) {
		t.Fatalf("another write under an id that is taken: %v", err)
	}
}

func TestALateDuplicateOfADeclinedWriteDoesNothing(t *testing.T) {
	for _, off := range []rules.Off{0, rules.Forget} {
		l := newLeader(func(o *Options) { o.Off = off })
		gone := Write{ID: 1, Delete: true, RequestID: requestID(1, 1)}
		mustAnswer(t, l.propose(gone))
		l.propose(put(1, "a"))
		l.all()
		again := l.propose(gone)
		if forgotten := again.IsQueued(); forgotten != (off == rules.Forget) {
			t.Errorf("rules off %d: it was done: %v", off, forgotten)
		}
	}
}

func TestWhatIsLostIsUnknownInTheLogAndRefusedInTheQueue(t *testing.T) {
	l := newLeader(nil)
	logged := l.propose(put(1, "a"))
	l.store()
	behind := l.propose(Write{ID: 1, Condition: Condition{IfVersion: 3}})
	queued := l.propose(put(2, "b"))
	l.AbandonAll(ErrOutcomeUnknown, ErrNoLeader)
	Wake(l.Answered(nil))
	for p, want := range map[*Pending]error{logged: ErrOutcomeUnknown, behind: ErrNoLeader, queued: ErrNoLeader} {
		if _, err := answer(t, p); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if !l.IsEmpty() || l.Awaits() || l.InFlightBytes() != 0 {
		t.Error("something is left")
	}
	turned := l.propose(put(3, "c"))
	l.TurnedDown(l.Take(), ErrNoLeader)
	Wake(l.Answered(nil))
	if _, err := answer(t, turned); !errors.Is(err, ErrNoLeader) || !l.IsEmpty() {
		t.Errorf("what the log did not take: %v", err)
	}
}

func TestWhatIsInFlightIsBounded(t *testing.T) {
	full := errors.New("full")
	var refuse error
	l := newLeader(func(o *Options) {
		o.InFlightBytesMax = 1000
		o.Admit = func(int64, bool) error { return refuse }
	})
	l.propose(put(1, string(make([]byte, 5000)))) // a single write is always admitted
	if err := l.propose(put(2, "b")).Refused(); !errors.Is(err, ErrOverloaded) {
		t.Fatal(err)
	}
	l.all()
	refuse = full
	if err := l.propose(put(2, "b")).Refused(); !errors.Is(err, full) {
		t.Fatal(err)
	}
	l.lead.NoSpace = format.ErrNoSpace
	if err := l.propose(put(2, "b")).Refused(); !errors.Is(err, format.ErrNoSpace) || !l.IsEmpty() {
		t.Fatal(err)
	}
}

func TestAConditionOnWhatCannotBeReadIsRefused(t *testing.T) {
	l := newLeader(nil)
	l.log.headErr = errors.New("bad bytes")
	if err := l.propose(Write{ID: 1, Delete: true}).Refused(); !errors.Is(err, l.log.headErr) {
		t.Fatal(err)
	}
	if !l.propose(put(1, "heals")).IsQueued() {
		t.Fatal("a put without a condition depends on nothing")
	}
}

func TestCommitTimesNeverGoBack(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLeader(func(o *Options) { o.Now = func() time.Time { return now } })
	l.log.lastTime = time.Unix(2000, 0).UnixNano()
	if ahead := l.Serve(); ahead != 1000*time.Second {
		t.Fatalf("ahead by %v", ahead)
	}
	p := l.propose(put(1, "a"))
	now = time.Unix(3000, 0)
	q := l.propose(put(1, "b"))
	l.all()
	if a, b := mustAnswer(t, p).CommitTime, mustAnswer(t, q).CommitTime; a != l.log.lastTime || b != now.UnixNano() {
		t.Fatalf("%d, %d", a, b)
	}
}

// TestHistoryIsReadUntilItIsWhole checks that entries that were applied before the start are read once, and again
// after a repair of damage that may have hidden some of them.
func TestHistoryIsReadUntilItIsWhole(t *testing.T) {
	log := &fakeLog{applied: 10, damaged: true, recent: []format.Request{{RequestID: requestID(1, 1), Index: 10},
		{RequestID: requestID(2, 1), Index: 11}}}
	opts := Options{Log: log, Now: time.Now, Window: format.RequestWindow{Age: time.Hour}}
	h, reads := NewHistory(&opts), 0
	read := func() (older Older) {
		if whole := h.Read(func(o Older) { reads, older = reads+1, o }); whole == log.damaged {
			t.Errorf("whole: %t, damaged: %t", whole, log.damaged)
		}
		return older
	}
	if older := read(); len(older) != 1 || older[0].index != 10 {
		t.Fatalf("what was applied since the start was seen already: %+v", older)
	}
	if read(); reads != 1 {
		t.Fatal("read again while the log has damage")
	}
	log.damaged = false
	if read(); reads != 2 {
		t.Fatal("not read again after the repair")
	}
	if read(); reads != 2 {
		t.Fatal("read again although it is whole")
	}
	opts.Off = rules.Requests
	if NewHistory(&opts).Read(func(Older) { t.Error("read although the rule is off") }); reads != 2 {
		t.Fatal("read")
	}
}

// TestAnswersAreThoseOfOneOrder compares a queue with a model, in which a record's newest version follows the order in
// which writes were accepted. Each write must get the answer that the model gives, no matter when writes are stored
// and applied.
func TestAnswersAreThoseOfOneOrder(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		l := newLeader(nil)
		newest, next := map[int64]uint64{}, uint64(100)
		type expected struct {
			p       *Pending
			err     error
			current uint64
			result  Result
		}
		var want []expected
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				l.store()
			case 1:
				if len(l.entries) > 0 {
					l.apply(rapid.IntRange(1, len(l.entries)).Draw(t, "apply"))
				}
			default:
				w := Write{ID: rapid.Int64Range(1, 3).Draw(t, "id"), Delete: rapid.Bool().Draw(t, "delete")}
				current := newest[w.ID]
				switch rapid.IntRange(0, 3).Draw(t, "condition") {
				case 0:
					w.Condition.IfAbsent = true
				case 1:
					w.Condition.IfVersion = current
				case 2:
					w.Condition.IfVersion = next + 1000
				}
				e := expected{p: l.propose(w), current: current}
				switch {
				case w.Condition.IfAbsent && current != 0:
					e.err = ErrExists
				case w.Condition.IfVersion != 0 && w.Condition.IfVersion != current:
					e.err = ErrMismatch
				case w.Delete && current == 0:
				default:
					e.result = Result{Index: next, Existed: w.Delete}
					newest[w.ID] = next
					if w.Delete {
						newest[w.ID] = 0
					}
					next++
				}
				want = append(want, e)
			}
		}
		l.all()
		for i, e := range want {
			if !isAnswered(e.p) {
				t.Fatalf("write %d is not answered", i)
			}
			got, err := e.p.Wait(context.Background())
			got.CommitTime = 0
			var c *ConditionError
			if !errors.Is(err, e.err) || got != e.result || errors.As(err, &c) && c.Current != e.current {
				t.Fatalf("write %d: %+v, %v; want %+v, %v of version %d", i, got, err, e.result, e.err, e.current)
			}
		}
		if !l.IsEmpty() || l.InFlightBytes() != 0 || len(l.newest) != 0 {
			t.Fatal("something is left")
		}
	})
}
