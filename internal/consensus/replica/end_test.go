package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// If a put races with the end of its group, either the put is refused or End fails. No ended group may hold an
// acknowledged put. In half of the rounds, the leadership changes at the same time.
func TestAnEndedGroupHoldsNoAcknowledgedPut(t *testing.T) {
	ended, kept := 0, 0
	for round := range 24 {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			n.lead()
			var all sync.WaitGroup
			var mu sync.Mutex
			acknowledged := 0
			for writer := range 2 {
				all.Go(func() {
					// The put comes before the end, after it, or at the same instant. In the last case, the scheduler decides which
					// of them comes first.
					time.Sleep([]time.Duration{9e6, 10e6, 10e6, 11e6}[round%4])
					_, leader := n.leader(t, 0)
					if _, err := leader.do(t, put(int64(writer), "data")); err == nil {
						mu.Lock()
						acknowledged++
						mu.Unlock()
					} else if !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrOutcomeUnknown) {
						t.Errorf("a put that is not acknowledged: %v", err)
					}
				})
			}
			var err error
			all.Go(func() {
				time.Sleep(10 * time.Millisecond)
				_, leader := n.leader(t, 0)
				err = leader.End(timeout(t), leader.log.Blank)
			})
			if round >= 12 { // the leadership also changes at the same instant
				id, leader := n.leader(t, 0)
				all.Go(func() {
					time.Sleep(10 * time.Millisecond)
					_ = leader.TransferLeader(timeout(t), id%3+1)
				})
			}
			all.Wait()
			switch {
			case err == nil && acknowledged > 0:
				t.Fatalf("the group is ended, and %d puts were acknowledged", acknowledged)
			case err == nil:
				ended++
			case acknowledged > 0 || errors.Is(err, ErrNoLeader) || errors.Is(err, ErrChanging) || errors.Is(err,
				ErrOutcomeUnknown) || errors.Is(err, ErrNotBlank):
				kept++
			default:
				t.Fatalf("nothing was acknowledged, and the group is not ended: %v", err)
			}
		})
	}
	t.Logf("%d groups ended, %d did not", ended, kept)
	if ended == 0 || kept == 0 {
		t.Errorf("the puts and the end did not race: %d groups ended, %d did not", ended, kept)
	}
}

// Every leader of an ended group refuses writes, even after a failover and after each member was killed. The members
// of the group do not change. After Resume, the group accepts writes again.
func TestAnEndedGroupTakesNoWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		id, leader := n.lead()
		ok(t, leader.End(timeout(t), leader.log.Blank))
		ok(t, leader.End(timeout(t), leader.log.Blank)) // a second call of End is allowed
		refuses := func(one *member, when string) {
			t.Helper()
			if _, err := one.do(t, put(1, "x")); !errors.Is(err, ErrEnded) || !errors.Is(err, ErrNoLeader) {
				t.Errorf("%s: a put into an ended group: %v", when, err)
			}
		}
		refuses(leader, "its leader")
		if err := leader.ChangeMembers(timeout(t), change(remove(id%3+1))); !errors.Is(err, ErrEnded) {
			t.Errorf("a change of members of an ended group: %v", err)
		}
		n.isolate(id, true)
		second, leader := n.leader(t, id)
		refuses(leader, "the next leader")
		n.isolate(id, false)
		for _, id := range voters {
			n.stop(id)
		}
		n.startAll()
		third, leader := n.leader(t, 0)
		refuses(leader, fmt.Sprintf("leader %d behind a restart, before it was %d", third, second))
		ok(t, leader.Resume(timeout(t), leader.Status().Term))
		_, err := n.write(t, 0, put(1, "x"))
		ok(t, err)
		_, leader = n.leader(t, 0)
		if err := leader.End(timeout(t), leader.log.Blank); !errors.Is(err, ErrNotBlank) || leader.Ended() {
			t.Errorf("the end of a group with a record: %v", err)
		}
		_, err = n.write(t, 0, del(1))
		ok(t, err)
		_, leader = n.leader(t, 0)
		if err := leader.End(timeout(t), leader.log.Blank); !errors.Is(err, ErrNotBlank) {
			t.Errorf("the end of a group that has to remember a delete: %v", err)
		}
	})
}

// End must notice writes that were accepted while the outcome of an earlier End was unknown.
func TestAGroupThatMayBeEndedIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, vfstest.NewMem(), "/v")
		one := m.open("7", nil)
		held := errors.New("it holds something")
		ok(t, one.End(timeout(t), one.log.Blank))
		if err := one.End(timeout(t), func() error { return held }); !errors.Is(err, held) {
			t.Errorf("the second end: %v", err)
		}
		if _, err := one.do(t, put(1, "x")); !errors.Is(err, ErrEnded) {
			t.Errorf("%v", err)
		}
	})
}

// TestAFormerLeaderEndsNoGroup checks two rules. A replica that still believes that it leads, and knows of an earlier
// end, cannot end a group which its successor has resumed. A replica cannot resume a group in a later term than the
// one in which it made sure that the group is not deleted.
func TestAFormerLeaderEndsNoGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		id, former := n.lead()
		term := former.Status().Term
		ok(t, former.End(timeout(t), former.log.Blank))
		n.isolate(id, true)
		_, leader := n.leader(t, id)
		if err := leader.Resume(timeout(t), term); !errors.Is(err, ErrNoLeader) || !leader.Ended() {
			t.Errorf("resume in another term: %v", err)
		}
		ok(t, leader.Resume(timeout(t), leader.Status().Term))
		_, err := n.write(t, id, put(1, "x"))
		ok(t, err)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := former.End(soon, former.log.Blank); err == nil {
			t.Error("the former leader has ended a group that holds a record")
		}
	})
}

// TestAnEndCountsInTheTermOfItsCheckAlone checks that an end is not proposed in a later term than the one in which the
// group was found empty, because another leader may have accepted writes after the check.
func TestAnEndCountsInTheTermOfItsCheckAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		id, leader := n.lead()
		term, err := leader.beginEnd(leader.log.Blank)
		ok(t, err)
		ok(t, leader.TransferLeader(timeout(t), id%3+1))
		_, other := n.leader(t, id)
		_, err = other.do(t, put(1, "x"))
		ok(t, err)
		ok(t, other.TransferLeader(timeout(t), id))
		for !leader.Status().Leader {
			time.Sleep(time.Millisecond)
		}
		err = leader.changeMembers(timeout(t), term, change(&raftpb.ConfChangeSingle{
			Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: new(format.EndedID),
		}))
		if !errors.Is(err, ErrNoLeader) || leader.Ended() {
			t.Errorf("the group that holds a record has ended: %v", err)
		}
	})
}
