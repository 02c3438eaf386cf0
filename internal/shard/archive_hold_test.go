package shard

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
)

// historyOf looks for each element of all in the log of a replica. It returns the indices of the elements that the
// log still contains.
func historyOf(t *bubble, f *fixture, name string, all [][]byte) (there []int) {
	t.Helper()
	log := f.shard.replicas.Routes().ByName[name].Served().Log()
	have, err := log.ReadRange(group.IndexRange{First: 1, Last: log.AppliedIndex()}, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	for i, data := range all {
		if slices.ContainsFunc(have.Entries, func(e *raftpb.Entry) bool { return bytes.Contains(e.GetData(), data) }) {
			there = append(there, i)
		}
	}
	return there
}

// TestEveryMemberHoldsWhatIsNotArchived checks that compaction keeps entries that are not archived yet, on the leader
// and on the other members, even after a failover. If compaction nevertheless drops such entries, the history floor
// must rise.
func TestEveryMemberHoldsWhatIsNotArchived(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, oneGroup, abc)
		c.settled(abc...)
		a, w := newArchiver(c), &writer{cluster: c}
		var versions [][]byte
		put := func() {
			w.next = w.next + 10 - w.next%10 - 1 // this makes every put write record 0
			w.puts(1, 2000)
			versions = append(versions, w.acks[len(w.acks)-1].data)
		}
		compact := func() {
			for _, name := range abc {
				f := c.shards[name]
				if f == nil {
					continue
				}
				if _, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", All: true}); err != nil {
					t.Fatalf("compaction on %s: %v", name, err)
				}
			}
		}
		put() // version 0 is going to be archived
		for range 3 {
			a.round()
		}
		put() // at first, versions 1 to 3 are not archived
		put()
		put()
		time.Sleep(time.Minute) // by then, the members know from which index on they must keep entries
		compact()
		for _, name := range abc {
			if got := historyOf(t, c.shards[name], "0", versions); !slices.Equal(got, []int{0, 1, 2, 3}) {
				t.Errorf("shard %s has dropped what is not archived, and has the versions %v", name, got)
			}
		}
		c.kill(c.leaderOf("0"))
		c.leaderOf("0")
		compact()
		g := a.of("0")
		killed := time.Now()
		c.eventually("the new leader answers", func() bool {
			a.round()
			return g.readAt.After(killed)
		})
		for i, data := range versions {
			if !bytes.Contains(g.entries, data) {
				t.Errorf("version %d is not in the archive after a failover", i)
			}
		}
		mark := g.through
		if a.round(); !g.floored || g.floor > mark {
			t.Errorf("nothing was dropped, but the floor is %d (known: %v), and %d is archived", g.floor, g.floored, mark)
		}
		// Now all versions are archived, so compaction may drop them. The new leader reports the new hold to the other
		// members.
		time.Sleep(12 * time.Minute) // compaction also keeps a version for 10 minutes after it was superseded
		compact()
		leader := c.shards[c.leaderOf("0")]
		for _, f := range c.shards {
			if got := historyOf(t, f, "0", versions); !slices.Equal(got, []int{3}) {
				t.Errorf("shard %s (leader %v) still has the versions %v, though all of them are archived", f.cfg.Name, f == leader,
					got)
			}
		}
		// A compaction that ignores the hold drops versions that are not archived yet. When that happens, the floor must
		// rise.
		mark = g.through
		put()
		put()
		log := leader.shard.replicas.Routes().ByName["0"].Served().Log()
		if err := log.Seal(); err != nil {
			t.Fatal(err)
		}
		if _, err := log.Compact(t.Context(), group.CompactOptions{All: true, IgnoreHold: true}); err != nil {
			t.Fatal(err)
		}
		if got := historyOf(t, leader, "0", versions); slices.Contains(got, 4) {
			t.Errorf("version 4 was not dropped: %v", got)
		}
		if a.round(); !g.floored || g.floor <= mark {
			t.Errorf("a version was dropped above %d, but the floor is %d (known: %v)", mark, g.floor, g.floored)
		}
	})
}

// A new leader continues the hold of its predecessor, even if it did not know of the hold before. A store without an
// archive has no holds.
func TestTheNextLeaderGoesOnWithTheHold(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, oneGroup, abc)
		c.settled(abc...)
		holds := func(name string) (at uint64, on bool) {
			s := c.shards[name].shard
			return s.compactor.History.Of(t.Context(), s.replicas.Routes().ByName["0"].Served(),
				c.registry.now().Groups["0"])
		}
		for _, name := range abc {
			if at, on := holds(name); on {
				t.Errorf("without an archiver, shard %s holds from %d on", name, at)
			}
		}
		a := newArchiver(c)
		for range 3 {
			a.round()
		}
		position := a.of("0").through
		time.Sleep(10 * time.Second)
		c.kill(c.leaderOf("0"))
		if at, on := holds(c.leaderOf("0")); !on || at != position {
			t.Errorf("the next leader holds from %d on (%v), and %d is archived", at, on, position)
		}
	})
}

// What a shard has reported of a group's archive remains in etcd when it reports other groups only, also after a
// restart: the next leader may not have read it yet, and would otherwise give up the history.
func TestAReportOfAHoldOutlivesTheLead(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, oneGroup, abc)
		c.settled(abc...)
		served := func(name string) *replicas.Served { return c.shards[name].shard.replicas.Routes().ByName["0"].Served() }
		for _, name := range abc { // each of them has no archive, as far as it knows now
			c.shards[name].shard.compactor.History.Of(t.Context(), served(name), c.registry.now().Groups["0"])
		}
		a := newArchiver(c)
		for range 3 {
			a.round()
		}
		position, old := a.of("0").through, c.leaderOf("0")
		time.Sleep(time.Minute)
		c.kill(old)
		next := c.leaderOf("0")
		c.restart(old)
		c.eventually("the former leader serves its copy", func() bool {
			g := c.shards[old].shard.replicas.Routes().ByName["0"]
			return g != nil && g.Served() != nil
		})
		s := c.shards[old].shard
		again := &reporter{cfg: &s.cfg, holds: s.compactor.History}
		weights, err := again.leaders(t.Context(), s.replicas.Routes())
		if w := weights["0"]; err != nil || !w.Holds || w.Hold != position {
			t.Errorf("shard %s does not repeat the hold at %d, which it has reported: %+v, %v", old, position, w, err)
		}
		state := c.registry.now().Groups["0"]
		if at, on := c.shards[next].shard.compactor.History.Of(t.Context(), served(next), state); !on || at != position {
			t.Errorf("the next leader holds from %d on (%v), and %d is archived", at, on, position)
		}
	})
}

// endHistory ends the holds on all shards, once. It returns how many groups had a hold, and how many wait.
func (c *cluster) endHistory() (ended, waiting uint32, err error) {
	for name, f := range c.shards {
		out, err := archivev1.NewArchiveServiceClient(f.conn).EndHistory(c.t.Context(),
			&archivev1.EndHistoryRequest{Header: c.archiveHeader(name)})
		if err != nil {
			return ended, waiting, err
		}
		ended, waiting = ended+out.GetEnded(), waiting+out.GetWaiting()
	}
	return ended, waiting, nil
}

// When an archive has ended, no member keeps history for it any more, not even after a failover or a restart. An
// archiver that comes later holds again, and hears of the hole.
func TestTheEndOfAnArchiveEndsItsHolds(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, oneGroup, abc)
		c.settled(abc...)
		a, w := newArchiver(c), &writer{cluster: c}
		var versions [][]byte
		put := func() {
			w.next = w.next + 10 - w.next%10 - 1 // this makes every put write record 0
			w.puts(1, 2000)
			versions = append(versions, w.acks[len(w.acks)-1].data)
		}
		put()
		for range 3 {
			a.round()
		}
		put()
		put()
		compact := func() { // each member looks up the hold
			for _, f := range c.shards {
				if _, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", All: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Minute)
		compact()
		for name, f := range c.shards {
			if got := historyOf(t, f, "0", versions); !slices.Equal(got, []int{0, 1, 2}) {
				t.Errorf("shard %s has the versions %v", name, got)
			}
		}
		if _, _, err := c.endHistory(); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("while an archiver follows: %v", err)
		}
		for _, call := range a.calls {
			if err := call.stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
		}
		a.calls = map[string]*followed{}
		ended := uint32(0)
		c.eventually("all holds have ended", func() bool {
			some, waiting, err := c.endHistory()
			if err != nil {
				t.Logf("the archiver's calls have not ended yet: %v", err)
				return false
			}
			ended += some
			compact()
			return some == 0 && waiting == 0
		})
		if ended != 3 {
			t.Errorf("%d holds have ended", ended)
		}
		check := func(when string) {
			time.Sleep(time.Minute) // the members read what the leader has reported
			compact()
			for name, f := range c.shards {
				sv := f.shard.replicas.Routes().ByName["0"].Served()
				if floor, known := sv.Log().HistoryFloor(); known {
					t.Errorf("%s: shard %s has the history floor %d", when, name, floor)
				}
				if at, on := f.shard.compactor.History.Of(t.Context(), sv, c.registry.now().Groups["0"]); on {
					t.Errorf("%s: shard %s holds from %d on", when, name, at)
				}
				if got := historyOf(t, f, "0", versions); !slices.Equal(got, []int{2}) {
					t.Errorf("%s: shard %s has the versions %v", when, name, got)
				}
			}
		}
		check("at the end")
		c.kill(c.leaderOf("0"))
		c.leaderOf("0")
		check("after a failover")
		mark := a.of("0").through
		put()
		c.eventually("the archiver hears of the hole", func() bool {
			a.round()
			return a.of("0").through > mark
		})
		if g := a.of("0"); !g.floored || g.floor <= mark {
			t.Errorf("%d was archived, and the floor is %d (known: %v)", mark, g.floor, g.floored)
		}
	})
}

// holdOf starts a shard with two groups, neither of which was archived yet. Group 0 has a long history, and group 1
// has a short one.
func holdOf(t *bubble, bytesMax int64) (*fixture, *askingArchiver) {
	t.Helper()
	two := placement.Routing{Mode: placement.Hash, Groups: 2}
	c := &cluster{t: t, registry: newRegistry(two, "a"), shards: map[string]*fixture{}}
	f := c.add("a", func(cfg *Config) {
		cfg.Compaction = Compaction{Interval: time.Second, SupersededBytesMin: 1 << 10, HoldBytesMax: bytesMax}
	})
	c.settled("a")
	a := newArchiver(c)
	a.round()
	a.round()
	for n, ids := range [][]int64{idsOf(two, 0, 2), idsOf(two, 1, 2)} {
		for i := range 60 - 40*n {
			f.put(ids[0], data(int64(i), 20_000))
		}
	}
	time.Sleep(time.Minute)
	return f, a
}

// Entries are held for an archiver that does not read them, but only up to a certain number of bytes. Beyond that, the
// group that holds the most drops its history.
func TestHoldsKeepOnlySoMuch(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f, a := holdOf(t, 0) // by default, the limit is 5 % of the volume
		kept := f.onDisk()
		if a.round(); kept < 1_500_000 {
			t.Errorf("%d bytes are stored, and 1.6 MB are not archived", kept)
		}
		f, a = holdOf(t, 600_000)
		if n := f.onDisk(); n > kept-600_000 {
			t.Errorf("%d bytes are stored, with a limit of 600,000 bytes, and %d without it", n, kept)
		}
		much, little := a.of("0"), a.of("1")
		positions := []uint64{much.through, little.through}
		if a.round(); much.floor <= positions[0] || little.floor > positions[1] {
			t.Errorf("the floors are %d and %d, and the positions %v", much.floor, little.floor, positions)
		}
	})
}

// Deletes above the hold stay while only bytes of superseded versions are given up. If a volume runs out of space, they
// go, too, even if they are all that the hold keeps. The archiver then learns that it must copy the group again.
func TestDeletesGiveWayToSpaceLast(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := &cluster{t: t, registry: newRegistry(oneGroup, "a"), shards: map[string]*fixture{}}
		f := c.add("a", func(cfg *Config) { cfg.Compaction = Compaction{Interval: time.Second, HoldBytesMax: 1 << 40} })
		c.settled("a")
		const records = 100
		for id := range int64(records) {
			f.put(id, data(id, 100))
		}
		a := newArchiver(c)
		for range 3 {
			a.round()
		}
		for id := range int64(records) {
			f.delete(id)
		}
		log := f.shard.replicas.Routes().ByName["0"].Served().Log()
		if err := log.Seal(); err != nil {
			t.Fatal(err)
		}
		position := a.of("0").through
		for range 3 {
			if _, err := log.Compact(t.Context(), group.CompactOptions{All: true, IgnoreHold: true}); err != nil {
				t.Fatal(err)
			}
		}
		if held := log.Stats().HeldBytes; held > 0 || log.DeletesFloor() > position {
			t.Errorf("%d bytes are held besides deletes, and the floor of deletes is %d", held, log.DeletesFloor())
		}
		time.Sleep(time.Minute)
		for range 2 {
			f.shard.compactor.AskForSpace(1 << 60)
			time.Sleep(time.Minute)
		}
		if floor := log.DeletesFloor(); floor <= position {
			t.Errorf("no delete was given up: the floor of deletes is %d, and the position %d", floor, position)
		}
		if a.round(); !a.of("0").again || a.of("0").through != position {
			t.Errorf("deletes above %d are missing, and the archiver is told: again %t, through %d, %s", position,
				a.of("0").again, a.of("0").through, a.of("0").why)
		}
	})
}

// If a volume runs out of space, it drops history in spite of the hold.
func TestHoldsGiveWayToSpace(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f, a := holdOf(t, 1<<40)
		before := f.onDisk()
		f.shard.compactor.AskForSpace(1 << 60)
		synctest.Wait()
		if after := f.onDisk(); after > before/2 {
			t.Errorf("%d of %d bytes are left", after, before)
		}
		g := a.of("0")
		position := g.through
		if a.round(); g.floor <= position {
			t.Errorf("the floor is %d, and the position %d", g.floor, position)
		}
	})
}
