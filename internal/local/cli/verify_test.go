package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestVerifyKnowsTheJournal checks data that is only in the journal after a power cut. Verify must report it, and a
// repair must first write it to its segment.
func TestVerifyKnowsTheJournal(t *testing.T) {
	dir := t.TempDir()
	store, id := uuid.New(), uuid.New()
	v, err := volume.Open(volume.Options{FS: vfs.OS{}, Dir: dir, Store: store, Shard: "s1", Create: true,
		ReserveBytes: 16 << 20})
	must.OK(t, err)
	j := journal.New(journal.Options{FS: vfs.OS{}, Dir: dir, Begin: func() error { return v.SetJournal(true) }})
	opts := group.Options{FS: vfs.OS{}, Dir: v.GroupDir(id), Identity: format.Identity{Store: store, Group: id, Name: "g"},
		Journal: j}
	must.OK(t, group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}))
	log, _, err := group.Load(context.Background(), opts, nil)
	must.OK(t, err)
	must.OK(t, log.Append(nil, []*raftpb.Entry{format.RaftEntry(&format.Entry{Kind: format.KindPut, Used: true, ID: 5,
		Index: 1, Term: 1, Data: []byte("data")})}))
	if !log.SyncShared() {
		t.Fatal("the journal did not take it")
	}
	_, err = j.Close() // the journal is closed before the log, as if the process had been killed
	must.OK(t, err)
	must.OK(t, log.Close(false))
	must.OK(t, v.Close())

	found, err := journal.Read(vfs.OS{}, dir)
	must.OK(t, err)
	lost := found.Ranges[0]
	segment, err := os.OpenFile(filepath.Join(opts.Dir, format.SegmentName(1)), os.O_RDWR, 0)
	must.OK(t, err)
	_, err = segment.WriteAt(make([]byte, len(lost.Bytes)), lost.Offset) // simulates that a power cut has lost these bytes
	must.OK(t, err)
	must.OK(t, segment.Close())

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
		report, err := VerifyTree(context.Background(), dir, VerifyTreeOptions{Repair: c.repair}, out)
		if err != nil || report.Bad() != 0 || report.Entries != c.entries || !strings.Contains(said.String(), c.says) {
			t.Errorf("%+v: %+v, %v\n%s", c, report, err, said.String())
		}
	}
	opts.Journal = nil
	log, _, err = group.Load(context.Background(), opts, nil)
	must.OK(t, err)
	defer log.Close(false)
	if last, err := log.LastIndex(); last != 1 || err != nil {
		t.Errorf("last index %d, %v", last, err)
	}
}

// TestVerifyReportsGroupsInOrder checks that the report lists the groups of a volume in order, although they are
// checked at the same time.
func TestVerifyReportsGroupsInOrder(t *testing.T) {
	const groups, bad = 9, 4
	dir, folders := plainVolume(t, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	damaged := folders[bad]
	segment, err := os.OpenFile(filepath.Join(damaged, format.SegmentName(1)), os.O_RDWR, 0)
	must.OK(t, err)
	_, err = segment.WriteAt([]byte("X"), format.SegmentHeaderBytes+format.FrameHeaderBytes) // damages the first entry
	must.OK(t, err)
	must.OK(t, segment.Close())

	var said bytes.Buffer
	out := &Output{Out: &said, Err: &said}
	report, err := VerifyTree(context.Background(), dir, VerifyTreeOptions{}, out)
	must.OK(t, err)
	if len(report.Groups) != groups || report.Entries != groups*(groups+1)/2-1 || report.Bad() != 1 {
		t.Fatalf("%d groups, %d entries, %d damages\n%+v", len(report.Groups), report.Entries, report.Bad(), report)
	}
	var bytes int64
	for i, g := range report.Groups {
		bytes += g.Bytes
		if i > 0 && g.Dir <= report.Groups[i-1].Dir {
			t.Errorf("group %d is in %s, the one before in %s", i, g.Dir, report.Groups[i-1].Dir)
		}
		if (len(g.Damages) == 1) != (g.Dir == damaged) || g.Error != "" {
			t.Errorf("%+v; what is damaged is %s", g, damaged)
		}
	}
	if report.Bytes != bytes || bytes == 0 {
		t.Errorf("%d bytes of %d", report.Bytes, bytes)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if report, err := VerifyTree(ended, dir, VerifyTreeOptions{}, out); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %+v, %v", report, err)
	}
	repaired, err := VerifyTree(context.Background(), dir, VerifyTreeOptions{Repair: true}, out)
	must.OK(t, err)
	for _, g := range repaired.Groups {
		if (len(g.Quarantined) > 0) != (g.Dir == damaged) || !g.Whole || g.Error != "" {
			t.Errorf("repaired: %+v; what was damaged is %s", g, damaged)
		}
	}
	if report, err := VerifyTree(context.Background(), dir, VerifyTreeOptions{}, out); err != nil || report.Bad() != 0 ||
		len(report.Groups) != groups {
		t.Errorf("after the repair: %+v, %v", report, err)
	}
}
