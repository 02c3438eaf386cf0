package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/journal"
	"sheaf.dev/sheaf/internal/vfs"
	"sheaf.dev/sheaf/internal/volume"
)

// TestVerifyKnowsTheJournal: what only the journal has after a power cut is told, and written to its segment before a repair.
func TestVerifyKnowsTheJournal(t *testing.T) {
	dir := t.TempDir()
	store, id := uuid.New(), uuid.New()
	v, err := volume.Open(volume.Options{FS: vfs.OS{}, Dir: dir, Store: store, Shard: "s1", Create: true, ReserveBytes: 16 << 20})
	must(t, err)
	j := journal.New(journal.Options{FS: vfs.OS{}, Dir: dir, Begin: func() error { return v.SetJournal(true) }})
	opts := group.Options{FS: vfs.OS{}, Dir: v.GroupDir(id), Identity: group.Identity{Store: store, Group: id, Name: "g"}, Journal: j}
	must(t, group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}))
	log, _, err := group.Load(context.Background(), opts, nil)
	must(t, err)
	must(t, log.Append(nil, []*raftpb.Entry{group.RaftEntry(&group.Entry{Kind: group.KindPut, Used: true, ID: 5, Index: 1, Term: 1, Data: []byte("data")})}))
	if !log.SyncShared() {
		t.Fatal("the journal did not take it")
	}
	_, err = j.Close() // before the log: as if the process were killed
	must(t, err)
	must(t, log.Close(false))
	must(t, v.Close())

	found, err := journal.Read(vfs.OS{}, dir)
	must(t, err)
	lost := found.Ranges[0]
	segment, err := os.OpenFile(filepath.Join(opts.Dir, group.SegmentName(1)), os.O_RDWR, 0)
	must(t, err)
	_, err = segment.WriteAt(make([]byte, len(lost.Bytes)), lost.Offset) // what a power cut takes
	must(t, err)
	must(t, segment.Close())

	var said bytes.Buffer
	out := &Output{Out: &said, Err: &said}
	for _, c := range []struct {
		repair  bool
		entries int64
		says    string
	}{
		{false, 0, "the journal holds 1 writes, which the next start writes"},
		{true, 1, "1 writes of the journal were written to their segments"},
		{false, 1, ""},
	} {
		said.Reset()
		report, err := VerifyTree(context.Background(), dir, c.repair, out)
		if err != nil || report.Bad() != 0 || report.Entries != c.entries || !strings.Contains(said.String(), c.says) {
			t.Errorf("%+v: %+v, %v\n%s", c, report, err, said.String())
		}
	}
	opts.Journal = nil
	log, _, err = group.Load(context.Background(), opts, nil)
	must(t, err)
	defer log.Close(false)
	if last, err := log.LastIndex(); last != 1 || err != nil {
		t.Errorf("last index %d, %v", last, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
