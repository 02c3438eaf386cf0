package shard

import (
	"testing"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/page"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

func TestBlobsCountOnlyWhenTheyAreHere(t *testing.T) {
	segment := transfer.File{Kind: transfer.SegmentFile, Bytes: 100, Have: 30}
	blob := transfer.File{Kind: transfer.BlobFile, Bytes: 400}
	for _, one := range []struct {
		missing []transfer.File
		want    int64
	}{
		// The segments have 130 bytes in total, and 70 of them are missing. As long as segments are missing, the blob of
		// 400 bytes does not count.
		{[]transfer.File{segment}, 530 - 400 - 70},
		{[]transfer.File{blob}, 130},
		{nil, 530},
	} {
		if got := haveBytes(one.missing, 130, 530); got != one.want {
			t.Errorf("%v are missing: %d bytes are here, want %d", one.missing, got, one.want)
		}
	}
}

// A shard reports the progress of the copies that it receives. A group's leader reports the progress of the group's
// members.
func TestAMoveShowsHowFarItIs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, placement.Routing{Mode: placement.Hash, Groups: 1}, []string{"a"}, "d")
		c.settled("a")
		c.fill(6, 1000_000)
		c.kill("a")
		c.shards["a"] = c.stopped["a"].again(func(cfg *Config) { cfg.Limits.FetchBytesPerSecond = 1 << 20 })
		a, d := c.shards["a"], c.shards["d"]
		c.aim("d")
		var last *recordv1.Move
		c.eventually("d tells of files with a rate", func() bool {
			out, err := d.admin.PlanMoves(d.ctx(), &recordv1.PlanMovesRequest{})
			must(t, err)
			if len(out.GetMoves()) != 1 {
				return false
			}
			last = out.GetMoves()[0]
			return last.GetCopies()[0].GetBytesPerSecond() > 0
		})
		one := last.GetCopies()[0]
		if last.GetGroup() != "0" || !last.GetRunning() || last.GetPhase() != recordv1.MovePhase_MOVE_PHASE_COPYING ||
			one.GetShard() != "d" || one.GetFrom() != "a" ||
			one.GetPhase() != recordv1.CopyPhase_COPY_PHASE_FILES || one.GetBytesTotal() < 6000_000 || one.GetBytesDone() <= 0 ||
			one.GetBytesDone() >= one.GetBytesTotal() || one.GetEtaSeconds() <= 0 {
			t.Errorf("move: %v", last)
		}
		// The status shows the copy that is being received, but does not count it among the groups that d should be
		// serving.
		st := d.shard.Status()
		if len(st.Moves) != 1 || st.Summary.State != page.Ready {
			t.Errorf("status: %+v, moves %+v", st.Summary, st.Moves)
		} else if m := st.Moves[0].GetCopies()[0]; st.Moves[0].GetGroup() != "0" || m.GetFrom() != "a" ||
			m.GetShard() != "d" ||
			m.GetPhase() != recordv1.CopyPhase_COPY_PHASE_FILES ||
			m.BytesTotal != one.GetBytesTotal() ||
			m.BytesDone < one.GetBytesDone() || m.BytesPerSecond <= 0 || m.EtaSeconds == nil {
			t.Errorf("status: %+v", m)
		}
		rows, err := d.admin.ListGroups(d.ctx(), &recordv1.ListGroupsRequest{})
		if err != nil || len(rows.GetGroups()) != 1 || rows.GetGroups()[0].GetCopy().GetBytesTotal() != one.GetBytesTotal() {
			t.Errorf("d's groups: %v, %v", rows, err)
		}
		c.eventually("the leader tells of its learner", func() bool {
			rows, err := a.admin.ListGroups(a.ctx(), &recordv1.ListGroupsRequest{Group: "0"})
			must(t, err)
			row := rows.GetGroups()[0]
			m := row.GetMembers()
			if len(m) != 2 {
				return false
			}
			if m[0].GetShard() != "a" {
				m[0], m[1] = m[1], m[0]
			}
			if row.GetRole() != recordv1.MemberRole_MEMBER_ROLE_LEADER || row.GetLagEntries() != 0 || row.GetMatchIndex() < 6 ||
				m[0].GetRole() != recordv1.MemberRole_MEMBER_ROLE_LEADER || !m[0].GetCaughtUp() ||
				m[1].GetRole() != recordv1.MemberRole_MEMBER_ROLE_LEARNER || m[1].GetShard() != "d" || m[1].GetCaughtUp() ||
				m[1].GetLagEntries() < 6 {
				t.Errorf("leader: %v", row)
			}
			return true
		})
		// When the copy is no longer wanted, nobody waits until it is complete.
		c.aim("a")
		c.settled("a")
		c.eventually("d makes no copy any more", func() bool {
			out, err := d.admin.PlanMoves(d.ctx(), &recordv1.PlanMovesRequest{})
			return err == nil && len(out.GetMoves()) == 0
		})
	})
}
