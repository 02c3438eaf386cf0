package replica

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// brokenLog is a log whose entries cannot be read.
type brokenLog struct {
	store
	err error
}

func (b brokenLog) Entries(_, _, _ uint64) ([]*raftpb.Entry, error) { return nil, b.err }

// Reads of damaged entries return raft.ErrCompacted. On any other error Raft panics, and the replica then remains
// failed until a restart.
func TestRaftOffersASnapshotWhereEntriesAreDamaged(t *testing.T) {
	damaged := fmt.Errorf("entries from index 7: %w", &format.DamageError{})
	if _, err := (storage{store: brokenLog{err: damaged}}).Entries(7, 8,
		1); err != raft.ErrCompacted { //nolint:errorlint // as Raft compares
		t.Errorf("damaged entries: %v", err)
	}
	other := errors.New("other")
	if _, err := (storage{store: brokenLog{err: other}}).Entries(7, 8, 1); !errors.Is(err, other) {
		t.Errorf("another error: %v", err)
	}
}

// A power cut kept the entries of a write but not the commit index that was written with them. The entries are two
// membership changes. The second change was proposed only after the first one was applied, so the first one is
// certainly committed. Therefore the replica must count votes according to the first change or a later one.
func TestWhatAChangeFollowsIsCommitted(t *testing.T) {
	m := newMachine(t, vfstest.NewMem(), "/v")
	opts := m.logOptions("7")
	ok(t, group.Create(opts, &raftpb.ConfState{Voters: voters}))
	log, _, err := group.Load(t.Context(), opts, nil)
	ok(t, err)
	entry := func(index uint64, change *raftpb.ConfChangeV2) *raftpb.Entry {
		e := &raftpb.Entry{Type: raftpb.EntryNormal.Enum(), Index: &index, Term: proto.Uint64(1)}
		if change != nil {
			data, err := proto.Marshal(change)
			ok(t, err)
			e.Type, e.Data = raftpb.EntryConfChangeV2.Enum(), data
		}
		return e
	}
	entries := []*raftpb.Entry{entry(1, nil), entry(2, change(learner(4))), entry(3, nil),
		entry(4, change(add(4), remove(3))), entry(5, nil)}
	ok(t, log.Append(&raftpb.HardState{Term: proto.Uint64(1), Vote: proto.Uint64(0), Commit: proto.Uint64(1)}, entries))
	ok(t, log.Sync())
	log.Close(false)

	one := m.open("7", func(_ *group.Options, o *Options) { o.Transport = nobody{} })
	for ctx := timeout(t); one.Members().AppliedIndex < 2; time.Sleep(time.Millisecond) {
		ok(t, ctx.Err())
	}
	if members := one.Members(); !slices.Equal(members.Conf.GetLearners(), []uint64{4}) || members.AppliedIndex != 2 {
		t.Errorf("%+v", members)
	}
}

// nobody is a transport that drops every message.
type nobody struct{}

func (nobody) Send([]*raftpb.Message) {}
