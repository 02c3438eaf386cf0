package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/leaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestMain(m *testing.M) {
	leaktest.VerifyTestMain(m)
}

const raftID = 1

// machine is a file system with groups, which are created when they are first opened.
type machine struct {
	t         testing.TB
	fs        vfs.FS
	dir       string
	committer *Committer
	journal   *journal.Journal
	replayed  int // number of writes that were found in the journal
	members   []*member
}

// member is a group with its replica.
type member struct {
	*Replica
	machine *machine
	log     *group.Log
	name    string
}

// newFaultyMachine returns a machine with an in-memory disk. It also returns the disk, so that the test can add
// faults to it.
func newFaultyMachine(t testing.TB) (*vfstest.Faulty, *machine) {
	faulty := vfstest.NewFaulty(vfstest.NewMem())
	return faulty, newMachine(t, faulty, "/v")
}

func newMachine(t testing.TB, fs vfs.FS, dir string) *machine {
	m := &machine{t: t, fs: fs, dir: dir, committer: NewCommitter()}
	var err error
	m.replayed, err = replay(fs, dir)
	ok(t, err)
	m.journal = journal.New(journal.Options{FS: fs, Dir: dir, FileBytes: 64 << 10})
	t.Cleanup(m.halt)
	return m
}

// replay applies the journal of a killed machine to the segments.
func replay(fs vfs.FS, dir string) (writes int, err error) {
	found, err := journal.Replay(fs, dir, journal.Target{Apply: func(id uuid.UUID, share journal.Share) error {
		names, err := fs.List(dir)
		for _, name := range names {
			if err == nil && groupID(name) == id {
				err = group.Redo(fs, dir+"/"+name, share)
			}
		}
		return err
	}, Groups: func() ([]uuid.UUID, error) { return nil, errors.New("the journal is damaged") }})
	if err == nil && len(found.Bad) > 0 {
		err = found.Bad[0]
	}
	return len(found.Ranges), err
}

func groupID(name string) uuid.UUID { return uuid.NewSHA1(uuid.UUID{2}, []byte(name)) }

func (m *machine) logOptions(name string) group.Options {
	return group.Options{
		FS: m.fs, Dir: m.dir + "/" + name,
		Identity: format.Identity{Store: uuid.UUID{1}, Group: groupID(name), Name: name}, Journal: m.journal,
	}
}

// open starts the replica of a group. The function change, which may be nil, changes the replica's options.
func (m *machine) open(name string, change func(*group.Options, *Options)) *member {
	m.t.Helper()
	logOptions := m.logOptions(name)
	opts := Options{Committer: m.committer, RaftID: raftID}
	if change != nil {
		change(&logOptions, &opts)
	}
	if _, err := m.fs.Stat(logOptions.Dir + "/manifest"); err != nil {
		if _, err := format.ReadManifest(m.fs, logOptions.Dir); err != nil {
			ok(m.t, group.Create(logOptions, &raftpb.ConfState{Voters: []uint64{raftID}}))
		}
	}
	log, _, err := group.Load(context.Background(), logOptions, nil)
	ok(m.t, err)
	opts.Log = log
	r, err := Start(opts)
	ok(m.t, err)
	one := &member{Replica: r, machine: m, log: log, name: name}
	m.members = append(m.members, one)
	return one
}

// halt stops everything as if the process were killed. Nothing is drained or sealed.
func (m *machine) halt() {
	if m.committer == nil {
		return
	}
	m.committer.Close()
	_, _ = m.journal.Close() // if a log still needs the journal's files, Close keeps them
	for _, one := range m.members {
		one.log.Close(false)
	}
	m.committer, m.members = nil, nil
}

// stop stops a replica gracefully.
func (one *member) stop(t testing.TB) {
	t.Helper()
	ok(t, one.Stop(timeout(t)))
}

func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func requestID(a, b uint64) (id [16]byte) {
	binary.LittleEndian.PutUint64(id[:], a+1)
	binary.LittleEndian.PutUint64(id[8:], b)
	return id
}

// write is a Write with methods that each set one field.
type write struct{ Write }

func put(id int64, data string) write { return write{Write{ID: id, Data: []byte(data)}} }

func del(id int64) write { return write{Write{ID: id, Delete: true}} }

func (w write) ifAbsent() write              { w.Condition.IfAbsent = true; return w }
func (w write) ifVersion(index uint64) write { w.Condition.IfVersion = index; return w }
func (w write) request(a, b uint64) write    { w.RequestID = requestID(a, b); return w }

// Propose proposes the write w.
func (one *member) Propose(w write) *Pending { return one.Replica.Propose(w.Write) }

// do proposes a write and waits for its result.
func (one *member) do(t testing.TB, w write) (Result, error) {
	t.Helper()
	return one.Propose(w).Wait(timeout(t))
}

// must proposes a write, waits for its result, and fails the test if the write fails.
func (one *member) must(t testing.TB, w write) Result {
	t.Helper()
	result, err := one.do(t, w)
	if err != nil {
		t.Fatalf("write of record %d: %v", w.ID, err)
	}
	return result
}

// data returns the data of a record, or "" and false if there is no such record.
func (one *member) data(t testing.TB, id int64) (string, bool) {
	t.Helper()
	ok(t, one.ReadBarrier(timeout(t)))
	record, err := one.log.Get(id, group.GetOptions{})
	if err != nil {
		if isNotFound(err) {
			return "", false
		}
		t.Fatal(err)
	}
	return string(record.Data), true
}

func (one *member) wantData(t testing.TB, id int64, want string) {
	t.Helper()
	if got, found := one.data(t, id); !found || got != want {
		t.Fatalf("record %d: got %q, found %v, want %q", id, got, found, want)
	}
}

func name(i int) string { return fmt.Sprint(i) }
