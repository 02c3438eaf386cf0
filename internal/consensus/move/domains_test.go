package move_test

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/consensus/move"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// model holds what stays constant in the worlds that TestEveryStateLeadsToTheTarget explores.
type model struct {
	targets [][]string
	domains string // failure domain of each shard, one byte per shard
}

// shared counts the voters in a configuration that are in the same domain as an earlier voter.
func (m *model) shared(conf [slots]byte) (n int) {
	seen := map[byte]bool{}
	for slot, role := range conf {
		if role == voter {
			if seen[m.domains[slot/2]] {
				n++
			}
			seen[m.domains[slot/2]] = true
		}
	}
	return n
}

// checkDomains checks that no change puts more voters into one domain than the group had before, or than the target
// has. If copies are missing, new voters may be added in any case, but they must share as few domains as the
// caught-up learners allow. If the group has only one copy, there is nothing to check.
func (w *world) checkDomains(before *world, m *model) error {
	copies := len(m.targets[w.target])
	had, _ := before.voters()
	now, _ := w.voters()
	var at [slots]byte
	for _, shard := range m.targets[w.target] {
		at[2*int(shard[0]-'a')] = voter
	}
	most := max(m.shared(before.conf), m.shared(at))
	if had < copies {
		most = before.leastShared(m, now-had)
	}
	if is := m.shared(w.conf); is > most && copies > 1 {
		return fmt.Errorf("%d voters too many would share a domain, and %d must", is, most)
	}
	return nil
}

// leastShared returns the smallest possible number of voters that share a domain after n of the caught-up learners
// have become voters.
func (w *world) leastShared(m *model, n int) int {
	least := slots
	for set := range 1 << slots {
		if bits.OnesCount(uint(set)) != n {
			continue
		}
		with, possible := *w, true
		for slot := range slots {
			if set>>slot&1 == 0 {
				continue
			}
			possible = possible && w.conf[slot] == learner && w.well(slot) &&
				slices.Contains(m.targets[w.target], shardName(slot/2))
			with.conf[slot] = voter
		}
		if possible {
			least = min(least, m.shared(with.conf))
		}
	}
	return least
}

// topology is a group on shards in domains, together with a target. Shard n's replica has the Raft id n+1.
type topology struct {
	domains  []string // domain of each shard; empty if the shard reports none
	from, to []int    // numbers of the shards; the first shard in to should lead
}

// domain returns a shard's domain, or a unique domain if the shard reports none.
func (c *topology) domain(shard int) string {
	if d := c.domains[shard]; d != "" {
		return d
	}
	return fmt.Sprint("own ", shard)
}

// shared counts the shards that are in the same domain as a shard before them in the list.
func (c *topology) shared(list []int) int {
	seen := map[string]bool{}
	for _, shard := range list {
		seen[c.domain(shard)] = true
	}
	return len(list) - len(seen)
}

// needed returns the number of shared domains that a move from the group to the target cannot avoid. It considers all
// sequences of memberships that lead to the target. The worst membership of a sequence determines the number for that
// sequence, and needed returns the smallest number. A step may be any that Raft allows. It leads to any set that has
// as many voters as there are copies and keeps at least one of the previous voters, because a previous voter leads
// during the change.
func (c *topology) needed() int {
	all := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(c.from), c.to...))))
	set := func(list []int) (bits uint) {
		for _, shard := range list {
			bits |= 1 << slices.Index(all, shard)
		}
		return bits
	}
	for most := 0; ; most++ {
		var open []uint
		for s := range uint(1) << len(all) {
			var list []int
			for n, shard := range all {
				if s>>n&1 == 1 {
					list = append(list, shard)
				}
			}
			if len(list) == len(c.to) && c.shared(list) <= most {
				open = append(open, s)
			}
		}
		reached := []uint{set(c.from)}
		if c.shared(c.from) > most {
			continue
		}
		for n := 0; n < len(reached); n++ {
			if reached[n] == set(c.to) {
				return most
			}
			open = slices.DeleteFunc(open, func(s uint) bool {
				near := s&reached[n] != 0
				if near {
					reached = append(reached, s)
				}
				return near
			})
		}
	}
}

// topologies draws groups of 3 or 5 copies. There are few domains, so that the shards of the group and its target share
// many of them. If apart is true, neither the group nor the target has two shards in one domain.
func topologies(t *rapid.T, apart bool) *topology {
	copies := rapid.SampledFrom([]int{3, 3, 5}).Draw(t, "copies")
	c := &topology{domains: make([]string, copies+rapid.IntRange(1, copies).Draw(t, "more"))}
	names := []string{"", "n1", "n2", "n3", "n4", "n5", "n6"}[:copies+2]
	for n := range c.domains {
		c.domains[n] = rapid.SampledFrom(names).Draw(t, "domain")
	}
	draw := func(what string) (list []int) {
		order := make([]int, len(c.domains))
		for n := range order {
			order[n] = n
		}
		for _, shard := range rapid.Permutation(order).Draw(t, what) {
			if with := append(slices.Clone(list), shard); len(list) < copies && (!apart || c.shared(with) == 0) {
				list = with
			}
		}
		return list
	}
	if c.from, c.to = draw("from"), draw("to"); len(c.from) < copies || len(c.to) < copies {
		t.Skip("too few domains")
	}
	return c
}

// drive lets a leader decide until there is nothing left to do. Everything else is drawn at random, such as which
// copy catches up next, and which voter leads. The shard with the number `never` stays silent. If that number is -1,
// all shards respond. The function see is called with each membership during the move.
func (c *topology) drive(t *rapid.T, never int, see func(a move.Action, voters []int)) {
	s := move.State{
		Self: uint64(c.from[0]) + 1, Conf: &raftpb.ConfState{}, Last: 5000, Progress: map[uint64]move.Progress{},
		Shards:  map[string]move.Shard{},
		FreshID: 1001, LearnersMax: -1,
	}
	name := func(shard int) string { return fmt.Sprintf("s%02d", shard) }
	for n, d := range c.domains {
		s.Shards[name(n)] = move.Shard{Domain: d, Volume: uuid.UUID{byte(n + 1)}, Alive: n != never}
		s.Progress[uint64(n)+1] = move.Progress{Active: n != never}
	}
	well := move.Progress{Match: 5000, Replicating: true, Active: true}
	for _, n := range c.from {
		s.Conf.Voters = append(s.Conf.Voters, uint64(n)+1)
		s.Members = append(s.Members, placement.Member{Shard: name(n), VolumeUUID: uuid.UUID{byte(n + 1)},
			RaftID: uint64(n) + 1})
		s.Progress[uint64(n)+1] = well
	}
	for _, n := range c.to {
		s.Target = append(s.Target, name(n))
	}
	for step := 0; ; step++ {
		if step > 200 {
			t.Fatalf("no end: voters %v, learners %v", s.Conf.GetVoters(), s.Conf.GetLearners())
		}
		if rapid.IntRange(0, 9).Draw(t, "the lead changes") == 0 {
			s.Self = rapid.SampledFrom(s.Conf.GetVoters()).Draw(t, "leader")
		}
		a := move.Decide(s)
		switch a.Kind {
		case move.Nothing:
			behind := slices.DeleteFunc(slices.Clone(s.Conf.GetLearners()), func(id uint64) bool {
				return s.Progress[id].Replicating || int(id)-1 == never
			})
			if len(behind) == 0 {
				if !a.Done && never < 0 {
					t.Fatalf("it stops: %v", a)
				}
				return
			}
			s.Progress[rapid.SampledFrom(behind).Draw(t, "caught up")] = well
		case move.RecordMembers:
			s.Members = slices.Clone(a.Members)
			if n := len(s.Members) - 1; a.ID != 0 { // the Raft id of a shard's replica is the number of the shard plus 1
				for shard := range c.domains {
					if name(shard) == s.Members[n].Shard {
						s.Members[n].RaftID = uint64(shard) + 1
					}
				}
			}
		case move.TransferLeader:
			s.Self = a.ID
		default:
			c.take(t, &s, a)
			var voters []int
			for _, id := range s.Conf.GetVoters() {
				voters = append(voters, int(id)-1)
			}
			see(a, voters)
		}
	}
}

// take applies a membership change.
func (c *topology) take(t *rapid.T, s *move.State, a move.Action) {
	conf := &raftpb.ConfState{Voters: slices.Clone(s.Conf.GetVoters()), Learners: slices.Clone(s.Conf.GetLearners())}
	for _, change := range a.Change().GetChanges() {
		id := change.GetNodeId()
		is := func(other uint64) bool { return other == id }
		conf.Learners = slices.DeleteFunc(conf.GetLearners(), is)
		switch change.GetType() {
		case raftpb.ConfChangeAddLearnerNode:
			conf.Learners = append(conf.Learners, id)
		case raftpb.ConfChangeAddNode:
			conf.Voters = append(conf.Voters, id)
		default:
			conf.Voters = slices.DeleteFunc(conf.GetVoters(), is)
		}
	}
	if !slices.Contains(conf.GetVoters(), s.Self) {
		t.Fatalf("%v: the leader would remove itself", a)
	}
	s.Conf = conf
}

// TestNoMembershipOnTheWaySharesADomain moves a group from one set of shards to another. In each set, all shards are
// in different domains. In every membership during the move, all voters must be in different domains. This must hold
// regardless of the order in which copies catch up and of which voter leads, and even if one copy never catches up. A
// search of all orders shows that a suitable order always exists, so package placement need not warn about such
// moves.
func TestNoMembershipOnTheWaySharesADomain(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		c := topologies(t, true)
		if n := c.needed(); n != 0 {
			t.Fatalf("every order shares %d", n)
		}
		never := rapid.IntRange(-1, len(c.domains)-1).Draw(t, "never comes")
		if slices.Contains(c.from, never) {
			never = -1
		}
		c.drive(t, never, func(a move.Action, voters []int) {
			if c.shared(voters) > 0 {
				t.Fatalf("%v: voters %v of %+v share a domain", a, voters, c)
			}
		})
	})
}

// The first or the last membership of a move may have voters in shared domains. No membership in between may have
// more of them than the worse of these two.
func TestNoMoreDomainsAreSharedOnTheWayThanMustBe(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		c := topologies(t, false)
		most := max(c.shared(c.from), c.shared(c.to))
		if n := c.needed(); n != most {
			t.Fatalf("the best order shares %d, its ends %d", n, most)
		}
		c.drive(t, -1, func(a move.Action, voters []int) {
			if c.shared(voters) > most {
				t.Fatalf("%v: voters %v of %+v share %d, needed are %d", a, voters, c, c.shared(voters), most)
			}
		})
	})
}

// poolsState is a group on a, b and c, led by a, in the domains 1 to 3. Its targets are x, y and z, in the same domains
// in the same order. Members are numbered from 1 in alphabetical order. The members in ready are learners that have
// caught up.
func poolsState(ready ...uint64) move.State {
	s := move.State{
		Self: 1, Conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}, Learners: []uint64{4, 5, 6}}, Last: 5000,
		Progress: map[uint64]move.Progress{},
		Target:   []string{"z", "y", "x"}, Shards: map[string]move.Shard{}, FreshID: 99, LearnersMax: -1,
	}
	for n, name := range []string{"a", "b", "c", "x", "y", "z"} {
		id, volume := uint64(n+1), uuid.UUID{byte(n + 1)}
		s.Shards[name] = move.Shard{Domain: fmt.Sprint("n", n%3+1), Volume: volume, Alive: true}
		m := placement.Member{Shard: name, VolumeUUID: volume, RaftID: id, Role: placement.Learner}
		s.Progress[id] = move.Progress{Active: true}
		if n < 3 {
			m.Role = placement.Voter
		}
		if n < 3 || slices.Contains(ready, id) {
			s.Progress[id] = move.Progress{Match: 5000, Replicating: true, Active: true}
		}
		s.Members = append(s.Members, m)
	}
	return s
}

func TestDecideKeepsDomains(t *testing.T) {
	away := func(s *move.State, shard string) {
		s.Shards[shard] = move.Shard{Domain: s.Shards[shard].Domain}
		for _, m := range s.Members {
			if m.Shard == shard {
				s.Progress[m.RaftID] = move.Progress{}
			}
		}
	}
	for name, c := range map[string]struct {
		ready  []uint64
		change func(*move.State)
		want   move.Kind
		id     uint64
		ids    []uint64
	}{
		"a learner takes the place in its domain": {ready: []uint64{6}, want: move.Replace, id: 3, ids: []uint64{6}},
		"also where another voter is silent": {ready: []uint64{6}, change: func(s *move.State) {
			away(s, "b")
		}, want: move.Replace, id: 3, ids: []uint64{6}},
		"and where its voter is silent": {ready: []uint64{6}, change: func(s *move.State) {
			away(s, "c")
		}, want: move.Replace, id: 3, ids: []uint64{6}},
		"the leader leaves last":         {ready: []uint64{4}, want: move.Nothing},
		"another voter leaves before it": {ready: []uint64{4, 5}, want: move.Replace, id: 2, ids: []uint64{5}},
		"it does not wait for shards that are away": {ready: []uint64{4}, change: func(s *move.State) {
			away(s, "y")
			away(s, "z")
		}, want: move.TransferLeader, id: 2},
		"shards without a domain are domains of their own": {ready: []uint64{4}, change: func(s *move.State) {
			for name, shard := range s.Shards {
				shard.Domain = ""
				s.Shards[name] = shard
			}
		}, want: move.Replace, id: 2, ids: []uint64{4}},
		"two in one domain are moved apart first": {ready: []uint64{5}, change: func(s *move.State) {
			s.Shards["c"] = move.Shard{Domain: "n1", Volume: s.Shards["c"].Volume, Alive: true}
		}, want: move.Replace, id: 3, ids: []uint64{5}},
		"so that the leader does not wait": {ready: []uint64{6}, change: func(s *move.State) {
			s.Shards["b"] = move.Shard{Domain: "n3", Volume: s.Shards["b"].Volume, Alive: true}
			s.Shards["z"] = move.Shard{Domain: "n4", Volume: s.Shards["z"].Volume, Alive: true}
			s.Self, s.Target, s.Conf.Learners = 2, []string{"c", "z", "x"}, []uint64{4, 6}
			s.Members = slices.Delete(s.Members, 4, 5)
		}, want: move.TransferLeader, id: 3},
		"a missing copy comes in a free domain": {ready: []uint64{5, 6}, change: func(s *move.State) {
			s.Conf.Voters, s.Members = []uint64{1, 2}, slices.Delete(s.Members, 2, 3)
		}, want: move.Promote, ids: []uint64{6}},
		"or in another rather than not at all": {ready: []uint64{5}, change: func(s *move.State) {
			s.Conf.Voters, s.Members = []uint64{1, 2}, slices.Delete(s.Members, 2, 3)
		}, want: move.Promote, ids: []uint64{5}},
		"of too many that one goes which is in another's domain": {change: func(s *move.State) {
			s.Conf.Voters, s.Conf.Learners, s.Target = []uint64{1, 2, 3, 5}, nil, []string{"a", "y", "x"}
			s.Members[4].Role = placement.Voter
			s.Members = slices.Delete(s.Members[:5], 3, 4)
			s.Progress[5] = s.Progress[1]
			away(s, "x")
		}, want: move.RemoveMember, id: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := poolsState(c.ready...)
			if c.change != nil {
				c.change(&s)
			}
			a := move.Decide(s)
			if a.Kind != c.want || a.ID != c.id || !slices.Equal(a.IDs, c.ids) {
				t.Fatalf("%v, id %d, ids %v; want %v, %d, %v", a, a.ID, a.IDs, c.want, c.id, c.ids)
			}
			checkChange(t, a)
		})
	}
}
