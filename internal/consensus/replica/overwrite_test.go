package replica

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.etcd.io/raft/v3/raftpb"
)

// silent drops the entries that members send, except those from one member.
type silent struct {
	Transport
	but *atomic.Uint64 // the only member whose entries are sent; if it is 0, all entries are sent
}

func (s silent) Send(messages []*raftpb.Message) {
	but := s.but.Load()
	s.Transport.Send(slices.DeleteFunc(slices.Clone(messages), func(m *raftpb.Message) bool {
		return but != 0 && m.GetFrom() != but && m.GetType() == raftpb.MsgApp
	}))
}

// The first leader writes an entry that reaches no other member. The second leader writes its own entry at the same
// index, in a newer term. Then the first member leads again, and its entry from the older term replaces the entry from
// the newer term. The second leader must not mistake this for damage to its log.
func TestAnEntryOfAnOlderTermGoesOverOneOfANewerTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		but := &atomic.Uint64{}
		n.change = func(_ uint64, o *Options) { o.Transport = silent{o.Transport, but} }
		n.startAll()
		_, leader := n.lead()
		leader.must(t, put(1, "committed"))
		synctest.Wait()
		first, old, write := n.isolateAndWrite(t, put(2, "brought along"))
		but.Store(first)
		synctest.Wait()
		index, err := old.log.LastIndex()
		ok(t, err)
		older, err := old.log.Term(index)
		ok(t, err)
		var second uint64
		until(t, "another one leads", func() bool {
			for id, one := range n.members {
				if id != first && one.Status().LeaderID == id {
					second = id
				}
			}
			return second != 0
		})
		synctest.Wait()
		n.isolate(second, true)
		two := n.members[second]
		if term, err := two.log.Term(index); err != nil || term <= older {
			t.Fatalf("index %d of the second leader has term %d, %v; that of the first one has %d", index, term, err, older)
		}
		but.Store(0)
		n.isolate(first, false)
		until(t, "the first one leads again", func() bool {
			is, was := old.Status(), two.Status()
			return is.Leader && is.Term > was.Term
		})
		n.isolate(second, false)
		_, err = n.write(t, second, put(3, "behind"))
		ok(t, err)
		check := func(two *member) {
			t.Helper()
			until(t, "applied by the second leader", func() bool { return two.log.AppliedIndex() > index })
			if term, err := two.log.Term(index); err != nil || term != older {
				t.Errorf("index %d has term %d, %v, not %d", index, term, err, older)
			}
			report, err := two.log.Verify(t.Context(), 0)
			ok(t, err)
			if len(report.Damages) > 0 {
				t.Errorf("verify: %v", report.Damages)
			}
			n.wantData(t, two, 2, "brought along")
		}
		check(two)
		n.stop(second)
		check(n.start(second))
		_, _ = write.Wait(timeout(t)) // the outcome of this write is unknown, and does not matter
	})
}
