package replica

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

var update = flag.Bool("update", false, "write testdata/rounds.txt anew")

// TestTranscriptOfRounds compares what rounds do for scripted inputs, in order, with testdata/rounds.txt. The
// transcript shows what is written, synced, applied, sent and answered, and how each round ends.
func TestTranscriptOfRounds(t *testing.T) {
	var all strings.Builder
	for _, s := range scripts {
		synctest.Test(t, func(t *testing.T) {
			fmt.Fprintf(&all, "# %s\n", s.name)
			p := &play{t: t, out: &all, voters: s.voters, log: newMemoryLog(s.voters...), faults: map[string]error{}}
			p.begin()
			s.run(p)
			p.end()
			fmt.Fprintln(&all)
		})
	}
	const file = "testdata/rounds.txt"
	if *update {
		ok(t, os.MkdirAll(filepath.Dir(file), 0o700))
		ok(t, os.WriteFile(file, []byte(all.String()), 0o600))
	}
	want, err := os.ReadFile(file)
	ok(t, err)
	if got := all.String(); got != string(want) {
		t.Errorf("rounds differ from %s (go test -update writes it anew; review it then):\n%s", file,
			differ(string(want), got))
	}
}

// differ returns the lines around the first difference.
func differ(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	from := max(0, at-8)
	around := func(lines []string) string { return strings.Join(lines[from:min(len(lines), at+8)], "\n") }
	return "want:\n" + around(a) + "\ngot:\n" + around(b)
}

var scripts = []struct {
	name   string
	voters []uint64
	run    func(p *play)
}{
	{"the only member: a put", []uint64{1}, func(p *play) {
		p.write(put(1, "a"))
	}},
	{"the only member: what comes during a round is one batch of the next", []uint64{1}, func(p *play) {
		p.hold()
		for id := range int64(4) {
			p.write(put(id, "a").request(uint64(id), 1))
		}
		p.release()
		p.write(put(1, "a").request(1, 1))
		p.write(put(1, "b").ifAbsent())
		p.write(del(100))
	}},
	{"the only member: a round without work", []uint64{1}, func(p *play) {
		p.input("a round is requested")
		p.r.seat.Schedule()
	}},
	{"the only member: its mark is written when it is idle", []uint64{1}, func(p *play) {
		p.write(put(1, "a"))
		p.input("half a second passes")
		time.Sleep(500 * time.Millisecond)
	}},
	{"the only member: a learner is added", []uint64{1}, func(p *play) {
		p.change(learner(4))
		p.write(put(1, "a"))
		p.step(raftpb.MsgAppResp, 4, func(m *raftpb.Message) { m.Index = new(uint64(3)) })
	}},
	{"the only member: a read", []uint64{1}, func(p *play) { p.read() }},
	{"the only member: no space to append", []uint64{1}, func(p *play) {
		p.fault("append", format.ErrNoSpace)
		p.write(put(1, "a"))
		p.write(put(2, "b"))
		p.again()
		p.fault("append", nil)
		p.again()
	}},
	{"the only member: no space to sync", []uint64{1}, func(p *play) {
		p.fault("sync", format.ErrNoSpace)
		p.write(put(1, "a"))
		p.fault("sync", nil)
		p.again()
	}},
	{"the only member: no space to apply", []uint64{1}, func(p *play) {
		p.fault("apply", format.ErrNoSpace)
		p.write(put(1, "a"))
		p.fault("apply", nil)
		p.again()
	}},
	{"the only member: no space to record a membership", []uint64{1}, func(p *play) {
		p.hold()
		p.write(put(1, "a"))
		p.write(put(2, "b"))
		p.change(learner(4))
		p.fault("record membership", format.ErrNoSpace)
		p.release()
		p.again()
		p.fault("record membership", nil)
		p.again()
	}},
	{"the only member: an append fails", []uint64{1}, func(p *play) {
		p.fault("append", errBroken)
		p.write(put(1, "a"))
		p.write(put(2, "b"))
		p.again()
	}},
	{"the only member: a sync fails, with writes behind it", []uint64{1}, func(p *play) {
		p.hold()
		p.write(put(1, "a"))
		p.write(put(2, "b"))
		p.fault("sync", errBroken)
		p.release()
		p.write(put(3, "c"))
	}},
	{"the only member: an apply fails", []uint64{1}, func(p *play) {
		p.fault("apply", errBroken)
		p.write(put(1, "a"))
	}},
	{"the only member: the log panics", []uint64{1}, func(p *play) {
		p.fault("append", errPanic)
		p.write(put(1, "a"))
	}},
	{"a member of three comes to lead", voters, func(p *play) { p.lead() }},
	{"a leader of three: a put and a read", voters, func(p *play) {
		p.leads()
		p.write(put(1, "a"))
		p.ack(2, 2)
		p.read()
		p.step(raftpb.MsgHeartbeatResp, 3, func(m *raftpb.Message) { m.Context = p.question })
		p.ack(3, 2)
	}},
	{"a leader of three: a member acknowledges before the own sync ends", voters, func(p *play) {
		p.leads()
		p.hold()
		p.write(put(1, "a"))
		p.ack(2, 2)
		p.ack(3, 2)
		p.write(put(2, "b"))
		p.release()
		p.ack(2, 3)
	}},
	{"a leader of three: no space to apply, and its messages are sent once", voters, func(p *play) {
		p.leads()
		p.write(put(1, "a"))
		p.fault("apply", format.ErrNoSpace)
		p.ack(2, 2)
		p.again()
		p.fault("apply", nil)
		p.again()
	}},
	{"a leader of three: superseded by a new term", voters, func(p *play) {
		p.leads()
		p.write(put(1, "a"))
		p.hold()
		p.write(put(2, "b"))
		p.write(put(3, "c"))
		p.change(learner(4))
		p.append(3, 3, 1, 2, 1)
		p.release()
		p.append(3, 3, 2, 3, 2)
	}},
	{"a leader of three: superseded while there is no space", voters, func(p *play) {
		p.leads()
		p.fault("append", format.ErrNoSpace)
		p.write(put(1, "a"))
		p.write(put(2, "b"))
		p.append(3, 3, 1, 2, 1)
		p.fault("append", nil)
		p.again()
	}},
	{"a leader of three: a voter is replaced", voters, func(p *play) {
		p.leads()
		p.change(&raftpb.ConfChangeSingle{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(uint64(4))}, remove(3))
		p.ack(2, 2)
		p.ack(4, 2)
		p.ack(2, 3)
		p.ack(4, 3)
		p.ack(2, 4)
		p.ack(4, 4)
	}},
	{"a follower: entries, and then the commit index", voters, func(p *play) {
		p.append(2, 1, 0, 1, 0)
		p.append(2, 1, 1, 2, 1)
		p.heartbeat(2, 1, 2)
		p.heartbeat(2, 1, 2)
	}},
	{"a follower: no space, and its answer is sent once", voters, func(p *play) {
		p.append(2, 1, 0, 1, 0)
		p.fault("apply", format.ErrNoSpace)
		p.append(2, 1, 1, 2, 2)
		p.again()
		p.fault("apply", nil)
		p.again()
		p.fault("append", format.ErrNoSpace)
		p.append(2, 1, 2, 3, 2)
		p.again()
		p.fault("append", nil)
		p.again()
	}},
	{"a follower: a vote, and a refused vote", voters, func(p *play) {
		p.vote(3, 5)
		p.vote(2, 5)
	}},
	{"a follower: a snapshot that it has, and one that it needs", voters, func(p *play) {
		p.append(2, 1, 0, 1, 1)
		p.snapshot(2, 1, 1)
		p.snapshot(2, 1, 9)
	}},
	{"a follower: no space to apply before it appends", voters, func(p *play) {
		p.append(2, 1, 0, 1, 0)
		p.fault("apply", format.ErrNoSpace)
		p.append(2, 1, 1, 2, 1)
		p.fault("apply", nil)
		p.again()
	}},
	{"a follower: a message proves that it has lost entries", voters, func(p *play) {
		p.append(2, 1, 0, 2, 2)
		p.read()
		p.heartbeat(2, 1, 9)
		p.again()
	}},
}
