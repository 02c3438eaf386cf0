package move_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/move"
	"sheaf.dev/sheaf/internal/placement"
)

// The model has up to six shards in failure domains. Each shard has its first volume, or a second one that replaced the
// first, so there are twelve possible replicas. Between two of the leader's steps, the leader may change, a learner may
// catch up, a shard may fall silent or return, a volume may be replaced, and the target may change. Every reachable
// state is checked.

const (
	shards = 6
	slots  = 2 * shards // slot n is the replica of shard n/2 on its volume n%2
)

// These are the roles of a replica, in the configuration and in etcd.
const (
	none byte = iota
	learner
	voter
)

// world is one state of the model. Worlds can be compared with ==.
type world struct {
	conf, etcd [slots]byte
	caught     [slots]bool // whether the replica is a learner that has caught up
	volume     [shards]byte
	silent     [shards]bool
	leader     int8
	target     int8 // index in the model's targets
	// The numbers of events of each kind that may still happen:
	retargets, silences, swaps int8
}

func shardName(s int) string { return string(rune('a' + s)) }

func slotID(slot int) uint64 { return uint64(2*slot + 1) }

func volumeOf(slot int) uuid.UUID { return uuid.UUID{1, byte(slot)} }

const freshID = 999

func (w *world) gone(slot int) bool { return w.volume[slot/2] != byte(slot%2) }

func (w *world) up(slot int) bool { return !w.gone(slot) && !w.silent[slot/2] }

func (w *world) well(slot int) bool {
	return w.up(slot) && (w.conf[slot] == voter || w.conf[slot] == learner && w.caught[slot])
}

// voters returns the number of all voters, and the number of healthy ones.
func (w *world) voters() (all, well int) {
	for slot, role := range w.conf {
		if role == voter {
			all++
			if w.well(slot) {
				well++
			}
		}
	}
	return all, well
}

// leads reports whether the leader and a majority of the voters are healthy.
func (w *world) leads() bool {
	all, well := w.voters()
	return well >= all/2+1 && w.conf[w.leader] == voter && w.well(int(w.leader))
}

func (w *world) state(m *model) move.State {
	s := move.State{
		Self: slotID(int(w.leader)), Conf: &raftpb.ConfState{}, Last: 5000, Progress: map[uint64]move.Progress{},
		Target: m.targets[w.target], Shards: map[string]move.Shard{}, FreshID: freshID, LearnersMax: -1,
	}
	for slot, role := range w.conf {
		id := slotID(slot)
		switch role {
		case voter:
			s.Conf.Voters = append(s.Conf.Voters, id)
		case learner:
			s.Conf.Learners = append(s.Conf.Learners, id)
		}
		p := move.Progress{Match: 0, Active: w.up(slot)}
		if w.conf[slot] == voter || w.caught[slot] {
			p.Match, p.Replicating = 4500, w.up(slot)
		}
		s.Progress[id] = p
		if w.etcd[slot] != none {
			member := placement.Member{Shard: shardName(slot / 2), VolumeUUID: volumeOf(slot), RaftID: id}
			if w.etcd[slot] == learner {
				member.Role = placement.Learner
			}
			s.Members = append(s.Members, member)
		}
	}
	for i := range len(m.domains) {
		shard := move.Shard{Domain: m.domains[i : i+1]}
		if !w.silent[i] {
			shard.Volume, shard.Alive = volumeOf(2*i+int(w.volume[i])), true
		}
		s.Shards[shardName(i)] = shard
	}
	return s
}

// slotOf returns the number of a member's replica, which is its position in the arrays of a world.
func slotOf(m placement.Member) int { return int(m.VolumeUUID[1]) }

// take applies one step that the leader takes. The error names the rule that the step breaks.
func (w world) take(a move.Action, m *model) (world, error) {
	before := w
	switch a.Kind {
	case move.RecordMembers:
		w.etcd = [slots]byte{}
		for _, member := range a.Members {
			slot := slotOf(member)
			if w.etcd[slot] != none {
				return w, fmt.Errorf("etcd would name the replica on shard %s twice", member.Shard)
			}
			w.etcd[slot] = voter
			if member.Role == placement.Learner {
				w.etcd[slot] = learner
			}
		}
		for slot, role := range w.conf {
			if role != none && w.etcd[slot] == none {
				return w, fmt.Errorf("etcd would forget a member on shard %s", shardName(slot/2))
			}
		}
	case move.TransferLeader:
		to := int(a.ID / 2)
		if w.conf[to] != voter || !w.well(to) || to == int(w.leader) {
			return w, fmt.Errorf("the lead would go to %d, which cannot take it", a.ID)
		}
		w.leader = int8(to)
	default:
		for _, change := range a.Change().GetChanges() {
			slot := int(change.GetNodeId() / 2)
			switch {
			case change.GetType() == raftpb.ConfChangeRemoveNode && slot == int(w.leader):
				return w, fmt.Errorf("the leader would remove itself")
			case change.GetType() == raftpb.ConfChangeRemoveNode:
				w.conf[slot], w.caught[slot] = none, false
			case w.etcd[slot] == none:
				return w, fmt.Errorf("a member would be added that etcd does not know")
			case change.GetType() == raftpb.ConfChangeAddLearnerNode:
				w.conf[slot] = learner
			case w.conf[slot] != learner || !w.well(slot):
				return w, fmt.Errorf("a replica would become a voter that is not caught up")
			default:
				w.conf[slot] = voter
			}
		}
		return w, errors.Join(w.checkChange(&before, len(m.targets[w.target])), w.checkDomains(&before, m))
	}
	return w, nil
}

// checkChange checks that after a change a majority of the voters has caught up, and that the number of caught-up
// voters is at least a majority of the copies. If there were fewer before, their number must not have decreased.
func (w *world) checkChange(before *world, copies int) error {
	all, well := w.voters()
	_, had := before.voters()
	if well < all/2+1 || well < min(had, copies/2+1) {
		return fmt.Errorf("%d of %d voters would be caught up, %d were", well, all, had)
	}
	return nil
}

// next yields the states that may follow without any step by the leader.
func (w world) next(m *model, yield func(world)) {
	for slot := range slots {
		if w.conf[slot] == voter && w.well(slot) && slot != int(w.leader) {
			n := w
			n.leader = int8(slot)
			yield(n)
		}
		if w.conf[slot] == learner && !w.caught[slot] && w.up(slot) {
			n := w
			n.caught[slot] = true
			yield(n)
		}
	}
	for i := range m.targets {
		if w.retargets > 0 && i != int(w.target) {
			n := w
			n.target, n.retargets = int8(i), w.retargets-1
			yield(n)
		}
	}
	for s := range len(m.domains) {
		if w.silences > 0 || w.silent[s] {
			n := w
			n.silent[s] = !w.silent[s]
			if n.silent[s] {
				n.silences--
			}
			yield(n)
		}
		if w.swaps > 0 && w.volume[s] == 0 {
			n := w
			n.volume[s], n.swaps = 1, w.swaps-1
			yield(n)
		}
	}
}

// settles checks that the leader's steps come to an end if no event happens except learners catching up.
func (w world) settles(m *model, known map[world]bool) error {
	var path []world
	for step := 0; !known[w]; step++ {
		if step > 60 {
			return fmt.Errorf("the steps go round in a circle")
		}
		path = append(path, w)
		a := move.Decide(w.state(m))
		if a.Kind != move.Nothing {
			n, err := w.take(a, m)
			if err != nil {
				return fmt.Errorf("%v: %w", a, err)
			}
			w = n
			continue
		}
		if slot := slices.IndexFunc(slotsAll, func(s int) bool {
			return w.conf[s] == learner && !w.caught[s] && w.up(s)
		}); slot >= 0 {
			w.caught[slot] = true
			continue
		}
		if err := w.checkEnd(a, m.targets[w.target]); err != nil {
			return fmt.Errorf("%v: %w", a, err)
		}
		break
	}
	for _, p := range path {
		known[p] = true
	}
	return nil
}

var slotsAll = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}

// checkEnd checks that there is nothing left to do, or that an absent shard blocks the rest.
func (w *world) checkEnd(a move.Action, target []string) error {
	arrived := true
	for s := range shards {
		slot := 2*s + int(w.volume[s])
		if w.silent[s] && w.conf[slot] == none {
			slot ^= 1 // the leader cannot know yet that the silent shard's volume was replaced
		}
		wanted := slices.Contains(target, shardName(s))
		if (w.conf[slot] == voter) != wanted || w.conf[slot] == learner || w.conf[slot^1] != none || w.etcd[slot^1] != none {
			arrived = false
		}
		if w.conf[slot] != w.etcd[slot] {
			return fmt.Errorf("etcd and the membership of shard %s differ", shardName(s))
		}
	}
	if a.Done != arrived {
		return fmt.Errorf("done is %t, at the target is %t", a.Done, arrived)
	}
	if first := int(target[0][0] - 'a'); arrived && !w.silent[first] && int(w.leader)/2 != first {
		return fmt.Errorf("shard %s leads instead of %s", shardName(int(w.leader)/2), target[0])
	}
	if slices.Contains(w.silent[:], true) || arrived {
		return nil // the group waits for the silent shard
	}
	return fmt.Errorf("nothing bars the way, and nothing is done")
}

func (w *world) String() string {
	return fmt.Sprintf("conf %v etcd %v caught %v volumes %v silent %v leader %d target %d", w.conf, w.etcd, w.caught,
		w.volume, w.silent,
		w.leader, w.target)
}

func TestEveryStateLeadsToTheTarget(t *testing.T) {
	start := func(voters ...int) (w world) {
		for _, s := range voters {
			w.conf[2*s], w.etcd[2*s] = voter, voter
		}
		w.leader = int8(2 * voters[0])
		w.retargets = 2
		return w
	}
	for name, c := range map[string]struct {
		from   world
		model  model
		faults func(*world)
	}{
		"one copy": {start(0), model{[][]string{{"a"}, {"b"}, {"c"}}, "1123"}, func(w *world) { w.silences = 1 }},
		"three copies": {
			start(0, 1, 2), model{[][]string{{"a", "b", "c"}, {"d", "b", "a"}, {"b", "c", "d"}, {"c", "a", "d"}}, "1234"},
			func(w *world) { w.silences = 2 },
		},
		"three copies and a volume that is replaced": {
			start(0, 1, 2), model{[][]string{{"a", "b", "c"}, {"d", "b", "a"}}, "1234"}, func(w *world) {
				w.swaps, w.retargets = 1, 1
			},
		},
		"a volume that is replaced while another shard is silent": {
			start(0, 1, 2), model{[][]string{{"a", "b", "c"}, {"d", "b", "a"}}, "1234"},
			func(w *world) { w.swaps, w.silences, w.retargets = 1, 1, 1 },
		},
		"from one copy to three and back": {
			start(0), model{[][]string{{"a", "b", "c"}, {"b"}, {"c", "d", "b"}}, "1231"}, func(w *world) { w.silences = 1 },
		},
		"to another pool in the same domains, and back": {
			start(0, 1, 2), model{[][]string{{"a", "b", "c"}, {"d", "e", "f"}}, "123231"}, func(w *world) { w.silences = 1 },
		},
		"to another pool, while a volume is replaced": {
			start(0, 1, 2), model{[][]string{{"a", "b", "c"}, {"d", "e", "f"}}, "123123"}, func(w *world) {
				w.swaps, w.retargets = 1, 1
			},
		},
		"half to other domains": {
			start(0, 1, 2), model{[][]string{{"a", "b", "c"}, {"d", "e", "a"}, {"e", "b", "a"}}, "12323"}, func(w *world) {
				w.silences = 1
			},
		},
		"out of a domain that two copies share": {
			start(0, 1, 2), model{[][]string{{"a", "c", "e"}, {"f", "d", "b"}}, "112233"}, func(w *world) { w.silences = 1 },
		},
		"to a target that shares a domain": {
			start(0, 1, 2), model{[][]string{{"d", "e", "f"}, {"a", "b", "c"}}, "123112"}, func(w *world) { w.silences = 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.faults(&c.from)
			explore(t, c.from, &c.model)
		})
	}
}

func explore(t *testing.T, from world, m *model) {
	seen, settled := map[world]bool{from: true}, map[world]bool{}
	queue := []world{from}
	steps := map[move.Kind]int{}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		add := func(n world) {
			if !seen[n] {
				seen[n] = true
				queue = append(queue, n)
			}
		}
		w.next(m, add)
		if !w.leads() {
			continue // without a leader that has a majority, nobody calls Decide
		}
		a := move.Decide(w.state(m))
		steps[a.Kind]++
		if a.Kind != move.Nothing {
			n, err := w.take(a, m)
			if err != nil {
				t.Fatalf("%v\n%v: %v", &w, a, err)
			}
			add(n)
		}
		if err := w.settles(m, settled); err != nil {
			t.Fatalf("from %v\n%v", &w, err)
		}
	}
	t.Logf("%d states, steps %v", len(seen), steps)
	if len(seen) < 100 {
		t.Fatalf("only %d states: the model does not run", len(seen))
	}
}
