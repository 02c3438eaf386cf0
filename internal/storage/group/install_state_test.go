package group

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestInstallKeepsAVote checks that an install keeps a vote if the terms are equal. If the export's term is greater,
// there must be no vote.
func TestInstallKeepsAVote(t *testing.T) {
	for _, c := range []struct{ exporterTerm, term, vote uint64 }{{1, 4, 2}, {4, 4, 2}, {5, 5, 0}} {
		d := exporter(t)
		opts := joinerOptions(d.opts, vfstest.NewMem())
		ok(t, install(d.log, opts))
		l := mustLoad(t, opts)
		term, vote, commit := uint64(4), uint64(2), l.AppliedIndex()
		ok(t, l.Append(&raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}, nil))
		ok(t, l.Sync())
		ok(t, l.Close(false)) // without the files that an orderly stop writes, only a state frame holds the vote
		d.term = c.exporterTerm
		d.put(format.Entry{ID: 1, Data: []byte("newer")})
		ok(t, install(d.log, opts))
		l = mustLoad(t, opts)
		hard, _, err := l.InitialState()
		ok(t, err)
		if hard.GetTerm() != c.term || hard.GetVote() != c.vote || hard.GetCommit() != d.last() {
			t.Errorf("export of term %d: %v, want term %d, vote %d", c.exporterTerm, hard, c.term, c.vote)
		}
		ok(t, l.Close(false))
	}
}

// TestExportLeavesOutWhatAnotherLeaderTruncated exports a log in which a void entry has the same index as the last
// applied entry.
func TestExportLeavesOutWhatAnotherLeaderTruncated(t *testing.T) {
	for _, seal := range []bool{false, true} {
		d := exporter(t)
		void := []format.Entry{{ID: 1, Data: []byte("void")}, {ID: 2, Data: []byte("void")}, {ID: 3, Data: []byte("void")}}
		ok(t, d.append(void...))
		from := d.last() - 2
		if seal {
			ok(t, d.log.Seal())
		}
		term := uint64(2)
		empty := raftpb.Entry{Type: raftpb.EntryNormal.Enum(), Index: &from, Term: &term}
		ok(t, d.log.Append(nil, []*raftpb.Entry{&empty}))
		ok(t, d.log.Sync())
		opts := joinerOptions(d.opts, vfstest.NewMem())
		// The export ends at its applied index. A lower applied index makes the segment with the void entries the last one
		// of the export.
		if seal {
			ok(t, install(d.log, opts))
			l := mustLoad(t, opts)
			if last, _ := l.LastIndex(); last != from-1 {
				t.Errorf("last index is %d, want %d", last, from-1)
			}
			ok(t, l.Close(false))
		}
		ok(t, d.log.Apply(from, nil))
		ok(t, install(d.log, opts))
		loadedSame(t, d.log, opts)
		verified(t, opts)
	}
}
