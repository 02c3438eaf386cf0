package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

var (
	errBroken = errors.New("the disk is broken")
	errPanic  = errors.New("the log is to panic")
)

// play runs a script of inputs against one replica, and writes a transcript of the replica's rounds.
type play struct {
	t      *testing.T
	voters []uint64
	log    *memoryLog
	c      *Committer
	r      *Replica

	mu       sync.Mutex // guards the fields below
	out      *strings.Builder
	faults   map[string]error // the error of each log operation that must fail
	held     chan struct{}    // release closes this channel; if it is nil, syncs are not delayed
	entering chan struct{}    // enter closes this channel; if it is nil, rounds are not delayed
	waits    []waiting
	named    int
	question []byte // the context of the last heartbeat that was sent
}

// waiting is a call that has no answer yet.
type waiting struct {
	name   string
	answer func() (string, bool)
}

func (p *play) begin() {
	p.c = NewCommitter()
	r, err := start(Options{
		Committer: p.c, RaftID: 1, Transport: p,
		OnSnapshot: func(index, term, from uint64) {
			p.note("reports that it needs a snapshot: index %d, term %d, from %x", index, term, from)
		},
		NoSpace: func() { p.note("reports that there is no space") },
		Probe:   &Probe{BeforeSync: func() { p.waitForRelease() }},
	}, playLog{p.log, p})
	ok(p.t, err)
	p.r = r
	synctest.Wait()
	r.seat.Init(p.c, playRunner{(*runner)(r), p})
	ok(p.t, r.seat.Enter(func() {})) // Enter returns after the first round
}

// end stops the replica.
func (p *play) end() {
	p.input("stop")
	err := p.r.Stop(p.ended())
	p.note("stopped: %v", err)
	p.c.Close()
}

// ended returns a context that is already canceled.
func (p *play) ended() context.Context {
	ctx, cancel := context.WithCancel(p.t.Context())
	cancel()
	return ctx
}

// input waits until the replica is idle, and then writes the next input to the transcript.
func (p *play) input(format string, args ...any) {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// note adds a line about the replica to the transcript.
func (p *play) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers()
	fmt.Fprintf(p.out, "    "+format+"\n", args...)
}

// answers adds to the transcript the calls that were answered since the last line.
func (p *play) answers() {
	left := p.waits[:0]
	for _, w := range p.waits {
		if says, answered := w.answer(); answered {
			fmt.Fprintf(p.out, "    answers %s: %s\n", w.name, says)
		} else {
			left = append(left, w)
		}
	}
	p.waits = left
}

// enter passes an input to the replica by the function call, and waits until the replica is idle. A round that the
// input requests begins only after the function record has returned. So record can register a call that awaits an
// answer, or write what the call has returned. Without this order, the round could end first.
func (p *play) enter(call, record func()) {
	p.mu.Lock()
	entering := make(chan struct{})
	p.entering = entering
	p.mu.Unlock()
	call()
	synctest.Wait() // a round that did not wait would end here
	record()
	p.mu.Lock()
	p.entering = nil
	p.mu.Unlock()
	close(entering)
	synctest.Wait()
}

// await registers a call that awaits an answer.
func (p *play) await(name string, answer func() (string, bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits = append(p.waits, waiting{name, answer})
}

func (p *play) waitUntilEntered() {
	p.mu.Lock()
	entering := p.entering
	p.mu.Unlock()
	if entering != nil {
		<-entering
	}
}

func (p *play) write(w write) {
	p.named++
	name := fmt.Sprintf("write %d", p.named)
	p.input("%s", name)
	var one *Pending
	p.enter(func() { one = p.r.Propose(w.Write) }, func() {
		p.await(name, func() (string, bool) {
			select {
			case <-one.Done():
				result, err := one.Wait(p.t.Context())
				return fmt.Sprintf("index %d, repeated %v, error %v", result.Index, result.Repeated, err), true
			default:
				return "", false
			}
		})
	})
}

func (p *play) read() {
	p.input("read")
	one := &reader{done: make(chan error, 1)}
	p.enter(func() {
		_, err := p.r.addReader(one)
		ok(p.t, err)
		p.r.seat.Schedule()
	}, func() {
		p.await("read", func() (string, bool) {
			select {
			case err := <-one.done:
				return fmt.Sprintf("error %v", err), true
			default:
				return "", false
			}
		})
	})
}

func (p *play) change(changes ...*raftpb.ConfChangeSingle) {
	p.input("membership change")
	wanted := change(changes...)
	data, err := proto.Marshal(wanted)
	ok(p.t, err)
	one := &memberChange{data: data, done: make(chan struct{})}
	p.enter(func() {
		ok(p.t, p.r.beginChange(one, wanted))
		p.r.seat.Schedule()
	}, func() {
		p.await("membership change", func() (string, bool) {
			select {
			case <-one.done:
				return fmt.Sprintf("error %v", one.err), true
			default:
				return "", false
			}
		})
	})
}

// hold makes all syncs wait until release is called.
func (p *play) hold() {
	p.input("syncs hang")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = make(chan struct{})
}

func (p *play) release() {
	p.input("syncs work again")
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	close(held)
	synctest.Wait()
}

func (p *play) waitForRelease() {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held != nil {
		p.note("sync hangs")
		<-held
	}
}

func (p *play) fault(operation string, err error) {
	p.input("%s: error %v", operation, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[operation] = err
}

// did writes a log operation to the transcript, and returns the error that the script sets for this operation.
func (p *play) did(operation, format string, args ...any) error {
	p.mu.Lock()
	err := p.faults[operation]
	p.mu.Unlock()
	if err == nil {
		p.note(operation+" "+format, args...)
		return nil
	}
	p.note(operation+" "+format+": fails", args...)
	if errors.Is(err, errPanic) {
		panic(err)
	}
	return err
}

// again requests a round, as the clock does while the log has no space.
func (p *play) again() {
	p.input("a round is requested")
	p.r.seat.Schedule()
	synctest.Wait()
}

// step passes the replica a message of the replica's current term.
func (p *play) step(kind raftpb.MessageType, from uint64, fill func(m *raftpb.Message)) {
	m := &raftpb.Message{Type: kind.Enum(), From: new(from), To: new(uint64(1)), Term: new(p.r.Status().Term)}
	fill(m)
	p.input("%s", describe(m))
	var err error
	p.enter(func() { err = p.r.Step(m) }, func() {
		if err != nil {
			p.note("refuses the message: %v", err)
		}
	})
}

// lead makes the replica the leader of term 2, whose first entry is committed.
func (p *play) lead() {
	p.heartbeat(2, 1, 0)
	p.step(raftpb.MsgTimeoutNow, 2, func(*raftpb.Message) {})
	p.step(raftpb.MsgVoteResp, 2, func(*raftpb.Message) {})
	p.ack(2, 1)
	p.ack(3, 1)
}

// leads is like lead, but writes no transcript.
func (p *play) leads() {
	out := p.out
	p.out = &strings.Builder{}
	p.lead()
	p.out = out
	p.input("it leads")
}

func (p *play) ack(from, index uint64) {
	p.step(raftpb.MsgAppResp, from, func(m *raftpb.Message) { m.Index = new(index) })
}

func (p *play) heartbeat(from, term, commit uint64) {
	p.step(raftpb.MsgHeartbeat, from, func(m *raftpb.Message) { m.Term, m.Commit = new(term), new(commit) })
}

// append passes the replica a message with empty entries of the given term, from index after+1 to index last.
func (p *play) append(from, term, after, last, commit uint64) {
	p.step(raftpb.MsgApp, from, func(m *raftpb.Message) {
		m.Term, m.Index, m.LogTerm, m.Commit = new(term), new(after), new(uint64(0)), new(commit)
		if after > 0 {
			t, err := p.log.Term(after)
			ok(p.t, err)
			m.LogTerm = new(t)
		}
		for i := after + 1; i <= last; i++ {
			m.Entries = append(m.Entries, &raftpb.Entry{Index: new(i), Term: new(term)})
		}
	})
}

func (p *play) vote(from, term uint64) {
	c := p.r.state.lock()
	c.startedAt = c.startedAt.Add(-voteSilence)
	c.unlock()
	p.step(raftpb.MsgVote, from, func(m *raftpb.Message) {
		m.Term, m.Index, m.LogTerm = new(term), new(uint64(0)), new(uint64(0))
	})
}

func (p *play) snapshot(from, term, index uint64) {
	p.step(raftpb.MsgSnap, from, func(m *raftpb.Message) {
		m.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
			Index: new(index), Term: new(term), ConfState: &raftpb.ConfState{Voters: p.voters},
		}}
	})
}

// Send implements Transport.
func (p *play) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		p.note("send %s", describe(m))
		if m.GetType() == raftpb.MsgHeartbeat {
			p.question = m.GetContext()
		}
	}
}

func describe(m *raftpb.Message) string {
	peer := fmt.Sprintf("to %x", m.GetTo())
	if m.GetTo() == 1 {
		peer = fmt.Sprintf("from %x", m.GetFrom())
	}
	return fmt.Sprintf("%v %s, term %d, index %d, commit %d, entries [%s], reject %v", m.GetType(), peer, m.GetTerm(),
		m.GetIndex(), m.GetCommit(), describeEntries(m.GetEntries()), m.GetReject())
}

func describeEntries(entries []*raftpb.Entry) string {
	var all []string
	for _, e := range entries {
		what := "empty"
		if len(e.GetData()) > 0 {
			what = "write"
		}
		if e.GetType() != raftpb.EntryNormal {
			what = "membership"
		}
		all = append(all, fmt.Sprintf("%d:%s", e.GetIndex(), what))
	}
	return strings.Join(all, " ")
}

// playRunner writes to the transcript when rounds begin and end.
type playRunner struct {
	*runner
	play *play
}

func (r playRunner) Round() {
	r.play.waitUntilEntered()
	r.play.note("round")
	r.runner.Round()
	r.play.note("round ends")
}

func (r playRunner) Mark() bool {
	written := r.runner.Mark()
	r.play.note("mark, written %v", written)
	return written
}

// playLog is an in-memory log that writes a transcript of its operations.
type playLog struct {
	*memoryLog
	play *play
}

func (l playLog) Append(hs *raftpb.HardState, entries []*raftpb.Entry) error {
	state := "none"
	if !raft.IsEmptyHardState(hs) {
		state = fmt.Sprintf("term %d vote %d commit %d", hs.GetTerm(), hs.GetVote(), hs.GetCommit())
	}
	if err := l.play.did("append", "state [%s], entries [%s]", state, describeEntries(entries)); err != nil {
		return err
	}
	return l.memoryLog.Append(hs, entries)
}

func (l playLog) Sync() error { return l.play.did("sync", "alone") }

func (l playLog) SyncShared() bool { return false }

func (l playLog) Tick() error { return l.play.did("mark", "in the log") }

func (l playLog) Apply(index uint64, each func(*format.Entry)) error {
	if err := l.play.did("apply", "up to %d", index); err != nil {
		return err
	}
	entries, err := l.Entries(l.applied.Load()+1, index+1, 1<<30)
	if err != nil {
		return err
	}
	for _, r := range entries {
		e, err := format.DecodePayload(r)
		if err != nil {
			return err
		}
		e.Index, e.Term = r.GetIndex(), r.GetTerm()
		each(&e)
	}
	l.applied.Store(index)
	return nil
}

func (l playLog) SetConf(conf *raftpb.ConfState, index uint64) error {
	return l.play.did("record membership", "of index %d: voters %v, outgoing %v, learners %v", index, conf.GetVoters(),
		conf.GetVotersOutgoing(), conf.GetLearners())
}
